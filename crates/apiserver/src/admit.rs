//! Admission as part of a write: builds what the plugins see, and does what they leave to be done.

use admission::{Operation, Outcome, Request};
use api_meta::{GroupVersionKind, GroupVersionResource, Status};
use serde_json::Value;

use crate::{
    call::Call,
    path::ResourcePath,
    server::Server,
    write::{Part, Update},
};

impl Server {
    /// Lets the plugins change a new or changed object.
    pub(crate) async fn admit(
        &self,
        call: &Call,
        operation: Operation,
        object: &mut Value,
        old: Option<&Value>,
    ) -> Result<(), Box<Status>> {
        let mut outcome = Outcome::default();
        let (kind, resource, name) = self.subject(call, object, old);
        let request = self.request(call, operation, old, (&kind, &resource, &name));
        self.chain.mutate(&request, object, &mut outcome).map_err(Box::new)?;
        outcome.warnings.into_iter().for_each(|w| call.warn(w));
        Ok(())
    }

    /// Asks the plugins whether the object may be, as it is now, and charges quotas.
    pub(crate) async fn validate_admission(
        &self,
        call: &Call,
        operation: Operation,
        object: &Value,
        old: Option<&Value>,
    ) -> Result<(), Box<Status>> {
        let mut turn = None;
        for _ in 0..QUOTA_ATTEMPTS {
            let mut outcome = Outcome::default();
            let (kind, resource, name) = self.subject(call, object, old);
            let request = self.request(call, operation, old, (&kind, &resource, &name));
            self.chain.validate(&request, object, &mut outcome).map_err(Box::new)?;
            outcome.warnings.into_iter().for_each(|w| call.warn(w));
            if call.dry_run() || self.charge(call, outcome.quotas).await? {
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

    fn subject(
        &self,
        call: &Call,
        object: &Value,
        old: Option<&Value>,
    ) -> (GroupVersionKind, GroupVersionResource, String) {
        let served = call.served();
        let (group, version) = (served.group.to_string(), served.version.to_string());
        let subresource = served.subresource(&call.path.subresource);
        let kind = match subresource {
            Some(s) => GroupVersionKind::new(
                s.group.to_string(),
                s.version.to_string(),
                s.kind.to_string(),
            ),
            None => GroupVersionKind::new(group.clone(), version.clone(), served.kind.to_string()),
        };
        let resource =
            GroupVersionResource::new(group, version, call.resource.definition.plural.to_string());
        let named = |tree: &Value| tree["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let name = match call.path.name.as_str() {
            "" => old.map_or_else(|| named(object), named),
            name => name.to_owned(),
        };
        (kind, resource, name)
    }

    fn request<'a>(
        &'a self,
        call: &'a Call,
        operation: Operation,
        old: Option<&'a Value>,
        (kind, resource, name): (&'a GroupVersionKind, &'a GroupVersionResource, &'a str),
    ) -> Request<'a> {
        Request {
            operation,
            kind,
            resource,
            subresource: &call.path.subresource,
            namespace: &call.path.namespace,
            name,
            user: &call.user,
            old,
            options: &NO_OPTIONS,
            dry_run: call.dry_run(),
            objects: &self.security.objects,
            authorizer: &self.security.authorizer,
            now: crate::now(),
            random: &|below| rand::random_range(0..below.max(1)),
        }
    }

    /// Writes the usage that a request adds. Returns false if a quota has moved on and must be judged again.
    async fn charge(&self, call: &Call, quotas: Vec<Value>) -> Result<bool, Box<Status>> {
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
                part: Part::Charge,
                change: &change,
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

const QUOTA_ATTEMPTS: usize = 8;
static NO_OPTIONS: Value = Value::Null;
