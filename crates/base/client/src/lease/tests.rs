use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use futures_util::{FutureExt, future::BoxFuture};
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use parking_lot::Mutex;
use tokio::task::JoinHandle;

use super::*;
use crate::{Body, Transport};

/// An API server that stores one Lease.
#[derive(Default)]
struct Api {
    lease: Mutex<Option<Value>>,
    version: AtomicUsize,
    /// The methods of all requests.
    requests: Mutex<Vec<Method>>,
}

impl Api {
    fn spec(&self) -> Spec {
        let lease = self.lease.lock();
        lease.as_ref().map(|lease| Spec::deserialize(&lease["spec"]).unwrap()).unwrap_or_default()
    }

    fn holder(&self) -> String {
        self.spec().holder_identity.unwrap_or_default()
    }

    /// Changes the lease without a precondition, as another writer would.
    fn change(&self, change: impl FnOnce(&mut Value)) {
        let mut lease = self.lease.lock().clone().unwrap();
        change(&mut lease);
        lease["metadata"].as_object_mut().unwrap().remove("resourceVersion");
        self.put(lease).unwrap();
    }

    fn put(&self, mut lease: Value) -> Result<Value, (StatusCode, &'static str)> {
        let mut stored = self.lease.lock();
        let seen = &lease["metadata"]["resourceVersion"];
        if !seen.is_null()
            && stored.as_ref().is_none_or(|s| s["metadata"]["resourceVersion"] != *seen)
        {
            return Err((StatusCode::CONFLICT, "Conflict"));
        }
        let version = self.version.fetch_add(1, Ordering::SeqCst) + 1;
        lease["metadata"]["resourceVersion"] = json!(version.to_string());
        Ok(stored.insert(lease).clone())
    }

    fn answer(&self, method: &Method, body: &[u8]) -> Result<Value, (StatusCode, &'static str)> {
        let stored = self.lease.lock().clone();
        match (method, stored) {
            (&Method::GET, Some(lease)) => Ok(lease),
            (&Method::POST, None) | (&Method::PUT, Some(_)) => {
                self.put(serde_json::from_slice(body).unwrap())
            }
            (&Method::POST, Some(_)) => Err((StatusCode::CONFLICT, "AlreadyExists")),
            _ => Err((StatusCode::NOT_FOUND, "NotFound")),
        }
    }
}

/// A contender's connection to the server.
#[derive(Clone)]
struct Connection {
    api: Arc<Api>,
    /// The delays of the responses to the next requests; later responses have none.
    delays: Arc<Mutex<VecDeque<Duration>>>,
}

impl Connection {
    fn delay(&self, seconds: impl IntoIterator<Item = u64>) {
        self.delays.lock().extend(seconds.into_iter().map(Duration::from_secs));
    }
}

impl Transport for Connection {
    fn send(&self, request: Request<Body>) -> BoxFuture<'_, Result<Response<Body>, Error>> {
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            self.api.requests.lock().push(parts.method.clone());
            let (code, answer) = match self.api.answer(&parts.method, &body) {
                Ok(lease) => (StatusCode::OK, lease),
                Err((code, reason)) => {
                    let status = json!({"kind": "Status", "code": code.as_u16(), "reason": reason});
                    (code, status)
                }
            };
            let delay = self.delays.lock().pop_front();
            tokio::time::sleep(delay.unwrap_or_default()).await;
            let mut response = Response::new(crate::full(answer.to_string()));
            *response.status_mut() = code;
            Ok(response)
        }
        .boxed()
    }
}

/// Starts a contender that leads until it loses the lease.
fn contend(api: &Arc<Api>, identity: &str) -> (Connection, JoinHandle<Result<(), Error>>) {
    let line = Connection { api: api.clone(), delays: Arc::default() };
    let config = LeaderElectionConfig::new("kube-system", "test", identity.to_owned());
    let client = Client::new(Arc::new(line.clone()), "test");
    (line, tokio::spawn(LeaderElection::new(client, config).run(std::future::pending)))
}

async fn pass(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn renews_by_one_write_every_two_seconds() {
    let api = Arc::new(Api::default());
    let (_, leading) = contend(&api, "a");
    pass(1).await;
    let first = api.spec();
    api.requests.lock().clear();
    pass(10).await;
    assert_eq!(*api.requests.lock(), vec![Method::PUT; 5]);
    let last = api.spec();
    assert_eq!((last.acquire_time, last.lease_transitions), (first.acquire_time, Some(0)));
    leading.abort();
}

#[tokio::test(start_paused = true)]
async fn keeps_lease_despite_slow_answer_or_other_writer() {
    let api = Arc::new(Api::default());
    let (line, leading) = contend(&api, "a");
    pass(1).await;
    line.delay([60]);
    pass(20).await;
    assert!(!leading.is_finished(), "one request was never answered");
    for _ in 0..5 {
        api.change(|lease| lease["metadata"]["labels"] = json!({"by": "somebody"}));
        pass(2).await;
    }
    assert!(!leading.is_finished(), "another writer labelled the lease");
    assert_eq!(api.lease.lock().as_ref().unwrap()["metadata"]["labels"]["by"], "somebody");
    assert_eq!((api.holder().as_str(), api.spec().lease_transitions), ("a", Some(0)));
    leading.abort();
}

#[tokio::test(start_paused = true)]
async fn ends_at_once_when_another_holder_appears() {
    let api = Arc::new(Api::default());
    let (_, leading) = contend(&api, "a");
    pass(1).await;
    api.change(|lease| lease["spec"]["holderIdentity"] = json!("b"));
    let changed = Instant::now();
    let ended = leading.await.unwrap().unwrap_err();
    assert!(ended.to_string().contains("another holder"));
    assert!(changed.elapsed() <= Duration::from_secs(2));
    assert_eq!(api.holder(), "b", "the other holder keeps the lease");
}

#[tokio::test(start_paused = true)]
async fn gives_up_before_another_contender_takes_the_lease() {
    for last in 0..=4 {
        let api = Arc::new(Api::default());
        let (line, first) = contend(&api, "a");
        pass(1).await;
        let (_, second) = contend(&api, "b");
        pass(10).await;
        // One write is answered just before the deadline, and no later request is answered.
        line.delay([last].into_iter().chain([3600; 100]));
        let silent = Instant::now();
        first.await.unwrap().unwrap_err();
        let took = silent.elapsed();
        assert!((10..=15).contains(&took.as_secs()), "after {last} s: {took:?}");
        assert_eq!(api.holder(), "a", "after {last} s");
        pass(20).await;
        assert_eq!((api.holder().as_str(), api.spec().lease_transitions), ("b", Some(1)));
        second.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn releases_lease_when_leading_ends() {
    let api = Arc::new(Api::default());
    let line = Connection { api: api.clone(), delays: Arc::default() };
    let config = LeaderElectionConfig::new("kube-system", "test", "a".to_owned());
    let election = LeaderElection::new(Client::new(Arc::new(line), "test"), config);
    let led = tokio::spawn(election.run(|| pass(5)));
    pass(1).await;
    let (_, next) = contend(&api, "b");
    led.await.unwrap().unwrap();
    assert_eq!(api.holder(), "");
    pass(3).await;
    assert_eq!((api.holder().as_str(), api.spec().lease_transitions), ("b", Some(0)));
    next.abort();
}
