//! The reasons to replace a machine: the differences between its configuration and its group's.

use api_meta::Tree as _;
use kops_core::content_hash;
use serde_json::Value;

/// The field with the hash of the node configuration.
const HASH: &str = "NodeupConfigHash";
/// The most differences listed; the rest are counted.
const MOST_LISTED: usize = 6;
const LONGEST: usize = 40;

/// The configuration of a machine: its user data, and the node configuration whose hash the user data contains.
#[derive(Clone, Copy)]
pub(crate) struct MachineSource<'a> {
    pub(crate) user_data: &'a str,
    /// The node configuration. That of the past comes from the machine, and counts only if its hash matches.
    pub(crate) config: Option<&'a [u8]>,
}

/// Returns the differing fields.
pub(crate) fn describe_difference(old: MachineSource<'_>, new: MachineSource<'_>) -> String {
    let read = |text: &[u8]| api_codec::from_yaml(text).unwrap_or_default();
    let (before, after) = (read(old.user_data.as_bytes()), read(new.user_data.as_bytes()));
    let mut all = Vec::new();
    collect_differences(&before, &after, "", &mut all);
    let by_hash = all.iter().position(|field| field.starts_with(HASH));
    if let Some(at) = by_hash {
        all.remove(at);
        let named = |config: &&[u8]| content_hash(config) == before.text(HASH);
        match (old.config.filter(named), new.config) {
            (Some(old), Some(new)) => collect_differences(&read(old), &read(new), "", &mut all),
            _ => all.push("its node configuration".to_owned()),
        }
    }
    let more = all.len().saturating_sub(MOST_LISTED);
    all.truncate(MOST_LISTED);
    match more {
        0 => all.join(", "),
        more => format!("{}, and {more} more", all.join(", ")),
    }
}

fn collect_differences(old: &Value, new: &Value, path: &str, all: &mut Vec<String>) {
    if old == new {
        return;
    }
    if let (Value::Object(before), Value::Object(after)) = (old, new) {
        let mut names: Vec<_> = before.keys().chain(after.keys()).collect();
        names.sort();
        names.dedup();
        for name in names {
            let inner = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            let of = |tree: &Value| tree.get(name).cloned().unwrap_or_default();
            collect_differences(&of(old), &of(new), &inner, all);
        }
        return;
    }
    // Long or structured values are only named.
    let short = |value: &Value| match value {
        Value::Null => Some("none".to_owned()),
        Value::String(text) if text.chars().count() <= LONGEST => Some(format!("{text:?}")),
        Value::Bool(_) | Value::Number(_) => Some(value.to_string()),
        _ => None,
    };
    all.push(match (short(old), short(new)) {
        (Some(old), Some(new)) => format!("{path} ({old} -> {new})"),
        _ => path.to_owned(),
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_differing_fields() {
        let data = |config: &str, server: &str| {
            let hash = content_hash(config.as_bytes());
            format!("{HASH}: {hash}\nServer: {server}\n")
        };
        let old = "Kubelet: {labels: {a: b}, max: 5}\nAssets: [x]\n";
        let new = "Kubelet: {labels: {a: c, d: e}, max: 5}\nAssets: [y]\n";
        let (before, after) = (data(old, "s"), data(new, "s"));
        let reason_for = |before: &str, kept: &str| {
            let old = MachineSource { user_data: before, config: Some(kept.as_bytes()) };
            describe_difference(
                old,
                MachineSource { user_data: &after, config: Some(new.as_bytes()) },
            )
        };
        assert_eq!(
            reason_for(&before, old),
            "Assets, Kubelet.labels.a (\"b\" -> \"c\"), Kubelet.labels.d (none -> \"e\")"
        );
        // The file differs from the one that the machine was created with.
        assert_eq!(reason_for(&before, new), "its node configuration");
        assert_eq!(reason_for(&data(new, "t"), new), "Server (\"t\" -> \"s\")");
        let many: String = (0..9).map(|n| format!("k{n}: 1\n")).collect();
        assert!(reason_for(&format!("{many}{after}"), new).ends_with("and 3 more"));
    }
}
