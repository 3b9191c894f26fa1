//! The gRPC client of the commands that ask a running server. It returns text to print; the command line decides on the exit code.

mod admin;
mod connection;
mod decisions;
mod health;
mod holds;
mod overrides;
mod plans;
mod report;
mod top;

use std::future::Future;
use std::time::Duration;

use tonic::{Code, Response, Status};

pub use admin::{AdminAnswer, AdminQuestion, AdminToken};
pub use connection::{ClientConnection, Target};
pub use decisions::{PrintedAnswer, Question};
pub use health::Health;
pub use holds::HoldQuestion;
pub use overrides::{OverrideQuestion, QuotaQuestion, SubjectQuestion};
use tollgate_core::visible::visible;
pub use top::{TopQuestion, TopRow, TopTable};

/// How a command prints an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerForm {
    /// Lines for people.
    Human,
    /// One JSON object, in the words of the check endpoint: times are whole microseconds.
    Json,
}

/// The services that commands ask, and where the config and the command name their listener.
#[derive(Debug, Clone, Copy)]
enum AskedService {
    /// `RateLimitService` and health.
    ForCallers,
    /// `AdminService`.
    Admin,
}

impl ClientConnection {
    /// The answer to a call of this service. Errors: a sentence. Dropping the future cancels the call; the server may have done it.
    async fn answer<T>(
        &self,
        of: AskedService,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, String> {
        let answered = self.answered(call).await?;
        answered.map_err(|status| self.reason(of, &status))
    }

    /// The answer to a call, or the status that the server gave in its place. Errors: it did not answer in time.
    async fn answered<T>(
        &self,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<Result<T, Status>, String> {
        let answered = tokio::time::timeout(self.timeout, call).await;
        let answered = answered.map_err(|_| {
            format!(
                "no answer from {} within {}",
                self.address,
                seconds(self.timeout)
            )
        })?;
        Ok(answered.map(Response::into_inner))
    }

    /// Why a call of this service was not answered.
    fn reason(&self, of: AskedService, status: &Status) -> String {
        match (status.code(), of) {
            (Code::Unimplemented, AskedService::ForCallers) => {
                format!(
                    "{} serves gRPC, but not this call; name an address of listen.grpc by --address",
                    self.address
                )
            }
            (Code::Unimplemented, AskedService::Admin) => {
                format!(
                    "{} serves gRPC, but not this call; name the address of listen.admin by --admin",
                    self.address
                )
            }
            _ => self.describe(status),
        }
    }

    fn describe(&self, status: &Status) -> String {
        // The server sends no error source, so this one comes from the connection.
        let mut cause = std::error::Error::source(status);
        while let Some(inner) = cause.and_then(std::error::Error::source) {
            cause = Some(inner);
        }
        match cause {
            None => format!("{:?}: {}", status.code(), visible(status.message())),
            Some(cause) => format!(
                "the connection to {} ended without an answer ({cause}); does tollgate serve gRPC there, {}?",
                self.address,
                if self.encrypted {
                    "with TLS"
                } else {
                    "without TLS"
                }
            ),
        }
    }
}

fn seconds(duration: Duration) -> String {
    format!("{}s", duration.as_secs_f64())
}
