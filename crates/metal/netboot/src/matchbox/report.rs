//! `POST /report`: a machine reports its progress.
//!
//! The query has the machine's labels, `stage`, and `status` (started, succeeded or failed; default succeeded). The
//! body is a text, usually the cause of a failure.

use http::{Method, Response, StatusCode};
use http_body_util::BodyExt;
use serve::Body;

use super::{handler::HttpRequest, labels};
use crate::machines::{Book, Facts, Note, Outcome, Stage};

/// The maximum size of a body in bytes.
const MAX_BODY: usize = 16 << 10;

fn answer(status: StatusCode, text: &str) -> Response<Body> {
    let mut response = Response::new(serve::full(format!("{text}\n")));
    *response.status_mut() = status;
    response
}

pub(super) async fn take(
    book: &Book,
    asked: &HttpRequest,
    method: &Method,
    body: Body,
) -> Response<Body> {
    if method != Method::POST {
        return answer(StatusCode::METHOD_NOT_ALLOWED, "report by POST");
    }
    let Some(text) = read(body).await else {
        return answer(StatusCode::PAYLOAD_TOO_LARGE, "a report has at most 16 KiB");
    };
    match note(book, asked, &text) {
        Ok(()) => answer(StatusCode::OK, "noted"),
        Err((status, why)) => {
            tracing::warn!(peer = ?asked.peer, why, "rejecting a report");
            answer(status, &why)
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

fn note(book: &Book, asked: &HttpRequest, text: &str) -> Result<(), (StatusCode, String)> {
    let labels = labels::from_query(&asked.query);
    let wrong = |why: &str| (StatusCode::BAD_REQUEST, why.to_owned());
    let label = |name: &str| labels.get(name).map(String::as_str);
    let stage = label("stage").and_then(Stage::named).filter(|stage| stage.is_reported());
    let stage = stage.ok_or_else(|| wrong("stage is not one that a machine may report"))?;
    let outcome = Outcome::named(label("status").unwrap_or("succeeded"))
        .ok_or_else(|| wrong("status must be started, succeeded or failed"))?;
    let id = book.id(&labels, asked.peer).ok_or_else(|| wrong("neither mac nor uuid is named"))?;
    if book.machine(&id).is_none() {
        return Err((StatusCode::NOT_FOUND, format!("{id} has not booted from here")));
    }
    book.believe(&id, &labels).map_err(|why| (StatusCode::FORBIDDEN, why.to_string()))?;
    match outcome {
        Outcome::Failed => tracing::warn!(machine = id, stage = stage.name(), text, "failed"),
        _ => tracing::info!(machine = id, stage = stage.name(), outcome = outcome.name(), "report"),
    }
    let facts = Facts { hostname: label("hostname").map(str::to_owned), ..Facts::default() };
    book.note(&id, Note::new(stage, outcome).detail(text).facts(facts));
    Ok(())
}
