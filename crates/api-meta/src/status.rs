use std::fmt::{self, Display};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{FieldError, GroupKind, GroupResource, field, go_quote};

/// How the API answers a failure, and some successes. It serialises with `kind` and `apiVersion`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "kind", rename_all = "camelCase")]
#[error("{message}")]
pub struct Status {
    #[serde(default = "v1")]
    pub api_version: String,
    #[serde(default)]
    pub metadata: Box<ListMeta>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub status: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    #[serde(default, skip_serializing_if = "StatusReason::is_unknown")]
    pub reason: StatusReason,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<Box<StatusDetails>>,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub code: u16,
}

/// The metadata of a list, and of a Status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ListMeta {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub resource_version: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub r#continue: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remaining_item_count: Option<i64>,
}

/// What a Status is about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StatusDetails {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub group: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub kind: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<StatusCause>,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub retry_after_seconds: u32,
}

/// One cause; clients show those with a field beside it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StatusCause {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub field: String,
}

fn v1() -> String {
    "v1".into()
}

fn is_zero<N: Copy + Into<u64>>(n: &N) -> bool {
    (*n).into() == 0
}

macro_rules! reasons {
    ($($name:ident)*) => {
        /// The machine-readable cause. `Unknown` is the empty reason; `Other` keeps one that we do not know.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
        pub enum StatusReason {
            #[default]
            Unknown,
            $($name,)*
            Other(String),
        }

        impl StatusReason {
            /// The word in answers; empty for an unknown reason, as upstream has it.
            pub fn as_str(&self) -> &str {
                match self {
                    Self::Unknown => "",
                    $(Self::$name => stringify!($name),)*
                    Self::Other(text) => text,
                }
            }
        }

        impl From<&str> for StatusReason {
            fn from(text: &str) -> Self {
                match text {
                    "" => Self::Unknown,
                    $(stringify!($name) => Self::$name,)*
                    other => Self::Other(other.to_owned()),
                }
            }
        }
    };
}

reasons! {
    Unauthorized Forbidden NotFound AlreadyExists Conflict Gone Invalid ServerTimeout StoreReadError Timeout
    TooManyRequests BadRequest MethodNotAllowed NotAcceptable RequestEntityTooLarge UnsupportedMediaType InternalError
    Expired ServiceUnavailable
}

impl StatusReason {
    fn is_unknown(&self) -> bool {
        *self == Self::Unknown
    }
}

impl Serialize for StatusReason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for StatusReason {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self::from(std::borrow::Cow::<str>::deserialize(deserializer)?.as_ref()))
    }
}

impl Display for StatusReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Status {
    /// The answer to a delete that leaves nothing to show.
    pub fn success() -> Self {
        Self {
            api_version: v1(),
            metadata: Box::default(),
            status: "Success".into(),
            message: String::new(),
            reason: StatusReason::Unknown,
            details: None,
            code: 0,
        }
    }

    /// A refusal with the HTTP code of its answer.
    pub fn failure(code: u16, reason: StatusReason, message: impl Into<String>) -> Self {
        Self { status: "Failure".into(), message: message.into(), reason, code, ..Self::success() }
    }

    /// The same, with what it is about.
    #[must_use]
    pub fn with_details(mut self, details: StatusDetails) -> Self {
        self.details = Some(Box::new(details));
        self
    }

    fn about(self, resource: &GroupResource, name: &str) -> Self {
        self.with_details(StatusDetails {
            name: name.into(),
            group: resource.group.clone().into(),
            kind: resource.resource.clone().into(),
            ..StatusDetails::default()
        })
    }

    /// The same, with how long a client is to wait, in seconds; it is the header `Retry-After`, too.
    #[must_use]
    pub fn with_retry_after(mut self, seconds: u32) -> Self {
        self.details.get_or_insert_default().retry_after_seconds = seconds;
        self
    }

    /// 404: the object is not there.
    pub fn not_found(resource: &GroupResource, name: &str) -> Self {
        Self::failure(
            404,
            StatusReason::NotFound,
            format!("{resource} {} not found", go_quote(name)),
        )
        .about(resource, name)
    }

    /// The path names no resource that is served.
    pub fn no_such_resource() -> Self {
        Self::failure(
            404,
            StatusReason::NotFound,
            "the server could not find the requested resource",
        )
        .with_details(StatusDetails::default())
    }

    /// 409: an object of this name is there.
    pub fn already_exists(resource: &GroupResource, name: &str) -> Self {
        Self::failure(
            409,
            StatusReason::AlreadyExists,
            format!("{resource} {} already exists", go_quote(name)),
        )
        .about(resource, name)
    }

    /// Every name drawn for `generateName` was taken.
    pub fn generate_name_conflict(resource: &GroupResource, name: &str, retry_after: u32) -> Self {
        let name_quoted = go_quote(name);
        let message = format!(
            "{resource} {name_quoted} already exists, the server was not able to generate a unique name for the object"
        );
        Self::failure(409, StatusReason::AlreadyExists, message)
            .about(resource, name)
            .with_retry_after(retry_after)
    }

    /// 409: the object has changed since, or something else stands against it; clients try again.
    pub fn conflict(resource: &GroupResource, name: &str, cause: impl Display) -> Self {
        let message =
            format!("Operation cannot be fulfilled on {resource} {}: {cause}", go_quote(name));
        Self::failure(409, StatusReason::Conflict, message).about(resource, name)
    }

    /// The write carried a resource version that is no longer the current one.
    pub fn modified(resource: &GroupResource, name: &str) -> Self {
        Self::conflict(
            resource,
            name,
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }

    /// 422: all that is wrong with an object, each with its field.
    pub fn invalid(kind: &GroupKind, name: &str, errors: &[FieldError]) -> Self {
        let name_quoted = go_quote(name);
        let message = if errors.is_empty() {
            format!("{kind} {name_quoted} is invalid")
        } else {
            format!("{kind} {name_quoted} is invalid: {}", field::aggregate(errors))
        };
        let causes = errors
            .iter()
            .map(|e| StatusCause {
                reason: e.kind.reason().into(),
                message: e.body(),
                field: if e.field.as_str().is_empty() {
                    "<nil>".into()
                } else {
                    e.field.as_str().into()
                },
            })
            .collect();
        Self::failure(422, StatusReason::Invalid, message).with_details(StatusDetails {
            name: name.into(),
            group: kind.group.clone().into(),
            kind: kind.kind.clone().into(),
            causes,
            ..StatusDetails::default()
        })
    }

    /// `cause` says who may not do what; see `auth` for the words about users.
    pub fn forbidden(resource: &GroupResource, name: &str, cause: impl Display) -> Self {
        let message =
            match (resource.resource.is_empty() && resource.group.is_empty(), name.is_empty()) {
                (true, _) => format!("forbidden: {cause}"),
                (false, true) => format!("{resource} is forbidden: {cause}"),
                (false, false) => format!("{resource} {} is forbidden: {cause}", go_quote(name)),
            };
        Self::failure(403, StatusReason::Forbidden, message).about(resource, name)
    }

    /// 401: it is not told why, so that nobody learns whether a credential was nearly right.
    pub fn unauthorized() -> Self {
        Self::failure(401, StatusReason::Unauthorized, "Unauthorized")
    }

    /// 400: the request cannot be understood.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::failure(400, StatusReason::BadRequest, message)
    }

    /// 410: what was asked for is no more to be had.
    pub fn gone(message: impl Into<String>) -> Self {
        Self::failure(410, StatusReason::Gone, message)
    }

    /// 410: the revision is too old. Clients list again.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::failure(410, StatusReason::Expired, message)
    }

    /// A watch asked for a revision older than what is kept.
    pub fn too_old_resource_version(asked: u64, oldest: u64) -> Self {
        Self::expired(format!("too old resource version: {asked} ({oldest})"))
    }

    /// A read asked for a revision that has not been reached.
    pub fn too_large_resource_version(asked: u64, current: u64) -> Self {
        let text = format!("Too large resource version: {asked}, current: {current}");
        let mut status = Self::timeout(&text, 1);
        status.details.get_or_insert_default().causes = vec![StatusCause {
            reason: "ResourceVersionTooLarge".into(),
            message: text,
            field: String::new(),
        }];
        status
    }

    /// 413: the body, or what it comes to, is too large.
    pub fn request_too_large(message: impl Display) -> Self {
        Self::failure(
            413,
            StatusReason::RequestEntityTooLarge,
            format!("Request entity too large: {message}"),
        )
    }

    /// The resource has no such verb at all, whoever asks.
    pub fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource";
        Self::failure(405, StatusReason::MethodNotAllowed, message)
            .with_details(StatusDetails::default())
    }

    /// 405: the resource does not do that.
    pub fn method_not_supported(resource: &GroupResource, action: &str) -> Self {
        let message = format!(
            "{action} is not supported on resources of kind {}",
            go_quote(&resource.to_string())
        );
        Self::failure(405, StatusReason::MethodNotAllowed, message).about(resource, "")
    }

    /// 415: the body's type is none of these.
    pub fn unsupported_media_type(accepted: &[&str]) -> Self {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {}",
            accepted.join(", ")
        );
        Self::failure(415, StatusReason::UnsupportedMediaType, message)
    }

    /// 406: the answer cannot be had in any type that the client takes.
    pub fn not_acceptable(accepted: &[&str]) -> Self {
        let message =
            format!("only the following media types are accepted: {}", accepted.join(", "));
        Self::failure(406, StatusReason::NotAcceptable, message)
    }

    /// 500: something broke; the client is told what.
    pub fn internal(cause: impl Display) -> Self {
        Self::failure(500, StatusReason::InternalError, format!("Internal error occurred: {cause}"))
            .with_details(StatusDetails {
                causes: vec![StatusCause { message: cause.to_string(), ..StatusCause::default() }],
                ..StatusDetails::default()
            })
    }

    /// 504: it took too long, and may have happened. `retry_after` is in seconds, as below.
    pub fn timeout(message: impl Display, retry_after: u32) -> Self {
        Self::failure(504, StatusReason::Timeout, format!("Timeout: {message}"))
            .with_retry_after(retry_after)
    }

    /// 500: it could not be done in time; a client may try again.
    pub fn server_timeout(resource: &GroupResource, operation: &str, retry_after: u32) -> Self {
        let message = format!(
            "The {operation} operation against {resource} could not be completed at this time, please try again."
        );
        Self::failure(500, StatusReason::ServerTimeout, message)
            .about(resource, operation)
            .with_retry_after(retry_after)
    }

    /// 429: too much is asked at present.
    pub fn too_many_requests(message: impl Into<String>, retry_after: u32) -> Self {
        Self::failure(429, StatusReason::TooManyRequests, message).with_retry_after(retry_after)
    }

    /// 503: the server, or what it needs, is not there.
    pub fn service_unavailable(message: impl Into<String>) -> Self {
        Self::failure(503, StatusReason::ServiceUnavailable, message)
    }

    /// Whether something is not there.
    pub fn is_not_found(&self) -> bool {
        self.reason == StatusReason::NotFound
    }

    /// Whether a write met another.
    pub fn is_conflict(&self) -> bool {
        self.reason == StatusReason::Conflict
    }

    /// Whether the name is taken.
    pub fn is_already_exists(&self) -> bool {
        self.reason == StatusReason::AlreadyExists
    }

    /// Whether the revision is too old: the list has to be read anew.
    pub fn is_gone(&self) -> bool {
        matches!(self.reason, StatusReason::Gone | StatusReason::Expired)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::Path;

    #[test]
    fn has_upstreams_json() {
        let status = Status::not_found(&GroupResource::new("apps", "deployments"), "web");
        let want = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": "deployments.apps \"web\" not found", "reason": "NotFound",
            "details": {"name": "web", "group": "apps", "kind": "deployments"}, "code": 404
        });
        assert_eq!(serde_json::to_value(&status).unwrap(), want);
        assert_eq!(serde_json::from_value::<Status>(want).unwrap(), status);
        // A client meets servers that leave fields out, and reasons it does not know.
        let sparse: Status =
            serde_json::from_value(json!({"code": 418, "reason": "Teapot"})).unwrap();
        assert_eq!(sparse.reason, StatusReason::Other("Teapot".into()));
    }

    #[test]
    fn speaks_as_upstream() {
        let pods = GroupResource::new("", "pods");
        let pod = GroupKind::new("", "Pod");
        let required = FieldError::required(&Path::new("spec.containers"), "");
        let cases = [
            (Status::already_exists(&pods, "x"), 409, "pods \"x\" already exists"),
            (
                Status::modified(&pods, "x"),
                409,
                "Operation cannot be fulfilled on pods \"x\": the object has been modified; please apply your changes to the latest version and try again",
            ),
            (
                Status::invalid(&pod, "x", &[required]),
                422,
                "Pod \"x\" is invalid: spec.containers: Required value",
            ),
            (Status::forbidden(&pods, "", "no"), 403, "pods is forbidden: no"),
            (Status::forbidden(&pods, "x", "no"), 403, "pods \"x\" is forbidden: no"),
            (Status::forbidden(&GroupResource::default(), "", "no"), 403, "forbidden: no"),
            (Status::too_old_resource_version(1, 5), 410, "too old resource version: 1 (5)"),
            (
                Status::method_not_supported(&pods, "patch"),
                405,
                "patch is not supported on resources of kind \"pods\"",
            ),
            (
                Status::too_large_resource_version(9, 5),
                504,
                "Timeout: Too large resource version: 9, current: 5",
            ),
        ];
        for (status, code, message) in cases {
            assert_eq!((status.code, status.message.as_str()), (code, message));
        }
        let causes = Status::invalid(&pod, "x", &[FieldError::required(&Path::new("a"), "b")])
            .details
            .unwrap()
            .causes;
        assert_eq!(
            serde_json::to_value(causes).unwrap(),
            json!([{"reason": "FieldValueRequired", "message": "Required value: b", "field": "a"}])
        );
    }
}
