//! Watches over WebSocket, from browsers and programs: over TLS, with a bearer token.

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD as BASE64};
use futures_util::{SinkExt as _, StreamExt as _};
use http::header;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        Error, Message, client::IntoClientRequest as _, handshake::client::Response,
        protocol::frame::coding::CloseCode,
    },
};

use crate::harness::{TestServer, config_map, shared};

pub(crate) type Socket = WebSocketStream<TlsStream<TcpStream>>;

/// The part of the handshake that carries the token.
enum TokenTransport {
    Header(String),
    /// A script in a page, which sets protocols but no headers.
    Subprotocol(String),
}

pub(crate) async fn connect(
    server: &TestServer,
    path: &str,
    headers: &[(http::HeaderName, String)],
) -> Result<(Socket, Response), Error> {
    let address = server.api.address();
    let mut request = format!("wss://{address}{path}").into_client_request()?;
    for (name, value) in headers {
        request.headers_mut().insert(name, value.parse().unwrap());
    }
    tokio_tungstenite::client_async(request, server.dial(address, "http/1.1").await).await
}

/// Returns the status code of a rejected handshake.
pub(crate) fn refused(answer: Result<(Socket, Response), Error>) -> u16 {
    match answer {
        Err(Error::Http(response)) => response.status().as_u16(),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it was taken"),
    }
}

/// Returns the next message, which must be an event in JSON.
async fn event(socket: &mut Socket) -> Value {
    match socket.next().await.expect("a message").unwrap() {
        Message::Text(text) => serde_json::from_str(&text).unwrap(),
        other => panic!("{other:?}"),
    }
}

fn in_protocol(token: &str) -> String {
    format!("base64url.bearer.authorization.k8s.io.{}", BASE64.encode(token))
}

#[tokio::test(flavor = "multi_thread")]
async fn sends_watch_events_as_messages() {
    let server = shared();
    let admin = server.admin();
    let namespace = admin.namespace().await;
    let token = server.powerful_token(&namespace).await;
    let maps = format!("/api/v1/namespaces/{namespace}/configmaps");
    admin.post(&maps, &config_map("a", json!({"k": "v"}))).await.ok();
    let initial = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
    let path = format!("{maps}?watch=true&{initial}&allowWatchBookmarks=true&timeoutSeconds=2");
    for (n, way) in [TokenTransport::Header(token.clone()), TokenTransport::Subprotocol(token)]
        .into_iter()
        .enumerate()
    {
        let headers = match &way {
            TokenTransport::Header(token) => {
                vec![(header::AUTHORIZATION, format!("Bearer {token}"))]
            }
            TokenTransport::Subprotocol(token) => vec![
                (header::ORIGIN, "https://dashboard.example".to_owned()),
                // The client in this test verifies, like a browser, that one of its protocols is selected.
                (
                    header::SEC_WEBSOCKET_PROTOCOL,
                    format!("{}, base64.binary.k8s.io", in_protocol(token)),
                ),
            ],
        };
        let (mut socket, answer) = connect(server, &path, &headers).await.unwrap();
        let spoken = answer.headers().get(header::SEC_WEBSOCKET_PROTOCOL);
        let wanted =
            matches!(way, TokenTransport::Subprotocol(_)).then_some("base64.binary.k8s.io");
        assert_eq!(spoken.map(|name| name.to_str().unwrap()), wanted);
        // The list, its end, and later changes.
        let mut first = event(&mut socket).await;
        assert_eq!((&first["type"], &first["object"]["data"]["k"]), (&json!("ADDED"), &json!("v")));
        while first["type"] == "ADDED" {
            first = event(&mut socket).await;
        }
        assert_eq!(first["type"], "BOOKMARK");
        let notes = &first["object"]["metadata"]["annotations"];
        assert_eq!(notes["k8s.io/initial-events-end"], "true");
        let made = config_map(&format!("later-{n}"), json!({"text": "é\n\u{1f9ca}"}));
        let made = admin.post(&maps, &made).await.ok();
        let added = event(&mut socket).await;
        assert_eq!((&added["type"], &added["object"]), (&json!("ADDED"), &made));
        let one = format!("{maps}/later-{n}");
        let patched = admin.patch(&one, "merge", &json!({"data": {"k": "v"}})).await.ok();
        let modified = event(&mut socket).await;
        assert_eq!((&modified["type"], &modified["object"]), (&json!("MODIFIED"), &patched));
        admin.delete(&one, &json!({})).await.ok();
        assert_eq!(event(&mut socket).await["type"], "DELETED");
        // At the timeout, a close message is sent and the connection ends.
        match socket.next().await.unwrap().unwrap() {
            Message::Close(Some(frame)) => assert_eq!(frame.code, CloseCode::Normal),
            other => panic!("{other:?}"),
        }
        assert!(socket.next().await.is_none_or(|end| end.is_err()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ends_on_close_and_rejects_unknown_tokens() {
    let server = shared();
    let admin = server.admin();
    let namespace = admin.namespace().await;
    let token = server.powerful_token(&namespace).await;
    let path = format!("/api/v1/namespaces/{namespace}/configmaps?watch=true");
    let protocols = |names: String| [(header::SEC_WEBSOCKET_PROTOCOL, names)];
    let good = in_protocol(&token);
    // As upstream: a token without a second protocol, or a wrong one, is rejected, and of two protocols none is
    // selected.
    for (names, code) in [
        (good.clone(), 401),
        (format!("{}, a", in_protocol("wrong")), 401),
        (format!("a, b, {good}"), 400),
    ] {
        assert_eq!(
            refused(connect(server, &path, &protocols(names.clone())).await),
            code,
            "{names}"
        );
    }
    assert_eq!(refused(connect(server, &path, &[]).await), 403);
    let (mut socket, _) =
        connect(server, &path, &protocols(format!("{good}, any.name"))).await.unwrap();
    socket.send(Message::Close(None)).await.unwrap();
    // The watch would last for half an hour.
    let end = tokio::time::timeout(std::time::Duration::from_secs(10), async {
        while let Some(Ok(_)) = socket.next().await {}
    });
    end.await.expect("the server lets go");
}
