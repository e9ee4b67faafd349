//! The frame that every kind fits in, and what all kinds share.

use std::collections::HashSet;

use api_meta::{ErrorList, Path, Tree as _, Warnings};
use serde_json::Value;

use crate::{
    fields::{self, FieldRule},
    meta::{self, NameRule},
    warnings,
};

/// A field selector and how to read its field.
pub type Selectable = (&'static str, fn(&Value) -> String);

/// A subresource that writes a part of the object (`status` has fields of its own in [`Strategy`]).
pub struct Subresource {
    pub name: &'static str,
    /// Keeps of `new` what this subresource may write, and all else of `old`.
    pub prepare: fn(&mut Value, &Value, &str),
    pub validate: fn(&Value, &Value, &mut ErrorList),
}

/// What a kind does. The functions are the kind's own part; call the methods, which add what all kinds do.
pub struct Strategy {
    pub name: NameRule,
    /// The status that an object starts with, for kinds whose status clients cannot set by the main endpoint.
    pub status: Option<fn() -> Value>,
    /// Whether the creator may set the status all the same (Nodes register with it).
    pub status_at_create: bool,
    /// Whether `metadata.generation` counts the changes outside metadata and status.
    pub generation: bool,
    pub own_defaults: fn(&mut Value),
    pub own_create: fn(&mut Value, &str),
    pub own_update: fn(&mut Value, &Value, &str),
    pub own_status: fn(&mut Value, &Value, &str),
    /// Whether finalizers must be Kubernetes' own or of some domain; those of extensions need not.
    pub owned_finalizers: bool,
    /// What holds for single fields of every object, new or changed.
    pub(crate) fields: &'static [FieldRule],
    /// What else holds for every object.
    pub check: fn(&Value, &mut ErrorList),
    pub check_create: fn(&Value, &mut ErrorList),
    pub check_update: fn(&Value, &Value, &mut ErrorList),
    pub check_status: fn(&Value, &Value, &mut ErrorList),
    /// What is allowed, but deserves a `Warning` header, in a new object or in a change of an old one.
    pub warnings: fn(&Value, Option<&Value>) -> Warnings,
    pub subresources: &'static [Subresource],
    /// Field selectors beyond `metadata.name` and `metadata.namespace`.
    pub selectable: &'static [Selectable],
    /// Whether a delete gives the object time to end (Pods).
    pub graceful_delete: bool,
    /// Whether an update of an object that is not there creates it.
    pub create_on_update: bool,
    /// Whether an update without a resource version is let through.
    pub unconditional_update: bool,
    /// Where objects lie in the store, if upstream's etcd keys do not follow the plural name.
    pub storage_path: Option<&'static str>,
    /// Whether upstream stores objects as JSON, and not as protobuf.
    pub stored_as_json: bool,
    /// Whether objects end by themselves, after the server's `--event-ttl`.
    pub expires: bool,
    /// Whether objects are lists' items that are made when they are asked for, and not stored.
    pub computed: bool,
    /// Whether it is what other kinds' objects lie in: its URL names it twice, its contents go before it does, and
    /// finalizers in its `spec` hold it, too.
    pub scope: bool,
    /// Whether the server gives objects addresses and ports.
    pub allocated: bool,
    /// Whether the server writes into the `spec` who made the object.
    pub signed: bool,
    /// Whether objects act as a service account of their namespace, which is there before they are.
    pub has_account: bool,
    /// Whether a deletion that says nothing of dependents leaves them, as with kinds of old.
    pub orphans: bool,
    /// What a deletion adds: a finalizer, and the reason and message of the condition `Terminating`.
    pub cleanup: Option<Cleanup>,
    /// Where the kind says what Pods are to be, dotted; empty for kinds that make none.
    pub pod_spec: &'static str,
    /// What upstream warns of whenever the kind is asked for.
    pub deprecation: Option<&'static str>,
}

/// How an object says that it waits for what belongs to it.
pub struct Cleanup {
    pub finalizer: &'static str,
    pub reason: &'static str,
    pub message: &'static str,
}

impl Strategy {
    /// A kind without peculiarities: no status, no generation.
    pub const PLAIN: Strategy = Strategy {
        name: NameRule::Subdomain,
        status: None,
        status_at_create: false,
        generation: false,
        own_defaults: |_| {},
        own_create: |_, _| {},
        own_update: |_, _, _| {},
        own_status: |_, _, _| {},
        owned_finalizers: true,
        fields: &[],
        check: |_, _| {},
        check_create: |_, _| {},
        check_update: |_, _, _| {},
        check_status: |_, _, _| {},
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
        deprecation: None,
    };

    /// A custom kind, with or without the status subresource.
    pub fn custom(status: bool) -> &'static Strategy {
        const CUSTOM: Strategy = Strategy {
            generation: true,
            owned_finalizers: false,
            unconditional_update: false,
            warnings: warnings::finalizers,
            ..Strategy::PLAIN
        };
        static WITHOUT: Strategy = CUSTOM;
        static WITH: Strategy = Strategy { status: Some(|| Value::Null), ..CUSTOM };
        if status { &WITH } else { &WITHOUT }
    }

    /// Fills in the defaults that depend on other fields; the schema's constant ones are in already.
    pub fn defaults(&self, object: &mut Value) {
        (self.own_defaults)(object);
    }

    /// Drops what a client may not set when creating. Name, uid and creation time are set by then.
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
        (self.own_create)(object, now);
    }

    /// Restores what the main endpoint may not change, and counts the generation.
    pub fn prepare_update(&self, new: &mut Value, old: &Value, now: &str) {
        self.prepare_metadata(new, old);
        if self.status.is_some() {
            new.keep(old, "status");
        }
        (self.own_update)(new, old, now);
        self.count_generation(new, old);
    }

    /// Restores all that the status endpoint may not change: everything but status and some metadata.
    pub fn prepare_status(&self, new: &mut Value, old: &Value, now: &str) {
        self.prepare_metadata(new, old);
        restore_content(new, old);
        (self.own_status)(new, old, now);
    }

    /// Restores all that another subresource may not change; `None` if the kind has no such subresource of its
    /// own (`scale` is nobody's: it changes `spec.replicas` by the main rules).
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

    /// What is wrong with an object to create.
    pub fn create_errors(&self, object: &Value, namespaced: bool) -> ErrorList {
        let mut errors = meta::check(object, self.name, namespaced);
        self.finalizer_errors(object, &mut errors);
        self.content_errors(object, &mut errors);
        (self.check_create)(object, &mut errors);
        errors
    }

    /// What is wrong with an update by the main endpoint.
    pub fn update_errors(&self, new: &Value, old: &Value, namespaced: bool) -> ErrorList {
        let mut errors = meta::check_update(new, old, namespaced);
        self.finalizer_errors(new, &mut errors);
        // What was let in once may stay: a rule that came later must not hinder other changes.
        let mut found = ErrorList::new();
        self.content_errors(new, &mut found);
        if !found.is_empty() && content_unchanged(new, old) {
            found.clear();
        }
        errors.append(&mut found);
        (self.check_update)(new, old, &mut errors);
        errors
    }

    fn finalizer_errors(&self, object: &Value, errors: &mut ErrorList) {
        if self.owned_finalizers {
            let path = Path::new("metadata").child("finalizers");
            meta::check_finalizer_owners(object, &path, errors);
        }
    }

    fn content_errors(&self, object: &Value, errors: &mut ErrorList) {
        (self.check)(object, errors);
        fields::check(object, self.fields, &Path::new(""), errors);
    }

    /// What is wrong with a write of `status`.
    pub fn status_errors(&self, new: &Value, old: &Value, namespaced: bool) -> ErrorList {
        let mut errors = meta::check_update(new, old, namespaced);
        (self.check_status)(new, old, &mut errors);
        errors
    }

    /// What is wrong with a write of another subresource that is part of the object, such as a Pod's `resize`.
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

    /// A subresource by its name in paths; `None` if the kind has none of the name.
    pub fn subresource(&self, name: &str) -> Option<&'static Subresource> {
        self.subresources.iter().find(|s| s.name == name)
    }

    /// The value of a selectable field; `None` if the kind has no such selector.
    pub fn field(&self, object: &Value, field: &str) -> Option<String> {
        match field {
            "metadata.name" | "metadata.namespace" => Some(object.text(field).to_owned()),
            _ => {
                self.selectable.iter().find(|(name, _)| *name == field).map(|(_, get)| get(object))
            }
        }
    }

    /// The fields that a write by this endpoint cannot change, and so nobody comes to own (server-side apply).
    pub fn reset_fields(&self, subresource: &str) -> &'static [&'static str] {
        match (subresource, self.status.is_some()) {
            ("", true) => &["status"],
            ("status", true) => &["spec", "metadata.ownerReferences", "metadata.deletionTimestamp"],
            _ => &[],
        }
    }

    /// The server's own metadata is what it was, whatever the client sent.
    fn prepare_metadata(&self, new: &mut Value, old: &Value) {
        drop_repeated_owners(new);
        for path in [
            "metadata.generation",
            "metadata.selfLink",
            "metadata.deletionTimestamp",
            "metadata.deletionGracePeriodSeconds",
        ] {
            new.keep(old, path);
        }
        for path in ["metadata.uid", "metadata.creationTimestamp"] {
            if new.blank(path) {
                new.keep(old, path);
            }
        }
    }

    fn count_generation(&self, new: &mut Value, old: &Value) {
        if self.generation && !content_unchanged(new, old) {
            new.set("metadata.generation", old.int("metadata.generation") + 1);
        }
    }
}

/// An owner that is named twice, in the same words, is one.
fn drop_repeated_owners(object: &mut Value) {
    let owners = object.at_mut("metadata.ownerReferences").and_then(Value::as_array_mut);
    let Some(owners) = owners else { return };
    let mut seen = HashSet::with_capacity(owners.len());
    let first: Vec<bool> = owners.iter().map(|owner| seen.insert(owner)).collect();
    let mut first = first.into_iter();
    owners.retain(|_| first.next().unwrap_or_default());
}

/// Undoes every change outside metadata and status.
fn restore_content(new: &mut Value, old: &Value) {
    let (Value::Object(new), Value::Object(old)) = (new, old) else { return };
    new.retain(|name, _| apart(name) || old.contains_key(name));
    for (name, value) in old.iter().filter(|(name, _)| !apart(name)) {
        if new.get(name) != Some(value) {
            new.insert(name.clone(), value.clone());
        }
    }
}

/// What is not content: the generation does not count it, and the status endpoint may change it.
fn apart(name: &str) -> bool {
    matches!(name, "metadata" | "status" | "apiVersion" | "kind")
}

/// Whether two objects are equal but for metadata and status.
fn content_unchanged(new: &Value, old: &Value) -> bool {
    let (Value::Object(new), Value::Object(old)) = (new, old) else { return new == old };
    meta::same_members(new, old, &apart)
}
