//! Converts errors of the store to Statuses.

use api_meta::{Status, StatusReason};

/// Returns the Status for an error of the store.
pub(crate) fn store_status(error: store::Error) -> Box<Status> {
    Box::new(match error {
        store::Error::TooLarge { .. } => Status::request_too_large(&error),
        store::Error::Transform { detail, .. } => Status::internal(detail),
        store::Error::Compacted { requested, oldest } => {
            Status::too_old_resource_version(requested, oldest)
        }
        store::Error::FutureRevision { requested, current } => {
            Status::too_large_resource_version(requested, current)
        }
        // The next two begin with the words of etcd and upstream, followed by the cause.
        store::Error::NoSpace { detail } => {
            let message = format!("etcdserver: mvcc: database space exceeded: {detail}");
            Status::failure(500, StatusReason::Unknown, message)
        }
        store::Error::Unavailable { operation, detail } => {
            let message = format!(
                "Timeout: request did not complete within requested timeout - {operation}: {detail}"
            );
            Status::failure(504, StatusReason::Timeout, message)
        }
        other => Status::internal(format!("the store: {other}")),
    })
}
