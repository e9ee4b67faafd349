//! What etcd's errors mean. etcd tells some of them apart by their words only.

use store::{Error, Write};
use tonic::{Code, Status};

use crate::{REQUEST_LIMIT, channel::Failed};

pub(crate) fn is_compacted(status: &Status) -> bool {
    status.code() == Code::OutOfRange && status.message().contains("has been compacted")
}

pub(crate) fn is_future(status: &Status) -> bool {
    status.code() == Code::OutOfRange && status.message().contains("is a future revision")
}

pub(crate) fn is_lease_gone(status: &Status) -> bool {
    status.code() == Code::NotFound && status.message().contains("lease not found")
}

/// Whether another member, or the same one later, may do better.
pub(crate) fn is_passing(status: &Status) -> bool {
    matches!(status.code(), Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled)
        || is_broken_connection(status)
}

/// A connection that breaks under a request is reported as of unknown cause.
fn is_broken_connection(status: &Status) -> bool {
    status.code() == Code::Unknown && std::error::Error::source(status).is_some()
}

/// Whether the request cannot have reached etcd.
pub(crate) fn is_unsent(status: &Status) -> bool {
    let mut cause = std::error::Error::source(status);
    while let Some(error) = cause {
        if error.is::<tonic::ConnectError>() {
            return true;
        }
        cause = error.source();
    }
    false
}

pub(crate) fn error(operation: &'static str, failed: &Failed) -> Error {
    let detail = describe(failed);
    let status = &failed.status;
    if status.code() == Code::ResourceExhausted && status.message().contains("space exceeded") {
        return Error::NoSpace { detail };
    }
    Error::Unavailable { operation, detail }
}

pub(crate) fn write_error(write: &Write, failed: &Failed) -> Error {
    let status = &failed.status;
    let too_large = (status.code() == Code::InvalidArgument
        && status.message().contains("request is too large"))
        || (status.code() == Code::ResourceExhausted
            && status.message().contains("larger than max"));
    if too_large {
        return Error::TooLarge {
            key: write.key.clone(),
            size: write.size(),
            limit: REQUEST_LIMIT,
        };
    }
    error("write", failed)
}

/// The message with its causes, down to the system's error.
fn describe(failed: &Failed) -> String {
    let Failed { status, member } = failed;
    let mut text = format!("etcd at {member}: {:?}: {}", status.code(), status.message());
    let mut cause = std::error::Error::source(status);
    while let Some(error) = cause {
        let words = error.to_string();
        if !text.contains(&words) {
            text.push_str(": ");
            text.push_str(&words);
        }
        cause = error.source();
    }
    text
}
