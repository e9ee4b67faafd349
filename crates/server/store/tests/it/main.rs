//! Tests of the embedded engine on a real disk: killed under load, saved and restored.

#![allow(clippy::unwrap_used, reason = "helpers of tests panic like tests")]

mod kill;
mod snapshot;

use store::{Expected, Op, Write};

fn put(key: &str, value: impl Into<Vec<u8>>) -> Write {
    let op = Op::Put { value: value.into().into(), ttl_seconds: None };
    Write { key: key.into(), expected: Expected::Any, op }
}
