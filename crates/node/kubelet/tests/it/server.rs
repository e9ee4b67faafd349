//! The kubelet's server.

use std::time::Duration;

use client::{TlsMaterial, Transport};
use futures_util::{SinkExt, StreamExt};
use http_body_util::BodyExt;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{Message, client::IntoClientRequest},
};

use crate::node::{APP, Node, eventually};

type Socket = WebSocketStream<tokio_rustls::client::TlsStream<TcpStream>>;

fn tls(node: &Node, identity: Option<&str>) -> rustls::ClientConfig {
    let read = |kind: &str| {
        identity.map(|name| std::fs::read(node.dir.join(format!("{name}.{kind}"))).unwrap())
    };
    let material =
        TlsMaterial { ca: None, certificate: read("crt"), key: read("key"), insecure: true };
    material.client_config().unwrap()
}

pub(crate) async fn get(node: &Node, identity: Option<&str>, path: &str) -> (u16, String) {
    get_by(node, tls(node, identity), path).await
}

async fn get_by(node: &Node, tls: rustls::ClientConfig, path: &str) -> (u16, String) {
    let server = format!("https://127.0.0.1:{}", node.port);
    let transport = client::HttpTransport::new(&server, tls, None).unwrap();
    let request = http::Request::get(path).body(client::empty()).unwrap();
    let response = match transport.send(request).await {
        Ok(response) => response,
        // The kubelet does not listen yet.
        Err(error) => return (0, error.to_string()),
    };
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8_lossy(&body).into_owned())
}

async fn connect(node: &Node, path: &str, protocol: &str) -> Socket {
    let stream = TcpStream::connect(("127.0.0.1", node.port)).await.unwrap();
    let mut config = tls(node, Some("client"));
    config.alpn_protocols.clear();
    let connector = tokio_rustls::TlsConnector::from(std::sync::Arc::new(config));
    let stream =
        connector.connect(ServerName::try_from("127.0.0.1").unwrap(), stream).await.unwrap();
    let mut request = format!("wss://127.0.0.1:{}{path}", node.port).into_client_request().unwrap();
    request.headers_mut().insert("sec-websocket-protocol", protocol.parse().unwrap());
    let (socket, response) = tokio_tungstenite::client_async(request, stream).await.unwrap();
    assert_eq!(response.headers()["sec-websocket-protocol"], protocol);
    socket
}

/// Returns the output of all channels until the stream ends.
async fn said(socket: &mut Socket) -> [String; 4] {
    let mut channels: [Vec<u8>; 4] = Default::default();
    while let Some(Ok(message)) = socket.next().await {
        if let Message::Close(frame) = &message {
            assert_eq!(
                u16::from(frame.as_ref().unwrap().code),
                1000,
                "kubectl takes another code for an error"
            );
        }
        let Message::Binary(bytes) = message else { continue };
        channels[usize::from(bytes[0])].extend_from_slice(&bytes[1..]);
    }
    channels.map(|bytes| String::from_utf8(bytes).unwrap())
}

fn message(channel: u8, text: &str) -> Message {
    Message::binary([&[channel], text.as_bytes()].concat())
}

async fn with_pod(name: &str) -> Node {
    let mut node = Node::start(name).await;
    node.start_kubelet(None);
    let manifest = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: web, namespace: default}}\nspec:\n  hostNetwork: true\n  \
         terminationGracePeriodSeconds: 0\n  containers:\n  - name: app\n    image: '{APP}'\n    \
         command: [sh, -c, 'for n in 1 2 3; do echo line $n; done; echo bad >&2; sleep 1; echo late; exec sleep 1000']\n"
    );
    node.manifest("web", &manifest);
    eventually("the container is known to run", async || {
        let (status, pods) = get(&node, Some("client"), "/pods").await;
        status == 200 && pods.contains("\"running\"")
    })
    .await;
    node
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn authenticates_clients_and_applies_log_options() {
    let node = with_pod("logs").await;
    assert_eq!(get(&node, None, "/pods").await.0, 401);
    assert_eq!(get(&node, Some("stranger"), "/pods").await.0, 401);
    assert_eq!(get(&node, Some("client"), "/healthz").await, (200, "ok".to_owned()));
    let logs = async |query: &str| {
        get(&node, Some("client"), &format!("/containerLogs/default/web-node/app{query}")).await
    };
    eventually("the last line is there", async || logs("").await.1.ends_with("late\n")).await;
    assert_eq!(logs("?stream=Stdout").await, (200, "line 1\nline 2\nline 3\nlate\n".to_owned()));
    assert_eq!(logs("?tailLines=1").await.1, "late\n");
    assert_eq!(logs("?tailLines=0").await.1, "");
    assert_eq!(logs("?stream=Stdout&limitBytes=4").await.1, "line");
    assert_eq!(logs("?tailLines=x").await.0, 422);
    assert_eq!(logs("?previous=true").await.0, 400);
    let (_, stamped) = logs("?tailLines=1&timestamps=true").await;
    assert!(stamped.starts_with("20") && stamped.ends_with("Z late\n"), "{stamped}");
    assert_eq!(get(&node, Some("client"), "/containerLogs/default/web-node/none").await.0, 404);
    assert_eq!(get(&node, Some("client"), "/containerLogs/default/none/app").await.0, 404);
    let (status, summary) = get(&node, Some("client"), "/stats/summary").await;
    assert!(status == 200 && summary.contains("\"web-node\""), "{summary}");

    let follow = logs("?follow=true&tailLines=1");
    node.remove_manifest("web");
    let (_, followed) = tokio::time::timeout(Duration::from_secs(20), follow).await.unwrap();
    assert_eq!(followed, "late\n", "following ends with the container");
    node.close().await;
}

/// Tests `serverTLSBootstrap`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refuses_handshakes_before_certificate_is_issued() {
    use pki::{Authority, KeyAlgorithm, Usage, Validity};
    let mut node = Node::start("serving").await;
    let api = testkit::FakeApi::default();
    let mut settings = node.settings();
    settings.server.bootstrap = true;
    node.start_kubelet_with(settings, Some(api.client("kubelet")));
    let csrs = &client::Resource::CERTIFICATE_SIGNING_REQUESTS;
    api.until("a certificate is asked for", |api| !api.list(csrs, "").is_empty()).await;
    eventually("the kubelet listens", async || {
        TcpStream::connect(("127.0.0.1", node.port)).await.is_ok()
    })
    .await;
    assert_eq!(get(&node, Some("client"), "/healthz").await.0, 0, "served without a certificate");
    assert!(!node.dir.join("pki/kubelet.crt").exists(), "a certificate of its own is made");

    let request = api.list(csrs, "").remove(0);
    let asked = request["spec"]["request"].as_str().unwrap();
    let asked = pki::SigningRequest::from_base64(asked).unwrap();
    let validity =
        Validity::starting(std::time::SystemTime::now(), Duration::from_secs(365 * 86_400));
    let ca = Authority::create("signer", KeyAlgorithm::EcdsaP256, validity).unwrap();
    let certificate = ca.sign_request(&asked, Usage::Server, validity).unwrap().to_pem();
    let encoded = base64::Engine::encode(&base64::prelude::BASE64_STANDARD, certificate);
    let name = request["metadata"]["name"].as_str().unwrap();
    let at = client::PatchTarget { namespace: "", name, subresource: "status" };
    api.merge(csrs, at, serde_json::json!({ "status": { "certificate": encoded } })).await;
    let read = |name: &str| Some(std::fs::read(node.dir.join(name)).unwrap());
    let strict = TlsMaterial {
        ca: Some(ca.cert().to_pem().into_bytes()),
        certificate: read("client.crt"),
        key: read("client.key"),
        insecure: false,
    };
    eventually("the issued certificate is served", async || {
        get_by(&node, strict.client_config().unwrap(), "/healthz").await.0 == 200
    })
    .await;
    assert!(node.dir.join("pki/kubelet-server-current.pem").is_symlink());
    assert_eq!(api.list(csrs, "").len(), 1, "asked again for what there is");
    node.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exec_streams_and_port_forward_tunnels() {
    let node = with_pod("exec").await;
    let exec = "/exec/default/web-node/app?command=sh&command=-c&command=";
    let v5 = "v5.channel.k8s.io";
    let mut socket = connect(
        &node,
        &format!("{exec}cat;echo%20err%20%3E%262;exit%204&input=1&output=1&error=1"),
        v5,
    )
    .await;
    socket.send(message(0, "in")).await.unwrap();
    socket.send(Message::binary(vec![255, 0])).await.unwrap();
    let [_, stdout, stderr, error] = said(&mut socket).await;
    assert_eq!((stdout.as_str(), stderr.as_str()), ("in", "err\n"));
    assert!(error.contains("\"NonZeroExitCode\"") && error.contains("\"4\""), "{error}");

    let mut socket = connect(&node, &format!("{exec}true&stdout=true"), "v4.channel.k8s.io").await;
    assert!(said(&mut socket).await[3].contains("\"Success\""));

    let mut socket =
        connect(&node, &format!("{exec}read%20x;stty%20size&stdin=1&stdout=1&tty=1"), v5).await;
    socket.send(message(4, "{\"Width\":101,\"Height\":37}")).await.unwrap();
    // The size arrives on another stream, possibly after the input.
    tokio::time::sleep(Duration::from_millis(300)).await;
    socket.send(message(0, "x\n")).await.unwrap();
    let [_, stdout, ..] = said(&mut socket).await;
    assert!(stdout.contains("37 101"), "{stdout:?}");

    let mut socket =
        connect(&node, "/portForward/default/web-node", "SPDY/3.1+portforward.k8s.io").await;
    let ping = vec![0x80, 3, 0, 6, 0, 0, 0, 4, 0, 0, 0, 1];
    socket.send(Message::binary(ping.clone())).await.unwrap();
    let mut answer = Vec::new();
    while answer.len() < ping.len() {
        let message = tokio::time::timeout(Duration::from_secs(10), socket.next()).await.unwrap();
        answer.extend_from_slice(&message.unwrap().unwrap().into_data());
    }
    assert_eq!(answer, ping, "the runtime's end answers");
    node.close().await;
}
