//! Spans: the duration and result of a call, as a part of its caller's trace, exported by OTLP.
//!
//! Off unless the environment sets an endpoint, as the OpenTelemetry specification defines. A call that its caller does not
//! trace then costs one look at its headers. Spans never contain a key.

use std::collections::HashMap;
use std::sync::OnceLock;
use std::time::Duration;

use hyper::HeaderMap;
use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{ExporterBuildError, SpanExporter};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};
use tracing::Span;
use tracing::field::Empty;
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::registry::LookupSpan;

/// The `tracing` target of all spans. No log line has it.
pub const TARGET: &str = "tollgate::trace";

/// The field of a span for the plan that a call names.
pub const PLAN: &str = "tollgate.plan";

/// Longest that the end of the process waits until all spans are sent.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);
/// Variables of the endpoint; the first that is set and not empty counts.
const ENDPOINTS: [&str; 2] = [
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
];
/// The variable that decides on calls without a caller's trace; see [`Exporter::from_environment`].
const SAMPLER: &str = "OTEL_TRACES_SAMPLER";
/// Its values. Source: OpenTelemetry specification, environment variables, general SDK configuration. The library takes every other one
/// for `parentbased_always_on`.
const SAMPLERS: [&str; 6] = [
    "always_on",
    "always_off",
    "traceidratio",
    "parentbased_always_on",
    "parentbased_always_off",
    "parentbased_traceidratio",
];
/// Variables of the protocol, of which the first that is set counts, and the one that is spoken.
const PROTOCOLS: [&str; 2] = [
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
    "OTEL_EXPORTER_OTLP_PROTOCOL",
];
const PROTOCOL: &str = "grpc";

/// How calls are traced; empty while tracing is off.
static TRACED: OnceLock<Traced> = OnceLock::new();

struct Traced {
    /// Whether a call without a caller's trace may begin one.
    begins: bool,
}

/// Sends spans until it is stopped.
pub struct Exporter(SdkTracerProvider);

impl Exporter {
    /// Starts to export by OTLP over gRPC if the environment names an endpoint. It reads `OTEL_EXPORTER_OTLP_ENDPOINT`,
    /// `OTEL_SERVICE_NAME` (default `tollgate`), `OTEL_RESOURCE_ATTRIBUTES` and `OTEL_TRACES_SAMPLER`. The sampler's default is
    /// `parentbased_always_off`: only calls that their callers trace. The specification's other variables for exporters and
    /// batches work too.
    ///
    /// The first exporter decides how calls are traced until the process ends. Call this within a tokio runtime; spans are sent
    /// only while that runs. Errors: a sentence, when the endpoint cannot be used, or another variable has a value that means nothing here.
    pub fn from_environment() -> Result<Option<Self>, String> {
        let set = |name: &&str| std::env::var(name).is_ok_and(|value| !value.is_empty());
        let Some(variable) = ENDPOINTS.iter().find(|name| set(name)) else {
            return Ok(None);
        };
        check_value(SAMPLER, &SAMPLERS)?;
        if let Some(variable) = PROTOCOLS.iter().find(|name| set(name)) {
            check_value(variable, &[PROTOCOL])?;
        }
        // The value may hold a password, so the message does not repeat it.
        let wrong = |_: ExporterBuildError| {
            format!(
                "{variable} cannot be used: write http://host:4317, the gRPC port of a collector"
            )
        };
        let exporter = SpanExporter::builder()
            .with_tonic()
            .build()
            .map_err(wrong)?;
        let begins = set(&SAMPLER);
        let mut resource = Resource::builder();
        if !set(&"OTEL_SERVICE_NAME") {
            resource = resource.with_service_name("tollgate");
        }
        let mut provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_resource(resource.build());
        if !begins {
            provider = provider.with_sampler(Sampler::ParentBased(Box::new(Sampler::AlwaysOff)));
        }
        TRACED.get_or_init(|| Traced { begins });
        Ok(Some(Self(provider.build())))
    }

    /// The layer that passes spans from `tracing` to this exporter.
    pub fn layer<S>(&self) -> impl tracing_subscriber::Layer<S> + use<S>
    where
        S: tracing::Subscriber + for<'a> LookupSpan<'a>,
    {
        let layer = tracing_opentelemetry::layer().with_tracer(self.0.tracer("tollgate"));
        layer
            .with_location(false)
            .with_threads(false)
            .with_tracked_inactivity(false)
    }

    /// Sends the remaining spans and stops, within one second.
    pub async fn stop(self) {
        // The shutdown blocks, and needs this runtime to go on.
        let stopped =
            tokio::task::spawn_blocking(move || self.0.shutdown_with_timeout(FLUSH_TIMEOUT));
        if !matches!(stopped.await, Ok(Ok(()))) {
            tracing::warn!("the last spans could not be sent");
        }
    }
}

/// Errors: the variable is set to none of these.
fn check_value(variable: &str, values: &[&str]) -> Result<(), String> {
    let value = std::env::var(variable).unwrap_or_default();
    if value.is_empty() || values.contains(&&*value) {
        return Ok(());
    }
    let known = values.join(", ");
    Err(format!(
        "{variable} is {value:?}; write {known}, or unset it"
    ))
}

/// The span of a gRPC call of this method, `package.Service/Method`; see [`http_call`].
pub fn grpc_call(method: &'static str, headers: &HeaderMap) -> Span {
    let Some(traced) = TRACED.get() else {
        return Span::none();
    };
    let span = call(traced, method, headers);
    if !span.is_none() {
        span.record("rpc.system.name", "grpc")
            .record("rpc.method", method);
    }
    span
}

/// The span of a request for this path, a child of the span in its headers (W3C Trace Context). Empty when the caller does not
/// trace it. The span ends when it is dropped, also when the caller goes away.
pub fn http_call(path: &'static str, headers: &HeaderMap) -> Span {
    TRACED
        .get()
        .map_or_else(Span::none, |traced| call(traced, path, headers))
}

fn call(traced: &Traced, name: &'static str, headers: &HeaderMap) -> Span {
    let header = |name| headers.get(name)?.to_str().ok();
    let parent = header("traceparent");
    if !traced.begins && !parent.is_some_and(is_sampled) {
        return Span::none();
    }
    let span = tracing::info_span!(
        target: TARGET,
        "call",
        otel.name = name,
        otel.kind = "server",
        otel.status_code = Empty,
        rpc.system.name = Empty,
        rpc.method = Empty,
        rpc.response.status_code = Empty,
        http.route = Empty,
        http.response.status_code = Empty,
        tollgate.plan = Empty,
        tollgate.outcome = Empty,
        tollgate.decided_by = Empty,
    );
    if let Some(parent) = parent {
        let state = header("tracestate").unwrap_or_default();
        let carried = HashMap::from([
            ("traceparent".to_owned(), parent.to_owned()),
            ("tracestate".to_owned(), state.to_owned()),
        ]);
        // It fails when no layer collects spans, and then it is not needed.
        let _ = span.set_parent(TraceContextPropagator::new().extract(&carried));
    }
    span
}

/// Records the outcome and the decider, in the words of the metrics.
pub fn decided(span: &Span, outcome: &str, decided_by: &str) {
    if !span.is_none() {
        span.record("tollgate.outcome", outcome)
            .record("tollgate.decided_by", decided_by);
    }
}

/// Whether the caller samples this trace: the last bit of `traceparent`. Source: W3C Trace Context, section 3.2.2.5.
fn is_sampled(traceparent: &str) -> bool {
    let flags = traceparent
        .split('-')
        .nth(3)
        .and_then(|flags| u8::from_str_radix(flags, 16).ok());
    flags.is_some_and(|flags| flags & 1 == 1)
}

#[cfg(test)]
mod tests {
    use hyper::header::{HeaderName, HeaderValue};

    use super::*;

    #[test]
    fn a_trace_is_sampled_when_its_last_bit_is_set() {
        let parent =
            |flags: &str| format!("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-{flags}");
        assert!(is_sampled(&parent("01")) && is_sampled(&parent("03")));
        for not in [
            parent("00"),
            parent("02"),
            parent(""),
            parent("zz"),
            String::new(),
            "00-1".to_owned(),
            "----".to_owned(),
        ] {
            assert!(!is_sampled(&not), "{not:?}");
        }
    }

    #[test]
    fn nothing_is_traced_by_default() {
        let traceparent =
            HeaderValue::from_static("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
        let headers = HeaderMap::from_iter([(HeaderName::from_static("traceparent"), traceparent)]);
        assert!(grpc_call("call", &headers).is_none() && http_call("call", &headers).is_none());
    }
}
