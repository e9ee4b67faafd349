//! Sends logs and watches as WebSocket messages.

use api_meta::Status;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use futures_util::{SinkExt as _, StreamExt as _};
use http::{HeaderMap, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use serve::Body;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        Error, Message, Utf8Bytes,
        protocol::{CloseFrame, Role, WebSocketConfig, frame::coding::CloseCode},
    },
};

use super::{call::Call, read, state::State};
use crate::request::Encoding;

const BASE64: &str = "base64.binary.k8s.io";
/// The WebSocket protocols of logs. The empty one is for clients that name none.
pub(crate) const PROTOCOLS: &[&str] = &["binary.k8s.io", BASE64, ""];

/// The largest message of a client, in bytes. It is in memory until it is complete, and clients send nothing but pings
/// and a close message.
const MAX_MESSAGE: usize = 4096;

fn limits() -> WebSocketConfig {
    WebSocketConfig::default()
        .read_buffer_size(MAX_MESSAGE)
        .max_message_size(Some(MAX_MESSAGE))
        .max_frame_size(Some(MAX_MESSAGE))
}

/// The content of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    /// An event of a watch.
    Text,
    /// An event of a watch in a binary encoding.
    Binary,
    /// A piece of a log.
    Piece,
    /// A piece of a log, for clients that accept only text.
    Base64,
}

impl Framing {
    pub(crate) fn of_logs(protocol: &str) -> Self {
        if protocol == BASE64 { Self::Base64 } else { Self::Piece }
    }

    fn message(self, piece: Bytes) -> Message {
        match self {
            Self::Base64 => Message::text(STANDARD.encode(piece)),
            Self::Text => Message::text(String::from_utf8_lossy(&piece).into_owned()),
            Self::Binary | Self::Piece => Message::binary(piece),
        }
    }
}

/// Answers a watch, with messages if the client requests a WebSocket.
pub(crate) async fn watch(state: &State, call: &Call) -> Result<Response<Body>, Box<Status>> {
    let events = read::watch(state, call).await?;
    // Taken last, because a watch that uses much processor time begins again.
    let mut parts = call.take_parts();
    let upgraded = parts.extensions.remove::<OnUpgrade>();
    let Some(upgraded) = upgraded.filter(|_| serve::websocket::is_asked_for(&parts.headers)) else {
        return Ok(events);
    };
    let headers = serve::websocket::accept_any(&parts.headers)
        .map_err(|e| Box::new(Status::bad_request(e.to_string())))?;
    let framing = match call.accepted.encoding {
        Encoding::Protobuf | Encoding::Cbor => Framing::Binary,
        _ => Framing::Text,
    };
    Ok(answer(&state.cache.tasks, upgraded, headers, framing, events.into_body()))
}

/// Answers with an upgrade and spawns a task that sends the body as messages.
pub(crate) fn answer(
    tasks: &rt::Tasks,
    upgraded: OnUpgrade,
    headers: HeaderMap,
    framing: Framing,
    plain: Body,
) -> Response<Body> {
    tasks.spawn_until_shutdown("an answer by WebSocket", async move {
        let Ok(client) = upgraded.await else { return };
        let client = TokioIo::new(client);
        let socket = WebSocketStream::from_raw_socket(client, Role::Server, Some(limits())).await;
        if let Err(error) = send(socket, framing, plain).await {
            tracing::debug!(%error, "failed to send a response by WebSocket");
        }
    });
    let mut response = Response::new(serve::full(Vec::new()));
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    *response.headers_mut() = headers;
    response
}

async fn send<S: AsyncRead + AsyncWrite + Unpin>(
    socket: WebSocketStream<S>,
    framing: Framing,
    mut plain: Body,
) -> Result<(), Error> {
    let (mut to, mut from) = socket.split();
    let sending = async {
        // An empty first message signals that the stream is open.
        if matches!(framing, Framing::Piece | Framing::Base64) {
            to.send(framing.message(Bytes::new())).await?;
        }
        while let Some(Ok(frame)) = plain.frame().await {
            if let Ok(piece) = frame.into_data() {
                to.send(framing.message(piece)).await?;
            }
        }
        let frame = CloseFrame { code: CloseCode::Normal, reason: Utf8Bytes::default() };
        to.send(Message::Close(Some(frame))).await
    };
    // Clients send nothing but a close message.
    let leaving = async {
        while let Some(message) = from.next().await {
            if matches!(message?, Message::Close(_)) {
                break;
            }
        }
        Ok(())
    };
    tokio::select! {
        sent = sending => sent,
        left = leaving => left,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn sends_each_piece_as_message_then_closes() {
        for (framing, wanted) in [
            (Framing::Piece, vec![Message::binary(""), Message::binary("line\n")]),
            (Framing::Base64, vec![Message::text(""), Message::text("bGluZQo=")]),
            (Framing::Text, vec![Message::text("line\n")]),
            (Framing::Binary, vec![Message::binary("line\n")]),
        ] {
            let (server, client) = tokio::io::duplex(1 << 10);
            let server = WebSocketStream::from_raw_socket(server, Role::Server, None).await;
            let mut client = WebSocketStream::from_raw_socket(client, Role::Client, None).await;
            let sending = send(server, framing, serve::full(b"line\n".to_vec()));
            let reading = async {
                for message in wanted {
                    assert_eq!(client.next().await.unwrap().unwrap(), message);
                }
                let end = client.next().await.unwrap().unwrap();
                assert!(
                    matches!(&end, Message::Close(Some(frame)) if frame.code == CloseCode::Normal),
                    "{end:?}"
                );
            };
            let (sent, ()) = tokio::join!(sending, reading);
            sent.unwrap();
        }
    }
    #[tokio::test]
    async fn ends_for_a_client_that_sends_a_large_message() {
        use tokio::io::AsyncWriteExt as _;
        let (server, mut client) = tokio::io::duplex(1 << 10);
        let server = WebSocketStream::from_raw_socket(server, Role::Server, Some(limits())).await;
        // A part of a message of 16 MiB, which never ends.
        let head = [0x02, 0xff, 0, 0, 0, 0, 1, 0, 0, 0, 1, 2, 3, 4];
        client.write_all(&head).await.unwrap();
        let endless = http_body_util::StreamBody::new(futures_util::stream::pending());
        let ended = send(server, Framing::Text, Body::new(endless)).await;
        assert!(matches!(ended, Err(Error::Capacity(_))), "{ended:?}");
    }
}
