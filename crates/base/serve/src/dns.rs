//! DNS over TCP: messages prefixed by their length (RFC 1035, section 4.2.2).

use std::{io::ErrorKind, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::timeout,
};

use crate::{body::BoxError, server::accept};

/// The timeout of reading a query and of writing its answer.
const IDLE: Duration = Duration::from_secs(10);

/// Answers queries on up to `connections` connections until shutdown. A query without an answer ends its connection.
pub async fn serve<F>(
    listener: TcpListener,
    connections: usize,
    tasks: rt::Tasks,
    answer: impl Fn(Vec<u8>) -> F + Clone + Send + 'static,
) where
    F: Future<Output = Option<Vec<u8>>> + Send,
{
    let shutdown = tasks.shutdown().clone();
    accept(listener, connections, tasks, move |stream, _| {
        let (answer, shutdown) = (answer.clone(), shutdown.clone());
        async move { shutdown.unless_stopping(serve_queries(stream, answer)).await.unwrap_or(Ok(())) }
    })
    .await;
}

async fn serve_queries<F: Future<Output = Option<Vec<u8>>>>(
    mut stream: TcpStream,
    answer: impl Fn(Vec<u8>) -> F,
) -> Result<(), BoxError> {
    stream.set_nodelay(true)?;
    loop {
        let Ok(length) = timeout(IDLE, stream.read_u16()).await else { return Ok(()) };
        let length = match length {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
            length => length?,
        };
        let mut packet = vec![0; length.into()];
        timeout(IDLE, stream.read_exact(&mut packet)).await??;
        let Some(answer) = answer(packet).await else { return Ok(()) };
        let mut framed = u16::try_from(answer.len())?.to_be_bytes().to_vec();
        framed.extend_from_slice(&answer);
        timeout(IDLE, stream.write_all(&framed)).await??;
    }
}
