//! create, update, patch: one way for every kind from a decoded object to the store.

use std::sync::Arc;

use api_meta::{ErrorList, FieldError, Path, Status, StatusReason, Tree as _};
use auth::second::Moment;
use http::{Method, Response, StatusCode};
use serde_json::{Value, json};
use serve::Body;
use store::{Expected, Op, Outcome, Write};

use super::{admission::Attributes, call::Call, meta};
use crate::{
    alloc::Held,
    answer,
    registry::{
        definition::{Definition, Served},
        object::Object,
    },
    server::{Server, store_status},
};

/// How often a write without a resource version is tried again when others write in between.
const ATTEMPTS: usize = 256;

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
    /// What the server writes on behalf of a request that was admitted as what it is (a Pod's binding, a budget or a
    /// quota that is charged): the server has narrowed it, and admission has had its say.
    Effect,
}

/// What a subresource with a kind of its own shows of an object, and what it makes of it: Scale.
pub(crate) trait View: Sync {
    fn show(&self, object: &Value) -> Result<Value, Box<Status>>;
    fn take(&self, object: &Value, shown: &Value) -> Result<Value, Box<Status>>;
}

pub(crate) struct Update<'a> {
    pub(crate) part: Part,
    /// From the object or, where there is one, what the view shows of it.
    pub(crate) change: &'a Change<'a>,
    pub(crate) view: Option<&'a dyn View>,
    pub(crate) create_if_absent: bool,
    /// The manager and how it writes, for `managedFields`; apply keeps its own.
    pub(crate) track: bool,
}

/// How many generated names are tried before the client is told that all were taken.
const NAME_ATTEMPTS: usize = 8;

impl Server {
    pub(crate) async fn create(&self, call: &Call) -> Result<Response<Body>, Box<Status>> {
        crate::handlers::options::check(call, false)?;
        let body = self.read_body(call).await?;
        let tree = crate::handlers::decode::decode_object(call, body.clone())?;
        let attempts = if meta::wants_name(&tree) { NAME_ATTEMPTS } else { 1 };
        let mut inserted = self.insert(call, tree, true).await;
        for _ in 1..attempts {
            match &inserted {
                Err(status) if status.reason == StatusReason::AlreadyExists => {}
                _ => break,
            }
            // Among ten thousand generated names a few meet: another is tried then, as often as upstream tries. All
            // of the write is done again, because defaults and admission may have looked at the name.
            let tree = crate::handlers::decode::decode_object(call, body.clone())?;
            inserted = self.insert(call, tree, true).await;
        }
        self.answer_object(call, StatusCode::CREATED, inserted?).await
    }

    /// Brings a new object through preparation, admission and validation into the store. `track`: note in
    /// `managedFields` who wrote it; apply has done so.
    async fn insert(
        &self,
        call: &Call,
        mut tree: Value,
        track: bool,
    ) -> Result<Arc<Object>, Box<Status>> {
        let definition = &call.resource.definition;
        meta::check_namespace(definition, &mut tree, &call.path.namespace)?;
        if tree["metadata"]["resourceVersion"].as_str().is_some_and(|v| !v.is_empty()) {
            let message = "resourceVersion should not be set on objects to be created";
            return Err(Box::new(Status::bad_request(message)));
        }
        // What admission looks at (the namespace, a Pod's service account) may have been written a moment ago.
        self.hub.caught_up().await.map_err(|e| Box::new(store_status(e)))?;
        crate::reconcilers::custom_kinds::check_terminating(self, call)?;
        meta::wipe(&mut tree);
        match track {
            // What was sent was read with the schema's defaults.
            true => crate::handlers::decode::own_defaults(call.served(), definition, &mut tree),
            false => crate::handlers::decode::defaults(call.served(), definition, &mut tree)?,
        }
        // Who writes owns what was sent and its defaults, not what the server decides from here on.
        let managed = if track { self.track(call, None, &mut tree) } else { None };
        self.admit(&Attributes::create(call), &mut tree).await?;
        self.ask_again(call, Moment::Write, &tree, None)?;
        crate::handlers::decode::defaults(call.served(), definition, &mut tree)?;
        // What the server decides, nobody may change, admission no more than the client.
        let generated = meta::generate_name(call, &mut tree)?;
        meta::begin_life(&mut tree);
        meta::sign(call, &mut tree);
        definition.strategy.prepare_create(&mut tree, &crate::now().to_string());
        // Held until the Service that asked for them is stored, or has failed to be.
        let held = self.allocate(call, &mut tree, None).await?;
        self.insert_prepared(call, tree, managed, generated, held).await
    }

    async fn insert_prepared(
        &self,
        call: &Call,
        tree: Value,
        managed: Option<Vec<u8>>,
        generated: bool,
        held: Held,
    ) -> Result<Arc<Object>, Box<Status>> {
        let definition = &call.resource.definition;
        let mut errors = definition.strategy.create_errors(&tree, definition.namespaced);
        crate::handlers::decode::validate(definition, call.served(), &tree, None, &mut errors);
        self.ask_in_validation(call, &tree, None, &mut errors);
        invalid(call.served(), &tree, errors)?;
        self.warn_of(call, &tree);
        self.ask_again(call, Moment::Create, &tree, None)?;
        self.validate_admission(&Attributes::create(call), &tree).await?;
        let text = |field: &str| tree["metadata"][field].as_str().unwrap_or_default().to_owned();
        let (name, namespace) = (text("name"), text("namespace"));
        let key: Arc<str> = definition.key(&namespace, &name).into();
        let exists = || Box::new(Status::already_exists(&definition.group_resource(), &name));
        let value = definition.to_store(call.version, tree, managed.as_deref()).await?;
        let stored = |revision| Object::to_answer(definition, key.clone(), revision, &value);
        if call.dry_run() {
            self.hub.consistent().await.map_err(|e| Box::new(store_status(e)))?;
            return match call.cache()?.get(&key) {
                Some(_) => Err(exists()),
                None => Ok(Arc::new(stored(0))),
            };
        }
        let op = Op::Put { value: value.clone(), ttl_seconds: self.ttl(definition) };
        let write = Write { key: key.clone(), expected: Expected::ModRevision(0), op };
        match held.write(&self.hub, write).await.map_err(|e| Box::new(store_status(e)))? {
            Outcome::Done { revision, .. } => Ok(Arc::new(stored(revision))),
            Outcome::Conflict { .. } if generated => {
                let resource = definition.group_resource();
                Err(Box::new(Status::generate_name_conflict(&resource, &name, 1)))
            }
            Outcome::Conflict { .. } => Err(exists()),
        }
    }

    /// What is allowed but deserves a word.
    fn warn_of(&self, call: &Call, tree: &Value) {
        let warnings = (call.resource.definition.strategy.warnings)(tree);
        warnings.into_iter().for_each(|warning| call.warn(warning));
    }

    pub(crate) async fn update(
        &self,
        call: &Call,
        part: Part,
    ) -> Result<Response<Body>, Box<Status>> {
        crate::handlers::options::check(call, false)?;
        let body = self.read_body(call).await?;
        let mut wanted = crate::handlers::decode::decode_object(call, body.clone())?;
        if crate::handlers::decode::forgets_owners(&body) {
            wanted.put(&["metadata", "managedFields"], json!([{}]));
        }
        let name = wanted["metadata"]["name"].as_str().unwrap_or_default();
        if name != call.path.name {
            let message = match name {
                "" => "name must be provided".to_owned(),
                name => format!(
                    "the name of the object ({name}) does not match the name on the URL ({})",
                    call.path.name
                ),
            };
            return Err(Box::new(Status::bad_request(message)));
        }
        let change = |_: Option<&Value>| Ok(wanted.clone());
        let strategy = call.resource.definition.strategy;
        let create_if_absent = part == Part::Main && strategy.create_on_update;
        let update = Update { part, change: &change, view: None, create_if_absent, track: true };
        self.change(call, update).await
    }

    /// Changes one object and answers it.
    pub(crate) async fn change(
        &self,
        call: &Call,
        update: Update<'_>,
    ) -> Result<Response<Body>, Box<Status>> {
        let (object, created) = self.mutate(call, update).await?;
        let code = if created { StatusCode::CREATED } else { StatusCode::OK };
        self.answer_object(call, code, object).await
    }

    /// Reads, changes, admits, validates and writes one object, again if another write came in between: a
    /// caller who named a resource version then learns that it is no longer the newest. Returns whether the
    /// object is new.
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
                return self.create_absent(call, &update).await.map(|object| (object, true));
            };
            match self.attempt(call, &update, &old).await? {
                Attempt::Done(object) => return Ok((object, false)),
                Attempt::Conflict { now } => current = now,
            }
        }
        Err(Box::new(Status::server_timeout(&definition.group_resource(), "update", 1)))
    }

    /// An update or apply of what is not there.
    async fn create_absent(
        &self,
        call: &Call,
        update: &Update<'_>,
    ) -> Result<Arc<Object>, Box<Status>> {
        let resource = || call.resource.definition.group_resource();
        if !update.create_if_absent {
            return Err(Box::new(Status::not_found(&resource(), &call.path.name)));
        }
        let mut wanted = (update.change)(None)?;
        wanted.put(&["metadata", "name"], json!(call.path.name));
        if let Some(meta) = wanted.at_mut(&["metadata"]).and_then(Value::as_object_mut) {
            meta.remove("resourceVersion");
            if let Some(uid) = meta.get("uid").and_then(Value::as_str).filter(|u| !u.is_empty()) {
                let cause = format!(
                    "Precondition failed: UID in precondition: {uid}, UID in object meta: "
                );
                return Err(Box::new(Status::conflict(&resource(), &call.path.name, cause)));
            }
        }
        self.insert(call, wanted, update.track).await
    }

    async fn attempt(
        &self,
        call: &Call,
        update: &Update<'_>,
        stored: &Arc<Object>,
    ) -> Result<Attempt, Box<Status>> {
        let definition = &call.resource.definition;
        let shown = definition.shown_one(call.version, stored.clone()).await?;
        let old = answer::tree(call.served(), &shown);
        let seen = update.view.map(|view| view.show(&old)).transpose()?;
        let seen = seen.as_ref().unwrap_or(&old);
        let admission = (update.part != Part::Effect).then(|| Attributes::update(call, seen));
        let mut new = (update.change)(Some(seen))?;
        if let (Some(view), Some(attributes)) = (update.view, &admission) {
            self.admit(attributes, &mut new).await?;
            new = view.take(&old, &new)?;
        }
        meta::check_namespace(definition, &mut new, &call.path.namespace)?;
        check_version(call, stored, &new)?;
        meta::keep(definition, &old, &mut new)?;
        crate::handlers::decode::defaults(call.served(), definition, &mut new)?;
        if update.track {
            self.track(call, Some(&old), &mut new);
        }
        self.prepare(call, update.part, &old, &mut new)?;
        if let (None, Some(attributes)) = (update.view, &admission) {
            self.admit(attributes, &mut new).await?;
        }
        self.ask_again(call, Moment::Write, &new, Some(&old))?;
        crate::handlers::decode::defaults(call.served(), definition, &mut new)?;
        let held = self.allocate(call, &mut new, Some(&old)).await?;
        self.check_changed(call, update.part, &old, &new)?;
        if let Some(attributes) = &admission {
            let seen = update.view.map(|view| view.show(&new)).transpose()?;
            self.validate_admission(attributes, seen.as_ref().unwrap_or(&new)).await?;
        }
        // A write that changes nothing still brings an object to the version that is stored now.
        if meta::same(&new, &old) && usize::from(stored.version) == definition.storage {
            return Ok(Attempt::Done(stored.clone()));
        }
        self.store_changed(call, stored, new, held).await
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
        let now = crate::now().to_string();
        match part {
            Part::Main => definition.strategy.prepare_update(new, old, &now),
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

    fn check_changed(
        &self,
        call: &Call,
        part: Part,
        old: &Value,
        new: &Value,
    ) -> Result<(), Box<Status>> {
        let definition = &call.resource.definition;
        let (strategy, namespaced) = (definition.strategy, definition.namespaced);
        let mut errors = match part {
            Part::Main => strategy.update_errors(new, old, namespaced),
            Part::Status => strategy.status_errors(new, old, namespaced),
            Part::Sub => strategy.subresource_errors(&call.path.subresource, new, old, namespaced),
            Part::Effect => ErrorList::new(),
        };
        crate::handlers::decode::validate(definition, call.served(), new, Some(old), &mut errors);
        self.ask_in_validation(call, new, Some(old), &mut errors);
        invalid(call.served(), new, errors)?;
        if part == Part::Main {
            self.warn_of(call, new);
        }
        Ok(())
    }

    async fn store_changed(
        &self,
        call: &Call,
        stored: &Arc<Object>,
        new: Value,
        held: Held,
    ) -> Result<Attempt, Box<Status>> {
        let definition = &call.resource.definition;
        // The last finalizer of an object that is being deleted takes the object along.
        let finished = crate::handlers::delete::finished(definition, &new);
        let held = if finished { self.ending(definition, &new, held) } else { held };
        let value = definition.to_store(call.version, new, None).await?;
        let key = stored.key.clone();
        if call.dry_run() {
            let object = Object::to_answer(definition, key, stored.revision, &value);
            return Ok(Attempt::Done(Arc::new(object)));
        }
        let op = match finished {
            true => Op::Delete,
            false => Op::Put { value: value.clone(), ttl_seconds: self.ttl(definition) },
        };
        let expected = Expected::ModRevision(stored.revision);
        let write = Write { key: key.clone(), expected, op };
        match held.write(&self.hub, write).await.map_err(|e| Box::new(store_status(e)))? {
            Outcome::Done { revision, .. } => {
                let object = Object::to_answer(definition, key, revision, &value);
                Ok(Attempt::Done(Arc::new(object)))
            }
            Outcome::Conflict { current } => {
                let now = current.map(|kv| Arc::new(definition.loaded(&kv)));
                Ok(Attempt::Conflict { now })
            }
        }
    }

    /// Records who owns which field: in the object, or for most new ones as the JSON of their `managedFields`.
    fn track(&self, call: &Call, old: Option<&Value>, new: &mut Value) -> Option<Vec<u8>> {
        let served = call.served();
        let (manager, now) = (call.manager(), crate::now().to_string());
        let reset = crate::handlers::decode::reset_fields(call);
        let context = api_patch::Context {
            schema: &served.schema,
            node: Some(served.node),
            manager: &manager,
            api_version: &served.api_version,
            versions: Some(&*call.resource.definition),
            subresource: &call.path.subresource,
            now: &now,
            reset: reset.as_ref(),
            force: false,
        };
        let created = old.is_none().then(|| api_patch::created(&context, new)).flatten();
        if created.is_none() {
            api_patch::update(&context, old, new);
        }
        created
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
        let patch = crate::handlers::patch::Patch::parse(call, &body)?;
        let apply = patch.is_apply();
        let change = |current: Option<&Value>| patch.apply(call, current);
        self.change(
            call,
            Update {
                part,
                change: &change,
                view: None,
                create_if_absent: apply && part == Part::Main,
                track: !apply,
            },
        )
        .await
    }
}

enum Attempt {
    Done(Arc<Object>),
    Conflict { now: Option<Arc<Object>> },
}

/// Whoever names a resource version means to change that very state; some kinds' updates must name one.
fn check_version(call: &Call, stored: &Object, new: &Value) -> Result<(), Box<Status>> {
    let definition = &call.resource.definition;
    let named = new["metadata"]["resourceVersion"].as_str().unwrap_or_default();
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

fn invalid(served: &Served, tree: &Value, errors: ErrorList) -> Result<(), Box<Status>> {
    if errors.is_empty() {
        return Ok(());
    }
    let name = tree["metadata"]["name"].as_str().unwrap_or_default();
    Err(Box::new(Status::invalid(&served.group_kind(), name, &errors)))
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
}
