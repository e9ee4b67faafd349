//! Conversions between etcd's messages and the store's types.

use std::sync::Arc;

use store::{Change, ChangeKind, Error, KeyRange, KeyValue, Result, Revision};

use crate::proto::{Event, ResponseHeader, event::EventType};

pub(crate) fn revision(header: Option<&ResponseHeader>) -> Revision {
    header.map_or(0, |header| number(header.revision))
}

/// Returns a range in etcd's form, in which a zero byte as the end means no upper bound.
pub(crate) fn bounds(range: &KeyRange) -> (Vec<u8>, Vec<u8>) {
    let start = if range.start.is_empty() { vec![0] } else { range.start.clone().into_bytes() };
    let end = if range.end.is_empty() { vec![0] } else { range.end.clone().into_bytes() };
    (start, end)
}

pub(crate) fn key_value(kv: crate::proto::KeyValue) -> Result<KeyValue> {
    Ok(KeyValue {
        key: key(&kv.key)?,
        value: kv.value.into(),
        create_revision: number(kv.create_revision),
        mod_revision: number(kv.mod_revision),
        version: number(kv.version),
    })
}

pub(crate) fn change(event: Event) -> Result<Change> {
    let kind = match event.r#type() {
        EventType::Put => ChangeKind::Put,
        EventType::Delete => ChangeKind::Delete,
    };
    Ok(Change { kind, kv: key_value(event.kv.unwrap_or_default())? })
}

fn key(bytes: &[u8]) -> Result<Arc<str>> {
    std::str::from_utf8(bytes).map(Arc::from).map_err(|_| Error::Unavailable {
        operation: "read a key",
        detail: format!("{} is not UTF-8, so no API server wrote it", bytes.escape_ascii()),
    })
}

/// Converts a revision or version, which is never negative.
fn number(wire: i64) -> u64 {
    u64::try_from(wire).unwrap_or(0)
}
