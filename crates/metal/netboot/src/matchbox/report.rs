//! `POST /report`: a machine reports its progress.
//!
//! The query has the machine's labels, `stage`, and `status` (started, succeeded or failed; default succeeded). The
//! body is a text, usually the cause of a failure.

use http::{Method, Response, StatusCode};
use http_body_util::BodyExt;
use serve::Body;

use super::handler::{HttpRequest, TEXT};
use crate::{
    labels,
    machines::{AccessError, Event, Facts, Inventory, Outcome, Stage},
};

/// The maximum size of a body in bytes.
const MAX_BODY: usize = 16 << 10;

/// The reasons to reject a report.
#[derive(Debug, thiserror::Error)]
enum ReportError {
    #[error("stage is not one that a machine may report")]
    Stage,
    #[error("status must be started, succeeded or failed")]
    Status,
    #[error("neither mac nor uuid is named")]
    NoMachine,
    #[error("{0} has not booted from here")]
    UnknownMachine(String),
    #[error(transparent)]
    Access(#[from] AccessError),
}

impl ReportError {
    fn status(&self) -> StatusCode {
        match self {
            Self::Stage | Self::Status | Self::NoMachine => StatusCode::BAD_REQUEST,
            Self::UnknownMachine(_) => StatusCode::NOT_FOUND,
            Self::Access(_) => StatusCode::FORBIDDEN,
        }
    }
}

fn respond(status: StatusCode, text: &str) -> Response<Body> {
    serve::answer(status, TEXT, format!("{text}\n"))
}

pub(super) async fn take(
    inventory: &Inventory,
    request: &HttpRequest,
    method: &Method,
    body: Body,
) -> Response<Body> {
    if method != Method::POST {
        return respond(StatusCode::METHOD_NOT_ALLOWED, "report by POST");
    }
    let Some(text) = read(body).await else {
        return respond(StatusCode::PAYLOAD_TOO_LARGE, "a report has at most 16 KiB");
    };
    match record(inventory, request, &text) {
        Ok(()) => respond(StatusCode::OK, "noted"),
        Err(error) => {
            tracing::warn!(peer = ?request.peer, %error, "rejecting a report");
            respond(error.status(), &error.to_string())
        }
    }
}

/// Reads the body; `None` if it is incomplete or too long.
async fn read(mut body: Body) -> Option<String> {
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame.ok()?.into_data() {
            if bytes.len() + data.len() > MAX_BODY {
                return None;
            }
            bytes.extend(data);
        }
    }
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

fn record(inventory: &Inventory, request: &HttpRequest, text: &str) -> Result<(), ReportError> {
    let labels = labels::from_query(&request.query);
    let label = |name: &str| labels.get(name).map(String::as_str);
    let stage = label("stage").and_then(Stage::named).filter(|stage| stage.is_reported());
    let stage = stage.ok_or(ReportError::Stage)?;
    let outcome = Outcome::named(label("status").unwrap_or("succeeded"));
    let outcome = outcome.ok_or(ReportError::Status)?;
    let id = inventory.id(&labels, request.peer).ok_or(ReportError::NoMachine)?;
    if inventory.machine(&id).is_none() {
        return Err(ReportError::UnknownMachine(id));
    }
    inventory.verify_report(&id, &labels)?;
    match outcome {
        Outcome::Failed => tracing::warn!(machine = id, stage = stage.name(), text, "failed"),
        _ => tracing::info!(machine = id, stage = stage.name(), outcome = outcome.name(), "report"),
    }
    let facts = Facts { hostname: label("hostname").map(str::to_owned), ..Facts::default() };
    inventory.record(&id, Event::new(stage, outcome).detail(text).facts(facts));
    Ok(())
}
