//! The worked examples of docs/holds.md, each run as it is printed: by gRPC, which `tollgate try` speaks, and by HTTP.

use serde_json::Value;

use super::examples::curl;
use super::markdown::{commands, page};
use crate::support::server::{Server, tollgate};

/// Runs a command. Returns the JSON that it prints.
fn run(words: &[String], server: &Server) -> Value {
    let printed = match words[0].as_str() {
        "curl" => curl(words, &server.http()).body,
        "tollgate" => {
            let mut command = tollgate();
            command
                .args(&words[1..])
                .args(["--address", &server.address]);
            String::from_utf8(command.output().unwrap().stdout).unwrap()
        }
        other => panic!("{other} is none of the tools here"),
    };
    serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{words:?}: {error}: {printed}"))
}

/// What `jq -c '{a, b}'` prints of an object.
fn picked(filter: &[String], answer: &Value) -> String {
    assert_eq!(filter[..2], ["jq", "-c"]);
    let names = filter[2]
        .strip_prefix('{')
        .unwrap()
        .strip_suffix('}')
        .unwrap();
    let members = names
        .split(", ")
        .map(|name| format!("\"{name}\":{}", answer[name]));
    format!("{{{}}}\n", members.collect::<Vec<_>>().join(","))
}

#[test]
fn the_examples_of_holds_print_what_they_show() {
    let mut config = String::new();
    let mut blocks = 0;
    for block in page("docs/holds.md").blocks() {
        match block.info.as_str() {
            "yaml" => config = block.text.clone(),
            "console" => {
                let server = Server::start(&config, &["--set", "listen.http=127.0.0.1:0"]);
                for (words, shown) in commands(&block) {
                    let pipe = words.iter().position(|word| word == "|").unwrap();
                    let answer = run(&words[..pipe], &server);
                    assert_eq!(picked(&words[pipe + 1..], &answer), shown, "{words:?}");
                }
                blocks += 1;
            }
            other => panic!("a block is {other}"),
        }
    }
    assert_eq!(blocks, 6, "three examples, each by gRPC and by HTTP");
}
