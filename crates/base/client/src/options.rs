//! The options of requests: selectors and pages of a list, patches, and deletes.

use serde::Serialize;

/// The options of a list or watch.
#[derive(Clone, Debug, Default)]
pub struct ListOptions {
    /// The namespace, used by informers only; empty for all namespaces.
    pub namespace: String,
    /// The label selector; empty for all objects.
    pub label_selector: String,
    /// The field selector; empty for all objects.
    pub field_selector: String,
    /// The maximum number of objects on a page; `None` for all on one page.
    pub limit: Option<u64>,
    /// The continue token of the previous page; empty for the first page.
    pub continue_token: String,
    /// The resourceVersion: empty for the newest, `0` for any that the server has cached.
    pub resource_version: String,
}

impl ListOptions {
    /// Returns options with a label selector, for all namespaces.
    pub fn labels(selector: &str) -> Self {
        Self { label_selector: selector.to_owned(), ..Self::default() }
    }

    /// Returns options with a field selector, for all namespaces.
    pub fn fields(selector: &str) -> Self {
        Self { field_selector: selector.to_owned(), ..Self::default() }
    }

    pub(crate) fn query(&self, more: &[(&str, &str)]) -> String {
        let limit = self.limit.map(|l| l.to_string()).unwrap_or_default();
        let parameters = [
            ("labelSelector", self.label_selector.as_str()),
            ("fieldSelector", &self.field_selector),
            ("limit", &limit),
            ("continue", &self.continue_token),
            ("resourceVersion", &self.resource_version),
        ];
        let mut query = String::new();
        for (name, value) in parameters.iter().chain(more).filter(|(_, value)| !value.is_empty()) {
            query.push(if query.is_empty() { '?' } else { '&' });
            query.push_str(name);
            query.push('=');
            query.push_str(&escape(value));
        }
        query
    }
}

/// The kinds of patches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchKind<'a> {
    Json,
    Merge,
    Strategic,
    /// Server-side apply. `force` takes over fields of other managers.
    Apply {
        manager: &'a str,
        force: bool,
    },
}

/// The target of a patch: an object or one of its subresources.
#[derive(Clone, Copy, Debug, Default)]
pub struct PatchTarget<'a> {
    /// The namespace; empty for a cluster-scoped object.
    pub namespace: &'a str,
    /// The name of the object.
    pub name: &'a str,
    /// The subresource; empty for the object itself.
    pub subresource: &'a str,
}

/// The preconditions of a delete. The server answers with a conflict if one does not hold.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Preconditions {
    /// The UID that the object must have; `None` for any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// The resourceVersion that the object must have; `None` for any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_version: Option<String>,
}

/// The options of a delete request.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DeleteOptions {
    /// The grace period; `None` for the object's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grace_period_seconds: Option<i64>,
    /// The propagation policy: `Background`, `Foreground` or `Orphan`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub propagation_policy: Option<&'static str>,
    /// The preconditions of the delete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preconditions: Option<Preconditions>,
}

/// Percent-encodes a query value or a path segment.
pub fn escape(value: &str) -> String {
    api_meta::percent_encode(value, b"-._~")
}
