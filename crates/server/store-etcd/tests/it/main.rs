//! Tests of the etcd engine against etcd itself. Without an `etcd` program they report so and pass.

#![allow(clippy::unwrap_used, reason = "helpers of tests panic like tests")]

mod cluster;
mod engine;
mod linear;
mod server;
mod space;
mod tls;

use std::time::Duration;

use store::{Expected, Op, Outcome, Revision, Write};
use store_etcd::{Etcd, Options};

fn put(key: &str, value: impl Into<Vec<u8>>) -> Write {
    put_for(key, value, None)
}

fn put_for(key: &str, value: impl Into<Vec<u8>>, ttl_seconds: Option<u64>) -> Write {
    let op = Op::Put { value: value.into().into(), ttl_seconds };
    Write { key: key.into(), expected: Expected::Any, op }
}

fn done(outcome: Outcome) -> Revision {
    match outcome {
        Outcome::Done { revision, .. } => revision,
        Outcome::Conflict { current } => panic!("conflict with {current:?}"),
    }
}

async fn connect(endpoints: Vec<String>) -> Etcd {
    // Small pages, so that lists take several.
    let options =
        Options { patience: Duration::from_secs(30), page: 2, ..Options::new(endpoints, None) };
    Etcd::connect(options).await.unwrap()
}
