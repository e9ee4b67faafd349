//! Connections to Unix sockets.

use std::{
    io,
    path::{Path, PathBuf},
    pin::Pin,
};

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Error, Uri};

type Connecting = Pin<Box<dyn Future<Output = io::Result<TokioIo<UnixStream>>> + Send>>;

/// Returns a connection to a socket, which is made at the first call and again after a restart of the server. A path
/// that begins with a zero byte is a name in the abstract namespace. Must be called within a Tokio runtime.
pub fn channel(socket: impl Into<PathBuf>) -> Channel {
    endpoint().connect_with_connector_lazy(tower::service_fn(dial(socket.into())))
}

/// Connects to a socket as [`channel`] does, but at once.
pub async fn connect(socket: &Path) -> Result<Channel, Error> {
    endpoint().connect_with_connector(tower::service_fn(dial(socket.to_owned()))).await
}

/// Servers reject an `:authority` that is a path, so it is `localhost` for every socket.
fn endpoint() -> Endpoint {
    Endpoint::from_static("http://localhost")
}

fn dial(socket: PathBuf) -> impl Fn(Uri) -> Connecting {
    move |_| {
        let socket = socket.clone();
        Box::pin(async move { UnixStream::connect(socket).await.map(TokioIo::new) })
    }
}
