//! Tests of an etcd that is full, and of one that stops responding for a while.

use std::time::Duration;

use store::{Error, Expected, Op, Store, Write};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::{
    connect, done, put,
    server::{self, Server},
};

const QUOTA: &str = "8000000";

/// Calls etcd's maintenance API through its JSON gateway, and returns the answer.
async fn maintain(server: &Server, what: &str, body: &str) -> String {
    let address = server.url.strip_prefix("http://").unwrap();
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let request = format!(
        "POST /v3/maintenance/{what} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    answer
}

/// Defragments the member and disarms its alarm.
async fn recover(server: &Server) {
    maintain(server, "defragment", "{}").await;
    let alarms = maintain(server, "alarm", r#"{"action":"GET"}"#).await;
    let Some((_, member)) = alarms.split_once(r#""memberID":""#) else { return };
    let member = member.split('"').next().unwrap();
    let disarm = format!(r#"{{"action":"DEACTIVATE","memberID":"{member}","alarm":"NOSPACE"}}"#);
    maintain(server, "alarm", &disarm).await;
}

#[tokio::test]
async fn full_etcd_rejects_writes_until_space_is_freed() {
    if !server::is_there() {
        return;
    }
    let server = Server::start_with(&["--quota-backend-bytes", QUOTA]);
    let store = connect(vec![server.url.clone()]).await;
    let big = vec![b'x'; 1_000_000];
    let mut kept = 0;
    let error = loop {
        match store.write(put(&format!("/big/{kept}"), big.clone())).await {
            Ok(_) => kept += 1,
            Err(error) => break error,
        }
        assert!(kept < 30, "the quota is not kept");
    };
    let Error::NoSpace { detail } = &error else { panic!("{error}") };
    assert!(detail.contains("database space exceeded") && detail.contains(&server.url), "{detail}");
    // Small writes are rejected, too; existing keys can be read and deleted.
    let refused = store.write(put("/small", "1")).await.unwrap_err();
    assert!(matches!(refused, Error::NoSpace { .. }), "{refused}");
    assert_eq!(store.get("/big/0").await.unwrap().0.unwrap().value, big);
    for n in 0..kept {
        let key = format!("/big/{n}").into();
        let gone = Write { key, expected: Expected::Any, op: Op::Delete };
        done(store.write(gone).await.unwrap());
    }
    let revision = store.revision().await.unwrap();
    store.compact(revision).await.unwrap();
    // Compacted data leaves etcd's file only after a while.
    let end = tokio::time::Instant::now() + Duration::from_secs(30);
    while let Err(error) = store.write(put("/small", "1")).await {
        assert!(tokio::time::Instant::now() < end, "{error}");
        recover(&server).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(store.get("/small").await.unwrap().0.unwrap().value, "1");
}

#[tokio::test]
async fn paused_etcd_loses_nothing() {
    if !server::is_there() {
        return;
    }
    let server = Server::start();
    let store = connect(vec![server.url.clone()]).await;
    let before = done(store.write(put("/a", "before")).await.unwrap());
    server.signal("STOP");
    let error = store.write(put("/a", "while it halts")).await.unwrap_err();
    let Error::Unavailable { operation: "write", detail } = &error else { panic!("{error}") };
    assert!(detail.contains("no answer within"), "{detail}");
    server.signal("CONT");
    // The outcome of that write is unknown, so either value may exist, and the revision is not older.
    let (found, revision) = store.get("/a").await.unwrap();
    let value = found.unwrap().value;
    assert!(value == "before" || value == "while it halts", "{value:?}");
    assert!(revision >= before);
    tokio::time::timeout(Duration::from_secs(20), store.write(put("/a", "after")))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(store.get("/a").await.unwrap().0.unwrap().value, "after");
}
