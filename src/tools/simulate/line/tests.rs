//! Requests as lines of a log tell them.

use super::*;

const LINE: &[u8] =
    br#"192.0.2.7 - - [10/Oct/2000:13:55:36 -0700] "GET /a?b HTTP/1.1" 200 2326 "-" "x""#;

fn options(format: &str, key: &str) -> LineOptions {
    let format = Format::parse(format).unwrap();
    LineOptions {
        format,
        key: key.to_owned(),
        plan: "free".to_owned(),
        cost: "1".to_owned(),
        time: None,
    }
}

fn key(format: &str, key: &str, line: &[u8]) -> Result<String, String> {
    let mut reader = LineReader::new(&options(format, key), &[line])?;
    let mut request = LineRequest::default();
    reader
        .read(line, &mut request)
        .map_err(|skipped| format!("{skipped:?}"))?;
    Ok(String::from_utf8_lossy(&request.key).into_owned())
}

#[test]
fn a_key_is_made_of_fields_and_text() {
    assert_eq!(key("combined", "$remote_addr", LINE).unwrap(), "192.0.2.7");
    assert_eq!(key("combined", "remote_addr", LINE).unwrap(), "192.0.2.7");
    assert_eq!(
        key("combined", "ip:${remote_addr}+$uri", LINE).unwrap(),
        "ip:192.0.2.7+/a"
    );
    assert_eq!(
        key("combined", "$remote_user$remote_addr", LINE).unwrap(),
        "192.0.2.7"
    );
    assert_eq!(
        key("combined", "user:$remote_user", LINE).unwrap_err(),
        "NoKey"
    );
    assert_eq!(
        key("combined", "$remote_adr", LINE).unwrap_err(),
        "--key: $remote_adr is not a field of this log; did you mean $remote_addr?"
    );
    assert!(
        key("combined", "a$", LINE)
            .unwrap_err()
            .contains("has no name after it")
    );
    let json = br#"{"time":1,"request":{"ip":"192.0.2.7"},"u":"a"}"#;
    assert_eq!(key("json", "$request.ip.$u", json).unwrap(), "192.0.2.7.a");
    assert!(
        key("json", "$request", json)
            .unwrap_err()
            .contains("is not a field")
    );
}

#[test]
fn plan_and_cost_are_fixed_or_fields() {
    let mut options = options("combined", "$remote_addr");
    let read = |options: &LineOptions| {
        let mut request = LineRequest::default();
        LineReader::new(options, &[LINE])?
            .read(LINE, &mut request)
            .map_err(|skipped| format!("{skipped:?}"))?;
        Ok::<_, String>((
            String::from_utf8_lossy(&request.plan).into_owned(),
            request.cost,
        ))
    };
    assert_eq!(read(&options).unwrap(), ("free".to_owned(), 1));
    options.cost = "$body_bytes_sent".to_owned();
    options.plan = "$status".to_owned();
    assert_eq!(read(&options).unwrap(), ("200".to_owned(), 2326));
    options.plan = "$status-$uri".to_owned();
    assert!(
        read(&options)
            .unwrap_err()
            .contains("is more than one variable")
    );
    options.plan = "free".to_owned();
    options.cost = "$uri".to_owned();
    assert!(
        read(&options)
            .unwrap_err()
            .contains("its cost is not a whole number")
    );
    for wrong in ["0", "-1", "one", ""] {
        options.cost = wrong.to_owned();
        assert!(
            read(&options).unwrap_err().contains("is not a cost"),
            "{wrong}"
        );
    }
}

#[test]
fn a_time_is_found_by_its_usual_names_or_by_the_one_given() {
    assert!(
        key("json", "$u", br#"{"when":1,"u":"a"}"#)
            .unwrap_err()
            .contains("name it with --time")
    );
    let mut options = options("json", "$u");
    options.time = Some("$when".to_owned());
    let whole = LineReader::new(
        &options,
        &[br#"{"when":1,"u":"a"}"#, br#"{"when":2,"u":"a"}"#],
    )
    .unwrap();
    assert!(whole.is_in_whole_seconds());
    let exact = LineReader::new(
        &options,
        &[br#"{"when":1,"u":"a"}"#, br#"{"when":2.5,"u":"a"}"#],
    )
    .unwrap();
    assert!(!exact.is_in_whole_seconds());
}

#[test]
fn a_format_that_no_line_is_of_is_an_error() {
    let error =
        LineReader::new(&options("combined", "$remote_addr"), &[b"one", b"two"]).unwrap_err();
    assert!(
        error.starts_with("none of the first 2 lines can be read; line 1: "),
        "{error}"
    );
    assert!(LineReader::new(&options("combined", "$remote_addr"), &[b"one", LINE]).is_ok());
    assert!(LineReader::new(&options("combined", "$remote_addr"), &[]).is_ok());
}
