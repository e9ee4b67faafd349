//! The spans of handlers and webhook calls, with upstream's names and attributes.

use otlp::{Span, SpanKind};

use super::call::Call;
use crate::auditing;

/// Starts the span of a call's handler.
pub(super) fn call_span(call: &Call) -> Span {
    let name = match call.info.verb {
        "get" => "Get",
        "list" => "List",
        "watch" => "Watch",
        "create" => "Create",
        "update" => "Update",
        "patch" => "Patch",
        _ => "Delete",
    };
    let mut span = otlp::span(|| name, SpanKind::Internal);
    if span.is_recording() {
        let path = &call.path;
        for (key, value) in [
            ("audit-id", auditing::text(&call.headers, auditing::HEADER).unwrap_or_default()),
            ("api-group", &path.group),
            ("api-version", &path.version),
            ("resource", &path.resource),
            ("subresource", &path.subresource),
            ("namespace", &path.namespace),
            ("name", &path.name),
            ("verb", call.method.as_str()),
            ("url", &call.info.path),
            ("user-agent", &call.user_agent),
        ] {
            span.set(key, value);
        }
    }
    span
}
