//! Panics in requests: the client gets an error, and other requests are not affected.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering::SeqCst},
    },
    time::Duration,
};

use futures_util::future::join_all;
use serde_json::json;
use store::{Outcome, Reply, Store, Write};

use crate::harness::{Identity, TestServer, config_map, start};

const WORDS: &str = "This request caused apiserver to panic. Look in the logs for details.\n";

/// A store that panics on every second write, before or after the write.
struct Panicking {
    inner: Arc<dyn Store>,
    /// Twice the number of panics left, decremented by every write.
    left: AtomicI64,
}

impl Store for Panicking {
    fn below(&self) -> &dyn Store {
        &*self.inner
    }

    fn write(&self, write: Write) -> Reply<'_, Outcome> {
        let turn = self.left.fetch_sub(1, SeqCst);
        Box::pin(async move {
            assert!(turn <= 0 || turn % 4 != 0, "injected before the write");
            let outcome = self.inner.write(write).await;
            assert!(turn <= 0 || turn % 4 != 2, "injected after the write");
            outcome
        })
    }
}

/// Starts a server on a store that panics when `left` is set.
async fn panicking() -> (TestServer, Arc<Panicking>) {
    let mut first = start(|_| {}).await;
    let store = Arc::new(Panicking { inner: first.store.clone(), left: AtomicI64::new(0) });
    first.store = store.clone();
    let server = first.beside().await;
    drop(first.tasks.drain(Duration::from_secs(5)).await);
    (server, store)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn survives_a_thousand_panics_in_requests() {
    let (server, store) = panicking().await;
    let admin = server.admin();
    let namespace = admin.namespace().await;
    let token = server.powerful_token(&namespace).await;
    // All requests use one connection. If it were closed, a request would fail without a response.
    let remote = server.tls(Identity::Token(token));
    let maps = format!("/api/v1/namespaces/{namespace}/configmaps");
    let services = format!("/api/v1/namespaces/{namespace}/services");
    store.left.store(2000, SeqCst);
    let mut panicked = 0;
    let create = async |number: usize| {
        let (path, object) = if number.is_multiple_of(4) {
            let spec = json!({"clusterIP": format!("10.96.{}.{}", 1 + number / 1000, number / 4 % 250), "ports": [{"port": 80}]});
            let meta = json!({"name": format!("s{number}")});
            (
                &services,
                json!({"kind": "Service", "apiVersion": "v1", "metadata": meta, "spec": spec}),
            )
        } else {
            (&maps, config_map(&format!("m{number}"), json!({})))
        };
        let mut panics = 0;
        loop {
            let answer = remote.post(path, &object).await;
            match answer.code {
                // The object that was written before the panic exists.
                201 | 409 => break (panics, Some(number)),
                // So does the address. The repair releases it if its Service was not created.
                422 => break (panics, None),
                500 if answer.body == WORDS => panics += 1,
                // The write of a Service runs in its own task, and so does its allocation.
                500 if String::from_utf8_lossy(&answer.body).contains(WORDS.trim_end()) => {
                    panics += 1
                }
                504 => {}
                code => panic!("{code}: {:?}", answer.body),
            }
        }
    };
    let (mut number, mut written) = (0, Vec::new());
    while store.left.load(SeqCst) > 0 {
        assert!(number < 3000, "the panics do not come");
        for (panics, made) in join_all((number..number + 20).map(&create)).await {
            panicked += panics;
            written.extend(made);
        }
        number += 20;
    }
    assert!(panicked >= 400, "{panicked} requests were told that they panicked");
    let caught: u64 = rt::panics().values().sum();
    assert!(caught >= 1000, "{caught} panics were caught");
    assert!(written.len() > number * 3 / 4, "{} of {number} were written", written.len());
    for number in written {
        let path = match number % 4 {
            0 => format!("{services}/s{number}"),
            _ => format!("{maps}/m{number}"),
        };
        remote.get(&path).await.ok();
    }
    let metrics = admin.get("/metrics").await.body;
    let metrics = String::from_utf8_lossy(&metrics);
    assert!(metrics.contains("windlass_panics_total{worker=\"request\"} "), "{metrics}");
    assert!(metrics.contains("code=\"500\""), "{metrics}");
    assert!(
        metrics.contains("apiserver_current_inflight_requests{request_kind=\"readOnly\"} 1\n"),
        "{metrics}"
    );
    // Start-up steps that panicked are retried.
    for check in ["livez", "readyz", "healthz"] {
        let passed = async || {
            let answer = admin.get(&format!("/{check}?verbose")).await;
            if answer.code == 200 { Ok(()) } else { Err(answer.body) }
        };
        let (give_up, wait) = (Duration::from_secs(30), Duration::from_millis(100));
        rt::retry(give_up, wait, |_| true, passed).await.unwrap();
    }
    server.tasks.drain(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn reports_panicking_loop_in_health() {
    let server = start(|_| {}).await;
    server.tasks.keep("compaction", || async { panic!("a secret") });
    while server.tasks.missing().is_empty() {
        tokio::task::yield_now().await;
    }
    let answer = server.admin().get("/livez").await;
    let text = String::from_utf8_lossy(&answer.body);
    assert_eq!(answer.code, 500, "{text}");
    assert!(text.contains("[-]compaction failed: reason withheld\n"), "{text}");
    assert!(!text.contains("secret"), "{text}");
    server.tasks.drain(Duration::from_secs(5)).await;
}
