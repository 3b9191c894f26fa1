//! Rows of wrong settings: names that are not settings, and values that no setting can have.

use super::Row;

/// What is not a setting.
pub(super) const NAMES: &[Row] = &[
    (
        "check {file} --set foo=bar",
        "",
        1,
        &[
            "flags and environment: 1 error\n  foo is not a setting; ",
            "--print",
            "(flag --set foo)",
        ],
    ),
    (
        "check {file} --set stor.url=x",
        "",
        1,
        &[
            "stor.url is not a setting; did you mean store.url? (flag --set stor.url)",
            "!(line",
        ],
    ),
    (
        "check {file} --set deadline=50ms",
        "",
        1,
        &["deadline is not a setting; did you mean store.deadline? (flag --set deadline)"],
    ),
    (
        "check {file} --set store.tls_ca_file=/ca",
        "",
        1,
        &["store.tls_ca_file is not a setting; did you mean store.tls.ca_file?"],
    ),
    (
        "check {file} --set key_file=/k",
        "",
        1,
        &["did you mean listen.tls.key_file or store.tls.key_file?"],
    ),
    (
        "check {file} --set store=redis://h",
        "",
        1,
        &[
            "store is not a setting; there are store.url, ",
            "(flag --set store)",
            "!(line",
        ],
    ),
    (
        "check {file} --set store.tls.xyz=1",
        "",
        1,
        &[
            "there are store.tls.ca_file, store.tls.cert_file, ",
            "!store.url",
        ],
    ),
    (
        "check {file} --set plan.free.shadow=true",
        "",
        1,
        &["did you mean plans.free.shadow? (flag --set plan.free.shadow)"],
    ),
    (
        "check {file} --set plans.free.shadw=true",
        "",
        1,
        &[
            "did you mean shadow? (flag --set plans.free.shadw)",
            "!(line",
        ],
    ),
    (
        "check {file} --set plans.free.limts[0].quota=5",
        "",
        1,
        &["did you mean limits? (flag --set plans.free.limts[0].quota)"],
    ),
    (
        "check {file} --set store.deadline",
        "",
        1,
        &["store.deadline has no value; write --set store.deadline=VALUE (flag"],
    ),
    (
        "check {file} --set =50ms",
        "",
        1,
        &["write PATH=VALUE, such as --set store.deadline=50ms (flag --set)"],
    ),
    (
        "check {file} --set workers.a=1",
        "",
        1,
        &["workers.a is not a setting; ", "(flag --set workers.a)"],
    ),
    (
        "check {file} --set c4naRyPassw0rd==",
        "",
        1,
        &["write PATH=VALUE", "(flag --set)", "!c4naRy"],
    ),
    (
        "check {file}",
        "TOLLGATE_STORE_URL=x",
        1,
        &[
            "flags and environment: 1 error\n  the variable TOLLGATE_STORE_URL is not a setting; write TOLLGATE_STORE__URL, with __ between",
            "levels (environment)",
            "!(line",
        ],
    ),
    (
        "check {file}",
        "TOLLGATE_STORE__TLS_CA_FILE=/ca",
        1,
        &[
            "TOLLGATE_STORE__TLS_CA_FILE is no",
            "write TOLLGATE_STORE__TLS__CA_FILE",
        ],
    ),
    (
        "check {file}",
        "TOLLGATE_STORE__DEADLIN=1s",
        1,
        &["did you mean TOLLGATE_STORE__DEADLINE? (environment)"],
    ),
    (
        "check {file}",
        "TOLLGATE_DEADLINE=1s",
        1,
        &["did you mean TOLLGATE_STORE__DEADLINE?"],
    ),
    (
        "check {file}",
        "TOLLGATE_PLAN__FREE__SHADOW=true",
        1,
        &["did you mean TOLLGATE_PLANS__FREE__SHADOW?"],
    ),
    (
        "check {file}",
        "TOLLGATE_LOGLEVEL=debug",
        1,
        &["did you mean TOLLGATE_LOG_LEVEL?"],
    ),
    (
        "check {file}",
        "tollgate_store__url=x",
        1,
        &["the variable tollgate_store__url is not a setting; write TOLLGATE_STORE__URL"],
    ),
    (
        "check {file}",
        "TOLLGATE_STORE=redis://h",
        1,
        &[
            "TOLLGATE_STORE is not a setting",
            "such as TOLLGATE_STORE__URL",
            "!(line",
        ],
    ),
    (
        "serve --config {file} --set listen.admin=unix:{file}",
        "",
        1,
        &[
            "something that is no socket has this name",
            "(listen.admin)",
        ],
    ),
    (
        "serve --config {file} --listen {taken}",
        "TOLLGATE_FOO=1",
        2,
        &["the variable TOLLGATE_FOO is not a setting; remove it"],
    ),
];

/// What no setting can be.
pub(super) const VALUES: &[Row] = &[
    (
        "check {file} --set store.deadline=50",
        "",
        1,
        &["a number without a unit; ", "(flag --set store.deadline)"],
    ),
    (
        "check {file} --set store.deadline=1~second",
        "",
        1,
        &[
            "a space between a number and its unit",
            "such as 1s",
            "!without a unit",
        ],
    ),
    (
        "check {file}",
        "TOLLGATE_STORE__DEADLINE=1M",
        1,
        &["minutes or months", "(variable TOLLGATE_STORE__DEADLINE)"],
    ),
    (
        "check {file} --set workers=1025",
        "",
        1,
        &["workers is 1025; it is 0 to 1024", "(flag --set workers)"],
    ),
    (
        "check {file} --set plans.free.limits[0].quota=0",
        "",
        1,
        &[
            "a quota is at least 1",
            "(flag --set plans.free.limits[0].quota)",
        ],
    ),
    (
        "check {file} --set plans.free.unlimited=true",
        "",
        1,
        &[
            "plans.free has several rules",
            "; flag --set plans.free.unlimited)",
        ],
    ),
    (
        "check {file} --set plans.fre.shadow=true",
        "",
        1,
        &[
            "plans.fre has no rule",
            "(flag --set plans.fre.shadow)",
            "!(line",
        ],
    ),
    (
        "check {file} --set plans.free.limits[900].quota=1",
        "",
        1,
        &[
            "a place in a list above 255",
            "(flag --set plans.free.limits[900]",
        ],
    ),
    (
        "check {file} --set default_plan=nope",
        "",
        1,
        &[
            "default_plan is \"nope\", which is not a plan",
            "(flag --set default_plan)",
            "!free",
        ],
    ),
    (
        "check {file} --set default_plan=fre",
        "",
        1,
        &["did you mean \"free\"? (flag --set default_plan)"],
    ),
    (
        "check {file} --store nonsense",
        "",
        1,
        &[
            "store.url is not a URL",
            "write memory:, ",
            "(flag --store)",
        ],
    ),
    (
        "check {file} --store localhost:6379",
        "",
        1,
        &["write memory:, ", "(flag --store)"],
    ),
    (
        "check {file} --store redis-sentinel://h",
        "",
        1,
        &["sentinelServiceName=NAME", "(flag --store)"],
    ),
    (
        "check {file} --store redis-cluster://h?nodes=a:1",
        "",
        1,
        &["did you mean node?", "(flag --store)"],
    ),
    (
        "check {file} --listen 50051",
        "",
        1,
        &[
            "\"50051\" is not an address; write host:port",
            "(flag --listen)",
        ],
    ),
    (
        "check {file} --listen 0.0.0.0:50051",
        "",
        1,
        &[
            "which other hosts can reach",
            "--plaintext",
            "(flag --listen)",
        ],
    ),
    (
        "check {file} --listen h:7 --plaintext --set listen.http=h:7",
        "",
        1,
        &[
            "listen.http is h:7, where listen.grpc[0] listens already",
            "(flag --set listen.http)",
        ],
    ),
    (
        "check {file} --listen 127.0.0.1:7 --listen 127.0.0.1:7",
        "",
        1,
        &["listen.grpc[1] is 127.0.0.1:7, where listen.grpc[0] listens"],
    ),
    (
        "check {file} --set listen.admin=127.0.0.1:1",
        "",
        1,
        &["name listen.admin_token_file", "(flag --set listen.admin)"],
    ),
    (
        "check {file} --log-level loud",
        "",
        2,
        &["--log-level is \"loud\"; it must be error, warn, info"],
    ),
    (
        "check {file} --log-format xml",
        "",
        2,
        &["'xml'", "--log-format", "human, json"],
    ),
    (
        "serve --config {file} --set listen.admin=unix:{file}",
        "",
        1,
        &[
            "something that is no socket has this name",
            "(listen.admin)",
        ],
    ),
    (
        "serve --config {file} --listen {taken}",
        "",
        1,
        &[
            "cannot listen at {taken}",
            "another process listens there",
            "(listen.grpc)",
        ],
    ),
];
