//! Reads metrics from the API groups that metrics-server and metric adapters serve.

use std::{collections::BTreeMap, time::Duration};

use api_config::GoDuration;
use api_meta::{LabelSelector, Quantity, SelectorError, Timestamp};
use client::{Client, Error, ListOptions, Resource, escape};
use serde::Deserialize;

use super::{
    object::{Identifier, ObjectReference},
    replicas::{Sample, Samples},
};
use crate::discovery::{self, NoSuchKind};

const POD_METRICS: Resource =
    Resource::constant("metrics.k8s.io", "v1beta1", "pods", "PodMetrics", true);

/// The versions of the custom metrics API, preferred first.
const CUSTOM: [&str; 2] = ["v1beta2", "v1beta1"];

/// The name of the custom metrics API in error messages.
const CUSTOM_API: &str = "custom";

/// The averaging window of a sample that names none.
const USUAL_WINDOW: Duration = Duration::from_secs(60);

#[derive(Deserialize)]
struct PodMetrics {
    metadata: ObjectName,
    timestamp: Timestamp,
    window: GoDuration,
    #[serde(default)]
    containers: Vec<ContainerMetrics>,
}

#[derive(Deserialize)]
struct ObjectName {
    name: String,
}

#[derive(Deserialize)]
struct ContainerMetrics {
    name: String,
    #[serde(default)]
    usage: BTreeMap<String, Quantity>,
}

#[derive(Deserialize)]
struct Values {
    #[serde(default)]
    items: Vec<MetricValue>,
}

/// A value from the custom or external metrics API.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct MetricValue {
    #[serde(default)]
    described_object: Option<ObjectName>,
    timestamp: Timestamp,
    #[serde(alias = "window")]
    window_seconds: Option<u64>,
    value: Quantity,
}

/// A metric that cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum SourceError {
    #[error("unable to get metrics for resource {resource}: {source}")]
    Resource { resource: String, source: Box<FetchError> },
    #[error("unable to get metric {metric}: {source}")]
    Pods { metric: String, source: Box<FetchError> },
    #[error("unable to get metric {metric}: {kind} on {namespace} {name}/{source}")]
    Object {
        metric: String,
        kind: String,
        namespace: String,
        name: String,
        source: Box<FetchError>,
    },
    #[error("unable to get external metric {namespace}/{metric}: {source}")]
    External { namespace: String, metric: String, source: Box<FetchError> },
}

/// A failed query of an API of metrics.
#[derive(Debug, thiserror::Error)]
pub(super) enum FetchError {
    #[error("unable to fetch metrics from {api} metrics API: {}", .source.server_message())]
    Request { api: &'static str, source: Error },
    #[error("no metrics returned from {api} metrics API")]
    Empty { api: &'static str },
    #[error(transparent)]
    Kind(#[from] NoSuchKind),
    #[error(transparent)]
    Selector(#[from] SelectorError),
}

/// Reads a resource metric of all Pods that `selector` selects, or of one container in each, in thousandths.
pub(super) async fn resource(
    client: &Client,
    resource: &str,
    container: &str,
    namespace: &str,
    selector: &str,
) -> Result<Samples, SourceError> {
    let api = "resource";
    let failed = |error: FetchError| SourceError::Resource {
        resource: resource.to_owned(),
        source: error.into(),
    };
    let options = ListOptions::labels(selector);
    let listed = client.list::<PodMetrics>(&POD_METRICS, namespace, &options).await;
    let items = listed.map_err(|source| failed(FetchError::Request { api, source }))?.items;
    if items.is_empty() {
        return Err(failed(FetchError::Empty { api }));
    }
    let usage = |pod: &PodMetrics| {
        let of = pod.containers.iter().filter(|c| container.is_empty() || c.name == container);
        let used: Option<Vec<i64>> =
            of.map(|c| c.usage.get(resource).map(Quantity::milli_value)).collect();
        // A Pod counts as missing if a container's usage is missing.
        used.filter(|used| !used.is_empty()).map(|used| used.iter().sum())
    };
    let sample = |pod: PodMetrics| {
        let window = Duration::from_nanos(u64::try_from(pod.window.nanos()).unwrap_or(0));
        let value = usage(&pod)?;
        Some((pod.metadata.name, Sample { at: pod.timestamp, window, value }))
    };
    Ok(items.into_iter().filter_map(sample).collect())
}

/// Reads a custom metric of all Pods that `selector` selects.
pub(super) async fn pods(
    client: &Client,
    metric: &Identifier,
    namespace: &str,
    selector: &str,
) -> Result<Samples, SourceError> {
    let path = format!("namespaces/{}/pods/*/{}", escape(namespace), escape(&metric.name));
    let items = custom(client, &path, &[("labelSelector", selector)], metric).await;
    let items = items
        .map_err(|error| SourceError::Pods { metric: metric.name.clone(), source: error.into() })?;
    let sample = |one: MetricValue| {
        let window = one.window_seconds.map_or(USUAL_WINDOW, Duration::from_secs);
        let value = one.value.milli_value();
        Some((one.described_object?.name, Sample { at: one.timestamp, window, value }))
    };
    Ok(items.into_iter().filter_map(sample).collect())
}

/// Reads a metric of an object. For kind Namespace it is always the metric of `namespace`.
pub(super) async fn object(
    client: &Client,
    metric: &Identifier,
    namespace: &str,
    object: &ObjectReference,
) -> Result<i64, SourceError> {
    let value = object_value(client, metric, namespace, object).await;
    let value = value.map_err(|error| SourceError::Object {
        metric: metric.name.clone(),
        kind: object.kind.clone(),
        namespace: namespace.to_owned(),
        name: object.name.clone(),
        source: error.into(),
    })?;
    Ok(value.milli_value())
}

async fn object_value(
    client: &Client,
    metric: &Identifier,
    namespace: &str,
    object: &ObjectReference,
) -> Result<Quantity, FetchError> {
    let group = object.api_version.split_once('/').map_or("", |(group, _)| group);
    let path = if group.is_empty() && object.kind == "Namespace" {
        format!("namespaces/{}/metrics/{}", escape(namespace), escape(&metric.name))
    } else {
        let resource = discovery::of_kind(client, &object.api_version, &object.kind).await?;
        let kind = if group.is_empty() {
            resource.plural.to_string()
        } else {
            format!("{}.{group}", resource.plural)
        };
        let (namespace, name) = (escape(namespace), escape(&object.name));
        format!("namespaces/{namespace}/{}/{name}/{}", escape(&kind), escape(&metric.name))
    };
    let items = custom(client, &path, &[], metric).await?;
    items.into_iter().next().map(|one| one.value).ok_or(FetchError::Empty { api: CUSTOM_API })
}

/// Returns the sum of an external metric's values.
pub(super) async fn external(
    client: &Client,
    metric: &Identifier,
    namespace: &str,
) -> Result<i64, SourceError> {
    let api = "external";
    let failed = |error: FetchError| SourceError::External {
        namespace: namespace.to_owned(),
        metric: metric.name.clone(),
        source: error.into(),
    };
    let (place, name) = (escape(namespace), escape(&metric.name));
    let path = format!("/apis/external.metrics.k8s.io/v1beta1/namespaces/{place}/{name}");
    let selector = selector(metric).map_err(|source| failed(source.into()))?;
    let path = format!("{path}{}", query(&[("labelSelector", &selector)]));
    let values = client.get_raw::<Values>(&path).await;
    let values = values.map_err(|source| failed(FetchError::Request { api, source }))?;
    if values.items.is_empty() {
        return Err(failed(FetchError::Empty { api }));
    }
    let values = values.items.iter().map(|one| one.value.milli_value());
    Ok(values.fold(0, i64::saturating_add))
}

/// Queries the custom metrics API in the preferred version that is served.
async fn custom(
    client: &Client,
    path: &str,
    parameters: &[(&str, &str)],
    metric: &Identifier,
) -> Result<Vec<MetricValue>, FetchError> {
    let selector = selector(metric)?;
    let parameters = [parameters, &[("metricLabelSelector", selector.as_str())]].concat();
    let mut first_error = None;
    for version in CUSTOM {
        let path = format!("/apis/custom.metrics.k8s.io/{version}/{path}{}", query(&parameters));
        match client.get_raw::<Values>(&path).await {
            Ok(values) if values.items.is_empty() => {
                return Err(FetchError::Empty { api: CUSTOM_API });
            }
            Ok(values) => return Ok(values.items),
            Err(error) => {
                let next = error.is_not_found();
                first_error.get_or_insert(error);
                if !next {
                    break;
                }
            }
        }
    }
    Err(match first_error {
        Some(source) => FetchError::Request { api: CUSTOM_API, source },
        None => FetchError::Empty { api: CUSTOM_API },
    })
}

/// Returns the metric's label selector as text; empty without one.
fn selector(metric: &Identifier) -> Result<String, SelectorError> {
    let Some(selector) = &metric.selector else { return Ok(String::new()) };
    Ok(LabelSelector::selector_of(Some(selector))?.to_string())
}

fn query(parameters: &[(&str, &str)]) -> String {
    let present = parameters.iter().filter(|(_, value)| !value.is_empty());
    let pairs: Vec<_> = present.map(|(name, value)| format!("{name}={}", escape(value))).collect();
    if pairs.is_empty() { String::new() } else { format!("?{}", pairs.join("&")) }
}
