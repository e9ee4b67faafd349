use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;

/// A server that sends its name to every client, and then nothing.
async fn server(name: &'static str, tasks: &rt::Tasks) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tasks.spawn_until_shutdown(name, async move {
        let mut open = Vec::new();
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.write_all(name.as_bytes()).await.unwrap();
            open.push(stream);
        }
    });
    address
}

async fn greeting(address: SocketAddr) -> (String, TcpStream) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let mut name = [0; 1];
    stream.read_exact(&mut name).await.unwrap();
    (String::from_utf8_lossy(&name).into_owned(), stream)
}

#[tokio::test]
async fn connects_to_servers_that_answer() {
    let tasks = rt::Tasks::new(rt::Shutdown::new());
    let one = rt::Tasks::new(tasks.shutdown().child());
    let (a, b) = (server("a", &one).await, server("b", &tasks).await);
    let servers = Arc::new(Servers::new(&[a.clone(), b.clone()]));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let accepting = (servers.clone(), tasks.clone());
    tasks.spawn_until_shutdown("accept", async move {
        accept(listener, accepting.0, &accepting.1).await;
    });

    let (first, mut held) = greeting(address).await;
    let (second, _other) = greeting(address).await;
    assert_ne!(first, second, "they take turns");

    // The first server is stopped: new connections go to the second, even before the next check.
    one.shutdown().stop();
    one.drain(Duration::from_secs(5)).await;
    for _ in 0..4 {
        assert_eq!(greeting(address).await.0, "b");
    }

    // A connection to a silent server is closed.
    let held_by = if first == "a" { &a } else { &b };
    for _ in 0..3 {
        servers.report(held_by, Finding::Silent);
    }
    let end = tokio::time::timeout(Duration::from_secs(5), held.read(&mut [0; 1])).await;
    assert!(matches!(end.unwrap(), Ok(0) | Err(_)));
    tasks.shutdown().stop();
}
