//! The connection to a plugin's socket, and the timeout of its calls.

use std::time::Duration;

use crate::error::Error;

/// The timeout of a call, as in upstream's kubelet. A driver may format a disk in it.
pub const TIMEOUT: Duration = Duration::from_secs(2 * 60);

/// Limits a call's time. A timeout is an error with the code `DeadlineExceeded`.
pub async fn within<T>(
    timeout: Duration,
    call: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
) -> Result<T, Error> {
    match tokio::time::timeout(timeout, call).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(Error::of(&status)),
        Err(_) => Err(Error::no_answer()),
    }
}
