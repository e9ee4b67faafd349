//! Classification of errors of the API server.

use client::Error;

/// Reports whether a creation failed because the namespace is terminating.
pub(crate) fn namespace_is_terminating(error: &Error) -> bool {
    let causes = error.status().and_then(|s| s.details.as_ref()).map(|d| &d.causes);
    causes.is_some_and(|causes| causes.iter().any(|c| c.reason == "NamespaceTerminating"))
        || (error.is_forbidden() && error.to_string().contains("because it is being terminated"))
}
