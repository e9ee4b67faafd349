//! Ownership across API versions. Field names and atomic values differ between the versions of a kind, so each change
//! is computed in the version of each owner.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::{
    context::Context,
    fieldset::FieldSet,
    managed::Entry,
    typed::{
        diff::Diff,
        extract::{extract, with_named_parents},
        remove::remove,
    },
};

/// The changes of a write in the versions of all owners. They are computed lazily, because most objects have owners of
/// only one version.
pub(crate) struct Changes<'c> {
    ctx: &'c Context<'c>,
    old: Option<&'c Value>,
    new: &'c Value,
    pub(crate) own: Diff,
    others: BTreeMap<String, Option<Diff>>,
}

impl<'c> Changes<'c> {
    pub(crate) fn of(ctx: &'c Context<'c>, old: Option<&'c Value>, new: &'c Value) -> Self {
        Self { ctx, old, new, own: ctx.diff(old, new), others: BTreeMap::new() }
    }

    /// Returns the changes in a version, or `None` if the version does not exist.
    fn at(&mut self, version: &str) -> Option<&Diff> {
        if self.ctx.is_called(version) {
            return Some(&self.own);
        }
        if !self.others.contains_key(version) {
            let diff = self.ctx.at(version).map(|target| {
                let shown = |object| self.ctx.convert(object, self.ctx.api_version, version);
                target.diff(self.old.map(shown).as_ref(), &shown(self.new))
            });
            self.others.insert(version.to_owned(), diff);
        }
        self.others.get(version).and_then(Option::as_ref)
    }

    /// Returns the changed fields of an owner.
    pub(crate) fn changed_of(&mut self, entry: &Entry) -> FieldSet {
        let changed =
            self.at(&entry.api_version).map(|diff| entry.fields.intersection(&diff.changed));
        changed.unwrap_or_default()
    }

    /// Removes changed and removed fields from their owners. Owners of a removed version lose all fields.
    pub(crate) fn disown(&mut self, entries: &mut Vec<Entry>) {
        entries.retain_mut(|entry| {
            let Some(diff) = self.at(&entry.api_version) else { return false };
            entry.fields.difference(&diff.changed);
            entry.fields.difference(&diff.removed);
            true
        });
    }
}

/// Removes fields that this manager applied last time but no longer applies, unless another manager owns them.
pub(crate) fn prune(
    ctx: &Context,
    object: &mut Value,
    last: &Entry,
    own: &Entry,
    others: &[Entry],
) {
    if last.fields.is_empty() {
        return;
    }
    let home = &last.api_version;
    let Some(target) = ctx.at(home) else { return };
    let owners = || others.iter().chain([own]);
    let owned = |version: &str| {
        let mut set = FieldSet::default();
        owners().filter(|e| e.api_version == version).for_each(|e| set.union(&e.fields));
        set
    };
    let mut dropped = target.name_parents(&last.fields);
    dropped.difference(&target.name_parents(&owned(home)));
    if dropped.is_empty() && owners().all(|owner| ctx.is_called(home) && owner.api_version == *home)
    {
        return;
    }
    let merged = ctx.convert(object, ctx.api_version, home);
    let mut pruned = merged.clone();
    remove(target.schema, target.node, &mut pruned, &dropped);
    let mut versions: Vec<&str> = owners().map(|e| e.api_version.as_str()).collect();
    versions.sort_unstable();
    versions.dedup();
    for version in versions.into_iter().filter(|version| version != home) {
        let Some(target) = ctx.at(version) else { continue };
        let mut shown = ctx.convert(&merged, home, version);
        let without = ctx.convert(&pruned, home, version);
        let fields = |object| extract(target.schema, target.node, object).unwrap_or_default();
        let mut dropped = target.name_parents(&fields(&shown));
        dropped.difference(&target.name_parents(&fields(&without)));
        dropped.difference(&target.name_parents(&owned(version)));
        remove(target.schema, target.node, &mut shown, &dropped);
        pruned = ctx.convert(&shown, version, home);
    }
    *object = ctx.convert(&pruned, home, ctx.api_version);
}

impl Context<'_> {
    fn is_called(&self, version: &str) -> bool {
        version == self.api_version || self.versions.is_none()
    }

    /// Returns the context of the same write in another version.
    fn at<'b>(&'b self, version: &'b str) -> Option<Context<'b>> {
        if self.is_called(version) {
            return Some(*self);
        }
        let (schema, node) = self.versions?.types(version)?;
        Some(Context { schema, node: Some(node), api_version: version, ..*self })
    }

    fn convert(&self, object: &Value, from: &str, to: &str) -> Value {
        match self.versions {
            Some(versions) if from != to => versions.convert(object, from, to),
            _ => object.clone(),
        }
    }

    fn name_parents(&self, set: &FieldSet) -> FieldSet {
        with_named_parents(self.schema, self.node, set)
    }
}
