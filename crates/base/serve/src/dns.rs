//! DNS over TCP: messages prefixed by their length (RFC 1035, section 4.2.2).

use std::{io::ErrorKind, net::SocketAddr, sync::Arc, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::timeout,
};

use crate::{
    body::BoxError,
    server::accept_loop,
    slots::{ConnectionActivity, Slots},
};

/// The limits of the connections of a server.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The maximum number of connections. One address has at most half of them, and a connection that waits for a query
    /// is closed for a new one.
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
    let slots = Slots::new(limits.connections, limits.connections.div_ceil(2));
    accept_loop(listener, slots, tasks, move |stream, peer, slot| {
        let (answer, shutdown) = (answer.clone(), shutdown.clone());
        let answer = move |packet| answer(packet, peer);
        async move {
            tokio::select! {
                done = serve_queries(stream, limits, &slot.activity, answer) => done,
                () = slot.activity.closed() => Ok(()),
                () = shutdown.stopping() => Ok(()),
            }
        }
    })
    .await;
}

async fn serve_queries<F>(
    mut stream: TcpStream,
    limits: Limits,
    activity: &Arc<ConnectionActivity>,
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
        let _busy = activity.begin();
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

#[cfg(test)]
mod tests {
    use super::*;

    async fn ask(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
        stream.write_all(b"\0\x02hi").await?;
        let mut answer = vec![0; stream.read_u16().await?.into()];
        stream.read_exact(&mut answer).await?;
        Ok(answer)
    }

    #[tokio::test]
    async fn idle_connections_of_one_client_keep_out_no_other() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let tasks = rt::Tasks::new(rt::Shutdown::new());
        let echo = |packet: Vec<u8>, _| std::future::ready([packet]);
        let long = Duration::from_secs(3600);
        let limits = Limits { idle: long, read: long, ..Limits::connections(4) };
        tasks.spawn("dns", serve(listener, limits, tasks.clone(), echo));
        let mut idle = Vec::new();
        for number in 0..8 {
            let mut stream = TcpStream::connect(address).await.unwrap();
            if number % 2 == 0 {
                assert_eq!(ask(&mut stream).await.unwrap(), b"hi");
            } else {
                // A query that never ends.
                stream.write_all(b"\0\x02h").await.unwrap();
            }
            idle.push(stream);
        }
        let mut other = TcpStream::connect(address).await.unwrap();
        assert_eq!(ask(&mut other).await.unwrap(), b"hi");
        assert!(ask(&mut idle[0]).await.is_err(), "the oldest is closed");
        tasks.shutdown().stop();
    }
}
