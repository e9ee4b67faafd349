//! The store's failures.

use api_meta::{Status, StatusReason};

/// How the store's failures look from outside.
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
        // These two are in etcd's and upstream's words, with what we know behind them.
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
