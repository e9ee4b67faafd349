//! A server for sockets of our own.

use std::{convert::Infallible, path::Path, sync::Arc};

use hyper::{body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{net::UnixListener, sync::Semaphore};

use crate::lenient::AuthorityRewriter;

/// The maximum number of connections. Further clients wait.
const CONNECTIONS: usize = 64;

/// Serves at a socket until shutdown, and replaces an existing file. Must be called within a Tokio runtime.
pub fn serve<S>(name: &str, socket: &Path, service: S, tasks: &rt::Tasks) -> std::io::Result<()>
where
    S: tower::Service<
            http::Request<Incoming>,
            Response = http::Response<tonic::body::Body>,
            Error = Infallible,
        > + Clone
        + Send
        + 'static,
    S::Future: Send,
{
    match std::fs::remove_file(socket) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(socket)?;
    let (own, name) = (tasks.clone(), name.to_owned());
    let seats = Arc::new(Semaphore::new(CONNECTIONS));
    tasks.spawn_until_shutdown(&name.clone(), async move {
        while let Ok(seat) = seats.clone().acquire_owned().await {
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(name, %error, "cannot accept a connection");
                    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                    continue;
                }
            };
            let service = service.clone();
            let handler = service_fn(move |request| service.clone().call(request));
            let serving = http2::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(AuthorityRewriter::new(stream)), handler);
            own.spawn_until_shutdown(&name, async move {
                let _ended = serving.await;
                drop(seat);
            });
        }
    });
    Ok(())
}
