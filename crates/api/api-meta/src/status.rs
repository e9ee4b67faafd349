use std::fmt::{self, Display};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{
    field::{self, FieldError},
    gvk::{GroupKind, GroupResource},
    quote::go_quote,
};

/// The API's response to a failure and to some successes. It serializes with `kind` and `apiVersion`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "kind", rename_all = "camelCase")]
#[error("{message}")]
pub struct Status {
    /// The apiVersion, `v1`.
    #[serde(default = "v1")]
    pub api_version: String,
    /// The list metadata.
    #[serde(default)]
    pub metadata: Box<ListMeta>,
    /// `Success` or `Failure`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub status: String,
    /// The message for humans.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The machine-readable reason.
    #[serde(default, skip_serializing_if = "StatusReason::is_unknown")]
    pub reason: StatusReason,
    /// The object and the causes of the failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<Box<StatusDetails>>,
    /// The HTTP status code.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub code: u16,
}

/// The metadata of a list or a `Status`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ListMeta {
    /// The resourceVersion of the list.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub resource_version: String,
    /// The token of the next page; empty on the last page.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub r#continue: String,
    /// The number of objects after this page, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remaining_item_count: Option<i64>,
}

/// The details of a `Status`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StatusDetails {
    /// The name of the object.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The API group of the object.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// The kind or the resource of the object.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// The UID of the object.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// The individual errors.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<StatusCause>,
    /// The delay before the next attempt, in seconds; 0 for none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub retry_after_seconds: u32,
}

/// A single cause of a failure. Clients show it with its field.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StatusCause {
    /// The machine-readable reason.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The message for humans.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The path of the field; empty if the cause concerns no field.
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
        /// The machine-readable reason. `Unknown` is the empty reason; `Other` holds an unlisted one.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
        pub enum StatusReason {
            #[default]
            Unknown,
            $($name,)*
            Other(String),
        }

        impl StatusReason {
            /// Returns the reason as in responses; empty for `Unknown`, as upstream.
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
    /// Returns the response to a delete that has no object to return.
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

    /// Returns a failure with an HTTP status code.
    pub fn failure(code: u16, reason: StatusReason, message: impl Into<String>) -> Self {
        Self { status: "Failure".into(), message: message.into(), reason, code, ..Self::success() }
    }

    /// Sets the details.
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

    /// Sets the delay before the client's next attempt, in seconds. It is also sent as the header `Retry-After`.
    #[must_use]
    pub fn with_retry_after(mut self, seconds: u32) -> Self {
        self.details.get_or_insert_default().retry_after_seconds = seconds;
        self
    }

    /// Returns 404: the object does not exist.
    pub fn not_found(resource: &GroupResource, name: &str) -> Self {
        Self::failure(
            404,
            StatusReason::NotFound,
            format!("{resource} {} not found", go_quote(name)),
        )
        .about(resource, name)
    }

    /// Returns 404: no resource is served at the path.
    pub fn no_such_resource() -> Self {
        Self::failure(
            404,
            StatusReason::NotFound,
            "the server could not find the requested resource",
        )
        .with_details(StatusDetails::default())
    }

    /// Returns 409: an object of this name exists.
    pub fn already_exists(resource: &GroupResource, name: &str) -> Self {
        Self::failure(
            409,
            StatusReason::AlreadyExists,
            format!("{resource} {} already exists", go_quote(name)),
        )
        .about(resource, name)
    }

    /// Returns 409: every generated name was in use.
    pub fn generate_name_conflict(resource: &GroupResource, name: &str, retry_after: u32) -> Self {
        let name_quoted = go_quote(name);
        let message = format!(
            "{resource} {name_quoted} already exists, the server was not able to generate a unique name for the object"
        );
        Self::failure(409, StatusReason::AlreadyExists, message)
            .about(resource, name)
            .with_retry_after(retry_after)
    }

    /// Returns 409: the object has changed, or another condition prevents the operation. Clients retry.
    pub fn conflict(resource: &GroupResource, name: &str, cause: impl Display) -> Self {
        let message =
            format!("Operation cannot be fulfilled on {resource} {}: {cause}", go_quote(name));
        Self::failure(409, StatusReason::Conflict, message).about(resource, name)
    }

    /// Returns 409: the write's resourceVersion is not the current one.
    pub fn modified(resource: &GroupResource, name: &str) -> Self {
        Self::conflict(
            resource,
            name,
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }

    /// Returns 422 with all errors of an object and their fields.
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

    /// Returns 403. `cause` names the user and the action; see `auth` for its format.
    pub fn forbidden(resource: &GroupResource, name: &str, cause: impl Display) -> Self {
        let message =
            match (resource.resource.is_empty() && resource.group.is_empty(), name.is_empty()) {
                (true, _) => format!("forbidden: {cause}"),
                (false, true) => format!("{resource} is forbidden: {cause}"),
                (false, false) => format!("{resource} {} is forbidden: {cause}", go_quote(name)),
            };
        Self::failure(403, StatusReason::Forbidden, message).about(resource, name)
    }

    /// Returns 401 without a cause, so that an attacker cannot learn how close a credential was.
    pub fn unauthorized() -> Self {
        Self::failure(401, StatusReason::Unauthorized, "Unauthorized")
    }

    /// Returns 400: the request is malformed.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::failure(400, StatusReason::BadRequest, message)
    }

    /// Returns 410: the requested data no longer exists.
    pub fn gone(message: impl Into<String>) -> Self {
        Self::failure(410, StatusReason::Gone, message)
    }

    /// Returns 410: the resourceVersion is too old. Clients list again.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::failure(410, StatusReason::Expired, message)
    }

    /// Returns 410: a watch requested a resourceVersion that is no longer stored.
    pub fn too_old_resource_version(requested: u64, oldest: u64) -> Self {
        Self::expired(format!("too old resource version: {requested} ({oldest})"))
    }

    /// Returns 504: a read requested a resourceVersion that has not been reached.
    pub fn too_large_resource_version(requested: u64, current: u64) -> Self {
        let text = format!("Too large resource version: {requested}, current: {current}");
        let mut status = Self::timeout(&text, 1);
        status.details.get_or_insert_default().causes = vec![StatusCause {
            reason: "ResourceVersionTooLarge".into(),
            message: text,
            field: String::new(),
        }];
        status
    }

    /// Returns 413: the body, or its decoded form, is too large.
    pub fn request_too_large(message: impl Display) -> Self {
        Self::failure(
            413,
            StatusReason::RequestEntityTooLarge,
            format!("Request entity too large: {message}"),
        )
    }

    /// Returns 405: the resource supports the method for no user.
    pub fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource";
        Self::failure(405, StatusReason::MethodNotAllowed, message)
            .with_details(StatusDetails::default())
    }

    /// Returns 405: the resource does not support the action.
    pub fn method_not_supported(resource: &GroupResource, action: &str) -> Self {
        let message = format!(
            "{action} is not supported on resources of kind {}",
            go_quote(&resource.to_string())
        );
        Self::failure(405, StatusReason::MethodNotAllowed, message).about(resource, "")
    }

    /// Returns 415: the body has none of the accepted media types.
    pub fn unsupported_media_type(accepted: &[&str]) -> Self {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {}",
            accepted.join(", ")
        );
        Self::failure(415, StatusReason::UnsupportedMediaType, message)
    }

    /// Returns 406: the client accepts none of the available media types.
    pub fn not_acceptable(accepted: &[&str]) -> Self {
        let message =
            format!("only the following media types are accepted: {}", accepted.join(", "));
        Self::failure(406, StatusReason::NotAcceptable, message)
    }

    /// Returns 500 with the cause.
    pub fn internal(cause: impl Display) -> Self {
        Self::failure(500, StatusReason::InternalError, format!("Internal error occurred: {cause}"))
            .with_details(StatusDetails {
                causes: vec![StatusCause { message: cause.to_string(), ..StatusCause::default() }],
                ..StatusDetails::default()
            })
    }

    /// Returns 504: the request took too long. A write may have happened. `retry_after` is in seconds, here and below.
    pub fn timeout(message: impl Display, retry_after: u32) -> Self {
        Self::failure(504, StatusReason::Timeout, format!("Timeout: {message}"))
            .with_retry_after(retry_after)
    }

    /// Returns 500: the operation did not finish before its timeout. Clients may retry.
    pub fn server_timeout(resource: &GroupResource, operation: &str, retry_after: u32) -> Self {
        let message = format!(
            "The {operation} operation against {resource} could not be completed at this time, please try again."
        );
        Self::failure(500, StatusReason::ServerTimeout, message)
            .about(resource, operation)
            .with_retry_after(retry_after)
    }

    /// Returns 429: the server has too many requests.
    pub fn too_many_requests(message: impl Into<String>, retry_after: u32) -> Self {
        Self::failure(429, StatusReason::TooManyRequests, message).with_retry_after(retry_after)
    }

    /// Returns 503: the server or one of its dependencies is unavailable.
    pub fn service_unavailable(message: impl Into<String>) -> Self {
        Self::failure(503, StatusReason::ServiceUnavailable, message)
    }

    /// Returns `true` if the object or resource does not exist.
    pub fn is_not_found(&self) -> bool {
        self.reason == StatusReason::NotFound
    }

    /// Returns `true` if the write conflicts with another one.
    pub fn is_conflict(&self) -> bool {
        self.reason == StatusReason::Conflict
    }

    /// Returns `true` if an object of the name exists.
    pub fn is_already_exists(&self) -> bool {
        self.reason == StatusReason::AlreadyExists
    }

    /// Returns `true` if the resourceVersion is too old and the client must list again.
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
    fn serializes_like_upstream() {
        let status = Status::not_found(&GroupResource::new("apps", "deployments"), "web");
        let want = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": "deployments.apps \"web\" not found", "reason": "NotFound",
            "details": {"name": "web", "group": "apps", "kind": "deployments"}, "code": 404
        });
        assert_eq!(serde_json::to_value(&status).unwrap(), want);
        assert_eq!(serde_json::from_value::<Status>(want).unwrap(), status);
        // Servers may omit fields and send unknown reasons.
        let sparse: Status =
            serde_json::from_value(json!({"code": 418, "reason": "Teapot"})).unwrap();
        assert_eq!(sparse.reason, StatusReason::Other("Teapot".into()));
    }

    #[test]
    fn prints_upstream_messages() {
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
