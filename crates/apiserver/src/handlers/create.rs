//! New objects, be it by POST or by a PUT or an apply of what is not there.

use std::sync::Arc;

use api_meta::{GroupResource, Objects, Status, StatusReason, Tree as _};
use auth::second::Moment;
use http::{Response, StatusCode};
use serde_json::Value;
use serve::Body;
use store::{Expected, Op, Outcome, Write};

use super::{
    admission,
    attributes::Attributes,
    authorization::{ask_again, ask_in_validation},
    body::read_body,
    call::Call,
    change::{allocate, invalid, track, ttl, warn_of},
    decode, meta, options,
    read::answer_object,
    state::State,
};
use crate::{
    alloc::Held,
    clock,
    registry::{Object, holds},
    watch_cache::store_status,
};

/// How many generated names are tried before the client is told that all were taken.
const NAME_ATTEMPTS: usize = 8;

pub(crate) async fn create(state: &State, call: &Call) -> Result<Response<Body>, Box<Status>> {
    options::check(call, false)?;
    let body = read_body(state, call).await?;
    let tree = decode::decode_object(call, body.clone())?;
    let attempts = if meta::wants_name(&tree) { NAME_ATTEMPTS } else { 1 };
    let mut inserted = insert(state, call, tree, true).await;
    for _ in 1..attempts {
        match &inserted {
            Err(status) if status.reason == StatusReason::AlreadyExists => {}
            _ => break,
        }
        // Among ten thousand generated names a few meet: another is tried then, as often as upstream tries. All
        // of the write is done again, because defaults and admission may have looked at the name.
        let tree = decode::decode_object(call, body.clone())?;
        inserted = insert(state, call, tree, true).await;
    }
    answer_object(call, StatusCode::CREATED, inserted?).await
}

/// Brings a new object through preparation, admission and validation into the store. `tracked`: note in
/// `managedFields` who wrote it; apply has done so.
pub(super) async fn insert(
    state: &State,
    call: &Call,
    mut tree: Value,
    tracked: bool,
) -> Result<Arc<Object>, Box<Status>> {
    let definition = &call.resource.definition;
    meta::check_namespace(definition, &mut tree, &call.path.namespace)?;
    // What admission looks at (the namespace, a Pod's service account) may have been written a moment ago: through this
    // server, or through another.
    state.cache.caught_up().await.map_err(store_status)?;
    if misses_what_it_needs(&*state.security.objects, call, &tree) {
        state.cache.consistent().await.map_err(store_status)?;
    }
    check_terminating(&*state.security.objects, call)?;
    meta::wipe(&mut tree);
    match tracked {
        // What was sent was read with the schema's defaults.
        true => decode::own_defaults(call.served(), definition, &mut tree),
        false => decode::defaults(call.served(), definition, &mut tree)?,
    }
    let attributes = Attributes::create(call);
    // Who writes owns what was sent and its defaults, not what the server decides from here on.
    let managed = if tracked { track(call, None, &mut tree) } else { None };
    let managed = shown_to_others(state, &mut tree, managed);
    admission::admit(state, &attributes, &mut tree).await?;
    // Who may write into a namespace need not be one who may into another that a policy or a webhook names.
    meta::check_namespace(definition, &mut tree, &call.path.namespace)?;
    ask_again(&state.security, call, Moment::Write, &tree, None)?;
    decode::defaults(call.served(), definition, &mut tree)?;
    // What the server decides, nobody may change, admission no more than the client.
    let generated = meta::generate_name(&mut tree);
    meta::begin_life(&mut tree);
    meta::sign(call, &mut tree);
    definition.strategy.prepare_create(&mut tree, &clock::now().to_string());
    if definition.custom.is_some() {
        // The status that a client cannot set may have defaults.
        decode::defaults(call.served(), definition, &mut tree)?;
    }
    // Held until the Service that asked for them is stored, or has failed to be.
    let held = allocate(state, call, &mut tree, None).await?;
    insert_prepared(state, &attributes, tree, managed, generated, held).await
}

/// Policies and webhooks see an object with its owners. Where there are none, those of a new object need not be a tree.
fn shown_to_others(state: &State, tree: &mut Value, managed: Option<Vec<u8>>) -> Option<Vec<u8>> {
    let managed = managed?;
    if !state.webhooks.any() && !state.policies.any() {
        return Some(managed);
    }
    let owners: Value = serde_json::from_slice(&managed).unwrap_or_default();
    tree.put(&["metadata", "managedFields"], owners);
    None
}

async fn insert_prepared(
    state: &State,
    attributes: &Attributes<'_>,
    mut tree: Value,
    managed: Option<Vec<u8>>,
    generated: bool,
    held: Held,
) -> Result<Arc<Object>, Box<Status>> {
    let call = attributes.call;
    let definition = &call.resource.definition;
    let judged = definition.judged(call.served(), &tree);
    let mut errors = definition.strategy.create_errors(&judged, definition.namespaced);
    drop(judged);
    decode::validate(definition, call.served(), &tree, None, &mut errors);
    if !state.config.allow_privileged {
        api_rules::refuse_privileged(definition.strategy, &tree, &mut errors);
    }
    ask_in_validation(&state.security, call, &tree, None, &mut errors);
    invalid(call.served(), &tree, errors)?;
    warn_of(call, &tree, None);
    ask_again(&state.security, call, Moment::Create, &tree, None)?;
    admission::validate(state, attributes, &tree).await?;
    let (name, namespace) = (tree.name().to_owned(), tree.namespace().to_owned());
    let key: Arc<str> = definition.key(&namespace, &name).into();
    let exists = || Box::new(Status::already_exists(&definition.group_resource(), &name));
    let meta = tree.at_mut(&["metadata"]).and_then(Value::as_object_mut);
    let given = meta.and_then(|meta| meta.remove("resourceVersion"));
    let value = definition.to_store(call.version, tree, managed.as_deref()).await?;
    let stored = |revision| definition.written(key.clone(), revision, &value);
    if call.dry_run() {
        state.cache.consistent().await.map_err(store_status)?;
        return match call.cache()?.get(&key) {
            Some(_) => Err(exists()),
            None => Ok(stored(0)),
        };
    }
    // Upstream's store says so, which trials and what is refused do not get to.
    if given.as_ref().and_then(Value::as_str).is_some_and(is_revision) {
        let message = "resourceVersion should not be set on objects to be created";
        return Err(Box::new(Status::failure(500, StatusReason::Unknown, message)));
    }
    let op = Op::Put { value: value.clone(), ttl_seconds: ttl(state, definition) };
    let write = Write { key: key.clone(), expected: Expected::ModRevision(0), op };
    match held.write(&state.cache, write).await.map_err(store_status)? {
        Outcome::Done { revision, .. } => Ok(stored(revision)),
        Outcome::Conflict { .. } if generated => {
            let resource = definition.group_resource();
            Err(Box::new(Status::generate_name_conflict(&resource, &name, 1)))
        }
        Outcome::Conflict { .. } => Err(exists()),
    }
}

/// Whether admission would refuse an object for something that is not there: upstream asks the store for those two before
/// it does so.
fn misses_what_it_needs(objects: &dyn Objects, call: &Call, tree: &Value) -> bool {
    let namespace = &*call.path.namespace;
    if namespace.is_empty() {
        return false;
    }
    let account = || match tree.text("spec.serviceAccountName") {
        "" => "default",
        named => named,
    };
    objects.get(&GroupResource::NAMESPACES, "", namespace).is_none()
        || call.resource.definition.strategy.has_account
            && objects.get(&GroupResource::SERVICE_ACCOUNTS, namespace, account()).is_none()
}

/// Whether a resource version is one that an object may have.
fn is_revision(text: &str) -> bool {
    text.parse::<u64>().is_ok_and(|revision| revision != 0)
}

/// Whether objects of a kind may still be made.
fn check_terminating(objects: &dyn Objects, call: &Call) -> Result<(), Box<Status>> {
    let definition = &call.resource.definition;
    if definition.custom.is_none() {
        return Ok(());
    }
    let name = format!("{}.{}", definition.plural, definition.group);
    let crd = objects.get(
        &GroupResource::new("apiextensions.k8s.io", "customresourcedefinitions"),
        "",
        &name,
    );
    if crd.is_some_and(|crd| holds(&crd["status"], "Terminating")) {
        let verb = call.info.verb;
        let mut status = Status::method_not_supported(&definition.group_resource(), verb);
        status.message =
            format!("{verb} not allowed while custom resource definition is terminating");
        return Err(Box::new(status));
    }
    Ok(())
}
