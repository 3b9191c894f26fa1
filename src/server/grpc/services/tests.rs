//! The table of methods has every one of the proto files.

use prost::Message;

use super::*;

#[test]
fn every_method_of_the_rate_limit_service_has_its_kind() {
    assert_eq!(
        DECIDER,
        format!(
            "/{}/",
            crate::grpc::pb::rate_limit_service_server::SERVICE_NAME
        )
    );
    let file =
        prost_types::FileDescriptorSet::decode(crate::grpc::pb::FILE_DESCRIPTOR_SET).unwrap();
    let services = file.file.iter().flat_map(|file| &file.service);
    let paths = services.flat_map(|service| {
        let methods = service.method.iter();
        methods.map(|method| format!("/tollgate.v1.{}/{}", service.name(), method.name()))
    });
    let paths: Vec<String> = paths.collect();
    assert!(paths.len() >= 10 && paths.iter().any(|path| path.starts_with(HOLDER)));
    for path in paths {
        assert_ne!(MethodKind::from_path(&path), MethodKind::Other, "{path}");
    }
    assert_eq!(
        MethodKind::from_path("/tollgate.v1.RateLimitService/ListPlans"),
        MethodKind::List
    );
    assert_eq!(MethodKind::from_path(CHECK), MethodKind::Check);
    assert_eq!(MethodKind::from_path(WATCH), MethodKind::Watch);
    let name = envoy::pb::service::ratelimit::v3::rate_limit_service_server::SERVICE_NAME;
    assert_eq!(
        MethodKind::from_path(&format!("/{name}/ShouldRateLimit")),
        MethodKind::Envoy
    );
}
