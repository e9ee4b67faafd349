//! Records ownership on creates, updates and patches other than apply.

use serde_json::{Value, json};

use crate::{
    context::Context,
    managed::{self, Entry, Operation},
    typed::owned,
    versions::Changes,
};

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
        let mut new_entry = ctx.entry(Operation::Update);
        new_entry.fields = diff.changed;
        new_entry.time = Some(ctx.now.to_owned());
        match entries.iter_mut().find(|e| e.is(&new_entry)) {
            Some(entry) => {
                entry.fields.union(&new_entry.fields);
                entry.time = new_entry.time;
            }
            None => entries.push(new_entry),
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
    // Most writes leave the entries as they are. Those of a subresource cannot set them.
    let trusted = live.is_some_and(|live| *managed::of(live) == sent);
    let entries = if is_reset(&sent) && ctx.subresource.is_empty() {
        Vec::new()
    } else if !ctx.subresource.is_empty() && !trusted {
        stored()
    } else {
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
