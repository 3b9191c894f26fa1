//! `tollgate health`: asks `grpc.health.v1`, as probes of containers do.

use serde_json::json;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use super::report::AnswerReport;
use super::{AnswerForm, AskedService, ClientConnection};

/// The health of one service.
pub struct Health {
    /// Whether it is serving.
    pub serving: bool,
    /// The text to print.
    pub text: String,
}

impl ClientConnection {
    /// Asks for the health of a service; of the empty name, whether the process is alive. Errors: a sentence.
    pub async fn health(&self, service: &str, form: AnswerForm) -> Result<Health, String> {
        let request = HealthCheckRequest {
            service: service.to_owned(),
        };
        let answer = self
            .answer(
                AskedService::ForCallers,
                HealthClient::new(self.channel.clone()).check(request),
            )
            .await?;
        let report = AnswerReport {
            lines: vec![answer.status().as_str_name().to_owned()],
            json: json!({ "status": answer.status().as_str_name() }),
        };
        Ok(Health {
            serving: answer.status() == ServingStatus::Serving,
            text: report.text(form),
        })
    }
}
