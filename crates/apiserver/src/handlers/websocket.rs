//! Logs and watches for a client that asks for them by WebSocket: the plain answer, in messages.

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
        protocol::{CloseFrame, Role, frame::coding::CloseCode},
    },
};

use super::{call::Call, read, state::State};
use crate::request::Encoding;

const BASE64: &str = "base64.binary.k8s.io";
/// How logs may be asked for; the last is for clients that name no protocol.
pub(crate) const PROTOCOLS: &[&str] = &["binary.k8s.io", BASE64, ""];

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    /// An event of a watch.
    Text,
    /// An event of a watch that is not text.
    Binary,
    /// A piece of a log.
    Piece,
    /// The same for clients that take only text.
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

/// Answers a watch, in messages if the client asks for a WebSocket.
pub(crate) async fn watch(state: &State, call: &Call) -> Result<Response<Body>, Box<Status>> {
    let mut parts = call.take_parts();
    let upgraded = parts.extensions.remove::<OnUpgrade>();
    let Some(upgraded) = upgraded.filter(|_| serve::websocket::is_asked_for(&parts.headers)) else {
        return read::watch(state, call).await;
    };
    let headers = serve::websocket::accept_any(&parts.headers)
        .map_err(|e| Box::new(Status::bad_request(e.to_string())))?;
    let events = read::watch(state, call).await?.into_body();
    let framing = match call.accepted.encoding {
        Encoding::Protobuf => Framing::Binary,
        _ => Framing::Text,
    };
    Ok(answer(&state.cache.tasks, upgraded, headers, framing, events))
}

/// Answers with an upgrade, after which a task sends what the plain answer would have been.
pub(crate) fn answer(
    tasks: &rt::Tasks,
    upgraded: OnUpgrade,
    headers: HeaderMap,
    framing: Framing,
    plain: Body,
) -> Response<Body> {
    tasks.spawn_until_shutdown("an answer by WebSocket", async move {
        let Ok(client) = upgraded.await else { return };
        let socket =
            WebSocketStream::from_raw_socket(TokioIo::new(client), Role::Server, None).await;
        if let Err(error) = send(socket, framing, plain).await {
            tracing::debug!(%error, "answering by WebSocket");
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
        // Who reads logs is told at once that the stream stands, by an empty message.
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
    // A client has nothing to say but that it leaves.
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
    async fn each_piece_is_a_message_and_the_end_is_said() {
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
}
