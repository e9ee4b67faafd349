//! Updates existing objects: from the requested change to the write in the store.

use std::sync::Arc;

use api_meta::{ErrorList, FieldError, Path, Status, Tree as _};
use auth::secondary::Moment;
use futures_util::future::BoxFuture;
use http::Method;
use serde_json::Value;
use store::{Expected, Op, Outcome, Write};

use super::{
    attributes::Attributes,
    authorization::{check_further_permissions, validate_permissions},
    call::Call,
    decode::{self, ExpectedType},
    expiry::seconds_to_live,
    meta,
    state::State,
};
use crate::{
    alloc::Allocation,
    clock,
    config::COORDINATION_GATE,
    registry::{Definition, Object, ServedVersion},
    watch_cache::store_status,
};

/// The maximum number of attempts of a write without a resourceVersion, if others write concurrently.
const ATTEMPTS: usize = 256;

/// Computes the requested object from the current one (`None` if it does not exist). Both are in the called version.
pub(crate) type Change<'a> =
    dyn Fn(Option<&Value>) -> Result<Value, Box<Status>> + Send + Sync + 'a;

/// The part of an object that a write may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Main,
    Status,
    /// Another subresource. The kind's strategy restores all other fields.
    Sub,
    /// A write of the server that follows from an admitted request: a Pod's binding, or the charge to a budget or
    /// quota. It is not admitted or restricted again.
    Effect,
}

/// A subresource with a kind of its own, such as Scale: how to derive it from an object, and how to apply it to one.
pub(crate) trait View: Sync {
    fn show(&self, object: &Value) -> Result<Value, Box<Status>>;
    fn take(&self, object: &Value, shown: &Value) -> Result<Value, Box<Status>>;
}

/// An update of an object: the part that it changes, the change, and its admission.
pub(crate) struct Update<'a> {
    pub(crate) part: Part,
    /// Called with the object or, if there is a view, with the view's object.
    pub(crate) change: &'a Change<'a>,
    pub(crate) view: Option<&'a dyn View>,
    /// `true` if the write updates `managedFields`. An apply updates them itself.
    pub(crate) track: bool,
    /// `None` for an effect.
    pub(crate) admission: Option<&'a dyn Admission>,
}

/// Admission of an object that is about to be written.
pub(crate) trait Admission: Sync {
    /// Runs mutating admission. Returns `true` if it may have changed the object.
    fn admit<'a>(
        &'a self,
        attributes: &'a Attributes<'_>,
        object: &'a mut Value,
    ) -> BoxFuture<'a, Result<bool, Box<Status>>>;

    /// Runs validating admission on the final object, and charges quotas.
    fn validate<'a>(
        &'a self,
        attributes: &'a Attributes<'_>,
        object: &'a Value,
    ) -> BoxFuture<'a, Result<(), Box<Status>>>;
}

/// Reads, changes, admits, validates and writes one object, with retries if another write came in between. A request
/// that names a resourceVersion fails with a conflict then. Returns `None` if the object does not exist.
pub(crate) async fn mutate(
    state: &State,
    call: &Call,
    update: &Update<'_>,
) -> Result<Option<Arc<Object>>, Box<Status>> {
    let definition = &call.resource.definition;
    let key: Arc<str> = definition.key(&call.path.namespace, &call.path.name).into();
    state.cache.consistent_with(&call.resource.feed).await.map_err(store_status)?;
    let mut current = call.cache()?.get(&key);
    for _ in 0..ATTEMPTS {
        let Some(old) = current else { return Ok(None) };
        match attempt(state, call, update, &old).await? {
            Attempt::Done(object) => return Ok(Some(object)),
            Attempt::Conflict { now } => current = now,
        }
    }
    Err(Box::new(Status::server_timeout(&definition.group_resource(), "update", 1)))
}

/// Writes an effect of an admitted request, without admission. `track` is `true` if the caller becomes its field
/// manager.
pub(crate) async fn effect(
    state: &State,
    call: &Call,
    change: &Change<'_>,
    track: bool,
) -> Result<(), Box<Status>> {
    let update = Update { part: Part::Effect, change, view: None, track, admission: None };
    match mutate(state, call, &update).await? {
        Some(_) => Ok(()),
        None => Err(call.not_found()),
    }
}

async fn attempt(
    state: &State,
    call: &Call,
    update: &Update<'_>,
    stored: &Arc<Object>,
) -> Result<Attempt, Box<Status>> {
    let definition = &call.resource.definition;
    let shown = definition.shown_one(call.version, stored.clone()).await?;
    let old = call.served().tree(&shown);
    let seen = update.view.map(|view| view.show(&old)).transpose()?;
    let seen = seen.as_ref().unwrap_or(&old);
    let admission = update.admission.map(|admission| (admission, Attributes::update(call, seen)));
    let mut new = (update.change)(Some(seen))?;
    if let (Some(view), Some((admission, attributes))) = (update.view, &admission) {
        admission.admit(attributes, &mut new).await?;
        new = view.take(&old, &new)?;
    }
    meta::check_namespace(definition, &mut new, &call.path.namespace)?;
    check_version(call, stored, &new)?;
    if call.method == Method::PUT {
        meta::check_uid(definition, &old, &new)?;
    }
    meta::keep_immutable_fields(&old, &mut new);
    if !update.track {
        meta::forget_owners(&mut new);
    }
    if update.view.is_some() {
        decode::defaults(call.served(), definition, &mut new)?;
    } else {
        // The change has decoded the object with the schema's defaults, or kept those of the stored one.
        decode::own_defaults(call.served(), definition, &mut new);
    }
    if update.track {
        let expected = ExpectedType::of(definition, call.served());
        track(call, expected, Some(&old), &mut new);
    }
    prepare(state, call, update.part, &old, &mut new)?;
    if let (None, Some((admission, attributes))) = (update.view, &admission) {
        let changed = admission.admit(attributes, &mut new).await?;
        if changed {
            // Webhooks must not set fields that the caller may not set.
            meta::keep_immutable_fields(&old, &mut new);
            prepare(state, call, update.part, &old, &mut new)?;
            decode::defaults(call.served(), definition, &mut new)?;
        }
    }
    check_further_permissions(&state.security, call, Moment::Write, &new, Some(&old))?;
    let allocation = allocate(state, call, &mut new, Some(&old)).await?;
    check_changed(state, call, update.part, &old, &new)?;
    if let Some((admission, attributes)) = &admission {
        let seen = update.view.map(|view| view.show(&new)).transpose()?;
        admission.validate(attributes, seen.as_ref().unwrap_or(&new)).await?;
    }
    // Store an unchanged object if it is not yet in the storage version,
    if meta::changes_only_timestamps(&new, &old)
        && usize::from(stored.version) == definition.storage
    {
        // or if it is not yet encrypted with the current key.
        if !call.resource.feed.store.is_stale(&stored.key).await.map_err(store_status)? {
            return Ok(Attempt::Done(stored.clone()));
        }
    }
    store_changed(state, call, stored, new, allocation).await
}

/// Restores fields that the caller may not set from the old object.
fn prepare(
    state: &State,
    call: &Call,
    part: Part,
    old: &Value,
    new: &mut Value,
) -> Result<(), Box<Status>> {
    let definition = &call.resource.definition;
    let now = clock::now().to_string();
    match part {
        Part::Main => {
            definition.strategy.prepare_update(new, old, &now);
            drop_disabled_fields(state, definition, new, Some(old));
        }
        Part::Status => definition.strategy.prepare_status(new, old, &now),
        Part::Sub => {
            let name = &call.path.subresource;
            let found = definition.strategy.prepare_subresource(name, new, old, &now);
            found.ok_or_else(|| Box::new(Status::no_such_resource()))?;
        }
        Part::Effect => {}
    }
    Ok(())
}

/// Removes the fields of features that are off, except those that the old object has.
pub(super) fn drop_disabled_fields(
    state: &State,
    definition: &Definition,
    new: &mut Value,
    old: Option<&Value>,
) {
    let strategy = definition.strategy;
    // Most writes are of kinds without such fields, so the gate is looked up last.
    let features = &state.config.features;
    for (kind, gate) in [
        ("podCertificate", "PodCertificateRequest"),
        ("clusterTrustBundle", "ClusterTrustBundleProjection"),
    ] {
        if !strategy.pod_spec.is_empty() && !features.is_enabled(gate) {
            api_rules::drop_projected_sources(strategy, kind, new, old);
        }
    }
    if !strategy.pod_spec.is_empty() && !features.is_enabled("GenericWorkload") {
        api_rules::drop_scheduling_group(strategy, new, old);
    }
    if !strategy.coordinated_fields.is_empty() && !features.is_enabled(COORDINATION_GATE) {
        api_rules::drop_coordinated_fields(strategy, new, old);
    }
}

fn check_changed(
    state: &State,
    call: &Call,
    part: Part,
    old: &Value,
    new: &Value,
) -> Result<(), Box<Status>> {
    let definition = &call.resource.definition;
    let (strategy, namespaced) = (definition.strategy, definition.namespaced);
    let mut errors = {
        let [new, old] =
            [new, old].map(|tree| definition.in_validated_version(call.served(), tree));
        match part {
            Part::Main => strategy.update_errors(&new, &old, namespaced),
            Part::Status => {
                strategy.status_errors(&new, &old, namespaced, &clock::now().to_string())
            }
            Part::Sub => {
                strategy.subresource_errors(&call.path.subresource, &new, &old, namespaced)
            }
            Part::Effect => ErrorList::new(),
        }
    };
    decode::validate(&state.cel, definition, call.served(), new, Some(old), &mut errors);
    // The status of a running Pod may be updated in any case.
    if !state.config.allow_privileged && matches!(part, Part::Main | Part::Sub) {
        api_rules::refuse_privileged(strategy, new, &mut errors);
    }
    validate_permissions(&state.security, call, new, Some(old), &mut errors);
    invalid(call.served(), new, errors)?;
    if part == Part::Main {
        warn_of(call, new, Some(old));
    }
    Ok(())
}

async fn store_changed(
    state: &State,
    call: &Call,
    stored: &Arc<Object>,
    new: Value,
    allocation: Allocation,
) -> Result<Attempt, Box<Status>> {
    let definition = &call.resource.definition;
    // Removing the last finalizer of an object under deletion deletes it.
    let finished = meta::finished(definition, &new);
    let allocation =
        if finished { ending(state, definition, &new, allocation) } else { allocation };
    let encoded = definition.to_store(call.version, new, None).await?;
    let (key, bytes) = (stored.key.clone(), encoded.bytes.clone());
    if call.dry_run() {
        let object = definition.stored_object(key, stored.revision, &bytes);
        return Ok(Attempt::Done(object));
    }
    let op = if finished {
        Op::Delete
    } else {
        let value = encoded.into_value(&*call.resource.feed.store, &key);
        Op::Put { value, ttl_seconds: seconds_to_live(state, call, &key)? }
    };
    let expected = Expected::ModRevision(stored.revision);
    let write = Write { key: key.clone(), expected, op };
    match allocation
        .write(&call.resource.feed, &state.cache.tasks, write)
        .await
        .map_err(store_status)?
    {
        Outcome::Done { revision, .. } => {
            let object = definition.stored_object(key, revision, &bytes);
            Ok(Attempt::Done(object))
        }
        Outcome::Conflict { current } => {
            let now = current.map(|kv| Arc::new(definition.loaded(&kv).0));
            Ok(Attempt::Conflict { now })
        }
    }
}

/// Allocates a Service's addresses and ports. Other kinds get an empty allocation.
pub(super) async fn allocate(
    state: &State,
    call: &Call,
    tree: &mut Value,
    old: Option<&Value>,
) -> Result<Allocation, Box<Status>> {
    if !call.resource.definition.strategy.allocated || !call.path.subresource.is_empty() {
        return Ok(Allocation::nothing());
    }
    state.allocators.allocate(tree, old, call.dry_run()).await
}

/// Adds everything that a Service has to the releases of a write that deletes it. Other kinds are unchanged.
pub(super) fn ending(
    state: &State,
    definition: &Definition,
    last: &Value,
    allocation: Allocation,
) -> Allocation {
    if !definition.strategy.allocated {
        return allocation;
    }
    state.allocators.ending(last, allocation)
}

/// Updates `managedFields`.
pub(super) fn track(call: &Call, expected: ExpectedType<'_>, old: Option<&Value>, new: &mut Value) {
    with_patch_context(call, expected, |context| api_patch::update(context, old, new));
}

/// Returns the `managedFields` of most new objects as JSON, and sets those of the others.
pub(super) fn track_encoded(call: &Call, new: &mut Value) -> Option<Vec<u8>> {
    let expected = ExpectedType::of(&call.resource.definition, call.served());
    with_patch_context(call, expected, |context| {
        let encoded = api_patch::created(context, new);
        if encoded.is_none() {
            api_patch::update(context, None, new);
        }
        encoded
    })
}

/// Calls `record` with the context of a write of an object of the expected type: the resource's own, or Scale.
pub(super) fn with_patch_context<T>(
    call: &Call,
    expected: ExpectedType<'_>,
    record: impl FnOnce(&api_patch::Context<'_>) -> T,
) -> T {
    let (manager, now) = (call.manager(), clock::now().to_string());
    // A Scale has one version, and every field of it can be changed.
    let whole = *expected.kind == *call.served().kind;
    let reset = if whole { decode::reset_fields(call) } else { None };
    let versions: Option<&dyn api_patch::Versions> =
        if whole { Some(&*call.resource.definition) } else { None };
    record(&api_patch::Context {
        schema: expected.schema,
        node: Some(expected.node),
        manager: &manager,
        api_version: expected.api_version,
        versions,
        subresource: &call.path.subresource,
        now: &now,
        reset: reset.as_ref(),
        force: false,
    })
}

/// Adds the kind's warnings for an accepted object.
pub(super) fn warn_of(call: &Call, new: &Value, old: Option<&Value>) {
    let warnings = (call.resource.definition.strategy.warnings)(new, old);
    warnings.into_iter().for_each(|warning| call.warn(warning));
}

enum Attempt {
    Done(Arc<Object>),
    Conflict { now: Option<Arc<Object>> },
}

/// Rejects a stale resourceVersion, and a missing one for kinds whose updates require it.
fn check_version(call: &Call, stored: &Object, new: &Value) -> Result<(), Box<Status>> {
    let definition = &call.resource.definition;
    // "0" is no version of an object: kubeadm sends it for an update of whatever is there.
    let named =
        Some(new.text("metadata.resourceVersion")).filter(|v| *v != "0").unwrap_or_default();
    if !named.is_empty() && named != stored.revision.to_string() {
        return Err(Box::new(Status::modified(&definition.group_resource(), &call.path.name)));
    }
    let whole = call.method == Method::PUT && call.path.subresource != "scale";
    if named.is_empty() && whole && !definition.strategy.unconditional_update {
        let path = Path::new("metadata").child("resourceVersion");
        let error = FieldError::invalid(&path, 0, "must be specified for an update");
        let kind = call.served().group_kind();
        return Err(Box::new(Status::invalid(&kind, &call.path.name, &[error])));
    }
    Ok(())
}

pub(super) fn invalid(
    served: &ServedVersion,
    tree: &Value,
    errors: ErrorList,
) -> Result<(), Box<Status>> {
    if errors.is_empty() {
        return Ok(());
    }
    let name = tree.name();
    Err(Box::new(Status::invalid(&served.group_kind(), name, &errors)))
}
