//! The image of the Dockerfile, built from it as it stands by buildah, which reads `.dockerignore` and runs each line.
//!
//! No registry is asked, so a stand-in has the name of the base image: its shell is this host's, its `apk` does nothing, and its
//! `cargo build --release` checks what was copied with this host's compiler and hands out the program of the tests. What `docker
//! build` does beyond that is a release build with musl: deploy/release does the same for the same target.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Container, add_libraries, program, run};
use crate::support::manifests::{read, root};

/// Where the stand-ins lie in the base image.
const STAND_INS: &str = "/stand-ins";

fn script(path: &Path, text: &str) {
    std::fs::write(path, format!("#!/bin/sh\n{text}")).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// Where the program of the tests was built.
fn target() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_tollgate"))
        .ancestors()
        .nth(2)
        .unwrap()
}

/// The folders of this host that its compiler needs, beside those of the system.
fn compiler() -> [PathBuf; 2] {
    let home = PathBuf::from(std::env::var_os("HOME").unwrap());
    let of_cargo =
        std::env::var_os("CARGO_HOME").map_or_else(|| home.join(".cargo"), PathBuf::from);
    let sysroot = run(Command::new("rustc").args(["--print", "sysroot"]));
    [of_cargo, sysroot.into()]
}

/// What the stand-in for cargo does. Everything is as in the build of the tests, so that what they depend on is not compiled again;
/// a benchmark is checked beside the program, since it has the features of the tests' dependencies.
fn cargo() -> String {
    let [of_cargo, sysroot] = compiler();
    let settings = std::env::vars().filter(|(name, _)| {
        name.starts_with("CARGO_PROFILE_") || ["RUSTFLAGS", "CARGO_INCREMENTAL"].contains(&&**name)
    });
    let settings: String = settings
        .map(|(name, value)| format!("export {name}='{value}'\n"))
        .collect();
    format!(
        "{settings}export PATH={}/bin:$PATH CARGO_HOME={} CARGO_TARGET_DIR={}\n\
         [ \"$*\" = 'build --release --locked --bin tollgate' ] || exit 9\n\
         cargo check --quiet --offline --locked --bin tollgate --bench algorithms || exit 8\n\
         mkdir -p target/release && cp {STAND_INS}/tollgate target/release/\n",
        sysroot.display(),
        of_cargo.display(),
        target().display()
    )
}

/// Makes the stand-in for the base image.
fn make_base(container: &mut Container, name: &str) {
    let stand_ins = program();
    script(&stand_ins.path().join("apk"), "");
    script(&stand_ins.path().join("cargo"), &cargo());
    container.begin("scratch");
    run(container
        .buildah("copy")
        .arg(&container.name)
        .arg(stand_ins.path())
        .arg(STAND_INS));
    run(container.buildah("config").args([
        "--env",
        &format!("PATH={STAND_INS}:/usr/bin:/bin"),
        &container.name,
    ]));
    run(container
        .buildah("commit")
        .args(["--quiet", "--rm", &container.name, name]));
}

#[tokio::test]
async fn the_dockerfile_copies_what_the_compiler_needs_and_its_image_runs_as_nobody() {
    let dockerfile = read("Dockerfile");
    let base = dockerfile
        .lines()
        .find_map(|line| line.strip_prefix("FROM ")?.strip_suffix(" AS build"))
        .unwrap();
    let mut container = Container::new();
    make_base(&mut container, base);
    let mut build = container.buildah("build");
    build.args([
        "--isolation",
        "chroot",
        "--pull-never",
        "--format",
        "docker",
        "--quiet",
        "--tag",
        "tollgate",
    ]);
    for folder in ["/bin", "/usr", "/lib", "/lib64", "/etc"]
        .map(PathBuf::from)
        .iter()
        .filter(|folder| folder.exists())
    {
        build
            .arg("--volume")
            .arg(format!("{0}:{0}:ro", folder.display()));
    }
    for folder in compiler().iter().map(PathBuf::as_path).chain([target()]) {
        build
            .arg("--volume")
            .arg(format!("{0}:{0}", folder.display()));
    }
    run(build.arg(root()));
    container.begin("localhost/tollgate");
    let files: Vec<_> = std::fs::read_dir(container.files())
        .unwrap()
        .map(|file| file.unwrap().file_name())
        .collect();
    assert_eq!(files, ["tollgate"]);
    let config = container.inspect("Docker");
    assert_eq!(
        config["config"]["Entrypoint"],
        serde_json::json!(["/tollgate"])
    );
    let health = config["config"]["Healthcheck"]["Test"].to_string();
    assert!(
        health.starts_with("[\"CMD\",\"/tollgate\",\"health\""),
        "{config}"
    );
    add_libraries(&container.files());
    container
        .run_read_only(config["config"]["User"].as_str().unwrap())
        .await
        .assert_serves_and_stops()
        .await;
}
