//! create, update, patch: one way for every kind from a decoded object to the store.

use std::{collections::BTreeMap, sync::Arc};

use admission::Operation;
use api_meta::{ErrorList, FieldError, Path, Status};
use bytes::Bytes;
use http::{Method, Response, StatusCode};
use serde_json::{Map, Value, json};
use serve::Body;
use store::{Expected, Op, Outcome, Write};

use crate::{
    answer,
    call::Call,
    definition::{Definition, Served},
    object::Object,
    server::{Server, store_status},
};

/// How often a write without a resource version is tried again when others write in between.
const ATTEMPTS: usize = 8;

/// What changes an object: from the current one (none: it does not exist) to the wanted one, both as the
/// called version shows them.
pub(crate) type Change<'a> =
    dyn Fn(Option<&Value>) -> Result<Value, Box<Status>> + Send + Sync + 'a;

/// Which part of an object a write may touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Main,
    Status,
    /// Another subresource, which the kind's strategy narrows.
    Sub,
    /// A change that the server itself has narrowed.
    Narrow,
    /// The same, of a quota on behalf of another request: no admission, which would ask quotas again.
    Charge,
}

pub(crate) struct Update<'a> {
    pub(crate) part: Part,
    pub(crate) change: &'a Change<'a>,
    pub(crate) create_if_absent: bool,
    /// The manager and how it writes, for `managedFields`; apply keeps its own.
    pub(crate) track: bool,
}

impl Server {
    pub(crate) async fn create(&self, call: &Call) -> Result<Response<Body>, Box<Status>> {
        let tree = crate::codec::decode_object(call, self.read_body(call).await?)?;
        let (object, dry) = self.insert(call, tree).await?;
        let _ = dry;
        Ok(answer::object(
            &call.resource.definition,
            call.served(),
            call.accepted,
            StatusCode::CREATED,
            &object,
        ))
    }

    /// Brings a new object through preparation, admission and validation into the store.
    pub(crate) async fn insert(
        &self,
        call: &Call,
        mut tree: Value,
    ) -> Result<(Arc<Object>, bool), Box<Status>> {
        let definition = &call.resource.definition;
        check_namespace(definition, &mut tree, &call.path.namespace)?;
        if tree["metadata"]["resourceVersion"].as_str().is_some_and(|v| !v.is_empty()) {
            return Err(Box::new(Status::bad_request(
                "resourceVersion should not be set on objects to be created",
            )));
        }
        let generated = generate_name(definition, call, &mut tree)?;
        begin_life(&mut tree);
        crate::codec::defaults(call.served(), definition, &mut tree);
        definition.strategy.prepare_create(&mut tree, &crate::now().to_string());
        self.admit(call, Operation::Create, &mut tree, None).await?;
        crate::codec::defaults(call.served(), definition, &mut tree);
        let held = self.allocate(call, &mut tree, None).await?;
        let result = self.insert_prepared(call, tree, generated).await;
        held.settle(result.is_ok() && !call.dry_run());
        result
    }

    async fn insert_prepared(
        &self,
        call: &Call,
        mut tree: Value,
        generated: bool,
    ) -> Result<(Arc<Object>, bool), Box<Status>> {
        let definition = &call.resource.definition;
        self.track(call, None, &mut tree);
        let mut errors = definition.strategy.create_errors(&tree, definition.namespaced);
        crate::codec::validate(definition, call.served(), &tree, &mut errors);
        invalid(call.served(), &tree, errors)?;
        self.validate_admission(call, Operation::Create, &tree, None).await?;
        let name = tree["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let namespace = tree["metadata"]["namespace"].as_str().unwrap_or_default().to_owned();
        let key: Arc<str> = definition.key(&namespace, &name).into();
        if call.dry_run() {
            if call.cache()?.get(&key).is_some() {
                return Err(Box::new(Status::already_exists(&definition.group_resource(), &name)));
            }
            return Ok((Arc::new(self.built(call, key, 0, &tree)), true));
        }
        let bytes = stored_bytes(call.served(), tree.clone());
        let op = Op::Put { value: bytes.clone(), ttl_seconds: self.ttl(definition) };
        let write = Write { key: key.clone(), expected: Expected::ModRevision(0), op };
        match self.hub.store.write(write).await.map_err(|e| Box::new(store_status(e)))? {
            Outcome::Done { revision, .. } => Ok((
                Arc::new(Object {
                    key,
                    revision,
                    bytes,
                    labels: Box::default(),
                    fields: Box::default(),
                }),
                false,
            )),
            Outcome::Conflict { .. } if generated => Err(Box::new(Status::generate_name_conflict(
                &definition.group_resource(),
                &name,
                1,
            ))),
            Outcome::Conflict { .. } => {
                Err(Box::new(Status::already_exists(&definition.group_resource(), &name)))
            }
        }
    }

    /// An object that is answered without being stored.
    fn built(&self, call: &Call, key: Arc<str>, revision: u64, tree: &Value) -> Object {
        let bytes = stored_bytes(call.served(), tree.clone());
        Object { key, revision, bytes, labels: Box::default(), fields: Box::default() }
    }

    pub(crate) async fn update(
        &self,
        call: &Call,
        part: Part,
    ) -> Result<Response<Body>, Box<Status>> {
        let wanted = crate::codec::decode_object(call, self.read_body(call).await?)?;
        let name = wanted["metadata"]["name"].as_str().unwrap_or_default();
        if name != call.path.name {
            let message = if name.is_empty() {
                "name must be provided".to_owned()
            } else {
                format!(
                    "the name of the object ({name}) does not match the name on the URL ({})",
                    call.path.name
                )
            };
            return Err(Box::new(Status::bad_request(message)));
        }
        let change = |_: Option<&Value>| Ok(wanted.clone());
        let create_if_absent =
            part == Part::Main && call.resource.definition.strategy.create_on_update;
        self.change(call, Update { part, change: &change, create_if_absent, track: true }).await
    }

    /// Changes one object and answers it.
    pub(crate) async fn change(
        &self,
        call: &Call,
        update: Update<'_>,
    ) -> Result<Response<Body>, Box<Status>> {
        let (object, created) = self.mutate(call, update).await?;
        let code = if created { StatusCode::CREATED } else { StatusCode::OK };
        Ok(answer::object(&call.resource.definition, call.served(), call.accepted, code, &object))
    }

    /// Reads, changes, admits, validates and writes one object, again if another write came in between and
    /// the caller did not name a resource version. Returns whether the object is new.
    pub(crate) async fn mutate(
        &self,
        call: &Call,
        update: Update<'_>,
    ) -> Result<(Arc<Object>, bool), Box<Status>> {
        let definition = &call.resource.definition;
        let key: Arc<str> = definition.key(&call.path.namespace, &call.path.name).into();
        self.hub.consistent().await.map_err(|e| Box::new(store_status(e)))?;
        let mut current = call.cache()?.get(&key);
        for _ in 0..ATTEMPTS {
            let Some(old) = current else {
                let wanted = (update.change)(None);
                if !update.create_if_absent {
                    // A patch of what is not there fails before it is even read.
                    return Err(Box::new(Status::not_found(
                        &definition.group_resource(),
                        &call.path.name,
                    )));
                }
                let mut wanted = wanted?;
                wanted["metadata"]["name"] = json!(call.path.name);
                if let Some(meta) = wanted["metadata"].as_object_mut() {
                    meta.remove("resourceVersion");
                    if meta.get("uid").and_then(Value::as_str).is_some_and(|uid| !uid.is_empty()) {
                        return Err(Box::new(Status::conflict(
                            &definition.group_resource(),
                            &call.path.name,
                            "Precondition failed: UID in precondition does not match: the object does not exist",
                        )));
                    }
                }
                return self.insert(call, wanted).await.map(|(object, _)| (object, true));
            };
            match self.attempt(call, &update, &key, &old).await? {
                Attempt::Done(object) => return Ok((object, false)),
                Attempt::Conflict { retry: false, .. } => {
                    return Err(Box::new(Status::modified(
                        &definition.group_resource(),
                        &call.path.name,
                    )));
                }
                Attempt::Conflict { now, .. } => current = now,
            }
        }
        Err(Box::new(Status::server_timeout(&definition.group_resource(), "update", 1)))
    }

    async fn attempt(
        &self,
        call: &Call,
        update: &Update<'_>,
        key: &Arc<str>,
        old_object: &Arc<Object>,
    ) -> Result<Attempt, Box<Status>> {
        let definition = &call.resource.definition;
        let served = call.served();
        let old = answer::tree(served, old_object);
        let mut new = (update.change)(Some(&old))?;
        check_namespace(definition, &mut new, &call.path.namespace)?;
        let named = new["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
        if !named.is_empty() && named != old_object.revision.to_string() {
            return Err(Box::new(Status::modified(&definition.group_resource(), &call.path.name)));
        }
        self.prepare(call, update.part, &old, &mut new)?;
        if update.part != Part::Charge {
            self.admit(call, Operation::Update, &mut new, Some(&old)).await?;
        }
        crate::codec::defaults(served, definition, &mut new);
        let held = self.allocate(call, &mut new, Some(&old)).await?;
        let result =
            self.store_changed(call, update, key, old_object, &old, new, named.is_empty()).await;
        held.settle(matches!(result, Ok(Attempt::Done(_))) && !call.dry_run());
        result
    }

    /// What of the wanted object the caller may not decide comes from the old one.
    fn prepare(
        &self,
        call: &Call,
        part: Part,
        old: &Value,
        new: &mut Value,
    ) -> Result<(), Box<Status>> {
        let definition = &call.resource.definition;
        crate::meta::keep(definition, old, new)?;
        crate::codec::defaults(call.served(), definition, new);
        let now = crate::now().to_string();
        match part {
            Part::Main => definition.strategy.prepare_update(new, old, &now),
            Part::Status => definition.strategy.prepare_status(new, old, &now),
            Part::Sub => {
                let found =
                    definition.strategy.prepare_subresource(&call.path.subresource, new, old, &now);
                found.ok_or_else(|| Box::new(Status::no_such_resource()))?;
            }
            Part::Narrow | Part::Charge => {}
        }
        Ok(())
    }

    #[allow(clippy::too_many_arguments)]
    async fn store_changed(
        &self,
        call: &Call,
        update: &Update<'_>,
        key: &Arc<str>,
        old_object: &Arc<Object>,
        old: &Value,
        mut new: Value,
        unconditional: bool,
    ) -> Result<Attempt, Box<Status>> {
        let definition = &call.resource.definition;
        let served = call.served();
        if update.track {
            self.track(call, Some(old), &mut new);
        }
        let (strategy, namespaced) = (definition.strategy, definition.namespaced);
        let mut errors = match update.part {
            Part::Main => strategy.update_errors(&new, old, namespaced),
            Part::Status => strategy.status_errors(&new, old, namespaced),
            Part::Sub => strategy.subresource_errors(&call.path.subresource, &new, old, namespaced),
            Part::Narrow | Part::Charge => ErrorList::new(),
        };
        crate::codec::validate(definition, served, &new, &mut errors);
        invalid(served, &new, errors)?;
        if update.part != Part::Charge {
            self.validate_admission(call, Operation::Update, &new, Some(old)).await?;
        }
        if same(&new, old) {
            return Ok(Attempt::Done(old_object.clone()));
        }
        if call.dry_run() {
            return Ok(Attempt::Done(Arc::new(self.built(
                call,
                key.clone(),
                old_object.revision,
                &new,
            ))));
        }
        // The last finalizer of an object that is being deleted takes the object along.
        let finished = crate::delete::finished(definition, &new);
        let bytes = stored_bytes(served, new);
        let op = if finished {
            Op::Delete
        } else {
            Op::Put { value: bytes.clone(), ttl_seconds: self.ttl(definition) }
        };
        let write =
            Write { key: key.clone(), expected: Expected::ModRevision(old_object.revision), op };
        match self.hub.store.write(write).await.map_err(|e| Box::new(store_status(e)))? {
            Outcome::Done { revision, .. } => Ok(Attempt::Done(Arc::new(Object {
                key: key.clone(),
                revision,
                bytes,
                labels: Box::default(),
                fields: Box::default(),
            }))),
            Outcome::Conflict { current } => {
                let now = current.map(|kv| Arc::new(definition.object(&kv)));
                Ok(Attempt::Conflict { now, retry: unconditional })
            }
        }
    }

    /// Records who owns which field.
    fn track(&self, call: &Call, old: Option<&Value>, new: &mut Value) {
        let served = call.served();
        let (manager, now) = (call.manager(), crate::now().to_string());
        let reset = crate::codec::reset_fields(call);
        let context = api_patch::Context {
            schema: &served.schema,
            node: Some(served.node),
            manager: &manager,
            api_version: &served.api_version,
            subresource: &call.path.subresource,
            now: &now,
            reset: reset.as_ref(),
            force: false,
        };
        api_patch::update(&context, old, new);
    }

    fn ttl(&self, definition: &Definition) -> Option<u64> {
        definition.is("", "events").then_some(self.config.event_ttl.as_secs())
    }

    pub(crate) async fn patch(
        &self,
        call: &Call,
        part: Part,
    ) -> Result<Response<Body>, Box<Status>> {
        let body = self.read_body(call).await?;
        let patch = crate::patch::Patch::parse(call, &body)?;
        let apply = patch.is_apply();
        let change = |current: Option<&Value>| patch.apply(call, current);
        self.change(
            call,
            Update {
                part,
                change: &change,
                create_if_absent: apply && part == Part::Main,
                track: !apply,
            },
        )
        .await
    }
}

enum Attempt {
    Done(Arc<Object>),
    Conflict { now: Option<Arc<Object>>, retry: bool },
}

/// The stored form of an object as `served` shows it.
fn stored_bytes(served: &Served, mut tree: Value) -> Bytes {
    if let Some(conversion) = &served.conversion {
        (conversion.to_storage)(&mut tree);
    }
    api_codec::encode_stored(&tree).into()
}

fn invalid(served: &Served, tree: &Value, errors: ErrorList) -> Result<(), Box<Status>> {
    if errors.is_empty() {
        return Ok(());
    }
    let name = tree["metadata"]["name"].as_str().unwrap_or_default();
    Err(Box::new(Status::invalid(&served.group_kind(), name, &errors)))
}

/// Whether a write would change nothing but time stamps of `managedFields`.
fn same(new: &Value, old: &Value) -> bool {
    let (Some(new), Some(old)) = (new.as_object(), old.as_object()) else { return new == old };
    let rest = |map: &Map<String, Value>, other: &Map<String, Value>| {
        map.iter().all(|(k, v)| {
            matches!(k.as_str(), "metadata" | "kind" | "apiVersion") || other.get(k) == Some(v)
        })
    };
    if !rest(new, old) || !rest(old, new) {
        return false;
    }
    let meta = |map: &Map<String, Value>| -> BTreeMap<String, Value> {
        let entries = map.get("metadata").and_then(Value::as_object).into_iter().flatten();
        entries
            .filter(|(k, _)| k.as_str() != "resourceVersion")
            .map(|(k, v)| {
                (k.clone(), if k == "managedFields" { without_times(v) } else { v.clone() })
            })
            .collect()
    };
    meta(new) == meta(old)
}

fn without_times(managed: &Value) -> Value {
    let mut managed = managed.clone();
    for entry in managed.as_array_mut().into_iter().flatten() {
        if let Some(entry) = entry.as_object_mut() {
            entry.remove("time");
        }
    }
    managed
}

/// The object's namespace is the URL's; one that names another is refused.
fn check_namespace(
    definition: &Definition,
    tree: &mut Value,
    namespace: &str,
) -> Result<(), Box<Status>> {
    let Some(meta) = tree
        .as_object_mut()
        .map(|t| t.entry("metadata").or_insert_with(|| json!({})))
        .and_then(Value::as_object_mut)
    else {
        return Err(Box::new(Status::bad_request("the object has no metadata")));
    };
    let own = meta.get("namespace").and_then(Value::as_str).unwrap_or_default();
    if !own.is_empty() && own != namespace {
        return Err(Box::new(Status::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        )));
    }
    if definition.namespaced {
        meta.insert("namespace".to_owned(), json!(namespace));
    } else {
        meta.remove("namespace");
    }
    Ok(())
}

/// Fills in the name that `generateName` asks for. Returns whether it did.
fn generate_name(
    definition: &Definition,
    call: &Call,
    tree: &mut Value,
) -> Result<bool, Box<Status>> {
    let meta = &tree["metadata"];
    let text = |field: &str| meta[field].as_str().unwrap_or_default().to_owned();
    let (name, prefix) = (text("name"), text("generateName"));
    if !name.is_empty() {
        return Ok(false);
    }
    if prefix.is_empty() {
        let error = FieldError::required(
            &Path::new("metadata").child("name"),
            "name or generateName is required",
        );
        return Err(Box::new(Status::invalid(&call.served().group_kind(), "", &[error])));
    }
    let _ = definition;
    tree["metadata"]["name"] =
        json!(api_meta::names::generate(&prefix, |below| rand::random_range(0..below)));
    Ok(true)
}

/// The fields that only the server decides.
fn begin_life(tree: &mut Value) {
    let now = crate::now().to_string();
    if let Some(meta) = tree["metadata"].as_object_mut() {
        for field in ["deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"] {
            meta.remove(field);
        }
        meta.insert("uid".to_owned(), json!(uuid::Uuid::new_v4().to_string()));
        meta.insert("creationTimestamp".to_owned(), json!(now));
    }
}

impl Call {
    /// Who this write is recorded for: the named field manager, or the user agent up to its first slash.
    pub(crate) fn manager(&self) -> String {
        let named = self.info.query.get("fieldManager").unwrap_or_default();
        if !named.is_empty() {
            return named.to_owned();
        }
        let agent = self.user_agent.split('/').next().unwrap_or_default();
        let printable: String = agent.chars().filter(|c| !c.is_control()).take(128).collect();
        if printable.is_empty() { "unknown".to_owned() } else { printable }
    }

    pub(crate) fn dry_run(&self) -> bool {
        self.info.query.all("dryRun").any(|v| v == "All")
            || self.dry_run_in_body.load(std::sync::atomic::Ordering::Relaxed)
    }

    pub(crate) fn is(&self, method: &Method) -> bool {
        self.method == *method
    }
}
