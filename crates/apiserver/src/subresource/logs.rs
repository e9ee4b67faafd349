//! Logs for a client that asks for them by WebSocket: the kubelet's plain answer, in messages.

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

use crate::answer;

const BASE64: &str = "base64.binary.k8s.io";
/// The last is for clients that name none.
pub(super) const PROTOCOLS: &[&str] = &["binary.k8s.io", BASE64, ""];

/// A handshake that has been accepted: the protocol, and the answer's headers.
pub(super) type Accepted = (&'static str, HeaderMap);

/// Answers with an upgrade, after which a task sends what the kubelet does.
pub(super) fn answer(
    tasks: &rt::Tasks,
    upgraded: OnUpgrade,
    (protocol, headers): Accepted,
    logs: Body,
) -> Response<Body> {
    tasks.spawn_until_shutdown("logs by WebSocket", async move {
        let Ok(client) = upgraded.await else { return };
        let socket =
            WebSocketStream::from_raw_socket(TokioIo::new(client), Role::Server, None).await;
        if let Err(error) = send(socket, protocol == BASE64, logs).await {
            tracing::debug!(%error, "sending logs by WebSocket");
        }
    });
    let mut response = Response::new(answer::full(Vec::new()));
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    *response.headers_mut() = headers;
    response
}

async fn send<S: AsyncRead + AsyncWrite + Unpin>(
    socket: WebSocketStream<S>,
    base64: bool,
    mut logs: Body,
) -> Result<(), Error> {
    let message = |piece: Bytes| match base64 {
        true => Message::text(STANDARD.encode(piece)),
        false => Message::binary(piece),
    };
    let (mut to, mut from) = socket.split();
    let sending = async {
        // Clients are told at once that the stream stands, by an empty message.
        to.send(message(Bytes::new())).await?;
        while let Some(Ok(frame)) = logs.frame().await {
            if let Ok(piece) = frame.into_data() {
                to.send(message(piece)).await?;
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
        for (base64, wanted) in [
            (false, [Message::binary(""), Message::binary("line\n")]),
            (true, [Message::text(""), Message::text("bGluZQo=")]),
        ] {
            let (server, client) = tokio::io::duplex(1 << 10);
            let server = WebSocketStream::from_raw_socket(server, Role::Server, None).await;
            let mut client = WebSocketStream::from_raw_socket(client, Role::Client, None).await;
            let sending = send(server, base64, answer::full(b"line\n".to_vec()));
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
