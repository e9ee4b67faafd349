//! An in-memory cluster and request builders for tests.

use std::{collections::BTreeMap, sync::Arc};

use api_meta::{
    Attributes, Authorizer, Decision, GroupResource, GroupVersionKind, GroupVersionResource,
    Objects, Status, Timestamp, Tree as _, UserInfo,
};
use serde_json::{Value, json};

use crate::request::{Operation, Outcome, Plugin, Request};

#[derive(Default)]
pub(crate) struct Cluster {
    pub(crate) objects: BTreeMap<(GroupResource, String, String), Arc<Value>>,
    /// The allowed actions, as `verb resource name`.
    pub(crate) allowed: Vec<&'static str>,
}

impl Cluster {
    pub(crate) fn with(mut self, resource: &GroupResource, object: Value) -> Self {
        self.objects.insert(
            (resource.clone(), object.namespace().to_owned(), object.name().to_owned()),
            Arc::new(object),
        );
        self
    }
}

impl Objects for Cluster {
    fn get(&self, resource: &GroupResource, namespace: &str, name: &str) -> Option<Arc<Value>> {
        self.objects.get(&(resource.clone(), namespace.to_owned(), name.to_owned())).cloned()
    }

    fn list(&self, resource: &GroupResource, namespace: &str) -> Vec<Arc<Value>> {
        let here = |ns: &str| namespace.is_empty() || ns == namespace;
        self.objects
            .iter()
            .filter(|((r, ns, _), _)| r == resource && here(ns))
            .map(|(_, o)| o.clone())
            .collect()
    }

    fn resource_of(&self, group: &str, kind: &str) -> Option<(GroupResource, bool)> {
        match (group, kind) {
            ("", "Pod") => Some((GroupResource::PODS, true)),
            ("", "Node") => Some((GroupResource::NODES, false)),
            _ => None,
        }
    }
}

impl Authorizer for Cluster {
    fn authorize(&self, a: &Attributes<'_>) -> Decision {
        let asked = format!("{} {} {}", a.verb, a.resource, a.name);
        if self.allowed.contains(&asked.as_str()) {
            Decision::Allow(None)
        } else {
            Decision::NoOpinion(None)
        }
    }
}

/// A builder for a request.
pub(crate) struct Try<'a> {
    pub(crate) cluster: &'a Cluster,
    pub(crate) operation: Operation,
    pub(crate) resource: GroupResource,
    pub(crate) subresource: &'a str,
    pub(crate) user: UserInfo,
    pub(crate) old: Option<Value>,
}

impl<'a> Try<'a> {
    pub(crate) fn create(cluster: &'a Cluster, resource: &GroupResource) -> Self {
        Self {
            cluster,
            operation: Operation::Create,
            resource: resource.clone(),
            subresource: "",
            user: UserInfo::new("alice", &[]),
            old: None,
        }
    }

    pub(crate) fn update(cluster: &'a Cluster, resource: &GroupResource, old: Value) -> Self {
        Self { operation: Operation::Update, old: Some(old), ..Self::create(cluster, resource) }
    }

    pub(crate) fn delete(cluster: &'a Cluster, resource: &GroupResource, old: Value) -> Self {
        Self { operation: Operation::Delete, old: Some(old), ..Self::create(cluster, resource) }
    }

    pub(crate) fn by(self, user: UserInfo) -> Self {
        Self { user, ..self }
    }

    pub(crate) fn sub(self, subresource: &'a str) -> Self {
        Self { subresource, ..self }
    }

    /// Runs the mutating and then the validating phase.
    pub(crate) fn admit(&self, plugin: &dyn Plugin, object: &mut Value) -> Result<Outcome, Status> {
        self.ask(object, |request, object| {
            let mut outcome = Outcome::default();
            plugin.precheck(request, object)?;
            if plugin.mutates(request) {
                plugin.mutate(request, object)?;
            }
            plugin.validate(request, object, &mut outcome)?;
            Ok(outcome)
        })
    }

    /// Returns the charged quotas.
    pub(crate) fn charged(
        &self,
        plugin: &dyn Plugin,
        mut object: Value,
    ) -> Result<Vec<Value>, Status> {
        self.ask(&mut object, |request, object| plugin.charge(request, object))
    }

    fn ask<T>(
        &self,
        object: &mut Value,
        asked: impl FnOnce(&Request<'_>, &mut Value) -> Result<T, Status>,
    ) -> Result<T, Status> {
        let (kind, version) = (GroupVersionKind::default(), self.resource.clone());
        let resource = GroupVersionResource::new(version.group, "v1", version.resource);
        let named =
            if object.is_null() { self.old.clone().unwrap_or(Value::Null) } else { object.clone() };
        let (namespace, name) = (named.namespace().to_owned(), named.name().to_owned());
        let allowed = self.cluster.allowed.clone();
        let authorizer: Arc<dyn Authorizer> = Arc::new(Cluster { allowed, ..Cluster::default() });
        let request = Request {
            operation: self.operation,
            kind: &kind,
            resource: &resource,
            subresource: self.subresource,
            namespace: &namespace,
            name: &name,
            user: &self.user,
            old: self.old.as_ref(),
            options: &Value::Null,
            dry_run: false,
            objects: self.cluster,
            authorizer: &authorizer,
            now: Timestamp::from_unix(1_700_000_000, 0),
            random: &|_| 0,
        };
        asked(&request, object)
    }

    /// Calls `say` with the request and the object.
    pub(crate) fn asked<T>(
        &self,
        object: &Value,
        say: impl FnOnce(&Request<'_>, &Value) -> T,
    ) -> T {
        let said = self.ask(&mut object.clone(), |request, object| Ok(say(request, object)));
        said.unwrap_or_else(|status| panic!("{}", status.message))
    }

    /// Returns the message of the rejection.
    pub(crate) fn refusal(&self, plugin: &dyn Plugin, mut object: Value) -> String {
        self.admit(plugin, &mut object)
            .map_or_else(|status| status.message, |_| format!("admitted {object}"))
    }

    /// Returns the admitted object.
    pub(crate) fn admitted(&self, plugin: &dyn Plugin, mut object: Value) -> Value {
        self.admit(plugin, &mut object).unwrap_or_else(|status| panic!("{}", status.message));
        object
    }
}

/// Calls `then` with a request that creates Deployment `web` in namespace `ns`, changed by `change`. The user may
/// `breakglass`.
pub(crate) fn with_deployment<T>(
    cluster: &Cluster,
    user: &UserInfo,
    change: impl FnOnce(&mut Request<'_>),
    then: impl FnOnce(&Request<'_>) -> T,
) -> T {
    let allowed = vec!["breakglass deployments web"];
    let authorizer: Arc<dyn Authorizer> = Arc::new(Cluster { allowed, ..Cluster::default() });
    let mut request = Request {
        operation: Operation::Create,
        kind: &GroupVersionKind::new("apps", "v1", "Deployment"),
        resource: &GroupVersionResource::new("apps", "v1", "deployments"),
        subresource: "",
        namespace: "ns",
        name: "web",
        user,
        old: None,
        options: &json!({"kind": "CreateOptions"}),
        dry_run: false,
        objects: cluster,
        authorizer: &authorizer,
        now: Timestamp::from_unix(1_700_000_000, 0),
        random: &|_| 0,
    };
    assert!(cluster.get(&GroupResource::PODS, "", "").is_none());
    change(&mut request);
    then(&request)
}

/// Builds a Pod `p` in namespace `ns` with this spec.
pub(crate) fn pod(spec: Value) -> Value {
    json!({"metadata": {"name": "p", "namespace": "ns"}, "spec": spec})
}
