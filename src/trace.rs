//! Spans: how long a call took and what came of it, as a part of its caller's trace, for whoever collects them by OTLP.
//!
//! Off unless an endpoint is set in the environment, as the OpenTelemetry specification says; then a call that its caller
//! does not trace pays for a look at its headers. Never tells a key.

use std::collections::HashMap;
use std::sync::OnceLock;
use std::time::Duration;

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

/// What spans are made under; no log is.
pub const TARGET: &str = "tollgate::trace";

/// Longest that the end of the process waits for what was not sent yet.
const FLUSH_WITHIN: Duration = Duration::from_secs(1);
/// Where spans are sent; the first that is set and not empty.
const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];
/// What decides on calls that nobody traces; see [`Exporter::from_environment`].
const SAMPLER: &str = "OTEL_TRACES_SAMPLER";

/// How calls are traced; nothing as long as none is.
static TRACED: OnceLock<Traced> = OnceLock::new();

struct Traced {
    /// Whether a call without a caller's trace may begin one.
    begins: bool,
}

/// Sends spans until it is stopped.
pub struct Exporter(SdkTracerProvider);

impl Exporter {
    /// Begins to export by OTLP over gRPC if the environment names an endpoint; the first ends with the process. Read are
    /// `OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_SERVICE_NAME` (`tollgate` by default), `OTEL_RESOURCE_ATTRIBUTES`,
    /// `OTEL_TRACES_SAMPLER` (`parentbased_always_off` by default: only what callers trace) and what else the specification
    /// has for exporters and batches.
    ///
    /// Must be called within a tokio runtime, which must run for spans to be sent. Errors: a sentence, when the endpoint
    /// cannot be used.
    pub fn from_environment() -> Result<Option<Self>, String> {
        let set = |name: &&str| std::env::var(name).is_ok_and(|value| !value.is_empty());
        let Some(variable) = ENDPOINTS.iter().find(|name| set(name)) else { return Ok(None) };
        // What is wrong may hold a password, so it is not repeated.
        let wrong =
            |_: ExporterBuildError| format!("{variable} cannot be used: write http://host:4317, the gRPC port of a collector");
        let exporter = SpanExporter::builder().with_tonic().build().map_err(wrong)?;
        let begins = set(&SAMPLER);
        let mut resource = Resource::builder();
        if !set(&"OTEL_SERVICE_NAME") {
            resource = resource.with_service_name("tollgate");
        }
        let mut provider = SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource.build());
        if !begins {
            provider = provider.with_sampler(Sampler::ParentBased(Box::new(Sampler::AlwaysOff)));
        }
        TRACED.get_or_init(|| Traced { begins });
        Ok(Some(Self(provider.build())))
    }

    /// What takes spans from `tracing` and hands them to this.
    pub fn layer<S>(&self) -> impl tracing_subscriber::Layer<S> + use<S>
    where
        S: tracing::Subscriber + for<'a> LookupSpan<'a>,
    {
        let layer = tracing_opentelemetry::layer().with_tracer(self.0.tracer("tollgate"));
        layer.with_location(false).with_threads(false).with_tracked_inactivity(false)
    }

    /// Sends what is left, and ends. It takes a second at most.
    pub async fn stop(self) {
        // It blocks, and what it waits for runs on this runtime.
        let stopped = tokio::task::spawn_blocking(move || self.0.shutdown_with_timeout(FLUSH_WITHIN));
        if !matches!(stopped.await, Ok(Ok(()))) {
            tracing::warn!("the last spans could not be sent");
        }
    }
}

/// The span of a call of this name, a child of the one that its headers name (W3C Trace Context); none when it is not traced.
pub fn call<'a>(name: &'static str, header: impl Fn(&str) -> Option<&'a str>) -> Span {
    let Some(traced) = TRACED.get() else { return Span::none() };
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
        let carried = HashMap::from([("traceparent".to_owned(), parent.to_owned()), ("tracestate".to_owned(), state.to_owned())]);
        // It fails where nobody collects, and then nobody misses it.
        let _ = span.set_parent(TraceContextPropagator::new().extract(&carried));
    }
    span
}

/// Notes which plan a call asks about.
pub fn plan(span: &Span, plan: &str) {
    if !span.is_none() {
        span.record("tollgate.plan", plan);
    }
}

/// Notes what came of it, in the words of the metrics.
pub fn decided(span: &Span, outcome: &str, decided_by: &str) {
    if !span.is_none() {
        span.record("tollgate.outcome", outcome).record("tollgate.decided_by", decided_by);
    }
}

/// Whether the caller keeps this trace: the last bit of `traceparent`. Source: W3C Trace Context, section 3.2.2.5.
fn is_sampled(traceparent: &str) -> bool {
    let flags = traceparent.split('-').nth(3).and_then(|flags| u8::from_str_radix(flags, 16).ok());
    flags.is_some_and(|flags| flags & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_kept_when_its_last_bit_says_so() {
        let parent = |flags: &str| format!("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-{flags}");
        assert!(is_sampled(&parent("01")) && is_sampled(&parent("03")));
        for not in [parent("00"), parent("02"), parent(""), parent("zz"), String::new(), "00-1".to_owned(), "----".to_owned()] {
            assert!(!is_sampled(&not), "{not:?}");
        }
    }

    #[test]
    fn nothing_is_traced_unless_it_is_asked_for() {
        assert!(call("call", |_| Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")).is_none());
    }
}
