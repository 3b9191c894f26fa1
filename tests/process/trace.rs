//! Spans of calls, as a collector gets them by OTLP.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use tokio_stream::wrappers::TcpListenerStream;
use tollgate::grpc::pb;
use tonic::{Request, Response, Status};

use crate::support::http::{ask as ask_http, get};
use crate::support::redis::free_port;
use crate::support::server::{PATIENCE, Server, request};

const PLANS: &str = "
listen: { http: '127.0.0.1:0' }
plans:
  day: { limits: [ { quota: 1, window: 300d } ] }
";
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

/// Keeps what it is sent.
#[derive(Clone, Default)]
struct Collector {
    requests: Arc<Mutex<Vec<ExportTraceServiceRequest>>>,
}

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.requests.lock().unwrap().push(request.into_inner());
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    /// Starts one; it, and its address.
    async fn start() -> (Self, String) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let collector = Self::default();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let serving = tonic::transport::Server::builder()
            .add_service(TraceServiceServer::new(collector.clone()));
        tokio::spawn(serving.serve_with_incoming(TcpListenerStream::new(listener)));
        (collector, address)
    }

    fn spans(&self) -> Vec<Span> {
        let requests = self.requests.lock().unwrap();
        let resources = requests.iter().flat_map(|request| &request.resource_spans);
        resources
            .flat_map(|resource| &resource.scope_spans)
            .flat_map(|scope| scope.spans.clone())
            .collect()
    }

    /// Waits until there are so many, no more and no less; a while longer for one too many.
    async fn wait_for(&self, count: usize) -> Vec<Span> {
        let started = Instant::now();
        while self.spans().len() < count {
            assert!(started.elapsed() < PATIENCE, "{:?}", self.spans());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(self.spans().len(), count, "{:?}", self.spans());
        self.spans()
    }
}

fn server(endpoint: &str, variables: &[(&str, &str)]) -> Server {
    let quick = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint),
        ("OTEL_BSP_SCHEDULE_DELAY", "20"),
    ];
    Server::start_in(PLANS, &[], &[&quick, variables].concat())
}

async fn ask(server: &Server, traceparent: Option<&str>) -> pb::ShouldAllowResponse {
    let mut request = Request::new(request("canary-key", "day", None));
    if let Some(traceparent) = traceparent {
        request
            .metadata_mut()
            .insert("traceparent", traceparent.parse().unwrap());
        request
            .metadata_mut()
            .insert("tracestate", "vendor=1".parse().unwrap());
    }
    server
        .client()
        .await
        .should_allow(request)
        .await
        .unwrap()
        .into_inner()
}

fn attributes(span: &Span) -> BTreeMap<&str, String> {
    let text = |value: &Value| match value {
        Value::StringValue(text) => text.clone(),
        Value::IntValue(number) => number.to_string(),
        other => format!("{other:?}"),
    };
    let value = |attribute: &opentelemetry_proto::tonic::common::v1::KeyValue| {
        attribute
            .value
            .as_ref()
            .and_then(|value| value.value.as_ref())
            .map(text)
            .unwrap_or_default()
    };
    span.attributes
        .iter()
        .map(|attribute| (attribute.key.as_str(), value(attribute)))
        .collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test]
async fn a_call_that_is_traced_is_a_span_of_its_caller_s_trace_and_others_are_none() {
    let (collector, endpoint) = Collector::start().await;
    let server = server(&endpoint, &[]);
    for not_traced in [
        None,
        Some(format!("00-{TRACE}-{PARENT}-00")),
        Some("nonsense".to_owned()),
    ] {
        ask(&server, not_traced.as_deref()).await;
    }
    ask(&server, Some(&format!("00-{TRACE}-{PARENT}-01"))).await;
    let span = &collector.wait_for(1).await[0];
    assert_eq!(
        (
            hex(&span.trace_id).as_str(),
            hex(&span.parent_span_id).as_str()
        ),
        (TRACE, PARENT)
    );
    assert_eq!(
        (span.name.as_str(), span.kind, span.trace_state.as_str()),
        ("tollgate.v1.RateLimitService/ShouldAllow", 2, "vendor=1")
    );
    assert!(span.end_time_unix_nano > span.start_time_unix_nano);
    let told = attributes(span);
    let expected = [
        ("rpc.system.name", "grpc"),
        ("rpc.method", "tollgate.v1.RateLimitService/ShouldAllow"),
        ("rpc.response.status_code", "OK"),
        ("tollgate.plan", "day"),
        ("tollgate.outcome", "denied"),
        ("tollgate.decided_by", "store"),
    ];
    for (name, value) in expected {
        assert_eq!(told.get(name).map(String::as_str), Some(value), "{told:?}");
    }
    let all = format!("{:?}", collector.requests.lock().unwrap());
    assert!(
        all.contains("\"tollgate\"") && !all.contains("canary-key"),
        "{all}"
    );
    let log = server.end_and_log();
    assert!(!log.contains(TRACE), "spans are no log lines: {log}");
}

#[tokio::test]
async fn a_check_over_http_is_a_span_too_and_a_sampler_may_begin_traces() {
    let (collector, endpoint) = Collector::start().await;
    let server = server(
        &endpoint,
        &[
            ("OTEL_TRACES_SAMPLER", "always_on"),
            ("OTEL_SERVICE_NAME", "gate-of-tests"),
        ],
    );
    let traced = format!("traceparent: 00-{TRACE}-{PARENT}-01");
    assert_eq!(
        ask_http(
            &server.http(),
            "GET",
            "/v1/check?key=k&plan=day",
            &[&traced]
        )
        .status,
        200
    );
    assert_eq!(get(&server.http(), "/v1/check?key=k&plan=day").status, 429);
    let spans = collector.wait_for(2).await;
    let codes: Vec<String> = spans
        .iter()
        .map(|span| attributes(span)["http.response.status_code"].clone())
        .collect();
    assert_eq!(codes, ["200", "429"]);
    assert_eq!(
        (
            hex(&spans[0].trace_id).as_str(),
            spans[1].parent_span_id.as_slice()
        ),
        (TRACE, [].as_slice())
    );
    assert!(format!("{:?}", collector.requests.lock().unwrap()).contains("gate-of-tests"));
}

#[tokio::test]
async fn a_call_that_fails_is_told_by_its_status() {
    let (collector, endpoint) = Collector::start().await;
    let server = server(
        &endpoint,
        &[("OTEL_TRACES_SAMPLER", "parentbased_always_on")],
    );
    let mut client = server.client().await;
    client
        .should_allow(request("k", "nobody's", None))
        .await
        .unwrap_err();
    let span = &collector.wait_for(1).await[0];
    let told = attributes(span);
    assert_eq!(
        (
            told["rpc.response.status_code"].as_str(),
            told["tollgate.plan"].as_str()
        ),
        ("NOT_FOUND", "nobody's")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pending_spans_are_sent_at_the_end() {
    let (collector, endpoint) = Collector::start().await;
    let mut server = server(&endpoint, &[("OTEL_BSP_SCHEDULE_DELAY", "600000")]);
    ask(&server, Some(&format!("00-{TRACE}-{PARENT}-01"))).await;
    assert!(collector.spans().is_empty());
    server.signal("TERM");
    assert!(server.wait().0.success());
    collector.wait_for(1).await;
}

/// Without a collector, calls are answered all the same, and the server ends in time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_that_is_absent_delays_nothing() {
    let mut server = server(&format!("http://127.0.0.1:{}", free_port()), &[]);
    for _ in 0..100 {
        ask(&server, Some(&format!("00-{TRACE}-{PARENT}-01"))).await;
    }
    server.signal("TERM");
    let (status, took) = server.wait();
    println!("ended {took:?} after SIGTERM");
    assert!(
        status.success() && took < Duration::from_secs(10),
        "{status} after {took:?}"
    );
}

#[test]
fn an_endpoint_that_is_none_ends_the_start_with_a_sentence_that_does_not_repeat_it() {
    let output = crate::support::server::tollgate()
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", "canary nonsense")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(
        said.contains("OTEL_EXPORTER_OTLP_ENDPOINT cannot be used") && !said.contains("canary"),
        "{said}"
    );
}

/// The library would take every call for one to trace, or speak another protocol than was asked for.
#[test]
fn a_variable_that_means_nothing_here_ends_the_start_with_what_is_right() {
    for (variable, value, right) in [
        (
            "OTEL_TRACES_SAMPLER",
            "bogus",
            "always_on, always_off, traceidratio",
        ),
        (
            "OTEL_EXPORTER_OTLP_PROTOCOL",
            "http/protobuf",
            "write grpc, or unset it",
        ),
    ] {
        let output = crate::support::server::tollgate()
            .env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
            .env(variable, value)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(variable) && said.contains(right), "{said}");
    }
}
