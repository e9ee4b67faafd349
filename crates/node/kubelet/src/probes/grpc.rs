//! A minimal client of the gRPC health-checking protocol (unary `Check`).

use bytes::Bytes;
use client::{HttpTransport, Transport as _};
use futures_util::FutureExt as _;
use http_body_util::{BodyExt, Limited};

const SERVING: u8 = 1;
/// The limit of an answer in bytes. A correct answer has a few bytes.
const ANSWER_LIMIT: usize = 10 << 10;

/// The error of a health check. The message of an unhealthy service is upstream's.
#[derive(Debug, thiserror::Error)]
pub(super) enum HealthError {
    #[error("gRPC health check of {host}:{port}: {source}")]
    Call { host: String, port: u16, source: CallError },
    #[error("service unhealthy (responded with \"NOT_SERVING\")")]
    NotServing,
}

/// The error of the call. A client's error contains only the innermost cause.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    #[error(transparent)]
    Invalid(#[from] http::Error),
    #[error("{}", .0.cause())]
    Client(#[from] client::Error),
    #[error(transparent)]
    Body(#[from] Box<dyn std::error::Error + Send + Sync>),
    #[error("the answer has status {0}")]
    Status(String),
}

/// Checks the health of a service. Its name may be empty, for the whole server.
pub(super) async fn check(host: &str, port: u16, service: &str) -> Result<(), HealthError> {
    let called = call(host, port, service).await;
    let response =
        called.map_err(|source| HealthError::Call { host: host.to_owned(), port, source })?;
    // A frame's five bytes, then field 1 as a varint; SERVING is 1.
    match response.get(5..).unwrap_or_default() {
        [0x08, SERVING, ..] => Ok(()),
        _ => Err(HealthError::NotServing),
    }
}

/// Calls `Check` and returns the answer's frame.
async fn call(host: &str, port: u16, service: &str) -> Result<Bytes, CallError> {
    let authority = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    let server = HttpTransport::plain_http2(&format!("http://{authority}:{port}"));
    let request = http::Request::post("/grpc.health.v1.Health/Check")
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("user-agent", "kube-probe/1.36")
        .body(client::full(frame(service)))?;
    let (head, body) = server?.send(request).await?.into_parts();
    // Boxed, because the compiler cannot prove that this future is `Send`.
    let collected = Limited::new(body, ANSWER_LIMIT).collect().boxed().await?;
    let status = collected.trailers().and_then(|t| t.get("grpc-status"));
    let status = status.or(head.headers.get("grpc-status"));
    let code = status.and_then(|s| s.to_str().ok()).unwrap_or("missing");
    if code != "0" {
        return Err(CallError::Status(code.to_owned()));
    }
    Ok(collected.to_bytes())
}

/// Encodes an uncompressed gRPC message with the service name in field 1.
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

#[cfg(test)]
mod tests {
    use futures_util::stream;
    use http_body::Frame;
    use http_body_util::StreamBody;
    use hyper::{body::Incoming, service::service_fn};
    use hyper_util::rt::{TokioExecutor, TokioIo};

    use super::*;

    type Answer = http::Response<
        StreamBody<stream::Iter<std::vec::IntoIter<Result<Frame<Bytes>, std::io::Error>>>>,
    >;

    /// A server whose health depends on the requested service.
    async fn answer(request: http::Request<Incoming>) -> Result<Answer, std::io::Error> {
        assert_eq!(request.uri().path(), "/grpc.health.v1.Health/Check");
        assert_eq!(request.headers()["content-type"], "application/grpc");
        let body = request.into_body().collect().await.map_err(std::io::Error::other)?.to_bytes();
        let service = body.get(7..).unwrap_or_default().to_vec();
        let (status, health) = match service.as_slice() {
            b"" => ("0", 1),
            b"ill" => ("0", 2),
            _ => ("5", 0),
        };
        let trailers = http::HeaderMap::from_iter([(
            http::HeaderName::from_static("grpc-status"),
            http::HeaderValue::from_static(status),
        )]);
        let message = Frame::data(Bytes::from(vec![0, 0, 0, 0, 2, 8, health]));
        let frames = vec![Ok(message), Ok(Frame::trailers(trailers))];
        let response = http::Response::builder().header("content-type", "application/grpc");
        response.body(StreamBody::new(stream::iter(frames))).map_err(std::io::Error::other)
    }

    #[tokio::test]
    async fn reports_the_health_that_the_server_answers() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let serving = async {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                    .serve_connection(TokioIo::new(stream), service_fn(answer))
                    .await
                    .unwrap();
            }
        };
        let asking = async {
            check("127.0.0.1", port, "").await.unwrap();
            let ill = check("127.0.0.1", port, "ill").await.unwrap_err().to_string();
            assert_eq!(ill, "service unhealthy (responded with \"NOT_SERVING\")");
            let unknown = check("127.0.0.1", port, "unknown").await.unwrap_err().to_string();
            assert!(unknown.ends_with("the answer has status 5"), "{unknown}");
        };
        tokio::select! {
            () = serving => {}
            () = asking => {}
        }
    }
}
