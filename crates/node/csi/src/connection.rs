//! The connection to a plugin's socket, and the timeout of its calls.

use std::{path::PathBuf, time::Duration};

use hyper_util::rt::TokioIo;
use tonic::transport::{Channel, Endpoint, Uri};

use crate::error::Error;

/// The timeout of a call, as in upstream's kubelet. A driver may format a disk in it.
pub const TIMEOUT: Duration = Duration::from_secs(2 * 60);

/// Returns a connection to a plugin's socket, made at the first call and again after a restart of the plugin. Must be
/// called within a Tokio runtime.
pub fn channel(socket: PathBuf) -> Channel {
    let dial = tower::service_fn(move |_: Uri| {
        let path = socket.clone();
        async move { tokio::net::UnixStream::connect(path).await.map(TokioIo::new) }
    });
    // Servers reject an `:authority` that is a path, so it is `localhost` for every socket.
    Endpoint::from_static("http://localhost").connect_with_connector_lazy(dial)
}

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
