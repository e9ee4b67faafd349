//! Audit events in the format audit.k8s.io/v1 and in the legacy one-line format.

use std::collections::BTreeMap;

use api_meta::{Attributes, Timestamp, Tree as _, UserInfo, go_quote};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The audit level. Each level includes the previous ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Level {
    #[default]
    None,
    /// User, verb and resource, without bodies.
    Metadata,
    /// Metadata and the request's object.
    Request,
    /// Metadata, the request's object and the response's object.
    RequestResponse,
}

/// The stage of a request at which an event is generated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stage {
    RequestReceived,
    /// The response headers of a watch or connection were sent.
    ResponseStarted,
    ResponseComplete,
    Panic,
}

impl Stage {
    pub(crate) const ALL: [&str; 4] =
        ["RequestReceived", "ResponseStarted", "ResponseComplete", "Panic"];

    /// Returns the name in events and in a policy's `omitStages`.
    pub fn as_str(self) -> &'static str {
        Self::ALL[self as usize]
    }
}

/// An audit event with upstream's fields.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    #[serde(skip_serializing_if = "str::is_empty")]
    kind: &'static str,
    #[serde(skip_serializing_if = "str::is_empty")]
    api_version: &'static str,
    /// The audit level of the request.
    pub level: Level,
    /// The ID of the request, shared by the events of all stages. Responses contain it in `Audit-ID`.
    #[serde(rename = "auditID")]
    pub audit_id: String,
    /// The stage of the request.
    pub stage: Stage,
    /// The path and query of the request.
    #[serde(rename = "requestURI")]
    pub request_uri: String,
    /// The Kubernetes verb, or the lower-case HTTP method for non-resource requests.
    pub verb: String,
    /// The authenticated user.
    pub user: UserInfo,
    /// The impersonated user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub impersonated_user: Option<UserInfo>,
    /// The addresses of the client and of proxies, the nearest last.
    #[serde(rename = "sourceIPs", skip_serializing_if = "Vec::is_empty")]
    pub source_ips: Vec<String>,
    /// The user agent that the client sent, possibly truncated.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub user_agent: String,
    /// The object of the request; `None` for non-resource requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object_ref: Option<ObjectReference>,
    /// The status of the response.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_status: Option<ResponseStatus>,
    /// The request's object, at level `Request` and above.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_object: Option<Value>,
    /// The response's object, at level `RequestResponse`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_object: Option<Value>,
    /// The arrival of the request, with microseconds.
    pub request_received_timestamp: String,
    /// The time of this stage, with microseconds.
    pub stage_timestamp: String,
    /// Annotations of authorization and admission.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// The object of a request, as far as its URL and body name it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectReference {
    /// The plural name of the resource.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource: String,
    /// The namespace.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// The name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The UID.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// The API group; empty for the core group.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub api_group: String,
    /// The API version without the group.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub api_version: String,
    /// The resourceVersion.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource_version: String,
    /// The subresource.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub subresource: String,
}

/// The fields of a Status with bounded size.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ResponseStatus {
    /// Always written, and always empty.
    metadata: BTreeMap<String, String>,
    /// `Success` or `Failure`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub status: String,
    /// The message.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The reason.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The details.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub details: Option<Value>,
    /// The HTTP status code.
    pub code: u16,
}

impl ResponseStatus {
    /// Returns a status with an HTTP code only.
    pub fn of_code(code: u16) -> Self {
        Self { code, ..Self::default() }
    }

    /// Returns the fields of a response if it is a Status, otherwise only the code.
    pub fn of_status(code: u16, answer: &Value) -> Self {
        if answer["kind"] != "Status" {
            return Self::of_code(code);
        }
        let details = answer.get("details").filter(|d| !d.is_null()).cloned();
        let (status, message, reason) = (
            answer.text("status").to_owned(),
            answer.text("message").to_owned(),
            answer.text("reason").to_owned(),
        );
        Self { metadata: BTreeMap::new(), status, message, reason, details, code }
    }
}

impl Event {
    /// Creates the event of a new request. `user` is empty if authentication failed.
    pub fn new(level: Level, id: &str, uri: &str, of: &Attributes<'_>, now: Timestamp) -> Self {
        let object_ref = of.is_resource.then(|| ObjectReference {
            resource: of.resource.to_owned(),
            namespace: of.namespace.to_owned(),
            name: of.name.to_owned(),
            api_group: of.group.to_owned(),
            api_version: of.version.to_owned(),
            subresource: of.subresource.to_owned(),
            ..ObjectReference::default()
        });
        Self {
            kind: "Event",
            api_version: "audit.k8s.io/v1",
            level,
            audit_id: id.to_owned(),
            stage: Stage::RequestReceived,
            request_uri: uri.to_owned(),
            verb: of.verb.to_owned(),
            user: of.user.clone(),
            impersonated_user: None,
            source_ips: Vec::new(),
            user_agent: String::new(),
            object_ref,
            response_status: None,
            request_object: None,
            response_object: None,
            request_received_timestamp: now.micros(),
            stage_timestamp: now.micros(),
            annotations: BTreeMap::new(),
        }
    }

    /// Adds the object of a request: its identity where the URL omits it and, depending on the level, the whole object.
    pub fn requested(&mut self, object: &Value) {
        let reference = self.object_ref.get_or_insert_default();
        let fill = |of: &mut String, field: &str| {
            if of.is_empty() {
                *of = object.text(&["metadata", field]).to_owned();
            }
        };
        fill(&mut reference.namespace, "namespace");
        fill(&mut reference.name, "name");
        fill(&mut reference.uid, "uid");
        fill(&mut reference.resource_version, "resourceVersion");
        if self.level >= Level::Request {
            self.request_object = Some(object.clone());
        }
    }

    /// Adds an annotation. The first value of a name is kept.
    pub fn annotate(&mut self, name: &str, value: impl Into<String>) {
        self.annotations.entry(name.to_owned()).or_insert_with(|| value.into());
    }

    /// Returns the event as an item of an `EventList`, without kind and apiVersion.
    pub fn listed(self) -> Self {
        Self { kind: "", api_version: "", ..self }
    }

    /// Removes the objects from an event whose JSON exceeds the limit. Returns `None` if it is still too large.
    pub fn truncated(mut self, limit: usize) -> Option<Self> {
        let fits = |event: &Self| serde_json::to_vec(event).is_ok_and(|json| json.len() <= limit);
        if fits(&self) {
            return Some(self);
        }
        if self.level >= Level::Request {
            self.request_object = None;
            self.response_object = None;
            self.annotations.insert("audit.k8s.io/truncated".to_owned(), "true".to_owned());
        }
        fits(&self).then_some(self)
    }

    /// Formats the event in the legacy format: one line of text.
    pub fn legacy(&self) -> String {
        let all = |groups: &[String]| -> String {
            groups.iter().map(|group| go_quote(group)).collect::<Vec<_>>().join(",")
        };
        let user = match self.user.name.as_str() {
            "" => "<none>",
            name => name,
        };
        let groups = match (user, self.user.groups.as_slice()) {
            ("<none>", _) | (_, []) => "<none>".to_owned(),
            (_, groups) => all(groups),
        };
        let (as_user, as_groups) = match &self.impersonated_user {
            None => ("<self>", "<lookup>".to_owned()),
            Some(user) => (user.name.as_str(), all(&user.groups)),
        };
        let namespace = self.object_ref.as_ref().map_or("", |object| &object.namespace);
        let namespace = if namespace.is_empty() { "<none>" } else { namespace };
        let response = self.response_status.as_ref();
        let response = response.map_or("<deferred>".to_owned(), |status| status.code.to_string());
        let ip = self.source_ips.first().map_or("<unknown>", String::as_str);
        format!(
            "{} AUDIT: id={} stage={} ip={} method={} user={} groups={} as={} asgroups={} \
             user-agent={} namespace={} uri={} response=\"{response}\"",
            self.request_received_timestamp,
            go_quote(&self.audit_id),
            go_quote(self.stage.as_str()),
            go_quote(ip),
            go_quote(&self.verb),
            go_quote(user),
            go_quote(&groups),
            go_quote(as_user),
            go_quote(&as_groups),
            go_quote(&self.user_agent),
            go_quote(namespace),
            go_quote(&self.request_uri),
        )
    }
}

/// Removes `managedFields` from an object, and from the items of a list or the rows of a Table.
pub(crate) fn without_managed_fields(object: &mut Value) {
    let forget = |object: &mut Value| {
        if let Some(meta) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            meta.remove("managedFields");
        }
    };
    forget(object);
    for (list, inner) in [("items", None), ("rows", Some("object"))] {
        for item in object.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            match inner {
                None => forget(item),
                Some(inner) => {
                    if let Some(object) = item.get_mut(inner) {
                        forget(object);
                    }
                }
            }
        }
    }
}
