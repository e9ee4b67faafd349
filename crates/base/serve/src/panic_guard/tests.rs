#![allow(clippy::unwrap_used, reason = "helpers of tests panic like tests")]

use std::{net::SocketAddr, sync::Arc, time::Duration};

use futures_util::{FutureExt as _, StreamExt as _, future::BoxFuture, stream};
use http::StatusCode;
use http_body_util::StreamBody;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::{Limits, answer, full, serve};

/// Panics when called, while it works, or while its response is sent.
struct Panicking;

impl Handler for Panicking {
    fn handle(&self, request: Request<Body>) -> BoxFuture<'_, Response<Body>> {
        let path = request.uri().path().to_owned();
        assert_ne!(path, "/at-once");
        async move {
            tokio::task::yield_now().await;
            assert_ne!(path, "/later");
            if path == "/broken" {
                let frames = stream::iter(["a", "b", "c"]).map(|text| {
                    assert_ne!(text, "c");
                    Ok(Frame::data(Bytes::from(text)))
                });
                return Response::new(StreamBody::new(frames).boxed_unsync());
            }
            answer(StatusCode::OK, "text/plain", "fine")
        }
        .boxed()
    }
}

async fn connect(to: SocketAddr) -> http1::SendRequest<Body> {
    let stream = TcpStream::connect(to).await.unwrap();
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    let tasks = rt::Tasks::new(rt::Shutdown::new());
    tasks.spawn("client", async move { drop(connection.await) });
    sender
}

async fn ask(
    sender: &mut http1::SendRequest<Body>,
    path: &str,
) -> Result<(u16, Bytes), hyper::Error> {
    sender.ready().await?;
    let request = Request::get(path).header("host", "x").body(full("")).unwrap();
    let response = sender.send_request(request).await?;
    Ok((response.status().as_u16(), response.into_body().collect().await?.to_bytes()))
}

#[tokio::test]
async fn survives_a_thousand_panics_and_aborts_broken_body() {
    let tasks = rt::Tasks::new(rt::Shutdown::new());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = serve(listener, None, Limits::default(), Arc::new(Panicking), tasks.clone());
    tasks.essential("listener", serving);
    let mut sender = connect(address).await;
    for number in 0..1500 {
        let (path, expected) = match number % 3 {
            0 => ("/at-once", (500, "Internal Server Error\n")),
            1 => ("/later", (500, "Internal Server Error\n")),
            _ => ("/", (200, "fine")),
        };
        let (status, body) = ask(&mut sender, path).await.unwrap();
        assert_eq!((status, &*body), (expected.0, expected.1.as_bytes()), "{path}");
    }
    assert!(rt::panics()["request"] >= 1000);
    let broken = ask(&mut sender, "/broken").await;
    assert!(broken.is_err(), "a part is not taken for the whole: {broken:?}");
    assert_eq!(ask(&mut connect(address).await, "/").await.unwrap().0, 200);
    assert_eq!(tasks.missing(), []);
    tasks.drain(Duration::from_secs(5)).await;
}
