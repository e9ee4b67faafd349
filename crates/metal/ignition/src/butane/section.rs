//! The sections of a config.

use serde_json::{Map, Value as Json, json};

/// Returns the value of a key in a section, and creates both if they are missing.
pub(super) fn entry<'c>(
    config: &'c mut Map<String, Json>,
    section: &str,
    key: &str,
    fresh: Json,
) -> Option<&'c mut Json> {
    let section = config.entry(section).or_insert_with(|| json!({})).as_object_mut()?;
    Some(section.entry(key).or_insert(fresh))
}
