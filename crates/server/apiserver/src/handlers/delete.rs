//! Handles delete and deletecollection: graceful deletion, finalizers and propagation.

use std::{sync::Arc, time::Duration};

use api_meta::{ErrorList, FieldError, GroupResource, Path, Status, Tree as _};
use bytes::Bytes;
use http::{Response, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use serve::Body;
use store::{Expected, Op, Outcome, Write};

use super::{
    admission,
    attributes::Attributes,
    body::read_body,
    call::Call,
    change::ending,
    decode, meta, options,
    read::{answer_object, select},
    state::State,
};
use crate::{
    alloc::Allocation,
    clock,
    registry::{Definition, Object, set_condition},
    response,
    watch_cache::store_status,
};

const ATTEMPTS: usize = 256;
const FOREGROUND: &str = "foregroundDeletion";
const ORPHAN: &str = "orphan";

/// The options of a deletion (`DeleteOptions`).
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct DeleteOptions {
    #[serde(skip_serializing_if = "Option::is_none")]
    grace_period_seconds: Option<i64>,
    #[serde(skip_serializing_if = "Preconditions::is_empty")]
    preconditions: Preconditions,
    #[serde(skip_serializing_if = "Option::is_none")]
    orphan_dependents: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    propagation_policy: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    dry_run: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
struct Preconditions {
    #[serde(skip_serializing_if = "Option::is_none")]
    uid: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resource_version: Option<String>,
}

impl Preconditions {
    fn is_empty(&self) -> bool {
        self.uid.is_none() && self.resource_version.is_none()
    }
}

/// The origin of a deletion, which decides its admission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A request that names the object.
    Named,
    /// A request for a collection, whose admission attributes have no name.
    Collection,
    /// An effect of an admitted request (an eviction), or of the server itself. It is not admitted again.
    Effect,
}

impl DeleteOptions {
    /// Reads the options from the body or, if that is empty, from the query.
    pub(crate) fn read(call: &Call, body: &[u8]) -> Result<Self, Box<Status>> {
        let options: Self = if body.is_empty() {
            let query = &call.info.query;
            Self {
                grace_period_seconds: query.integer("gracePeriodSeconds")?,
                propagation_policy: query.get("propagationPolicy").map(str::to_owned),
                orphan_dependents: query
                    .get("orphanDependents")
                    .map(|_| query.flag("orphanDependents")),
                dry_run: query.all("dryRun").map(str::to_owned).collect(),
                ..Self::default()
            }
        } else {
            let tree = decode::decode_options(call, body)?;
            serde_json::from_value(tree).map_err(|e| {
                Box::new(Status::bad_request(format!("decoding DeleteOptions: {e}")))
            })?
        };
        options.validate()?;
        options.apply_dry_run(call);
        Ok(options)
    }

    /// Rejects unknown and contradictory options.
    pub(crate) fn validate(&self) -> Result<(), Box<Status>> {
        let policy = self.propagation_policy.as_deref();
        let field = Path::new("propagationPolicy");
        let mut errors = ErrorList::new();
        if let Some(policy) = policy.filter(|_| self.orphan_dependents.is_some()) {
            let detail = "orphanDependents and deletionPropagation cannot be both set";
            errors.push(FieldError::invalid(&field, policy, detail));
        }
        if let Some(other) =
            policy.filter(|p| !matches!(*p, "Foreground" | "Background" | "Orphan"))
        {
            let known = ["Foreground", "Background", "Orphan", "nil"];
            errors.push(FieldError::not_supported(&field, other, &known));
        }
        errors.append(&mut options::dry_run_errors(&self.dry_run));
        options::refuse("DeleteOptions", &errors)
    }

    /// Returns the propagation policy from either of its two fields.
    fn propagation(&self) -> Option<&str> {
        match self.orphan_dependents {
            Some(true) => Some("Orphan"),
            Some(false) => Some("Background"),
            None => self.propagation_policy.as_deref(),
        }
    }

    /// Returns the options as an object for admission.
    fn to_object(&self) -> Value {
        let mut options = json!(self);
        options.put(&["kind"], json!("DeleteOptions"));
        options.put(&["apiVersion"], json!(options::API_VERSION));
        options
    }

    /// Marks the call as a dry run if the options say so.
    pub(crate) fn apply_dry_run(&self, call: &Call) {
        if self.dry_run.iter().any(|d| d == "All") {
            call.dry_run_in_body.store(true, std::sync::atomic::Ordering::Relaxed);
        }
    }

    /// Returns `true` if only one version of the object may be deleted.
    pub(crate) fn names_a_version(&self) -> bool {
        self.preconditions.resource_version.is_some()
    }

    fn check(
        &self,
        definition: &Definition,
        object: &Object,
        tree: &Value,
    ) -> Result<(), Box<Status>> {
        let uid = tree.uid();
        let conflict = |what: &str, required: &str, is: &str, why: &str| {
            // Upstream names the kind here, where other messages name the resource.
            let (group, kind) =
                (definition.group.to_string(), definition.stored().kind.to_string());
            let kind = GroupResource::new(group, kind);
            let cause = format!(
                "the {what} in the precondition ({required}) does not match the {what} in record \
                 ({is}). The object might have been {why}"
            );
            Err(Box::new(Status::conflict(&kind, object.name(), cause)))
        };
        if let Some(required) = self.preconditions.uid.as_deref().filter(|w| *w != uid) {
            return conflict("UID", required, uid, "deleted and then recreated");
        }
        let version = object.revision.to_string();
        if let Some(required) =
            self.preconditions.resource_version.as_deref().filter(|w| *w != version)
        {
            return conflict("ResourceVersion", required, &version, "modified");
        }
        Ok(())
    }
}

/// The outcome of a deletion.
pub(crate) enum DeleteOutcome {
    /// The object is deleted. Contains its last state.
    Gone(Value),
    /// The object waits for finalizers or its grace period. Contains its current state.
    Pending(Arc<Object>),
}

pub(crate) async fn delete(state: &State, call: &Call) -> Result<Response<Body>, Box<Status>> {
    let body = read_body(state, call).await?;
    let options = DeleteOptions::read(call, &body)?;
    let definition = &call.resource.definition;
    let at = (call.path.namespace.as_str(), call.path.name.as_str());
    match remove(state, call, at, &options, Origin::Named).await? {
        DeleteOutcome::Pending(object) => answer_object(call, StatusCode::OK, object).await,
        DeleteOutcome::Gone(tree)
            if api_schema::returns_deleted(&definition.group, &definition.plural) =>
        {
            Ok(response::value(call.accepted, StatusCode::OK, &tree))
        }
        DeleteOutcome::Gone(tree) => {
            let mut details = json!({
                "name": call.path.name,
                "kind": *definition.plural,
                "uid": tree["metadata"]["uid"],
            });
            if !definition.group.is_empty() {
                details.put(&["group"], json!(*definition.group));
            }
            let status = json!({
                "kind": "Status",
                "apiVersion": "v1",
                "metadata": {},
                "status": "Success",
                "details": details,
            });
            Ok(response::value(call.accepted, StatusCode::OK, &status))
        }
    }
}

pub(crate) async fn delete_collection(
    state: &State,
    call: &Call,
) -> Result<Response<Body>, Box<Status>> {
    let body = read_body(state, call).await?;
    let options = DeleteOptions::read(call, &body)?;
    let (meta, objects) = select(call).await?;
    let is_namespaced = call.resource.definition.namespaced;
    for object in &objects {
        let namespace = if is_namespaced { object.namespace() } else { "" };
        let at = (namespace, object.name());
        match remove(state, call, at, &options, Origin::Collection).await {
            Ok(_) => {}
            // Another request has deleted the object.
            Err(status) if status.is_not_found() => {}
            Err(status) => return Err(status),
        }
    }
    Ok(response::list(&call.resource.definition, call.version, call.accepted, &meta, objects))
}

/// Deletes one object, or marks it for deletion.
pub(crate) async fn remove(
    state: &State,
    call: &Call,
    (namespace, name): (&str, &str),
    options: &DeleteOptions,
    origin: Origin,
) -> Result<DeleteOutcome, Box<Status>> {
    let definition = &call.resource.definition;
    let key: Arc<str> = definition.key(namespace, name).into();
    state.cache.consistent_with(&call.resource.feed).await.map_err(store_status)?;
    let mut current = call.cache()?.get(&key);
    for _ in 0..ATTEMPTS {
        let Some(object) = current else {
            return Err(Box::new(Status::not_found(&definition.group_resource(), name)));
        };
        let shown = definition.shown_one(call.version, object.clone()).await?;
        let mut tree = call.served().tree(&shown);
        options.check(definition, &object, &tree)?;
        if origin != Origin::Effect {
            let named = if origin == Origin::Named { name } else { "" };
            let attributes =
                Attributes::delete(call, (namespace, named), &tree, options.to_object());
            admission::admit(state, &attributes, &mut Value::Null).await?;
            admission::validate(state, &attributes, &Value::Null).await?;
        }
        let old = tree.clone();
        let collected = state.config.garbage_collection;
        let at_once = begin(definition, &mut tree, options, collected);
        if call.dry_run() {
            return Ok(DeleteOutcome::Gone(old));
        }
        if !at_once && tree == old {
            return Ok(DeleteOutcome::Pending(object));
        }
        match store_deleted(state, call, &object, tree, at_once).await? {
            Ok(deleted) => return Ok(deleted),
            Err(now) => current = now,
        }
    }
    Err(Box::new(Status::server_timeout(&definition.group_resource(), "delete", 1)))
}

/// Deletes the object or stores it with its mark. Returns the current object if another write came in between.
async fn store_deleted(
    state: &State,
    call: &Call,
    object: &Object,
    mut tree: Value,
    at_once: bool,
) -> Result<Result<DeleteOutcome, Option<Arc<Object>>>, Box<Status>> {
    let definition = &call.resource.definition;
    let key = object.key.clone();
    let (op, bytes) = if at_once {
        (Op::Delete, Bytes::new())
    } else {
        let encoded = definition.to_store(call.version, tree.clone(), None).await?;
        let bytes = encoded.bytes.clone();
        let value = encoded.into_value(&*call.resource.feed.store, &key);
        (Op::Put { value, ttl_seconds: None }, bytes)
    };
    let expected = Expected::ModRevision(object.revision);
    let write = Write { key: key.clone(), expected, op };
    let held = if at_once {
        ending(state, definition, &tree, Allocation::nothing())
    } else {
        Allocation::nothing()
    };
    match held.write(&call.resource.feed, &state.cache.tasks, write).await.map_err(store_status)? {
        Outcome::Done { revision, .. } if at_once => {
            tree.put(&["metadata", "resourceVersion"], json!(revision.to_string()));
            Ok(Ok(DeleteOutcome::Gone(tree)))
        }
        Outcome::Done { revision, .. } => {
            let object = definition.stored_object(key, revision, &bytes);
            Ok(Ok(DeleteOutcome::Pending(object)))
        }
        Outcome::Conflict { current } => {
            Ok(Err(current.map(|kv| Arc::new(definition.loaded(&kv).0))))
        }
    }
}

/// Marks the object for deletion. Returns `true` if it can be deleted at once. `collected` is `true` if a garbage
/// collector handles the object's dependents.
fn begin(
    definition: &Definition,
    tree: &mut Value,
    options: &DeleteOptions,
    collected: bool,
) -> bool {
    set_finalizers(definition, tree, options, collected);
    let grace = grace_period(definition, tree, options.grace_period_seconds);
    let already = tree.has("metadata.deletionTimestamp");
    let before = tree.opt_int("metadata.deletionGracePeriodSeconds");
    // A later deletion may shorten the grace period, but not extend it.
    let grace = match before.filter(|_| already) {
        Some(before) => grace.min(before),
        None => grace,
    };
    let waits =
        !tree.items("metadata.finalizers").is_empty() || meta::has_contents(definition, tree);
    if !waits && grace == 0 {
        return true;
    }
    if !already || before != Some(grace) {
        // Limited, because clients cannot parse years of more than four digits.
        let at = clock::now().plus(Duration::from_secs(grace.unsigned_abs()).min(rt::FAR));
        let generation = tree.opt_int("metadata.generation");
        if let Some(meta) = tree.at_mut(&["metadata"]).and_then(Value::as_object_mut) {
            meta.insert("deletionTimestamp".to_owned(), json!(at.to_string()));
            meta.insert("deletionGracePeriodSeconds".to_owned(), json!(grace));
            if let Some(generation) = generation.filter(|_| !already) {
                meta.insert("generation".to_owned(), json!(generation + 1));
            }
        }
    }
    if definition.strategy.scope {
        tree.put(&["status", "phase"], json!("Terminating"));
    }
    if let Some(cleanup) = definition.strategy.cleanup.as_ref().filter(|_| !already) {
        let mut status = tree.take_at(&["status"]);
        set_condition(&mut status, "Terminating", true, cleanup.reason, cleanup.message);
        tree.put(&["status"], status);
    }
    false
}

/// Returns the grace period: for Pods the requested one or the one in their spec, unless the Pod does not run. Other
/// kinds have none.
fn grace_period(definition: &Definition, tree: &Value, requested: Option<i64>) -> i64 {
    if !definition.strategy.graceful_delete {
        return 0;
    }
    let over = matches!(tree.text("status.phase"), "Succeeded" | "Failed");
    if tree.text("spec.nodeName").is_empty() || over {
        return 0;
    }
    let own = tree.opt_int("spec.terminationGracePeriodSeconds");
    // A negative grace period requests the shortest one that still lets the kubelet see the deletion.
    match requested.or(own).unwrap_or(30) {
        grace if grace < 0 => 1,
        grace => grace,
    }
}

/// Sets the finalizers of foreground and orphaning deletion, which the garbage collector removes.
fn set_finalizers(
    definition: &Definition,
    tree: &mut Value,
    options: &DeleteOptions,
    collected: bool,
) {
    let Some(meta) = tree.at_mut(&["metadata"]).and_then(Value::as_object_mut) else { return };
    let new = !meta.contains_key("deletionTimestamp");
    let mut finalizers: Vec<String> = match meta.get("finalizers").and_then(Value::as_array) {
        Some(list) => list.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        None => Vec::new(),
    };
    if collected {
        set_propagation(definition, &mut finalizers, options);
    }
    if let Some(cleanup) = definition.strategy.cleanup.as_ref().filter(|_| new)
        && !finalizers.iter().any(|f| f == cleanup.finalizer)
    {
        finalizers.push(cleanup.finalizer.to_owned());
    }
    if finalizers.is_empty() {
        meta.remove("finalizers");
    } else {
        meta.insert("finalizers".to_owned(), json!(finalizers));
    }
}

/// Sets the finalizer of the deletion's propagation.
fn set_propagation(definition: &Definition, finalizers: &mut Vec<String>, options: &DeleteOptions) {
    let default = definition.strategy.orphans.then_some("Orphan");
    let finalizer = match options.propagation().or(default) {
        Some("Foreground") => Some(FOREGROUND),
        Some("Orphan") => Some(ORPHAN),
        Some(_) => None,
        // Without a policy, the one of an earlier deletion is kept.
        None => finalizers
            .iter()
            .any(|f| f == FOREGROUND)
            .then_some(FOREGROUND)
            .or_else(|| finalizers.iter().any(|f| f == ORPHAN).then_some(ORPHAN)),
    };
    finalizers.retain(|f| f != FOREGROUND && f != ORPHAN);
    finalizers.extend(finalizer.map(str::to_owned));
}
