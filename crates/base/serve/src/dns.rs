//! DNS over TCP: messages prefixed by their length (RFC 1035, section 4.2.2).

use std::{io::ErrorKind, net::SocketAddr, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::timeout,
};

use crate::{body::BoxError, server::accept};

/// The limits of the connections of a server.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The maximum number of connections.
    pub connections: usize,
    /// The time for reading a query once it has begun.
    pub read: Duration,
    /// The time for writing an answer.
    pub write: Duration,
    /// The time until the next query begins.
    pub idle: Duration,
    /// The maximum number of queries on one connection.
    pub queries: usize,
}

impl Limits {
    /// Returns limits of ten seconds for each step, without a limit of queries.
    pub fn connections(connections: usize) -> Self {
        let ten = Duration::from_secs(10);
        Self { connections, read: ten, write: ten, idle: ten, queries: usize::MAX }
    }
}

/// Answers queries until shutdown, each with one message, or with several ones for a zone transfer. A query without an
/// answer ends its connection.
pub async fn serve<F>(
    listener: TcpListener,
    limits: Limits,
    tasks: rt::Tasks,
    answer: impl Fn(Vec<u8>, SocketAddr) -> F + Clone + Send + 'static,
) where
    F: Future<Output: IntoIterator<Item = Vec<u8>, IntoIter: Send> + Send> + Send,
{
    let shutdown = tasks.shutdown().clone();
    accept(listener, limits.connections, tasks, move |stream, peer| {
        let (answer, shutdown) = (answer.clone(), shutdown.clone());
        let answer = move |packet| answer(packet, peer);
        async move {
            shutdown.unless_stopping(serve_queries(stream, limits, answer)).await.unwrap_or(Ok(()))
        }
    })
    .await;
}

async fn serve_queries<F>(
    mut stream: TcpStream,
    limits: Limits,
    answer: impl Fn(Vec<u8>) -> F,
) -> Result<(), BoxError>
where
    F: Future<Output: IntoIterator<Item = Vec<u8>>>,
{
    stream.set_nodelay(true)?;
    for _ in 0..limits.queries {
        let Ok(length) = timeout(limits.idle, stream.read_u16()).await else { return Ok(()) };
        let length = match length {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
            length => length?,
        };
        let mut packet = vec![0; length.into()];
        timeout(limits.read, stream.read_exact(&mut packet)).await??;
        // The messages of a transfer are encoded one at a time, after the client has received the previous one.
        let mut answers = answer(packet).await.into_iter().peekable();
        if answers.peek().is_none() {
            return Ok(());
        }
        for answer in answers {
            let mut framed = u16::try_from(answer.len())?.to_be_bytes().to_vec();
            framed.extend_from_slice(&answer);
            timeout(limits.write, stream.write_all(&framed)).await??;
        }
    }
    Ok(())
}
