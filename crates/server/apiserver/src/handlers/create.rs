//! Creates objects: by POST, or by PUT and apply if the object does not exist.

use std::{sync::Arc, time::Duration};

use api_meta::{GroupResource, Objects, Status, StatusReason, Tree as _};
use auth::secondary::Moment;
use http::{Response, StatusCode};
use serde_json::Value;
use serve::Body;
use store::{Expected, Op, Outcome, Write};

use super::{
    admission,
    attributes::Attributes,
    authorization::{check_further_permissions, validate_permissions},
    body::read_body,
    call::Call,
    change::{allocate, drop_disabled_fields, invalid, track, track_encoded, warn_of},
    decode::{self, ExpectedType},
    expiry::seconds_to_live,
    meta, options,
    read::answer_object,
    state::State,
};
use crate::{
    alloc::Allocation,
    clock,
    registry::{Object, holds},
    watch_cache::store_status,
};

/// The number of generated names that are tried, as upstream.
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
        // Generated names collide from time to time. Repeat the whole write with another name, because defaults and
        // admission may depend on the name.
        let tree = decode::decode_object(call, body.clone())?;
        inserted = insert(state, call, tree, true).await;
    }
    answer_object(call, StatusCode::CREATED, inserted?).await
}

/// Prepares, admits, validates and stores a new object. `tracked` is `true` if the write sets `managedFields`; an apply
/// has set them already.
pub(super) async fn insert(
    state: &State,
    call: &Call,
    mut tree: Value,
    tracked: bool,
) -> Result<Arc<Object>, Box<Status>> {
    let definition = &call.resource.definition;
    meta::check_namespace(definition, &mut tree, &call.path.namespace)?;
    // Objects that admission reads (the namespace, a Pod's service account) may have been written just before, by this
    // server or by another one.
    state.cache.wait_for_own_writes().await.map_err(store_status)?;
    find_namespace_and_account(state, call, &tree).await?;
    check_terminating(&*state.security.objects, call)?;
    meta::clear_server_fields(&mut tree);
    // The object was decoded with the schema's defaults.
    decode::own_defaults(call.served(), definition, &mut tree);
    let attributes = Attributes::create(call);
    // The field manager owns the sent fields and their defaults, but not what the server sets later. Webhooks and
    // policies may read `managedFields`; without them the fields stay encoded.
    let mut managed = None;
    if tracked && !state.webhooks.any() && !state.policies.any() {
        managed = track_encoded(call, &mut tree);
    } else if tracked {
        let expected = ExpectedType::of(&call.resource.definition, call.served());
        track(call, expected, None, &mut tree);
    }
    let changed = admission::admit(state, &attributes, &mut tree).await?;
    // Admission may have moved the object to another namespace, which the caller may not be allowed to write to.
    meta::check_namespace(definition, &mut tree, &call.path.namespace)?;
    check_further_permissions(&state.security, call, Moment::Write, &tree, None)?;
    if changed {
        decode::defaults(call.served(), definition, &mut tree)?;
    }
    // Set the server's fields last: neither the client nor admission may change them.
    let generated = meta::generate_name(&mut tree);
    meta::begin_life(&mut tree);
    meta::sign(call, &mut tree);
    definition.strategy.prepare_create(&mut tree, &clock::now().to_string());
    drop_disabled_fields(state, definition, &mut tree, None);
    if definition.custom.is_some() && definition.strategy.status.is_some() {
        // The preparation has removed the status, which may have defaults.
        decode::member_defaults(call.served(), &mut tree)?;
    }
    // Held until the Service is stored. If that fails, dropping it releases the allocation.
    let allocation = allocate(state, call, &mut tree, None).await?;
    insert_prepared(state, &attributes, tree, managed, generated, allocation).await
}

async fn insert_prepared(
    state: &State,
    attributes: &Attributes<'_>,
    mut tree: Value,
    managed: Option<Vec<u8>>,
    generated: bool,
    allocation: Allocation,
) -> Result<Arc<Object>, Box<Status>> {
    let call = attributes.call;
    let definition = &call.resource.definition;
    let judged = definition.in_validated_version(call.served(), &tree);
    let mut errors = definition.strategy.create_errors(&judged, definition.namespaced);
    drop(judged);
    decode::validate(&state.cel, definition, call.served(), &tree, None, &mut errors);
    if !state.config.allow_privileged {
        api_rules::refuse_privileged(definition.strategy, &tree, &mut errors);
    }
    validate_permissions(&state.security, call, &tree, None, &mut errors);
    invalid(call.served(), &tree, errors)?;
    warn_of(call, &tree, None);
    check_further_permissions(&state.security, call, Moment::Create, &tree, None)?;
    admission::validate(state, attributes, &tree).await?;
    let (name, namespace) = (tree.name().to_owned(), tree.namespace().to_owned());
    let key: Arc<str> = definition.key(&namespace, &name).into();
    let exists = || Box::new(Status::already_exists(&definition.group_resource(), &name));
    let meta = tree.at_mut(&["metadata"]).and_then(Value::as_object_mut);
    let given = meta.and_then(|meta| meta.remove("resourceVersion"));
    let encoded = definition.to_store(call.version, tree, managed).await?;
    let bytes = encoded.bytes.clone();
    let stored = |revision| definition.stored_object(key.clone(), revision, &bytes);
    if call.dry_run() {
        call.resource.feed.consistent().await.map_err(store_status)?;
        return match call.cache()?.get(&key) {
            Some(_) => Err(exists()),
            None => Ok(stored(0)),
        };
    }
    // As upstream's store, which dry runs and rejected objects do not reach.
    if given.as_ref().and_then(Value::as_str).is_some_and(is_revision) {
        let message = "resourceVersion should not be set on objects to be created";
        return Err(Box::new(Status::failure(500, StatusReason::Unknown, message)));
    }
    let value = encoded.into_value(&*call.resource.feed.store, &key);
    let op = Op::Put { value, ttl_seconds: seconds_to_live(state, call, &key)? };
    let write = Write { key: key.clone(), expected: Expected::ModRevision(0), op };
    match allocation
        .write(&call.resource.feed, &state.cache.tasks, write)
        .await
        .map_err(store_status)?
    {
        Outcome::Done { revision, .. } => Ok(stored(revision)),
        Outcome::Conflict { .. } if generated => {
            let resource = definition.group_resource();
            Err(Box::new(Status::generate_name_conflict(&resource, &name, 1)))
        }
        Outcome::Conflict { .. } => Err(exists()),
    }
}

/// The number of reads of the service account `default`, which a controller creates in each new namespace.
const DEFAULT_ACCOUNT_READS: usize = 10;

/// Reads the store if admission would reject the object because its namespace or service account is missing. Waits for
/// the account `default` for up to two seconds, because clients create Pods right after a namespace. Upstream does so.
async fn find_namespace_and_account(
    state: &State,
    call: &Call,
    tree: &Value,
) -> Result<(), Box<Status>> {
    let namespace = &*call.path.namespace;
    if namespace.is_empty() {
        return Ok(());
    }
    let account = match tree.text("spec.serviceAccountName") {
        "" => "default",
        named => named,
    };
    let objects = &*state.security.objects;
    let has_namespace = || objects.get(&GroupResource::NAMESPACES, "", namespace).is_some();
    let has_account = || {
        !call.resource.definition.strategy.has_account
            || !state.chain.is_on("ServiceAccount")
            || objects.get(&GroupResource::SERVICE_ACCOUNTS, namespace, account).is_some()
    };
    let read = [GroupResource::NAMESPACES, GroupResource::SERVICE_ACCOUNTS];
    for attempt in 0..DEFAULT_ACCOUNT_READS {
        if has_namespace() && has_account() {
            break;
        }
        if attempt > 0 {
            if account != "default" || !has_namespace() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(rt::random_in(100..200))).await;
        }
        state.cache.consistent(&read).await.map_err(store_status)?;
    }
    Ok(())
}

/// Returns `true` if the text is a valid resourceVersion of an object.
fn is_revision(text: &str) -> bool {
    text.parse::<u64>().is_ok_and(|revision| revision != 0)
}

/// Rejects new objects of a kind whose definition is terminating.
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
