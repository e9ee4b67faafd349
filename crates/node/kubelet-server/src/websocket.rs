//! Translates WebSockets of clients: channels of an exec, attach or port-forward, or a tunnelled connection.

use std::time::Duration;

use api_meta::Tree as _;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use futures_util::{Sink, SinkExt, Stream, StreamExt};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    sync::Mutex,
};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        Error as WsError, Message, Utf8Bytes,
        protocol::{CloseFrame, frame::coding::CloseCode},
    },
};

use crate::{
    protocol::{Dialect, Options},
    spdy::{self, Encoder, Frame},
};

/// The channel whose messages close the channel that they name, since v5.
const CLOSE: u8 = 255;
const PIECE: usize = 32 << 10;
/// The time that a client has to answer a close frame.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("the WebSocket: {0}")]
    WebSocket(#[from] WsError),
    #[error("the runtime's stream: {0}")]
    Runtime(#[from] std::io::Error),
}

/// The party that sends on a channel.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sender {
    Client,
    Runtime,
    Both,
}

/// A channel of the WebSocket protocol and its stream with the runtime.
#[derive(Clone, Copy)]
pub(crate) struct Channel {
    number: u8,
    stream: u32,
    name: &'static str,
    sender: Sender,
    /// The port of a port-forward.
    port: Option<u16>,
}

impl Channel {
    /// Returns the channels of an exec or attach.
    pub(crate) fn of_container(options: Options) -> Vec<Self> {
        let channel = |number, name, sender| Self { number, stream: 0, name, sender, port: None };
        // The error channel must be the first stream, as with every client of this protocol.
        let mut channels = vec![channel(3, "error", Sender::Runtime)];
        channels.extend(options.stdin.then(|| channel(0, "stdin", Sender::Client)));
        channels.extend(options.stdout.then(|| channel(1, "stdout", Sender::Runtime)));
        channels.extend(options.stderr.then(|| channel(2, "stderr", Sender::Runtime)));
        channels.extend(options.tty.then(|| channel(4, "resize", Sender::Client)));
        numbered(channels)
    }

    /// Returns the channels of a port-forward: data and errors of each port, in the order in which clients expect them.
    pub(crate) fn of_ports(ports: &[u16]) -> Vec<Self> {
        let channels = ports.iter().zip((0..=u8::MAX).step_by(2)).flat_map(|(port, number)| {
            let channel =
                |number, name, sender| Self { number, stream: 0, name, sender, port: Some(*port) };
            let errors = channel(number.saturating_add(1), "error", Sender::Runtime);
            [channel(number, "data", Sender::Both), errors]
        });
        numbered(channels.collect())
    }

    fn open(self, encoder: &mut Encoder) -> Vec<u8> {
        let kind = ("streamtype", self.name);
        let Some(port) = self.port else { return encoder.open(self.stream, &[kind]) };
        // The two streams of a port have one request ID.
        let (port, request) = (port.to_string(), (self.number / 2).to_string());
        encoder.open(self.stream, &[kind, ("port", &port), ("requestid", &request)])
    }
}

/// Numbers the streams in order. Those of a client are odd.
fn numbered(mut channels: Vec<Channel>) -> Vec<Channel> {
    channels.iter_mut().zip((1..).step_by(2)).for_each(|(channel, stream)| channel.stream = stream);
    channels
}

/// Translates between a WebSocket's channels and the runtime's SPDY streams until either ends.
pub(crate) async fn channels<C, R>(
    socket: WebSocketStream<C>,
    runtime: R,
    channels: &[Channel],
    dialect: Dialect,
) -> Result<(), Error>
where
    C: AsyncRead + AsyncWrite + Unpin,
    R: AsyncRead + AsyncWrite,
{
    let (mut to_client, mut from_client) = socket.split();
    let (from_runtime, mut to_runtime) = tokio::io::split(runtime);
    let mut encoder = Encoder::default();
    for channel in channels {
        to_runtime.write_all(&channel.open(&mut encoder)).await?;
    }
    to_runtime.flush().await?;
    // The first message of a port's channel is the port.
    for channel in channels {
        let greeting = channel.port.and_then(|port| message(channel, &port.to_le_bytes(), dialect));
        if let Some(greeting) = greeting {
            to_client.send(greeting).await?;
        }
    }
    let to_runtime = Mutex::new(to_runtime);
    // Stop at the end of the output, and also when the client disconnects, because the output then has no receiver.
    let ended = tokio::select! {
        ended = output(from_runtime, &mut to_client, &to_runtime, &encoder, channels, dialect) => ended,
        ended = input(&mut from_client, &to_runtime, &encoder, channels, dialect) => ended,
    };
    close(&mut to_client, &mut from_client).await;
    ended
}

/// Closes with code 1000 and waits until the client has read everything. Closing a socket with unread data would
/// discard data that is still in transit.
async fn close(
    to: &mut (impl Sink<Message, Error = WsError> + Unpin),
    from: &mut (impl Stream<Item = Result<Message, WsError>> + Unpin),
) {
    let frame = CloseFrame { code: CloseCode::Normal, reason: Utf8Bytes::default() };
    let goodbye = async {
        to.send(Message::Close(Some(frame))).await?;
        while let Some(message) = from.next().await {
            message?;
        }
        Ok::<_, WsError>(())
    };
    drop(tokio::time::timeout(CLOSE_TIMEOUT, goodbye).await);
}

async fn output<W: AsyncWrite + Unpin>(
    mut from: impl AsyncRead + Unpin,
    to: &mut (impl Sink<Message, Error = WsError> + Unpin),
    runtime: &Mutex<W>,
    encoder: &Encoder,
    channels: &[Channel],
    dialect: Dialect,
) -> Result<(), Error> {
    let outputs = || channels.iter().filter(|channel| channel.sender != Sender::Client);
    let mut open: Vec<u32> = outputs().map(|channel| channel.stream).collect();
    while !open.is_empty() {
        match spdy::read(&mut from).await? {
            None | Some(Frame::GoAway) => break,
            Some(Frame::Data { stream, last, content }) => {
                let channel = outputs().find(|channel| channel.stream == stream);
                if let Some(channel) = channel.filter(|_| !content.is_empty())
                    && let Some(message) = message(channel, &content, dialect)
                {
                    to.send(message).await?;
                }
                if last {
                    open.retain(|s| *s != stream);
                }
            }
            Some(Frame::Reset { stream }) => open.retain(|s| *s != stream),
            Some(Frame::Ping { id }) => {
                let mut runtime = runtime.lock().await;
                runtime.write_all(&encoder.pong(id)).await?;
                runtime.flush().await?;
            }
            Some(Frame::Other) => {}
        }
    }
    Ok(())
}

/// Encodes output of the runtime as a message. Returns `None` if the protocol has no message for it.
fn message(channel: &Channel, content: &[u8], dialect: Dialect) -> Option<Message> {
    let status = match (dialect.status, channel.name) {
        (false, "error") => Some(failure(content)?.into_bytes()),
        _ => None,
    };
    let content = status.as_deref().unwrap_or(content);
    if dialect.base64 {
        let digit = char::from(channel.number.wrapping_add(b'0'));
        return Some(Message::text(format!("{digit}{}", STANDARD.encode(content))));
    }
    let mut message = Vec::with_capacity(content.len() + 1);
    message.push(channel.number);
    message.extend_from_slice(content);
    Some(Message::binary(message))
}

/// Returns the message of the runtime's final Status, or `None` on success.
fn failure(content: &[u8]) -> Option<String> {
    let Ok(status) = serde_json::from_slice::<serde_json::Value>(content) else {
        return Some(String::from_utf8_lossy(content).into_owned());
    };
    (status.text("status") != "Success").then(|| status.text("message").to_owned())
}

async fn input<W: AsyncWrite + Unpin>(
    from: &mut (impl Stream<Item = Result<Message, WsError>> + Unpin),
    runtime: &Mutex<W>,
    encoder: &Encoder,
    channels: &[Channel],
    dialect: Dialect,
) -> Result<(), Error> {
    while let Some(message) = from.next().await {
        let bytes = match message? {
            Message::Binary(bytes) => bytes,
            Message::Text(text) => text.into(),
            Message::Close(_) => break,
            _ => continue,
        };
        let bytes = match (dialect.base64, bytes.as_ref()) {
            (true, [digit, content @ ..]) => {
                let Ok(mut content) = STANDARD.decode(content) else { continue };
                content.insert(0, digit.wrapping_sub(b'0'));
                content.into()
            }
            _ => bytes,
        };
        let (number, content, last) = match bytes.as_ref() {
            [CLOSE, number, ..] if dialect.can_close => (*number, &[][..], true),
            [number, content @ ..] => (*number, content, false),
            [] => continue,
        };
        let is_input = |c: &&Channel| c.number == number && c.sender != Sender::Runtime;
        let Some(channel) = channels.iter().find(is_input) else {
            continue;
        };
        if content.is_empty() && !last {
            continue;
        }
        let mut runtime = runtime.lock().await;
        runtime.write_all(&encoder.data(channel.stream, content, last)).await?;
        runtime.flush().await?;
    }
    Ok(())
}

/// Copies a connection's bytes from and to the messages of a WebSocket.
pub(crate) async fn tunnel<C, R>(socket: WebSocketStream<C>, runtime: R) -> Result<(), Error>
where
    C: AsyncRead + AsyncWrite + Unpin,
    R: AsyncRead + AsyncWrite,
{
    let (mut to_client, mut from_client) = socket.split();
    let (mut from_runtime, mut to_runtime) = tokio::io::split(runtime);
    let inward = async {
        while let Some(message) = from_client.next().await {
            match message? {
                Message::Binary(bytes) => {
                    to_runtime.write_all(&bytes).await?;
                    to_runtime.flush().await?;
                }
                Message::Close(_) => break,
                _ => {}
            }
        }
        to_runtime.shutdown().await?;
        Ok::<_, Error>(())
    };
    let outward = async {
        let mut piece = vec![0; PIECE];
        loop {
            let size = from_runtime.read(&mut piece).await?;
            if size == 0 {
                return Ok::<_, Error>(());
            }
            to_client.send(Message::binary(piece[..size].to_vec())).await?;
        }
    };
    let ended = tokio::select! {
        ended = inward => ended,
        ended = outward => ended,
    };
    close(&mut to_client, &mut from_client).await;
    ended
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUCCESS: &str = "{\"metadata\":{},\"status\":\"Success\"}";
    const FAILURE: &str = "{\"status\":\"Failure\",\"message\":\"exit code 3\"}";

    #[test]
    fn encodes_messages_for_each_protocol() {
        let channel =
            |number, name| Channel { number, stream: 1, name, sender: Sender::Runtime, port: None };
        let (out, error, sixth) = (channel(1, "stdout"), channel(3, "error"), channel(10, "data"));
        let dialect = |status, base64| Dialect { status, base64, can_close: false };
        let binary =
            |number: u8, text: &str| Some(Message::binary([&[number], text.as_bytes()].concat()));
        for (channel, content, dialect, expected) in [
            (&out, "hi", dialect(true, false), binary(1, "hi")),
            (&out, "hi", dialect(false, true), Some(Message::text("1aGk="))),
            (&sixth, "hi", dialect(true, true), Some(Message::text(":aGk="))),
            (&error, SUCCESS, dialect(true, false), binary(3, SUCCESS)),
            (&error, SUCCESS, dialect(false, false), None),
            (&error, FAILURE, dialect(false, false), binary(3, "exit code 3")),
        ] {
            assert_eq!(
                message(channel, content.as_bytes(), dialect),
                expected,
                "{dialect:?} {content}"
            );
        }
    }

    #[tokio::test]
    async fn forwards_ports_on_two_channels_each() {
        use tokio_tungstenite::tungstenite::protocol::Role;
        let (client, server) = tokio::io::duplex(1 << 16);
        let (ours, mut runtime) = tokio::io::duplex(1 << 16);
        let mut client = WebSocketStream::from_raw_socket(client, Role::Client, None).await;
        let server = WebSocketStream::from_raw_socket(server, Role::Server, None).await;
        let channels = Channel::of_ports(&[80, 443]);
        let dialect = Dialect { status: true, base64: false, can_close: false };
        let relay = super::channels(server, ours, &channels, dialect);
        let ends = async {
            for greeting in [[0, 80, 0], [1, 80, 0], [2, 187, 1], [3, 187, 1]] {
                let message = client.next().await.unwrap().unwrap();
                assert_eq!(message.into_data(), greeting.to_vec());
            }
            // The client may not send on a channel for errors, nor on one that does not exist.
            for message in [[3, 9], [9, 9], [2, 7]] {
                client.send(Message::binary(message.to_vec())).await.unwrap();
            }
            let data = loop {
                match spdy::read(&mut runtime).await.unwrap().unwrap() {
                    Frame::Other => {}
                    data => break data,
                }
            };
            let stream = 5;
            assert_eq!(data, Frame::Data { stream, last: false, content: vec![7] });
            let encoder = Encoder::default();
            runtime.write_all(&encoder.data(stream, b"hi", true)).await.unwrap();
            runtime.write_all(&encoder.data(3, b"refused", true)).await.unwrap();
            for expected in [&b"\x02hi"[..], b"\x01refused"] {
                let message = client.next().await.unwrap().unwrap();
                assert_eq!(message.into_data(), expected);
            }
            for stream in [1, 7] {
                runtime.write_all(&encoder.data(stream, b"", true)).await.unwrap();
            }
            let closed = client.next().await.unwrap().unwrap();
            assert!(closed.is_close(), "all streams have ended");
            client.flush().await.ok();
        };
        let (ended, ()) = tokio::join!(relay, ends);
        ended.unwrap();
    }
}
