//! Interprets etcd's errors, some of which differ only in their message.

use store::{Error, Write};
use tonic::{Code, Status};

use crate::options::REQUEST_LIMIT;

/// The failure of a request, with the last member that was tried.
#[derive(Debug)]
pub(crate) struct RequestFailure {
    pub(crate) status: Status,
    pub(crate) member: String,
}

pub(crate) fn is_compacted(status: &Status) -> bool {
    status.code() == Code::OutOfRange && status.message().contains("has been compacted")
}

pub(crate) fn is_future(status: &Status) -> bool {
    status.code() == Code::OutOfRange && status.message().contains("is a future revision")
}

pub(crate) fn is_lease_gone(status: &Status) -> bool {
    status.code() == Code::NotFound && status.message().contains("lease not found")
}

/// Reports whether another member, or the same one later, may succeed.
pub(crate) fn is_passing(status: &Status) -> bool {
    matches!(status.code(), Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled)
        || is_broken_connection(status)
}

/// Reports whether the connection broke under the request, which tonic reports with an unknown code.
fn is_broken_connection(status: &Status) -> bool {
    status.code() == Code::Unknown && std::error::Error::source(status).is_some()
}

/// Reports whether the request certainly did not reach etcd.
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

pub(crate) fn error(operation: &'static str, failed: &RequestFailure) -> Error {
    let detail = describe(failed);
    let status = &failed.status;
    if status.code() == Code::ResourceExhausted && status.message().contains("space exceeded") {
        return Error::NoSpace { detail };
    }
    Error::Unavailable { operation, detail }
}

pub(crate) fn write_error(write: &Write, failed: &RequestFailure) -> Error {
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

/// Returns the message with all causes, down to the system's error.
fn describe(failed: &RequestFailure) -> String {
    let RequestFailure { status, member } = failed;
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
