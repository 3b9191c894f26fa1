//! tests/run on a machine that lacks what the tests need: it says so before it builds anything.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output};

use crate::support::manifests::read;

/// What Debian's essential packages have, and the script uses before it knows what is there.
const ESSENTIAL: [&str; 9] = [
    "sh", "dirname", "grep", "sed", "sort", "head", "id", "env", "tr",
];

/// A machine with these commands beside the essential ones: each a script.
fn machine(commands: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let programs = folder.path().join("bin");
    std::fs::create_dir_all(folder.path().join("tests")).unwrap();
    std::fs::create_dir(&programs).unwrap();
    let script = |path: &Path, text: &str| {
        std::fs::write(path, text).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    };
    script(&folder.path().join("tests/run"), &read("tests/run"));
    for name in ESSENTIAL {
        let place = ["/bin", "/usr/bin"]
            .map(|folder| Path::new(folder).join(name))
            .into_iter()
            .find(|place| place.exists());
        symlink(place.unwrap(), programs.join(name)).unwrap();
    }
    for (name, text) in commands {
        script(&programs.join(name), &format!("#!/bin/sh\n{text}\n"));
    }
    folder
}

/// What tests/run says there, after it failed and left nothing behind.
fn refused(machine: &tempfile::TempDir) -> (String, String) {
    let mut run = Command::new("/bin/sh");
    run.arg("tests/run")
        .current_dir(machine.path())
        .env_clear()
        .env("PATH", machine.path().join("bin"));
    let Output {
        status,
        stdout,
        stderr,
    } = run.output().unwrap();
    let said = String::from_utf8(stdout).unwrap();
    let why = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(1), "{said}{why}");
    assert!(
        !machine.path().join("target").exists(),
        "something was built: {said}{why}"
    );
    (said, why)
}

#[test]
fn what_is_missing_or_too_old_is_named_before_anything_is_built() {
    let go = "[ \"$1\" = version ] && echo go version go1.19.8 linux/amd64";
    let cargo = "echo cargo 1.87.0";
    let (said, why) = refused(&machine(&[
        ("go", go),
        ("cargo", cargo),
        ("node", "echo v20.1.0"),
        ("protoc", "echo libprotoc 30.2"),
    ]));
    assert_eq!(said, "");
    for line in [
        "  cargo 1.88 or later (here is 1.87.0) from https://rustup.rs\n",
        "  go 1.26 or later (here is 1.19.8) (in Debian: golang-go)\n",
        "  javac 17 or later (in Debian: default-jdk-headless)\n",
        "  npm (in Debian: npm)\n",
        "  venv (in Debian: python3-venv)\n",
    ] {
        assert!(why.contains(line), "{line}{why}");
    }
    assert!(!why.contains("node") && !why.contains("protoc"), "{why}");
}

#[test]
fn only_packages_of_what_is_missing_are_asked_of_apt_and_its_failure_is_told() {
    let apt = "echo \"apt-get $*\"; exit 1";
    let (said, why) = refused(&machine(&[
        ("apt-get", apt),
        ("npm", "echo 10.2.0"),
        ("id", "echo 0"),
        ("cargo", "echo cargo 1.95.0"),
    ]));
    let (first, rest) = said.split_once('\n').unwrap();
    let packages: Vec<&str> = first
        .strip_prefix("tests/run: installing ")
        .unwrap()
        .split(' ')
        .collect();
    assert!(
        packages.contains(&"golang-go")
            && packages.contains(&"libprotobuf-dev")
            && !packages.contains(&"npm"),
        "{first}"
    );
    assert_eq!(rest, "apt-get update -qq\n");
    assert!(
        why.contains("  go 1.26 or later (in Debian: golang-go)\n") && !why.contains("cargo"),
        "{why}"
    );
}

/// As a Go before 1.21 leaves a newer one that it has fetched: nothing may be executed, and go.mod has another name.
#[test]
fn a_go_that_is_too_old_fetches_one_that_is_not() {
    let module = tempfile::tempdir().unwrap();
    for folder in ["bin", "pkg/tool/linux_amd64", "src/cmd"] {
        std::fs::create_dir_all(module.path().join(folder)).unwrap();
    }
    for (file, text) in [
        (
            "bin/go",
            "#!/bin/sh\necho go version go1.26.8 linux/amd64\n",
        ),
        ("pkg/tool/linux_amd64/link", ""),
        ("src/_go.mod", "module std\n"),
        ("src/cmd/_go.mod", "module cmd\n"),
    ] {
        std::fs::write(module.path().join(file), text).unwrap();
    }
    let go = format!(
        "case \"$1 $2\" in\n'version ') echo go version go1.19.8 linux/amd64 ;;\n'env GOOS') echo linux ;;\n'env GOARCH') echo amd64 ;;\n\
         'mod download') [ \"$4\" = golang.org/toolchain@v0.0.1-go1.26.8.linux-amd64 ] && printf '{{\\n\\t\"Dir\": \"%s\",\\n}}\\n' '{}' ;;\n\
         *) exit 2 ;;\nesac",
        module.path().display()
    );
    let tools = ["chmod", "cp"].map(|tool| (tool, format!("exec /bin/{tool} \"$@\"")));
    let (_, why) = refused(&machine(&[
        ("go", &go),
        (tools[0].0, &tools[0].1),
        (tools[1].0, &tools[1].1),
    ]));
    assert!(
        why.contains("  npm (in Debian: npm)\n") && !why.contains("golang-go"),
        "{why}"
    );
    assert_eq!(
        std::fs::read_to_string(module.path().join("src/cmd/go.mod")).unwrap(),
        "module cmd\n"
    );
}
