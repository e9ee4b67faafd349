//! One event, in the form of audit.k8s.io/v1 and in the old one-line form.

use std::collections::BTreeMap;

use api_meta::{Attributes, Timestamp, Tree as _, UserInfo, go_quote};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// How much is recorded; each holds what those before it do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Level {
    #[default]
    None,
    /// Who asked what, without bodies.
    Metadata,
    /// The request's object, too.
    Request,
    /// And the answer's.
    RequestResponse,
}

/// When in a request's life an event is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stage {
    RequestReceived,
    /// Of what stays open: the answer's head was sent.
    ResponseStarted,
    ResponseComplete,
    Panic,
}

impl Stage {
    pub(crate) const ALL: [&str; 4] =
        ["RequestReceived", "ResponseStarted", "ResponseComplete", "Panic"];

    /// The word in events, and in a policy's `omitStages`.
    pub fn as_str(self) -> &'static str {
        Self::ALL[self as usize]
    }
}

/// One record: who asked what, and what came of it, in upstream's fields.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    #[serde(skip_serializing_if = "str::is_empty")]
    kind: &'static str,
    #[serde(skip_serializing_if = "str::is_empty")]
    api_version: &'static str,
    pub level: Level,
    /// One for all stages of a request; it is the answer's `Audit-ID`, too.
    #[serde(rename = "auditID")]
    pub audit_id: String,
    pub stage: Stage,
    #[serde(rename = "requestURI")]
    pub request_uri: String,
    pub verb: String,
    pub user: UserInfo,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub impersonated_user: Option<UserInfo>,
    #[serde(rename = "sourceIPs", skip_serializing_if = "Vec::is_empty")]
    pub source_ips: Vec<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub user_agent: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object_ref: Option<ObjectReference>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_status: Option<ResponseStatus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_object: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_object: Option<Value>,
    /// With microseconds.
    pub request_received_timestamp: String,
    pub stage_timestamp: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// The object that a request is about, as far as its path and body say.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectReference {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub api_group: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub api_version: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource_version: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub subresource: String,
}

/// What of a Status is bounded.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ResponseStatus {
    /// Always there, and empty.
    metadata: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub status: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub details: Option<Value>,
    pub code: u16,
}

impl ResponseStatus {
    /// A status of which only the HTTP code is known.
    pub fn of_code(code: u16) -> Self {
        Self { code, ..Self::default() }
    }

    /// What an answer says, if it is a Status.
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
    /// A request that has come, and is not yet judged. `user` is nobody where nobody was authenticated.
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

    /// Takes note of the object that a request is about: what its URL left open of it, and, where that is recorded, all of
    /// it.
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

    /// Adds an annotation; the first one of a name stays.
    pub fn annotate(&mut self, name: &str, value: impl Into<String>) {
        self.annotations.entry(name.to_owned()).or_insert_with(|| value.into());
    }

    /// The event as an item of an `EventList`, which says for all of what kind they are.
    pub fn listed(self) -> Self {
        Self { kind: "", api_version: "", ..self }
    }

    /// Drops what is large of an event whose JSON is longer than the limit. None: it is too large even so.
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

    /// The old form: one line of text.
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
            "{} AUDIT: id={} stage={} ip={} method={} user={} groups={} as={} asgroups={} user-agent={} namespace={} uri={} response=\"{response}\"",
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

/// Takes `managedFields` from an object, a list's items and a Table's rows.
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
