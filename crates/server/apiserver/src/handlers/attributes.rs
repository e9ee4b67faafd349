//! The attributes of a request for admission.

use admission::{Operation, Request};
use api_meta::{GroupVersionKind, GroupVersionResource};
use serde_json::Value;

use super::{call::Call, options, state::State};
use crate::clock;

/// The attributes of a request. The object is passed separately, because admission changes it.
pub(crate) struct Attributes<'a> {
    pub(super) call: &'a Call,
    pub(super) operation: Operation,
    kind: GroupVersionKind,
    resource: GroupVersionResource,
    namespace: &'a str,
    /// Empty if the request names no object. The name of a created object is then taken from the object.
    name: &'a str,
    old: Option<&'a Value>,
    options: Value,
}

impl<'a> Attributes<'a> {
    /// Attributes of a create: by POST, or by PUT and apply if the object does not exist.
    pub(crate) fn create(call: &'a Call) -> Self {
        let options = options::to_object(call, "CreateOptions");
        Self { options, ..Self::of(call, Operation::Create) }
    }

    pub(crate) fn update(call: &'a Call, old: &'a Value) -> Self {
        let options = options::to_object(call, "UpdateOptions");
        Self { old: Some(old), options, ..Self::of(call, Operation::Update) }
    }

    /// Attributes of a deletion. As upstream, the name is empty for collections.
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

    pub(super) fn request<'r>(&'r self, state: &'r State, object: &'r str) -> Request<'r> {
        let is_namespace = self.call.resource.definition.strategy.scope;
        let name = if self.name.is_empty() { object } else { self.name };
        Request {
            operation: self.operation,
            kind: &self.kind,
            resource: &self.resource,
            subresource: &self.call.path.subresource,
            namespace: if is_namespace { name } else { self.namespace },
            name,
            user: &self.call.user,
            old: self.old,
            options: &self.options,
            dry_run: self.call.dry_run(),
            objects: &*state.security.objects,
            authorizer: &state.security.authorizer,
            now: clock::now(),
            random: &|below| rt::random_in(0..below.max(1)),
        }
    }
}
