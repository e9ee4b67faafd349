//! The reads from the API server.

use api_meta::{ListMeta, ObjectMeta, Tree as _};
use client::{Client, List};
use http::{Method, StatusCode};
use serde::{
    Deserialize,
    de::{DeserializeOwned, IgnoredAny},
};
use serde_json::{Value, json};

use crate::error::PageError;

/// The rows on one page.
pub(crate) const PAGE: usize = 100;
/// The last lines of a log that a page shows.
pub(crate) const LOG_LINES: usize = 1000;
/// The size of the log that a page shows, in bytes.
pub(crate) const LOG_LIMIT: usize = 1 << 20;
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
const DISCOVERY: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
const ACCESS_REVIEWS: client::Resource = client::Resource::constant(
    "authorization.k8s.io",
    "v1",
    "selfsubjectaccessreviews",
    "SelfSubjectAccessReview",
    false,
);

/// A resource in a URL of the page: group (`core` for the core group), version and plural name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Resource {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) plural: String,
}

impl Resource {
    pub(crate) fn new(group: &str, version: &str, plural: &str) -> Self {
        Self { group: group.into(), version: version.into(), plural: plural.into() }
    }

    /// Returns the resource of three path segments; `None` unless all are names.
    pub(crate) fn parse(group: &str, version: &str, plural: &str) -> Option<Self> {
        [group, version, plural].into_iter().all(is_name).then(|| Self::new(group, version, plural))
    }

    /// Returns the segments of the page's URLs.
    pub(crate) fn segments(&self) -> String {
        format!("{}/{}/{}", self.group, self.version, self.plural)
    }

    /// Returns the API server's path of the collection. `namespace` is empty for all namespaces.
    fn path(&self, namespace: &str) -> String {
        let group = if self.group == "core" { "" } else { self.group.as_str() };
        let resource = client::Resource {
            group: group.to_owned().into(),
            version: self.version.clone().into(),
            plural: self.plural.clone().into(),
            kind: "".into(),
            namespaced: true,
        };
        resource.collection(namespace)
    }
}

impl From<&client::Resource> for Resource {
    fn from(resource: &client::Resource) -> Self {
        let group = if resource.group.is_empty() { "core" } else { &*resource.group };
        Self::new(group, &resource.version, &resource.plural)
    }
}

/// Reports whether a text is a name of the API: no other text gets into a path of the API server.
pub(crate) fn is_name(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b':');
    !text.is_empty()
        && text.len() <= 253
        && text.bytes().all(allowed)
        && !matches!(text, "." | "..")
}

/// A list as the API server prints it.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Table {
    pub(crate) metadata: ListMeta,
    pub(crate) column_definitions: Vec<Column>,
    pub(crate) rows: Vec<Row>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Column {
    pub(crate) name: String,
    /// Columns of higher priority are those of `kubectl get -o wide`.
    pub(crate) priority: u32,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Row {
    pub(crate) cells: Vec<Value>,
    pub(crate) object: Object,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Object {
    pub(crate) metadata: ObjectMeta,
}

impl Table {
    /// Reports whether any object is in a namespace.
    pub(crate) fn is_namespaced(&self) -> bool {
        self.rows.iter().any(|row| !row.object.metadata.namespace.is_empty())
    }
}

/// The query of a list.
#[derive(Default)]
pub(crate) struct Query<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) fields: &'a str,
    pub(crate) limit: usize,
    /// The token of the next page.
    pub(crate) next: &'a str,
}

impl Query<'_> {
    fn path(&self, resource: &Resource) -> String {
        let mut path = format!("{}?limit={}", resource.path(self.namespace), self.limit);
        for (name, value) in [("fieldSelector", self.fields), ("continue", self.next)] {
            if !value.is_empty() {
                path.push_str(&format!("&{name}={}", client::escape(value)));
            }
        }
        path
    }
}

/// Checks by one small request that the API server accepts the user's credentials. Other errors are ignored.
pub(crate) async fn check_user(client: &Client) -> Result<(), PageError> {
    match text(client, "/version").await {
        Err(error) if error.status() == StatusCode::UNAUTHORIZED => Err(error),
        _ => Ok(()),
    }
}

/// Asks the API server whether the client's user may use a verb for a resource in all namespaces.
pub(crate) async fn may(
    client: &Client,
    verb: &str,
    resource: &client::Resource,
) -> Result<bool, PageError> {
    let attributes = json!({"verb": verb, "group": resource.group, "version": resource.version, "resource": resource.plural});
    is_allowed(client, &json!({"resourceAttributes": attributes})).await
}

/// Asks the API server whether the client's user may do what the specification of an access review describes.
pub(crate) async fn is_allowed(client: &Client, spec: &Value) -> Result<bool, PageError> {
    let review = json!({"spec": spec});
    let review = client.create::<_, Value>(&ACCESS_REVIEWS, "", &review).await?;
    Ok(review.at("status.allowed") == &Value::Bool(true))
}

/// Lists objects as a table.
pub(crate) async fn table(
    client: &Client,
    resource: &Resource,
    query: &Query<'_>,
) -> Result<Table, PageError> {
    Ok(client.get_raw_as(&query.path(resource), TABLE).await?)
}

/// Lists whole objects or projections of them.
pub(crate) async fn objects<T: DeserializeOwned>(
    client: &Client,
    resource: &Resource,
    query: &Query<'_>,
) -> Result<List<T>, PageError> {
    Ok(client.get_raw(&query.path(resource)).await?)
}

/// Returns the number of objects of a resource. The API server counts them.
pub(crate) async fn count(client: &Client, resource: &Resource) -> Result<u64, PageError> {
    let query = Query { limit: 1, ..Query::default() };
    let list: List<IgnoredAny> = objects(client, resource, &query).await?;
    let rest = list.metadata.remaining_item_count.unwrap_or_default();
    Ok(list.items.len() as u64 + rest.unsigned_abs())
}

/// Reads an object. `namespace` is empty for cluster-scoped objects.
pub(crate) async fn object(
    client: &Client,
    resource: &Resource,
    namespace: &str,
    name: &str,
) -> Result<Value, PageError> {
    Ok(client.get_raw(&format!("{}/{name}", resource.path(namespace))).await?)
}

/// Returns the groups of kinds that the API server serves.
pub(crate) async fn discovery(client: &Client) -> Result<Vec<Value>, PageError> {
    let mut groups = Vec::new();
    for path in ["/api", "/apis"] {
        let list: Value = client.get_raw_as(path, DISCOVERY).await?;
        groups.extend(list["items"].as_array().cloned().unwrap_or_default());
    }
    Ok(groups)
}

/// Reads the end of a container's log.
pub(crate) async fn log(
    client: &Client,
    namespace: &str,
    pod: &str,
    container: &str,
    previous: bool,
) -> Result<String, PageError> {
    let path = client::Resource::PODS.object(namespace, pod, "log");
    let query = format!(
        "container={container}&previous={previous}&tailLines={LOG_LINES}&limitBytes={LOG_LIMIT}"
    );
    text(client, &format!("{path}?{query}")).await
}

/// Reads the API server's metrics.
pub(crate) async fn metrics(client: &Client) -> Result<String, PageError> {
    text(client, "/metrics").await
}

async fn text(client: &Client, path: &str) -> Result<String, PageError> {
    let bytes = client.call(Method::GET, path, "", Default::default()).await?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builds_paths_of_names_only() {
        let pods = Resource::parse("core", "v1", "pods").unwrap();
        assert_eq!(pods.path(""), "/api/v1/pods");
        assert_eq!(pods.path("kube-system"), "/api/v1/namespaces/kube-system/pods");
        let crds =
            Resource::parse("apiextensions.k8s.io", "v1", "customresourcedefinitions").unwrap();
        assert_eq!(crds.path(""), "/apis/apiextensions.k8s.io/v1/customresourcedefinitions");
        let query = Query { limit: 1, next: "a&b=c", fields: "x!=y", ..Query::default() };
        assert_eq!(
            query.path(&pods),
            "/api/v1/pods?limit=1&fieldSelector=x%21%3Dy&continue=a%26b%3Dc"
        );
        for hostile in ["..", "", "pods/log", "pods?watch=1", "%2e", "p\u{e9}", &"a".repeat(300)] {
            assert_eq!(Resource::parse("core", "v1", hostile), None, "{hostile}");
        }
    }
}
