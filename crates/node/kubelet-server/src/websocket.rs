//! Translates WebSockets of kubectl: channels of an exec or attach, or a tunnelled connection.

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

/// A channel of the WebSocket protocol and its stream with the runtime.
#[derive(Clone, Copy)]
struct Channel {
    number: u8,
    stream: u32,
    name: &'static str,
    /// `true` if the runtime sends on this channel.
    output: bool,
}

fn channels_of(options: Options) -> Vec<Channel> {
    let channel = |number, name, output| Channel { number, stream: 0, name, output };
    // The error channel must be the first stream, as with every client of this protocol.
    let mut channels = vec![channel(3, "error", true)];
    channels.extend(options.stdin.then(|| channel(0, "stdin", false)));
    channels.extend(options.stdout.then(|| channel(1, "stdout", true)));
    channels.extend(options.stderr.then(|| channel(2, "stderr", true)));
    channels.extend(options.tty.then(|| channel(4, "resize", false)));
    channels.iter_mut().zip((1..).step_by(2)).for_each(|(channel, stream)| channel.stream = stream);
    channels
}

/// Translates between a WebSocket's channels and the runtime's SPDY streams until either ends.
pub(crate) async fn channels<C, R>(
    socket: WebSocketStream<C>,
    runtime: R,
    options: Options,
    dialect: Dialect,
) -> Result<(), Error>
where
    C: AsyncRead + AsyncWrite + Unpin,
    R: AsyncRead + AsyncWrite,
{
    let channels = channels_of(options);
    let (mut to_client, mut from_client) = socket.split();
    let (from_runtime, mut to_runtime) = tokio::io::split(runtime);
    let mut encoder = Encoder::default();
    for channel in &channels {
        to_runtime.write_all(&encoder.open(channel.stream, ("streamtype", channel.name))).await?;
    }
    to_runtime.flush().await?;
    let to_runtime = Mutex::new(to_runtime);
    // Stop at the end of the output, and also when the client disconnects, because the output then has no receiver.
    let ended = tokio::select! {
        ended = output(from_runtime, &mut to_client, &to_runtime, &encoder, &channels, dialect) => ended,
        ended = input(&mut from_client, &to_runtime, &encoder, &channels, dialect) => ended,
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
    let mut open: Vec<u32> = channels.iter().filter(|c| c.output).map(|c| c.stream).collect();
    while !open.is_empty() {
        match spdy::read(&mut from).await? {
            None | Some(Frame::GoAway) => break,
            Some(Frame::Data { stream, last, content }) => {
                let channel = channels.iter().find(|c| c.stream == stream && c.output);
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
        return Some(Message::text(format!("{}{}", channel.number, STANDARD.encode(content))));
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
        let Some(channel) = channels.iter().find(|c| c.number == number && !c.output) else {
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
        let channel = |number, name| Channel { number, stream: 1, name, output: true };
        let (out, error) = (channel(1, "stdout"), channel(3, "error"));
        let dialect = |status, base64| Dialect { status, base64, can_close: false };
        let binary =
            |number: u8, text: &str| Some(Message::binary([&[number], text.as_bytes()].concat()));
        for (channel, content, dialect, expected) in [
            (&out, "hi", dialect(true, false), binary(1, "hi")),
            (&out, "hi", dialect(false, true), Some(Message::text("1aGk="))),
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
}
