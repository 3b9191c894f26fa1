//! The examples of ratelimit's README, with the same keys, values and limits, in a shorter notation.

/// Each with its number, and how many rules it needs. Example 4 shows two configs.
pub(super) const EXAMPLES: [(&str, usize, &str); 12] = [
    (
        "1",
        2,
        "
domain: mongo_cps
descriptors:
  - { key: database, value: users, rate_limit: { unit: second, requests_per_unit: 500 } }
  - { key: database, value: default, rate_limit: { unit: second, requests_per_unit: 500 } }
",
    ),
    (
        "2",
        2,
        "
domain: messaging
descriptors:
  - key: message_type
    value: marketing
    descriptors: [ { key: to_number, rate_limit: { unit: day, requests_per_unit: 5 } } ]
  - { key: to_number, rate_limit: { unit: day, requests_per_unit: 100 } }
",
    ),
    (
        "3",
        2,
        "
domain: edge_proxy_per_ip
descriptors:
  - { key: remote_address, rate_limit: { unit: second, requests_per_unit: 10 } }
  - { key: remote_address, value: 50.0.0.5, rate_limit: { unit: second, requests_per_unit: 0 } }
",
    ),
    (
        "4, flat",
        1,
        "
domain: example4
descriptors: [ { key: key, value: value, rate_limit: { requests_per_unit: 300, unit: second } } ]
",
    ),
    (
        "4, nested",
        1,
        "
domain: example4
descriptors:
  - key: key
    value: value
    descriptors: [ { key: subkey, rate_limit: { requests_per_unit: 300, unit: second } } ]
",
    ),
    (
        "5",
        2,
        "
domain: internal
descriptors:
  - { key: ldap, rate_limit: { unlimited: true } }
  - { key: azure, rate_limit: { unit: minute, requests_per_unit: 100 } }
",
    ),
    (
        "6",
        2,
        "
domain: example6
descriptors:
  - key: service
    descriptors:
      - { key: user, value: user-a, rate_limit: { requests_per_unit: 10, unit: second }, shadow_mode: true }
      - { key: user, value: user-b, rate_limit: { requests_per_unit: 20, unit: second } }
",
    ),
    (
        "7",
        2,
        "
domain: example7
descriptors:
  - key: key_1
    value: value_1
    descriptors:
      - { key: user, value: bkthomps, rate_limit: { name: specific_limit, requests_per_unit: 5, unit: second } }
  - key: key_2
    value: value_2
    descriptors:
      - { key: user, value: bkthomps, rate_limit: { replaces: [ { name: specific_limit } ], requests_per_unit: 10, unit: second } }
",
    ),
    (
        "8",
        2,
        "
domain: example8
descriptors:
  - { key: key1, detailed_metric: true, rate_limit: { unit: minute, requests_per_unit: 10 } }
  - { key: key1, value: value1, rate_limit: { unit: minute, requests_per_unit: 20 } }
",
    ),
    (
        "9",
        1,
        "
domain: example9
descriptors: [ { key: key1, value: value*, rate_limit: { unit: minute, requests_per_unit: 20 } } ]
",
    ),
    (
        "10",
        1,
        "
domain: example10
descriptors:
  - key: route
    value_to_metric: true
    descriptors:
      - key: http_method
        value_to_metric: true
        descriptors: [ { key: subject_id, rate_limit: { unit: minute, requests_per_unit: 60 } } ]
",
    ),
    (
        "11",
        2,
        "
domain: example11
descriptors:
  - { key: files, value: files/*, share_threshold: true, rate_limit: { unit: hour, requests_per_unit: 10 } }
  - { key: files_no_share, value: files_no_share/*, share_threshold: false, rate_limit: { unit: hour, requests_per_unit: 10 } }
",
    ),
];
