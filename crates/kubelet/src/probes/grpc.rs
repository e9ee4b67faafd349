//! The client of gRPC's health-checking protocol, which is one message each way.

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

const SERVING: u8 = 1;

pub(super) async fn check(host: &str, port: u16, service: &str) -> Result<(), String> {
    let text = |e: &dyn std::fmt::Display| format!("gRPC health check of {host}:{port}: {e}");
    let stream = TcpStream::connect((host, port)).await.map_err(|e| text(&e))?;
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .map_err(|e| text(&e))?;
    let authority =
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    let request = http::Request::post(format!("http://{authority}/grpc.health.v1.Health/Check"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("user-agent", "kube-probe/1.36")
        .body(Full::new(Bytes::from(frame(service))))
        .map_err(|e| text(&e))?;
    let asking = async {
        let response = sender.send_request(request).await.map_err(|e| text(&e))?;
        let head = response.headers().clone();
        let collected = response.into_body().collect().await.map_err(|e| text(&e))?;
        let status =
            collected.trailers().and_then(|t| t.get("grpc-status")).or(head.get("grpc-status"));
        let code = status.and_then(|s| s.to_str().ok()).unwrap_or("missing").to_owned();
        if code != "0" {
            return Err(text(&format!("the answer has status {code}")));
        }
        let body = collected.to_bytes();
        // A frame's five bytes, then field 1 as a varint; SERVING is 1.
        match body.get(5..).unwrap_or_default() {
            [0x08, SERVING, ..] => Ok(()),
            _ => Err("service unhealthy (responded with \"NOT_SERVING\")".to_owned()),
        }
    };
    tokio::pin!(asking, connection);
    tokio::select! {
        answer = &mut asking => answer,
        ended = &mut connection => {
            ended.map_err(|e| text(&e))?;
            asking.await
        }
    }
}

/// An uncompressed message with the service's name as its field 1.
fn frame(service: &str) -> Vec<u8> {
    let mut message = Vec::new();
    if !service.is_empty() {
        message.push(0x0a);
        let mut length = service.len();
        while length >= 0x80 {
            message.push((length & 0x7f) as u8 | 0x80);
            length >>= 7;
        }
        message.push(length as u8);
        message.extend_from_slice(service.as_bytes());
    }
    let mut frame = vec![0];
    frame.extend_from_slice(&u32::try_from(message.len()).unwrap_or(0).to_be_bytes());
    frame.extend(message);
    frame
}
