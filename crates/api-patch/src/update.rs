//! Tracking of ownership on writes other than apply.

use api_schema::{NodeId, Schema};
use serde_json::{Value, json};

use crate::{
    FieldSet,
    managed::{self, Entry, Operation},
    typed::{diff, owned},
    versions::{Changes, Versions},
};

/// What a write knows about its place and its writer.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    pub schema: &'a Schema,
    /// The root node of the object's kind; `None` lets the values tell their own types.
    pub node: Option<NodeId>,
    /// The field manager: the request's, or the first word of its user agent.
    pub manager: &'a str,
    /// `apps/v1`: the version that the request wrote in.
    pub api_version: &'a str,
    /// The kind's other versions, in which other managers may have written; `None` takes all for the called one.
    pub versions: Option<&'a dyn Versions>,
    /// Empty, or the name of the subresource written through.
    pub subresource: &'a str,
    /// The time of the write, RFC 3339 in seconds.
    pub now: &'a str,
    /// Fields that a write to this endpoint cannot change (`status` on the main one), and so cannot own.
    pub reset: Option<&'a FieldSet>,
    /// Apply only: take fields over from other managers.
    pub force: bool,
}

impl Context<'_> {
    pub(crate) fn entry(&self, operation: Operation) -> Entry {
        Entry {
            manager: self.manager.to_owned(),
            operation,
            api_version: self.api_version.to_owned(),
            subresource: self.subresource.to_owned(),
            time: None,
            fields: FieldSet::default(),
        }
    }

    /// The fields that differ between two objects, without those that this endpoint resets.
    pub(crate) fn diff(&self, old: Option<&Value>, new: &Value) -> diff::Diff {
        let mut diff = diff::objects(self.schema, self.node, old, new);
        if let Some(reset) = self.reset {
            diff.changed.difference_recursive(reset);
            diff.removed.difference_recursive(reset);
        }
        diff
    }
}

/// What [`update`] records in a new object, as the JSON of its `managedFields`. `None` where that takes more than a
/// look at the object: it brings entries of its own or has no metadata, or nothing in it is owned.
pub fn created(ctx: &Context, new: &Value) -> Option<Vec<u8>> {
    let plain = new.get("metadata").is_some_and(Value::is_object) && managed::of(new).is_null();
    if !plain {
        return None;
    }
    let mut out = Vec::with_capacity(1024);
    // Writing text to memory cannot fail.
    let text = |out: &mut Vec<u8>, before: &str, text: &str| {
        out.extend_from_slice(before.as_bytes());
        let _ = serde_json::to_writer(out, text);
    };
    text(&mut out, r#"[{"apiVersion":"#, ctx.api_version);
    out.extend_from_slice(br#","fieldsType":"FieldsV1","fieldsV1":"#);
    let start = out.len();
    owned::write(&mut out, ctx.schema, ctx.node, new, ctx.reset);
    if out[start..] == *b"{}" {
        return None;
    }
    text(&mut out, r#","manager":"#, ctx.manager);
    out.extend_from_slice(br#","operation":"Update""#);
    if !ctx.subresource.is_empty() {
        text(&mut out, r#","subresource":"#, ctx.subresource);
    }
    text(&mut out, r#","time":"#, ctx.now);
    out.extend_from_slice(b"}]");
    Some(out)
}

/// Records in `new` who owns what after a create (`live` is `None`), an update or a patch.
///
/// Call it with defaults filled in and before admission changes the object, as upstream does.
pub fn update(ctx: &Context, live: Option<&Value>, new: &mut Value) {
    let sent = managed::take(new);
    let Some(mut entries) = starting_entries(ctx, live, sent) else { return };
    let mut changes = Changes::of(ctx, live, new);
    if changes.own.is_empty() {
        managed::store(new, entries);
        return;
    }
    changes.disown(&mut entries);
    let diff = changes.own;
    if !diff.changed.is_empty() {
        let mut own = ctx.entry(Operation::Update);
        own.fields = diff.changed;
        own.time = Some(ctx.now.to_owned());
        match entries.iter_mut().find(|e| e.is(&own)) {
            Some(entry) => {
                entry.fields.union(&own.fields);
                entry.time = own.time;
            }
            None => entries.push(own),
        }
    }
    entries.retain(|e| !e.fields.is_empty());
    managed::cap(&mut entries);
    managed::store(new, entries);
}

/// The entries to start from: those sent with the object where they make sense, else the live object's.
/// `None` if ownership is not tracked, which is so for an object whose entries someone has stripped.
fn starting_entries(ctx: &Context, live: Option<&Value>, sent: Value) -> Option<Vec<Entry>> {
    let stored = || match live {
        Some(live) => managed::decode(managed::of(live).clone(), true).unwrap_or_default(),
        None => Vec::new(),
    };
    let entries = if is_reset(&sent) && ctx.subresource.is_empty() {
        Vec::new()
    } else if !ctx.subresource.is_empty() {
        stored()
    } else {
        let trusted = live.is_some_and(|live| *managed::of(live) == sent);
        let entries = managed::decode(sent, trusted).unwrap_or_default();
        if entries.is_empty() { stored() } else { entries }
    };
    (!entries.is_empty() || live.is_none()).then_some(entries)
}

/// A list of one empty entry is the documented way to strip an object of its entries.
fn is_reset(sent: &Value) -> bool {
    *sent == json!([{}])
}

#[cfg(test)]
mod tests;
