//! The kubelet's side of storage drivers: the node service of the Container Storage Interface, v1, and the registration
//! by which drivers make themselves known, both over unix sockets.
//!
//! Invariants: every call has a deadline; an answer is bounded (gRPC's 4 MiB); the connection is made when first needed
//! and made again after a driver was restarted, so a client never has to be replaced.

mod driver;
mod error;
mod registrar;

use std::{path::PathBuf, time::Duration};

use hyper_util::rt::TokioIo;
use tonic::transport::{Channel, Endpoint, Uri};

pub use driver::{Amounts, Capabilities, Driver, VolumeStats};
pub use error::{Error, shortened};
pub use registrar::Registrar;

/// The messages of CSI, generated from `proto/csi.proto`, and a server for tests' drivers.
#[allow(clippy::all, clippy::pedantic, unreachable_pub, missing_docs)]
pub mod v1 {
    tonic::include_proto!("csi.v1");
}

/// The messages of registration, generated from `proto/registration.proto`.
#[allow(clippy::all, clippy::pedantic, unreachable_pub, missing_docs)]
pub mod registration {
    tonic::include_proto!("pluginregistration");
}

/// How long a driver has for one call, as with upstream's kubelet: it may format a disk meanwhile.
pub const TIMEOUT: Duration = Duration::from_secs(2 * 60);

/// A connection to a plugin's socket, made when it is first needed and made again after the plugin was restarted. Must be
/// called within a Tokio runtime.
pub fn channel(socket: PathBuf) -> Channel {
    let dial = tower::service_fn(move |_: Uri| {
        let path = socket.clone();
        async move { tokio::net::UnixStream::connect(path).await.map(TokioIo::new) }
    });
    // Servers refuse an `:authority` that is a path, so it is `localhost` whatever the socket.
    Endpoint::from_static("http://localhost").connect_with_connector_lazy(dial)
}

/// A call with a deadline: who does not answer by then has not answered.
pub async fn within<T>(
    timeout: Duration,
    call: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
) -> Result<T, Error> {
    match tokio::time::timeout(timeout, call).await {
        Ok(Ok(answer)) => Ok(answer.into_inner()),
        Ok(Err(status)) => Err(Error::of(&status)),
        Err(_) => Err(Error::no_answer()),
    }
}
