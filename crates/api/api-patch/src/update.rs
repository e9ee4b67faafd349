//! Records ownership on creates, updates and patches other than apply.

use api_schema::{NodeId, Schema};
use serde_json::{Value, json};

use crate::{
    FieldSet,
    managed::{self, Entry, Operation},
    typed::{diff, owned},
    versions::{Changes, Versions},
};

/// The context of a write.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    /// The schema of the object's kind.
    pub schema: &'a Schema,
    /// The root node of the object's kind; `None` for objects without a schema.
    pub node: Option<NodeId>,
    /// The field manager: from the request, or the first word of the user agent.
    pub manager: &'a str,
    /// The API version of the request, such as `apps/v1`.
    pub api_version: &'a str,
    /// The kind's other versions, in which other managers may have written; `None` treats every version as the
    /// request's.
    pub versions: Option<&'a dyn Versions>,
    /// The subresource that is written; empty for the main endpoint.
    pub subresource: &'a str,
    /// The time of the write, in RFC 3339 format with seconds.
    pub now: &'a str,
    /// The fields that this endpoint cannot change and therefore not own, such as `status` on the main one.
    pub reset: Option<&'a FieldSet>,
    /// `true` if apply takes over the fields of other managers.
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

    /// Returns the fields that differ between two objects, without the reset fields.
    pub(crate) fn diff(&self, old: Option<&Value>, new: &Value) -> diff::Diff {
        let mut diff = diff::objects(self.schema, self.node, old, new);
        if let Some(reset) = self.reset {
            diff.changed.difference_recursive(reset);
            diff.removed.difference_recursive(reset);
        }
        diff
    }
}

/// Returns the `managedFields` that [`update`] would record in a new object, as JSON. Returns `None` if this shortcut
/// does not apply: the object has entries of its own, no metadata, or no owned field.
pub fn created(ctx: &Context, new: &Value) -> Option<Vec<u8>> {
    let plain = new.get("metadata").is_some_and(Value::is_object) && managed::of(new).is_null();
    if !plain {
        return None;
    }
    let mut out = Vec::with_capacity(1024);
    // Writing to memory cannot fail.
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

/// Records the owners in `new` after a create (`live` is `None`), an update or a patch.
///
/// As upstream, call this after defaulting and before admission.
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

/// Returns the entries before the write: those in the request if they are valid, else those of the live object. Returns
/// `None` if ownership is not tracked, because a client removed the object's entries.
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

/// Reports whether a client removes the entries, which a list with one empty entry does.
fn is_reset(sent: &Value) -> bool {
    *sent == json!([{}])
}

#[cfg(test)]
mod tests;
