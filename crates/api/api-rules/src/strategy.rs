//! The strategy of a kind: its rules, and the rules that all kinds share.

use std::collections::HashSet;

use api_meta::{ErrorList, Path, Tree as _, Warnings};
use serde_json::Value;

use crate::{
    fields::{self, FieldRule},
    meta::{self, NameRule},
    warnings,
};

/// A field selector and the function that reads its field.
pub type Selectable = (&'static str, fn(&Value) -> String);

/// A subresource that writes a part of the object. `status` has fields of its own in [`Strategy`].
pub struct Subresource {
    /// The name of the subresource in paths.
    pub name: &'static str,
    /// Restores from `old` everything that this subresource may not write. The last argument is the time of the
    /// request.
    pub prepare: fn(&mut Value, &Value, &str),
    /// Validates the change from the second to the first object.
    pub validate: fn(&Value, &Value, &mut ErrorList),
}

/// The rules of a kind. Function fields hold the kind's own part. Callers use the methods, which add the common rules.
pub struct Strategy {
    /// The format of names.
    pub name: NameRule,
    /// The initial status, for kinds whose status clients cannot set through the main endpoint.
    pub status: Option<fn() -> Value>,
    /// `true` if the creator may set the status, as for Nodes.
    pub status_at_create: bool,
    /// `true` if `metadata.generation` counts changes outside metadata and status.
    pub generation: bool,
    /// Sets the kind's conditional defaults.
    pub own_defaults: fn(&mut Value),
    /// Prepares a new object at the given time.
    pub own_create: fn(&mut Value, &str),
    /// Prepares an update of the new object from the old one at the given time.
    pub own_update: fn(&mut Value, &Value, &str),
    /// Prepares a status update of the new object from the old one at the given time.
    pub own_status: fn(&mut Value, &Value, &str),
    /// The fields that the status endpoint cannot change, for server-side apply.
    pub reset_by_status: &'static [&'static str],
    /// `true` if finalizers must be standard or domain-qualified. Finalizers of custom kinds need not be.
    pub owned_finalizers: bool,
    /// The rules for single fields, on create and update.
    pub(crate) fields: &'static [FieldRule],
    /// The other validation, on create and update.
    pub check: fn(&Value, &mut ErrorList),
    /// Further validation of a new object.
    pub check_create: fn(&Value, &mut ErrorList),
    /// Further validation of a change from the second to the first object.
    pub check_update: fn(&Value, &Value, &mut ErrorList),
    /// Validation of a status change from the second to the first object at the given time.
    pub check_status: fn(&Value, &Value, &str, &mut ErrorList),
    /// Returns the `Warning` headers for a new object, or for a change from the old one.
    pub warnings: fn(&Value, Option<&Value>) -> Warnings,
    /// The subresources that write a part of the object, except `status`.
    pub subresources: &'static [Subresource],
    /// The field selectors besides `metadata.name` and `metadata.namespace`.
    pub selectable: &'static [Selectable],
    /// `true` if deletion has a grace period (Pods).
    pub graceful_delete: bool,
    /// `true` if an update of a missing object creates it.
    pub create_on_update: bool,
    /// `true` if an update without a resourceVersion is allowed.
    pub unconditional_update: bool,
    /// The path in etcd keys; `None` if it is the plural name.
    pub storage_path: Option<&'static str>,
    /// `true` if upstream stores objects as JSON instead of protobuf.
    pub stored_as_json: bool,
    /// `true` if objects expire after the server's `--event-ttl`.
    pub expires: bool,
    /// `true` if objects are computed for each request and not stored.
    pub computed: bool,
    /// `true` for Namespaces: their URL contains the name twice, their contents are deleted first, and finalizers in
    /// `spec` also block the deletion.
    pub scope: bool,
    /// `true` if the server allocates addresses and ports.
    pub allocated: bool,
    /// `true` if the server writes the requesting user into `spec`.
    pub signed: bool,
    /// `true` if objects use a service account of their namespace, which must exist first.
    pub has_account: bool,
    /// `true` if a deletion without a propagation policy orphans the dependents, as for kinds of old API versions.
    pub orphans: bool,
    /// The finalizer and the condition `Terminating` that a deletion adds.
    pub cleanup: Option<Cleanup>,
    /// The dotted path of the Pod spec; empty for kinds without one.
    pub pod_spec: &'static str,
    /// The fields of `spec` for coordinated leader election, which are dropped while its gate is off.
    pub coordinated_fields: &'static [&'static str],
    /// The deprecation warning that upstream sends with every request of the kind.
    pub deprecation: Option<&'static str>,
}

/// The finalizer and the `Terminating` condition of an object whose contents are being deleted.
pub struct Cleanup {
    /// The finalizer.
    pub finalizer: &'static str,
    /// The condition's reason.
    pub reason: &'static str,
    /// The condition's message.
    pub message: &'static str,
}

impl Strategy {
    /// A kind without rules of its own, without status and without generation.
    pub const PLAIN: Strategy = Strategy {
        name: NameRule::Subdomain,
        status: None,
        status_at_create: false,
        generation: false,
        own_defaults: |_| {},
        own_create: |_, _| {},
        own_update: |_, _, _| {},
        own_status: |_, _, _| {},
        reset_by_status: &["spec", "metadata.ownerReferences", "metadata.deletionTimestamp"],
        owned_finalizers: true,
        fields: &[],
        check: |_, _| {},
        check_create: |_, _| {},
        check_update: |_, _, _| {},
        check_status: |_, _, _, _| {},
        warnings: |_, _| Warnings::new(),
        subresources: &[],
        selectable: &[],
        graceful_delete: false,
        create_on_update: false,
        unconditional_update: true,
        storage_path: None,
        stored_as_json: false,
        expires: false,
        computed: false,
        scope: false,
        allocated: false,
        signed: false,
        has_account: false,
        orphans: false,
        cleanup: None,
        pod_spec: "",
        coordinated_fields: &[],
        deprecation: None,
    };

    /// Returns the strategy of a custom kind, with or without the status subresource.
    pub fn custom(status: bool) -> &'static Strategy {
        const CUSTOM: Strategy = Strategy {
            generation: true,
            owned_finalizers: false,
            unconditional_update: false,
            warnings: warnings::finalizers,
            own_status: |new, old, _| {
                let owners = new.at("metadata.managedFields").clone();
                new.keep(old, "metadata");
                new.set("metadata.managedFields", owners);
            },
            reset_by_status: &["spec", "metadata"],
            ..Strategy::PLAIN
        };
        static WITHOUT: Strategy = CUSTOM;
        static WITH: Strategy = Strategy { status: Some(|| Value::Null), ..CUSTOM };
        if status { &WITH } else { &WITHOUT }
    }

    /// Sets the conditional defaults. The schema's constant defaults are already set.
    pub fn defaults(&self, object: &mut Value) {
        (self.own_defaults)(object);
    }

    /// Removes fields that a client may not set on create. Name, uid and creation time are already set.
    pub fn prepare_create(&self, object: &mut Value, now: &str) {
        drop_repeated_owners(object);
        if let Some(initial) = self.status
            && !self.status_at_create
        {
            object.set("status", initial());
        }
        if self.generation {
            object.set("metadata.generation", 1);
        } else {
            object.set("metadata.generation", Value::Null);
        }
        self.drop_disabled_fields(object, None);
        (self.own_create)(object, now);
    }

    /// Restores fields that the main endpoint may not change, and updates the generation.
    pub fn prepare_update(&self, new: &mut Value, old: &Value, now: &str) {
        self.prepare_metadata(new, old);
        if self.status.is_some() {
            new.keep(old, "status");
        }
        self.drop_disabled_fields(new, Some(old));
        (self.own_update)(new, old, now);
        self.count_generation(new, old);
    }

    /// Restores fields that the status endpoint may not change: everything but status and some metadata.
    pub fn prepare_status(&self, new: &mut Value, old: &Value, now: &str) {
        self.prepare_metadata(new, old);
        restore_content(new, old);
        (self.own_status)(new, old, now);
    }

    /// Restores fields that another subresource may not change. Returns `None` if the kind has no such subresource.
    /// `scale` is not listed here, because it changes `spec.replicas` by the main rules.
    pub fn prepare_subresource(
        &self,
        name: &str,
        new: &mut Value,
        old: &Value,
        now: &str,
    ) -> Option<()> {
        let subresource = self.subresource(name)?;
        self.prepare_metadata(new, old);
        (subresource.prepare)(new, old, now);
        self.count_generation(new, old);
        Some(())
    }

    /// Validates a new object.
    pub fn create_errors(&self, object: &Value, namespaced: bool) -> ErrorList {
        let mut errors = meta::check(object, self.name, namespaced);
        self.validate_finalizers(object, &mut errors);
        self.validate_content(object, &mut errors);
        (self.check_create)(object, &mut errors);
        errors
    }

    /// Validates an update through the main endpoint.
    pub fn update_errors(&self, new: &Value, old: &Value, namespaced: bool) -> ErrorList {
        let mut errors = meta::check_update(new, old, namespaced);
        self.validate_finalizers(new, &mut errors);
        // Ignore errors of unchanged content, which may be older than the rule.
        let mut found = ErrorList::new();
        self.validate_content(new, &mut found);
        if !found.is_empty() && has_same_content(new, old) {
            found.clear();
        }
        errors.append(&mut found);
        (self.check_update)(new, old, &mut errors);
        errors
    }

    fn validate_finalizers(&self, object: &Value, errors: &mut ErrorList) {
        if self.owned_finalizers {
            let path = Path::new("metadata").child("finalizers");
            meta::check_finalizer_owners(object, &path, errors);
        }
    }

    fn validate_content(&self, object: &Value, errors: &mut ErrorList) {
        (self.check)(object, errors);
        fields::check(object, self.fields, &Path::new(""), errors);
    }

    /// Validates an update of `status` at the given time.
    pub fn status_errors(
        &self,
        new: &Value,
        old: &Value,
        namespaced: bool,
        now: &str,
    ) -> ErrorList {
        let mut errors = meta::check_update(new, old, namespaced);
        (self.check_status)(new, old, now, &mut errors);
        errors
    }

    /// Validates an update of another subresource, such as a Pod's `resize`.
    pub fn subresource_errors(
        &self,
        name: &str,
        new: &Value,
        old: &Value,
        namespaced: bool,
    ) -> ErrorList {
        let mut errors = meta::check_update(new, old, namespaced);
        if let Some(subresource) = self.subresource(name) {
            (subresource.validate)(new, old, &mut errors);
        }
        errors
    }

    /// Returns the subresource with this name, or `None`.
    pub fn subresource(&self, name: &str) -> Option<&'static Subresource> {
        self.subresources.iter().find(|s| s.name == name)
    }

    /// Returns the value of a selectable field, or `None` if the kind has no such selector.
    pub fn field(&self, object: &Value, field: &str) -> Option<String> {
        match field {
            "metadata.name" | "metadata.namespace" => Some(object.text(field).to_owned()),
            _ => {
                self.selectable.iter().find(|(name, _)| *name == field).map(|(_, get)| get(object))
            }
        }
    }

    /// Returns the fields that this endpoint cannot change, so that server-side apply records no owner for them.
    pub fn reset_fields(&self, subresource: &str) -> &'static [&'static str] {
        match (subresource, self.status.is_some()) {
            ("", true) => &["status"],
            ("status", true) => self.reset_by_status,
            _ => &[],
        }
    }

    /// Restores the metadata that only the server sets.
    fn prepare_metadata(&self, new: &mut Value, old: &Value) {
        drop_repeated_owners(new);
        for path in
            ["metadata.generation", "metadata.selfLink", "metadata.deletionGracePeriodSeconds"]
        {
            new.keep(old, path);
        }
        for path in ["metadata.uid", "metadata.creationTimestamp"] {
            if new.blank(path) {
                new.keep(old, path);
            }
        }
    }

    /// Removes fields of the Pod spec that belong to features that are off, unless the old object uses them.
    fn drop_disabled_fields(&self, new: &mut Value, old: Option<&Value>) {
        if !self.pod_spec.is_empty()
            && let Some(spec) = new.at_mut(self.pod_spec)
        {
            crate::disabled_fields::drop_from_pod(spec, old.map(|old| old.at(self.pod_spec)));
        }
    }

    fn count_generation(&self, new: &mut Value, old: &Value) {
        if self.generation && !has_same_content(new, old) {
            new.set("metadata.generation", old.int("metadata.generation") + 1);
        }
    }
}

/// Removes duplicate owner references.
fn drop_repeated_owners(object: &mut Value) {
    let owners = object.at_mut("metadata.ownerReferences").and_then(Value::as_array_mut);
    let Some(owners) = owners else { return };
    let mut seen = HashSet::with_capacity(owners.len());
    let first: Vec<bool> = owners.iter().map(|owner| seen.insert(owner)).collect();
    let mut first = first.into_iter();
    owners.retain(|_| first.next().unwrap_or_default());
}

/// Restores everything outside metadata and status.
fn restore_content(new: &mut Value, old: &Value) {
    let (Value::Object(new), Value::Object(old)) = (new, old) else { return };
    new.retain(|name, _| is_not_content(name) || old.contains_key(name));
    for (name, value) in old.iter().filter(|(name, _)| !is_not_content(name)) {
        if new.get(name) != Some(value) {
            new.insert(name.clone(), value.clone());
        }
    }
}

/// Reports whether a member is not content. The generation does not count its changes.
fn is_not_content(name: &str) -> bool {
    matches!(name, "metadata" | "status" | "apiVersion" | "kind")
}

/// Reports whether two objects differ only in metadata and status.
fn has_same_content(new: &Value, old: &Value) -> bool {
    let (Value::Object(new), Value::Object(old)) = (new, old) else { return new == old };
    meta::same_members(new, old, &is_not_content)
}
