//! URLs that are accepted, URLs that are refused, and passwords that are never shown. The password of most URLs is `canary`, so
//! that a message that repeats it is found.

use super::*;

fn parse(url: &str) -> RedisTarget {
    RedisTarget::parse(url).unwrap_or_else(|error| panic!("{url}: {error}"))
}

fn address(host: &str, port: u16) -> HostAndPort {
    HostAndPort {
        host: host.to_owned(),
        port,
    }
}

#[test]
fn every_form_is_accepted_and_shown_without_its_passwords() {
    for (url, shown) in [
        ("redis://localhost", "redis://localhost:6379"),
        ("redis://:canary@10.0.0.1:6380/3", "redis://10.0.0.1:6380/3"),
        ("redis://canary:canary@[::1]:6379", "redis://[::1]:6379"),
        ("valkeys://canary:canary@h", "rediss://h:6379"),
        ("redis+unix:///run/r.sock", "redis+unix:///run/r.sock"),
        (
            "redis+unix://:canary@x/run/r%20s.sock",
            "redis+unix:///run/r s.sock",
        ),
        (
            "rediss-sentinel://canary:canary@a/2?sentinelServiceName=m&node=b:7&node=[::1]:8&sentinelPassword=canary",
            "rediss-sentinel://a:26379,b:7,[::1]:8/2?sentinelServiceName=m",
        ),
        (
            "valkey-cluster://canary:canary@a:1?node=b:2&node=a:1",
            "redis-cluster://a:1,b:2",
        ),
        ("redis-cluster://a/0", "redis-cluster://a:6379/0"),
    ] {
        let target = parse(url);
        assert_eq!(target.to_string(), shown);
        assert_eq!(format!("{target:?}"), format!("RedisTarget({shown})"));
    }
}

#[test]
fn all_parts_of_a_url_are_kept() {
    let target = parse(
        "rediss-sentinel://us%65r:p%40ss@a:1/2?sentinelServiceName=m&node=[::1]:8&sentinelUsername=u&sentinelPassword=p",
    );
    assert_eq!((target.database, target.tls.is_some()), (Some(2), true));
    assert_eq!(target.credentials.username.as_deref(), Some("user"));
    assert!(target.credentials.password == Some(Password::Given("p@ss".to_owned())));
    let Topology::Sentinel(sentinels) = target.topology else {
        panic!("no Sentinels")
    };
    assert_eq!(sentinels.nodes, [address("a", 1), address("::1", 8)]);
    assert_eq!(
        (
            sentinels.service.as_str(),
            sentinels.credentials.username.as_deref()
        ),
        ("m", Some("u"))
    );
    assert!(sentinels.credentials.password == Some(Password::Given("p".to_owned())));
}

#[test]
fn the_error_for_a_wrong_url_says_what_would_be_right() {
    for (url, right) in [
        ("", "write redis://host:6379"),
        ("redis://", "names no host"),
        ("redis://h:99999", "is not a URL"),
        ("redis://h/x", "0 to 255"),
        ("redis://h/256", "0 to 255"),
        ("http://h", "write redis://host:6379"),
        ("redis-sentinels://h", "write redis://host:6379"),
        ("redis://h?timeout=1", "none are known"),
        ("redis+unix://", "names no socket"),
        ("redis+unix://run/redis.sock", "begins with a third slash"),
        ("rediss+unix:///run/r.sock", "write redis+unix://"),
        ("redis-sentinel://h", "add ?sentinelServiceName=NAME"),
        (
            "redis-sentinel://h?sentinelServiceName=",
            "add ?sentinelServiceName=NAME",
        ),
        (
            "redis-sentinel://h?sentinelServicename=m",
            "did you mean sentinelServiceName?",
        ),
        (
            "redis-sentinel://h?sentinelServiceName=m&sentinelServiceName=n",
            "sentinelServiceName twice",
        ),
        (
            "redis-cluster://a:6379?node=b:6379,c:6379",
            "write &node=host2:6379 for each further one",
        ),
        (
            "redis-sentinel://h?sentinelServiceName=m&node=b",
            "node=host2:6379",
        ),
        ("redis-cluster://h?node=:1", "node=host2:6379"),
        ("redis-cluster://h?sentinelServiceName=m", "there are node"),
        ("redis-cluster://h/1", "only the first"),
        ("redis://user:12#34@h", "%23"),
    ] {
        let error = RedisTarget::parse(url).unwrap_err();
        assert!(error.contains(right), "{url}: {error}");
    }
}

#[test]
fn no_error_repeats_a_password() {
    for url in [
        "redis://canary:canary@h:bad",
        "redis://user:12?canary@h",
        "redis://user:12/canary@h",
        "redis://user:12#canary@h",
        "redis-sentinel://canary:canary@h?sentinelPassword=canary",
        "redis-sentinel://h?sentinelServiceName=m&sentinelPassword=canary&sentinelPassword=canary",
        "redis-cluster://canary:canary@h?node=canary",
        "redis-cluster://h?sentinelPassword=canary",
        "redis://%ffcanary:canary@h",
    ] {
        let error = RedisTarget::parse(url).unwrap_err();
        assert!(!error.contains("canary"), "{url}: {error}");
    }
}

#[test]
fn settings_that_contradict_the_url_are_refused() {
    let mut plain = parse("redis://user:secret@h");
    assert!(
        plain
            .set_tls(RedisTls::default())
            .unwrap_err()
            .contains("rediss")
    );
    assert!(plain.set_username("other".to_owned()).is_err());
    assert!(plain.set_password_file("/p".into()).is_err());
    let mut bare = parse("rediss://h");
    assert!(bare.check().is_ok());
    bare.set_username("user".to_owned()).unwrap();
    assert!(bare.check().unwrap_err().contains("no password"));
    bare.set_password_file("/p".into()).unwrap();
    bare.set_tls(RedisTls {
        server_name: Some("n".to_owned()),
        ..RedisTls::default()
    })
    .unwrap();
    assert!(bare.check().is_ok());
    assert_eq!(
        bare.changed_settings(&parse("rediss://h/1")),
        [
            "store.url",
            "store.tls",
            "store.username or store.password_file"
        ]
    );
    assert!(
        parse("redis-sentinel://h?sentinelServiceName=m&sentinelUsername=u")
            .check()
            .is_err()
    );
}

#[test]
fn a_key_prefix_is_short_and_has_no_special_characters() {
    let mut target = parse("redis://h");
    for right in [
        "",
        "shop:",
        "team-a/Prod_2.",
        &"p".repeat(KEY_PREFIX_BYTES_MAX),
    ] {
        target.set_key_prefix(right).unwrap();
        assert_eq!(&*target.key_prefix, right);
    }
    for wrong in [
        "{",
        "a}",
        "a*",
        "a?",
        "[a]",
        "a\\",
        "a b",
        "a\n",
        "\0",
        "\u{7f}",
        "é",
        "%",
        "~",
        &"p".repeat(KEY_PREFIX_BYTES_MAX + 1),
    ] {
        assert!(target.set_key_prefix(wrong).is_err(), "{wrong:?}");
    }
    assert_eq!(
        target.changed_settings(&parse("redis://h")),
        ["store.key_prefix"]
    );
}
