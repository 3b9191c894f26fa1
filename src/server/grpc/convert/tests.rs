//! Callers' deadlines and durations, as gRPC writes them.

use super::*;
use tonic::metadata::MetadataMap;

fn deadline_of(text: &str) -> Result<Duration, Code> {
    let mut metadata = MetadataMap::new();
    metadata.insert("grpc-timeout", text.parse().unwrap());
    caller_deadline(&metadata)
        .map(|caller| caller.unwrap().left())
        .map_err(|status| status.code())
}

#[test]
fn a_callers_deadline_is_read_in_every_unit() {
    assert_eq!(deadline_of("100m"), Ok(Duration::from_millis(100)));
    assert_eq!(
        (deadline_of("4u"), deadline_of("0n")),
        (Ok(Duration::from_micros(4)), Ok(Duration::ZERO))
    );
    assert_eq!(
        deadline_of("99999999H"),
        Ok(Duration::from_secs(99_999_999 * 3600))
    );
    assert!(caller_deadline(&MetadataMap::new()).unwrap().is_none());
    for bad in [
        "",
        "m",
        "100",
        "100x",
        "-1m",
        "+1m",
        " 1m",
        "1 m",
        "123456789m",
    ] {
        assert_eq!(deadline_of(bad), Err(Code::InvalidArgument), "{bad}");
    }
}

#[test]
fn a_duration_keeps_every_microsecond() {
    assert_eq!(
        duration(1_500_001),
        prost_types::Duration {
            seconds: 1,
            nanos: 500_001_000
        }
    );
}
