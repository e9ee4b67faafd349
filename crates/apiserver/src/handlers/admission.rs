//! Admission as part of a request: states what was asked, lets the phases judge it one after the other, and does what
//! they leave to be done.
//!
//! The phases are those of upstream: plugins change the object, mutating webhooks and policies are called, plugins judge
//! it, validating webhooks and policies are called, quota is charged. [`Server::admit`] has the first two and
//! [`Server::validate_admission`] the rest; between them the kind's own rules prepare and validate the object. Whatever a
//! request does to the cluster comes after all of them.

use admission::{Operation, Outcome, Request};
use api_meta::{GroupVersionKind, GroupVersionResource, Status};
use serde_json::Value;

use super::{
    call::Call,
    write::{Part, Update},
};
use crate::{request::info::ResourcePath, server::Server};

/// What an endpoint says of a request; the object goes beside it, since it changes.
pub(crate) struct Attributes<'a> {
    call: &'a Call,
    operation: Operation,
    kind: GroupVersionKind,
    resource: GroupVersionResource,
    namespace: &'a str,
    /// Empty where the request names no object: an object that is created then says its own name, as soon as it has one.
    name: &'a str,
    old: Option<&'a Value>,
    options: Value,
}

impl<'a> Attributes<'a> {
    /// A new object, be it by POST or by a PUT or an apply of what is not there.
    pub(crate) fn create(call: &'a Call) -> Self {
        let options = crate::handlers::options::stated(call, "CreateOptions");
        Self { options, ..Self::of(call, Operation::Create) }
    }

    pub(crate) fn update(call: &'a Call, old: &'a Value) -> Self {
        let options = crate::handlers::options::stated(call, "UpdateOptions");
        Self { old: Some(old), options, ..Self::of(call, Operation::Update) }
    }

    /// The deletion of one object. Upstream names none of a collection's.
    pub(crate) fn delete(
        call: &'a Call,
        (namespace, name): (&'a str, &'a str),
        old: &'a Value,
        options: Value,
    ) -> Self {
        Self { namespace, name, old: Some(old), options, ..Self::of(call, Operation::Delete) }
    }

    pub(crate) fn connect(call: &'a Call) -> Self {
        Self::of(call, Operation::Connect)
    }

    fn of(call: &'a Call, operation: Operation) -> Self {
        let served = call.served();
        let (group, version) = (served.group.to_string(), served.version.to_string());
        let kind = match served.subresource(&call.path.subresource) {
            Some(s) => GroupVersionKind::new(
                s.group.to_string(),
                s.version.to_string(),
                s.kind.to_string(),
            ),
            None => GroupVersionKind::new(group.clone(), version.clone(), served.kind.to_string()),
        };
        let plural = call.resource.definition.plural.to_string();
        Self {
            call,
            operation,
            kind,
            resource: GroupVersionResource::new(group, version, plural),
            namespace: &call.path.namespace,
            name: &call.path.name,
            old: None,
            options: Value::Null,
        }
    }

    fn request<'r>(&'r self, server: &'r Server, object: &'r str) -> Request<'r> {
        let creates_namespace = self.operation == Operation::Create
            && self.call.resource.definition.is("", "namespaces");
        let name = if self.name.is_empty() { object } else { self.name };
        Request {
            operation: self.operation,
            kind: &self.kind,
            resource: &self.resource,
            subresource: &self.call.path.subresource,
            namespace: if creates_namespace { name } else { self.namespace },
            name,
            user: &self.call.user,
            old: self.old,
            options: &self.options,
            dry_run: self.call.dry_run(),
            objects: &server.security.objects,
            authorizer: &server.security.authorizer,
            now: crate::now(),
            random: &|below| rand::random_range(0..below.max(1)),
        }
    }
}

fn name_of(object: &Value) -> String {
    object["metadata"]["name"].as_str().unwrap_or_default().to_owned()
}

impl Server {
    /// Lets the object of a request be changed.
    pub(crate) async fn admit(
        &self,
        attributes: &Attributes<'_>,
        object: &mut Value,
    ) -> Result<(), Box<Status>> {
        let (mut outcome, name) = (Outcome::default(), name_of(object));
        let request = attributes.request(self, &name);
        let mutated = self.chain.mutate(&request, object, &mut outcome);
        finish(attributes.call, outcome, mutated)
    }

    /// Asks whether the object may be, as it is now, and charges quotas.
    pub(crate) async fn validate_admission(
        &self,
        attributes: &Attributes<'_>,
        object: &Value,
    ) -> Result<(), Box<Status>> {
        let (mut outcome, name) = (Outcome::default(), name_of(object));
        let request = attributes.request(self, &name);
        let validated = self.chain.validate(&request, object, &mut outcome);
        finish(attributes.call, outcome, validated)?;
        self.charge(attributes, object).await
    }

    /// The last phase, which is asked again when others have spent from the same quota in between.
    async fn charge(&self, attributes: &Attributes<'_>, object: &Value) -> Result<(), Box<Status>> {
        let (call, name) = (attributes.call, name_of(object));
        let mut turn = None;
        for _ in 0..QUOTA_ATTEMPTS {
            let request = attributes.request(self, &name);
            let quotas = self.chain.charge(&request, object).map_err(Box::new)?;
            if call.dry_run() || self.spend(call, quotas).await? {
                return Ok(());
            }
            // Those who came too late go one after the other, or most of them would time and again.
            if turn.is_none() {
                turn = Some(self.quota_turn.lock().await);
            }
        }
        Err(Box::new(Status::server_timeout(
            &call.resource.definition.group_resource(),
            "charging the quota of",
            1,
        )))
    }

    /// Writes the usage that a request adds. Returns false if a quota has moved on and must be judged again.
    async fn spend(&self, call: &Call, quotas: Vec<Value>) -> Result<bool, Box<Status>> {
        for quota in quotas {
            let kinds = self.hub.kinds();
            let Some((resource, version)) = kinds.find("", "v1", "resourcequotas") else {
                return Ok(true);
            };
            let text =
                |field: &str| quota["metadata"][field].as_str().unwrap_or_default().to_owned();
            let path = ResourcePath {
                version: "v1".into(),
                resource: "resourcequotas".into(),
                subresource: "status".into(),
                namespace: text("namespace"),
                name: text("name"),
                ..ResourcePath::default()
            };
            let on_quota = call.on(resource.clone(), version, path);
            let change = |_: Option<&Value>| Ok(quota.clone());
            let update = Update {
                part: Part::Effect,
                change: &change,
                view: None,
                create_if_absent: false,
                track: false,
            };
            match Box::pin(self.mutate(&on_quota, update)).await {
                Ok(_) => {}
                Err(status) if status.is_conflict() || status.is_not_found() => return Ok(false),
                Err(status) => return Err(status),
            }
        }
        Ok(true)
    }
}

/// Tells the caller what a phase warns of, whether it refused or not.
fn finish(call: &Call, outcome: Outcome, done: Result<(), Status>) -> Result<(), Box<Status>> {
    outcome.warnings.into_iter().for_each(|warning| call.warn(warning));
    done.map_err(Box::new)
}

const QUOTA_ATTEMPTS: usize = 8;
