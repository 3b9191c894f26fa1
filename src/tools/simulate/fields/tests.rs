//! Lines of each format of logs, and lines that are of none.

use super::*;

const LINE: &[u8] =
    br#"192.0.2.7 - alice [10/Oct/2000:13:55:36 -0700] "GET /a/b?c=d HTTP/1.1" 200 2326 "-" "Mozilla \"x\" y""#;

fn cut(format: &str, sample: &[&[u8]], line: &[u8], names: &[&str]) -> Result<Vec<String>, String> {
    let mut fields = Fields::new(&Format::parse(format)?, sample)?;
    let wanted = names
        .iter()
        .map(|name| fields.want(name))
        .collect::<Result<Vec<usize>, String>>()?;
    let mut values = Values::default();
    fields.cut(line, &mut values)?;
    Ok(wanted
        .iter()
        .map(|index| String::from_utf8_lossy(fields.value(*index, line, &values)).into_owned())
        .collect())
}

#[test]
fn a_combined_line_is_cut() {
    let names = [
        "remote_addr",
        "remote_user",
        "time_local",
        "request_method",
        "uri",
        "args",
        "status",
        "http_referer",
    ];
    let expected = [
        "192.0.2.7",
        "alice",
        "10/Oct/2000:13:55:36 -0700",
        "GET",
        "/a/b",
        "c=d",
        "200",
        "",
    ];
    assert_eq!(cut("combined", &[], LINE, &names).unwrap(), expected);
    assert_eq!(
        cut("common", &[], LINE, &names[..7]).unwrap(),
        expected[..7]
    );
    assert_eq!(
        cut("combined", &[], LINE, &["http_user_agent", "request"]).unwrap(),
        [r#"Mozilla \"x\" y"#, "GET /a/b?c=d HTTP/1.1"]
    );
}

#[test]
fn lines_that_are_not_of_the_format_say_why() {
    for line in [
        "",
        "nonsense",
        "192.0.2.7 - alice [10/Oct/2000:13:55:36 -0700] \"GET / HTTP/1.1",
        "{}",
    ] {
        assert!(
            cut("combined", &[], line.as_bytes(), &["status"]).is_err(),
            "{line}"
        );
    }
}

#[test]
fn a_log_format_of_nginx_is_cut() {
    let format = r#"{"t":"$time_iso8601","ip":"${remote_addr}","q":"$request_uri"}"#;
    let line = br#"{"t":"2000-10-10T13:55:36+00:00","ip":"192.0.2.7","q":"/x?y"}"#;
    assert_eq!(
        cut(
            format,
            &[],
            line,
            &["time_iso8601", "remote_addr", "uri", "args"]
        )
        .unwrap()[1..],
        ["192.0.2.7", "/x", "y"]
    );
    assert!(
        Format::parse("$a$b")
            .unwrap_err()
            .contains("nothing stands between $a and $b")
    );
    assert!(
        Format::parse("combinde")
            .unwrap_err()
            .contains("is not a format; write combined")
    );
    assert!(
        Format::parse("$ x")
            .unwrap_err()
            .contains("names no variable")
    );
    assert!(Format::parse("$a $a").unwrap_err().contains("twice"));
}

#[test]
fn fields_of_json_are_found_at_any_level_and_of_any_kind() {
    let line = br#"{"ts":1646861401.52,"request":{"remote_ip":"192.0.2.7","headers":{"X":["a"]}},"user":"a\u00e9\"","ok":true,"none":null}"#;
    let names = ["request.remote_ip", "ts", "user", "ok", "none"];
    assert_eq!(
        cut("json", &[line], line, &names).unwrap(),
        ["192.0.2.7", "1646861401.52", "aé\"", "true", ""]
    );
    assert!(
        cut("json", &[line], line, &["request.remote_op"])
            .unwrap_err()
            .contains("did you mean $request.remote_ip?")
    );
    for broken in ["", "{", "[1]", "{\"ts\":1} x", "{\"ts\":1,}", "1"] {
        assert!(
            cut("json", &[line], broken.as_bytes(), &["ts"]).is_err(),
            "{broken}"
        );
    }
    assert_eq!(cut("json", &[line], b"{}", &["ts"]).unwrap(), [""]);
}

#[test]
fn a_csv_line_is_cut_by_the_names_of_its_header() {
    let header: &[u8] = b"time,client,\"path, whole\"";
    let line = b"1,192.0.2.7,\"/a \"\"b\"\", c\"";
    assert_eq!(
        cut("csv", &[header], line, &["client", "path, whole"]).unwrap(),
        ["192.0.2.7", "/a \"b\", c"]
    );
    assert!(cut("csv", &[header], b"1,2", &["client"]).is_err());
    assert!(cut("csv", &[header], b"1,2,\"3", &["client"]).is_err());
    assert!(
        cut("csv", &[header], line, &["clinet"])
            .unwrap_err()
            .contains("did you mean $client?")
    );
    assert!(
        cut("csv", &[b"a,a"], line, &["a"])
            .unwrap_err()
            .contains("twice")
    );
}

#[test]
fn a_name_that_is_far_from_all_lists_them() {
    let error = cut("common", &[], LINE, &["tenant_id"]).unwrap_err();
    assert!(
        error.contains("there are $args, $body_bytes_sent, $remote_addr"),
        "{error}"
    );
}
