//! Translates WebSockets of clients: channels of an exec, attach or port-forward, or a tunnelled connection.

use std::time::Duration;

use api_meta::Tree as _;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    sync::Mutex,
};
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Control, Data, OpCode};

use crate::{
    frames::{FrameError, FrameReader, Piece, encode},
    protocol::{Dialect, Options},
    spdy::{self, Encoder, Frame},
};

/// The channel whose messages close the channel that they name, since v5.
const CLOSE: u8 = 255;
const PIECE: usize = 32 << 10;
/// The time that a client has to answer a close frame.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// The content of a close frame: code 1000, a normal end.
const NORMAL: [u8; 2] = 1000_u16.to_be_bytes();

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("a stream of the client or the runtime: {0}")]
    Stream(#[from] std::io::Error),
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
    client: C,
    runtime: R,
    channels: &[Channel],
    dialect: Dialect,
) -> Result<(), Error>
where
    C: AsyncRead + AsyncWrite,
    R: AsyncRead + AsyncWrite,
{
    let (from_client, to_client) = tokio::io::split(client);
    let (from_runtime, mut to_runtime) = tokio::io::split(runtime);
    let (mut from_client, to_client) = (FrameReader::new(from_client), Mutex::new(to_client));
    let mut encoder = Encoder::default();
    for channel in channels {
        to_runtime.write_all(&channel.open(&mut encoder)).await?;
    }
    to_runtime.flush().await?;
    // The first message of a port's channel is the port.
    for channel in channels {
        let greeting = channel.port.and_then(|port| message(channel, &port.to_le_bytes(), dialect));
        if let Some(greeting) = greeting {
            send(&to_client, &greeting).await?;
        }
    }
    let to_runtime = Mutex::new(to_runtime);
    let inbound = Inbound::new(channels, dialect, &encoder);
    // Stop at the end of the output, and also when the client disconnects, because the output then has no receiver.
    let ended = tokio::select! {
        ended = output(from_runtime, &to_client, &to_runtime, &encoder, channels, dialect) => ended,
        ended = input(&mut from_client, &to_client, &to_runtime, inbound) => ended,
    };
    close(&to_client, &mut from_client).await;
    ended
}

/// Writes a whole frame or whole frames. The lock keeps frames of other tasks apart.
async fn send(to: &Mutex<impl AsyncWrite + Unpin>, frames: &[u8]) -> Result<(), std::io::Error> {
    let mut to = to.lock().await;
    to.write_all(frames).await?;
    to.flush().await
}

/// Closes with code 1000 and waits until the client has read everything. Closing a socket with unread data would
/// discard data that is still in transit.
async fn close(
    to: &Mutex<impl AsyncWrite + Unpin>,
    from: &mut FrameReader<impl AsyncRead + Unpin>,
) {
    let goodbye = async {
        send(to, &encode(OpCode::Control(Control::Close), &NORMAL)).await?;
        while !matches!(from.next().await?, None | Some(Piece::Close)) {}
        to.lock().await.shutdown().await?;
        Ok::<_, Error>(())
    };
    drop(tokio::time::timeout(CLOSE_TIMEOUT, goodbye).await);
}

async fn output<W: AsyncWrite + Unpin>(
    mut from: impl AsyncRead + Unpin,
    to: &Mutex<impl AsyncWrite + Unpin>,
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
                    send(to, &message).await?;
                }
                if last {
                    open.retain(|s| *s != stream);
                }
            }
            Some(Frame::Reset { stream }) => open.retain(|s| *s != stream),
            Some(Frame::Ping { id }) => {
                send(runtime, &encoder.pong(id)).await?;
            }
            Some(Frame::Other) => {}
        }
    }
    Ok(())
}

/// Encodes output of the runtime as a frame. Returns `None` if the protocol has no message for it.
fn message(channel: &Channel, content: &[u8], dialect: Dialect) -> Option<Vec<u8>> {
    let status = match (dialect.status, channel.name) {
        (false, "error") => Some(failure(content)?.into_bytes()),
        _ => None,
    };
    let content = status.as_deref().unwrap_or(content);
    if dialect.base64 {
        let digit = char::from(channel.number.wrapping_add(b'0'));
        let text = format!("{digit}{}", STANDARD.encode(content));
        return Some(encode(OpCode::Data(Data::Text), text.as_bytes()));
    }
    let mut message = Vec::with_capacity(content.len() + 1);
    message.push(channel.number);
    message.extend_from_slice(content);
    Some(encode(OpCode::Data(Data::Binary), &message))
}

/// Returns the message of the runtime's final Status, or `None` on success.
fn failure(content: &[u8]) -> Option<String> {
    let Ok(status) = serde_json::from_slice::<serde_json::Value>(content) else {
        return Some(String::from_utf8_lossy(content).into_owned());
    };
    (status.text("status") != "Success").then(|| status.text("message").to_owned())
}

async fn input(
    from: &mut FrameReader<impl AsyncRead + Unpin>,
    to: &Mutex<impl AsyncWrite + Unpin>,
    runtime: &Mutex<impl AsyncWrite + Unpin>,
    mut inbound: Inbound<'_>,
) -> Result<(), Error> {
    while let Some(piece) = from.next().await? {
        match piece {
            Piece::Data { content, last } => {
                if let Some(frames) = inbound.frames(&content, last) {
                    send(runtime, &frames).await?;
                }
            }
            Piece::Ping(content) => {
                send(to, &encode(OpCode::Control(Control::Pong), &content)).await?
            }
            Piece::Close => break,
        }
    }
    Ok(())
}

/// The progress within a message of the client.
#[derive(Clone, Copy)]
enum Progress {
    /// The number of the channel follows.
    Start,
    /// The number of the channel to close follows.
    Close,
    /// Content of a channel follows, or content to ignore.
    Content(Option<Channel>),
}

/// Translates pieces of a client's messages to frames for the runtime.
struct Inbound<'a> {
    channels: &'a [Channel],
    dialect: Dialect,
    encoder: &'a Encoder,
    progress: Progress,
    /// The characters of base64 that do not make up a group of four yet.
    characters: Vec<u8>,
}

impl<'a> Inbound<'a> {
    fn new(channels: &'a [Channel], dialect: Dialect, encoder: &'a Encoder) -> Self {
        let (progress, characters) = (Progress::Start, Vec::new());
        Self { channels, dialect, encoder, progress, characters }
    }

    /// Returns the frames for a piece of a message, if there are any. `last` ends the message.
    fn frames(&mut self, piece: &[u8], last: bool) -> Option<Vec<u8>> {
        let frames = self.translate(piece);
        if last {
            self.progress = Progress::Start;
            self.characters.clear();
        }
        frames
    }

    fn translate(&mut self, piece: &[u8]) -> Option<Vec<u8>> {
        let mut rest = piece;
        if matches!(self.progress, Progress::Start) {
            let first = rest.split_off_first()?;
            let number = if self.dialect.base64 { first.wrapping_sub(b'0') } else { *first };
            self.progress = match number {
                CLOSE if self.dialect.can_close => Progress::Close,
                number => Progress::Content(self.channel(number)),
            };
        }
        match self.progress {
            Progress::Start => None,
            Progress::Close => {
                let channel = self.channel(*rest.split_off_first()?);
                self.progress = Progress::Content(None);
                channel.map(|channel| self.encoder.data(channel.stream, &[], true))
            }
            Progress::Content(channel) => {
                let channel = channel?;
                if !self.dialect.base64 {
                    return self.content(channel, rest);
                }
                let content = self.decode(rest);
                // The rest of a message that is not base64 is ignored.
                self.progress = Progress::Content(content.as_ref().map(|_| channel));
                self.content(channel, &content?)
            }
        }
    }

    fn content(&self, channel: Channel, content: &[u8]) -> Option<Vec<u8>> {
        (!content.is_empty()).then(|| self.encoder.data(channel.stream, content, false))
    }

    /// Returns the channel with a number if the client may send on it.
    fn channel(&self, number: u8) -> Option<Channel> {
        let is_input = |c: &&Channel| c.number == number && c.sender != Sender::Runtime;
        self.channels.iter().find(is_input).copied()
    }

    /// Decodes the complete groups of four characters, and keeps the others for the next piece.
    fn decode(&mut self, piece: &[u8]) -> Option<Vec<u8>> {
        self.characters.extend_from_slice(piece);
        let rest = self.characters.split_off(self.characters.len() / 4 * 4);
        let groups = std::mem::replace(&mut self.characters, rest);
        STANDARD.decode(groups).ok()
    }
}

/// Copies a connection's bytes from and to the messages of a WebSocket.
pub(crate) async fn tunnel<C, R>(client: C, runtime: R) -> Result<(), Error>
where
    C: AsyncRead + AsyncWrite,
    R: AsyncRead + AsyncWrite,
{
    let (from_client, to_client) = tokio::io::split(client);
    let (mut from_client, to_client) = (FrameReader::new(from_client), Mutex::new(to_client));
    let (mut from_runtime, mut to_runtime) = tokio::io::split(runtime);
    let inward = async {
        while let Some(piece) = from_client.next().await? {
            match piece {
                Piece::Data { content, .. } => {
                    to_runtime.write_all(&content).await?;
                    to_runtime.flush().await?;
                }
                Piece::Ping(content) => {
                    send(&to_client, &encode(OpCode::Control(Control::Pong), &content)).await?
                }
                Piece::Close => break,
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
            send(&to_client, &encode(OpCode::Data(Data::Binary), &piece[..size])).await?;
        }
    };
    let ended = tokio::select! {
        ended = inward => ended,
        ended = outward => ended,
    };
    close(&to_client, &mut from_client).await;
    ended
}

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt as _, SinkExt as _, StreamExt as _};
    use tokio_tungstenite::{WebSocketStream, tungstenite::Message};

    use super::*;

    const SUCCESS: &str = "{\"metadata\":{},\"status\":\"Success\"}";
    const FAILURE: &str = "{\"status\":\"Failure\",\"message\":\"exit code 3\"}";

    #[test]
    fn encodes_messages_for_each_protocol() {
        let channel =
            |number, name| Channel { number, stream: 1, name, sender: Sender::Runtime, port: None };
        let (out, error, sixth) = (channel(1, "stdout"), channel(3, "error"), channel(10, "data"));
        let dialect = |status, base64| Dialect { status, base64, can_close: false };
        let binary = |number: u8, text: &str| {
            Some(encode(OpCode::Data(Data::Binary), &[&[number], text.as_bytes()].concat()))
        };
        let text = |text: &str| Some(encode(OpCode::Data(Data::Text), text.as_bytes()));
        for (channel, content, dialect, expected) in [
            (&out, "hi", dialect(true, false), binary(1, "hi")),
            (&out, "hi", dialect(false, true), text("1aGk=")),
            (&sixth, "hi", dialect(true, true), text(":aGk=")),
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

    #[test]
    fn translates_messages_in_pieces_of_any_size() {
        let options = Options { stdin: true, stdout: true, stderr: true, tty: true };
        let (channels, encoder) = (Channel::of_container(options), Encoder::default());
        let stdin = channels.iter().find(|channel| channel.name == "stdin").unwrap().stream;
        for (base64, message, expected, closed) in [
            (false, &b"\0hello"[..], "hello", false),
            (true, b"0aGVsbG8=", "hello", false),
            (true, b"0aGVs*G8=", "hel", false),
            (false, b"\x01output is the runtime's", "", false),
            (true, b"7aGVsbG8=", "", false),
            (false, b"\xff\0ignored", "", true),
            (false, b"\xff\x01", "", false),
            (false, b"\xff", "", false),
            (false, b"", "", false),
        ] {
            for size in 1..10 {
                let dialect = Dialect { status: true, base64, can_close: !base64 };
                let mut inbound = Inbound::new(&channels, dialect, &encoder);
                // The state of a message does not remain for the next one.
                for _ in 0..2 {
                    let mut frames = Vec::new();
                    for piece in message.chunks(size) {
                        frames.extend(inbound.frames(piece, false).into_iter().flatten());
                    }
                    frames.extend(inbound.frames(b"", true).into_iter().flatten());
                    let (mut from, mut content, mut ended) = (&frames[..], Vec::new(), false);
                    while let Some(frame) = spdy::read(&mut from).now_or_never().unwrap().unwrap() {
                        let Frame::Data { stream, last, content: part } = frame else { panic!() };
                        assert_eq!(stream, stdin);
                        content.extend(part);
                        ended |= last;
                    }
                    // Pieces end before or after the characters that are not base64.
                    let content = String::from_utf8(content).unwrap();
                    assert!(
                        expected.starts_with(&content) && ended == closed,
                        "{message:?} {size}"
                    );
                    assert!(message.contains(&b'*') || content == expected, "{message:?} {size}");
                }
            }
        }
    }

    #[tokio::test]
    async fn forwards_ports_on_two_channels_each() {
        use tokio_tungstenite::tungstenite::protocol::Role;
        let (client, server) = tokio::io::duplex(1 << 16);
        let (ours, mut runtime) = tokio::io::duplex(1 << 16);
        let mut client = WebSocketStream::from_raw_socket(client, Role::Client, None).await;
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
