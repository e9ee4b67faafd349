//! An in-memory API server with lists and watches.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use client::{Body, Client, Error, Transport};
use futures_util::{FutureExt, StreamExt, future::BoxFuture};
use http::{Request, Response};
use http_body_util::{BodyExt, StreamBody};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::mpsc;

#[derive(Clone, Default)]
pub(crate) struct FakeApi(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    version: u64,
    /// The objects by resource (`services`), then by `namespace/name`.
    objects: BTreeMap<String, BTreeMap<String, Value>>,
    watchers: Vec<(String, mpsc::UnboundedSender<Bytes>)>,
}

impl FakeApi {
    pub(crate) fn client(&self) -> Client {
        Client::new(Arc::new(self.clone()), "test")
    }

    pub(crate) fn put(&self, resource: &str, mut object: Value) {
        let mut state = self.0.lock();
        state.version += 1;
        object["metadata"]["resourceVersion"] = json!(state.version.to_string());
        let objects = state.objects.entry(resource.into()).or_default();
        let known = objects.insert(key(&object), object.clone()).is_some();
        state.tell(resource, if known { "MODIFIED" } else { "ADDED" }, &object);
    }

    pub(crate) fn delete(&self, resource: &str, key: &str) {
        let mut state = self.0.lock();
        state.version += 1;
        let version = state.version.to_string();
        if let Some(mut object) =
            state.objects.get_mut(resource).and_then(|objects| objects.remove(key))
        {
            object["metadata"]["resourceVersion"] = json!(version);
            state.tell(resource, "DELETED", &object);
        }
    }
}

fn key(object: &Value) -> String {
    let part = |name: &str| object["metadata"][name].as_str().unwrap_or_default().to_owned();
    format!("{}/{}", part("namespace"), part("name")).trim_start_matches('/').to_owned()
}

impl State {
    fn tell(&mut self, resource: &str, kind: &str, object: &Value) {
        let line = Bytes::from(format!("{}\n", json!({"type": kind, "object": object})));
        self.watchers
            .retain(|(watched, sender)| watched != resource || sender.send(line.clone()).is_ok());
    }
}

impl Transport for FakeApi {
    fn send(&self, request: Request<Body>) -> BoxFuture<'_, Result<Response<Body>, Error>> {
        let resource = request.uri().path().rsplit('/').next().unwrap().to_owned();
        let mut state = self.0.lock();
        let body = if request.uri().query().is_some_and(|query| query.contains("watch=true")) {
            let (sender, receiver) = mpsc::unbounded_channel();
            state.watchers.push((resource, sender));
            let frames = futures_util::stream::unfold(receiver, async |mut receiver| {
                let bytes = receiver.recv().await?;
                Some((Ok(http_body::Frame::data(bytes)), receiver))
            });
            StreamBody::new(frames.boxed()).boxed_unsync()
        } else {
            let items: Vec<_> = state
                .objects
                .get(&resource)
                .into_iter()
                .flatten()
                .map(|(_, object)| object)
                .collect();
            client::full(
                json!({"metadata": {"resourceVersion": state.version.to_string()}, "items": items})
                    .to_string(),
            )
        };
        std::future::ready(Ok(Response::new(body))).boxed()
    }
}
