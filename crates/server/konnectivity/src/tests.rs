use std::{path::Path, time::Duration};

use futures_util::{StreamExt as _, stream::BoxStream};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};
use tonic::{Request, Response, Status};

use super::*;
use crate::proto::{
    CloseResponse, Data, DialResponse,
    proxy_service_server::{ProxyService, ProxyServiceServer},
};

/// A konnectivity-server that is its own agent, or misbehaves.
#[derive(Clone, Copy)]
enum FakeServer {
    Connects,
    Refuses,
    Hangs,
    /// Answers with packets of another connection, and then ends the tunnel.
    Confuses,
}

fn packet(kind: PacketType, payload: Payload) -> Result<Packet, Status> {
    Ok(Packet { r#type: kind.into(), payload: Some(payload) })
}

fn data(connect_id: i64, bytes: &[u8]) -> Result<Packet, Status> {
    let data = Data { connect_id, error: String::new(), data: bytes.to_vec() };
    packet(PacketType::Data, Payload::Data(data))
}

const ID: i64 = 7;

#[tonic::async_trait]
impl ProxyService for FakeServer {
    type ProxyStream = BoxStream<'static, Result<Packet, Status>>;

    async fn proxy(
        &self,
        request: Request<Streaming<Packet>>,
    ) -> Result<Response<Self::ProxyStream>, Status> {
        let mut asked = request.into_inner();
        let first = asked.message().await?.and_then(|packet| packet.payload);
        let Some(Payload::DialRequest(dial)) = first else {
            return Err(Status::invalid_argument("not a dial request"));
        };
        let error = match self {
            Self::Refuses => "no agent available".to_owned(),
            _ => String::new(),
        };
        let answer = DialResponse { error, connect_id: ID, random: dial.random };
        let (send, mut receive) = mpsc::channel(4);
        let answer = packet(PacketType::DialRsp, Payload::DialResponse(answer));
        match self {
            Self::Hangs => std::future::pending().await,
            Self::Refuses => send.send(answer).await.unwrap(),
            Self::Confuses => {
                let other = packet(
                    PacketType::DialRsp,
                    Payload::DialResponse(DialResponse {
                        random: dial.random ^ 1,
                        ..Default::default()
                    }),
                );
                for packet in [other, answer, data(ID + 1, b"foreign"), data(ID, b"own")] {
                    send.send(packet).await.unwrap();
                }
            }
            Self::Connects => {
                send.send(answer).await.unwrap();
                let (mut read, mut write) = TcpStream::connect(&dial.address).await?.into_split();
                tokio::spawn(async move {
                    while let Some(Ok(packet)) = asked.next().await {
                        let Some(Payload::Data(data)) = packet.payload else { continue };
                        write.write_all(&data.data).await.unwrap();
                    }
                });
                tokio::spawn(async move {
                    let mut buffer = [0; 4096];
                    while let Ok(count @ 1..) = read.read(&mut buffer).await {
                        if send.send(data(ID, &buffer[..count])).await.is_err() {
                            return;
                        }
                    }
                    let closed = CloseResponse { error: String::new(), connect_id: ID };
                    let _ = send
                        .send(packet(PacketType::CloseRsp, Payload::CloseResponse(closed)))
                        .await;
                    std::future::pending::<()>().await;
                });
            }
        }
        Ok(Response::new(stream::poll_fn(move |context| receive.poll_recv(context)).boxed()))
    }
}

impl FakeServer {
    fn serve(self, socket: &Path) {
        let tasks = rt::Tasks::new(rt::Shutdown::new());
        grpc::serve("konnectivity", socket, ProxyServiceServer::new(self), &tasks).unwrap();
    }
}

struct Bench {
    directory: tempfile::TempDir,
}

impl Bench {
    fn new(server: FakeServer) -> Self {
        let directory = tempfile::tempdir().unwrap();
        server.serve(&directory.path().join("server.sock"));
        Self { directory }
    }

    fn konnectivity(&self) -> Konnectivity {
        Konnectivity::new(self.directory.path().join("server.sock"))
    }
}

#[tokio::test]
async fn carries_bytes_in_both_directions() {
    let bench = Bench::new(FakeServer::Connects);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = listener.local_addr().unwrap().to_string();
    // More than all queues hold.
    const SIZE: usize = 4 << 20;
    let echo = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut received = vec![0; SIZE];
        stream.read_exact(&mut received).await.unwrap();
        stream.write_all(&received).await.unwrap();
    });
    let mut stream = bench.konnectivity().dial(&target).await.unwrap();
    let sent: Vec<u8> = (0..SIZE).map(|i| (i % 251) as u8).collect();
    stream.write_all(&sent).await.unwrap();
    stream.flush().await.unwrap();
    let mut received = Vec::new();
    stream.read_to_end(&mut received).await.unwrap();
    assert!(received == sent, "{} of {SIZE} bytes", received.len());
    echo.await.unwrap();
}

#[tokio::test]
async fn ignores_packets_of_other_connections() {
    let bench = Bench::new(FakeServer::Confuses);
    let mut stream = bench.konnectivity().dial("10.0.0.1:80").await.unwrap();
    let mut received = String::new();
    stream.read_to_string(&mut received).await.unwrap();
    assert_eq!(received, "own");
}

#[tokio::test]
async fn reports_refused_and_missing_tunnels() {
    let bench = Bench::new(FakeServer::Refuses);
    let error = bench.konnectivity().dial("10.0.0.1:80").await.err().unwrap();
    assert_eq!(error.to_string(), "no agent available");
    let missing = Konnectivity::new(bench.directory.path().join("none"));
    assert!(missing.dial("10.0.0.1:80").await.is_err());
    // The transport's timeout ends the wait for a server that does not answer.
    let silent = Bench::new(FakeServer::Hangs);
    let konnectivity = silent.konnectivity();
    let dial = konnectivity.dial("10.0.0.1:80");
    assert!(tokio::time::timeout(Duration::from_millis(200), dial).await.is_err());
}
