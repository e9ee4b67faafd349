//! The attributes of a request, other than its objects, as webhooks and expressions see them.

use api_meta::{GroupVersionKind, GroupVersionResource, UserInfo};
use serde::Serialize;
use serde_json::Value;

use crate::{matching::MatchedResource, request::Request};

/// The fields of the review's request other than the objects.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RequestAttributes<'a> {
    kind: Kind<'a>,
    resource: Resource<'a>,
    #[serde(skip_serializing_if = "str::is_empty")]
    sub_resource: &'a str,
    request_kind: Kind<'a>,
    request_resource: Resource<'a>,
    #[serde(skip_serializing_if = "str::is_empty")]
    request_sub_resource: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    namespace: &'a str,
    operation: &'a str,
    user_info: &'a UserInfo,
    dry_run: bool,
    options: &'a Value,
}

#[derive(Serialize)]
struct Kind<'a> {
    group: &'a str,
    version: &'a str,
    kind: &'a str,
}

#[derive(Serialize)]
struct Resource<'a> {
    group: &'a str,
    version: &'a str,
    resource: &'a str,
}

impl<'a> From<&'a GroupVersionKind> for Kind<'a> {
    fn from(of: &'a GroupVersionKind) -> Self {
        Self { group: &of.group, version: &of.version, kind: &of.kind }
    }
}

impl<'a> From<&'a GroupVersionResource> for Resource<'a> {
    fn from(of: &'a GroupVersionResource) -> Self {
        Self { group: &of.group, version: &of.version, resource: &of.resource }
    }
}

impl<'a> RequestAttributes<'a> {
    /// Returns the attributes of a request that matches as `shown`.
    pub(crate) fn of(request: &Request<'a>, shown: &'a MatchedResource) -> Self {
        Self {
            kind: (&shown.kind).into(),
            resource: (&shown.resource).into(),
            sub_resource: request.subresource,
            request_kind: request.kind.into(),
            request_resource: request.resource.into(),
            request_sub_resource: request.subresource,
            name: request.name,
            namespace: request.namespace,
            operation: request.operation.name(),
            user_info: request.user,
            dry_run: request.dry_run,
            options: request.options,
        }
    }
}
