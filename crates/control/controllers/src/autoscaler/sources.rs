//! Reads metrics from the API groups that metrics-server and metric adapters serve.

use std::{collections::BTreeMap, time::Duration};

use api_config::GoDuration;
use api_meta::{LabelSelector, Quantity, Timestamp};
use client::{Client, Error, ListOptions, Resource, escape};
use serde::Deserialize;

use super::{
    object::{Identifier, ObjectReference},
    replicas::{Sample, Samples},
};
use crate::{discovery, pods::server_message};

const POD_METRICS: Resource =
    Resource::constant("metrics.k8s.io", "v1beta1", "pods", "PodMetrics", true);

/// The versions of the custom metrics API, preferred first.
const CUSTOM: [&str; 2] = ["v1beta2", "v1beta1"];

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

/// Reads a resource metric of all Pods that `selector` selects, or of one container in each, in thousandths.
pub(super) async fn resource(
    client: &Client,
    resource: &str,
    container: &str,
    namespace: &str,
    selector: &str,
) -> Result<Samples, String> {
    let unable = |error: String| {
        format!(
            "unable to get metrics for resource {resource}: unable to fetch metrics from resource metrics API: {error}"
        )
    };
    let options = ListOptions::labels(selector);
    let listed = client.list::<PodMetrics>(&POD_METRICS, namespace, &options).await;
    let items = listed.map_err(|error| unable(server_message(&error)))?.items;
    if items.is_empty() {
        return Err(format!(
            "unable to get metrics for resource {resource}: no metrics returned from resource metrics API"
        ));
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
) -> Result<Samples, String> {
    let path = format!("namespaces/{}/pods/*/{}", escape(namespace), escape(&metric.name));
    let items = custom(client, &path, &[("labelSelector", selector)], metric).await;
    let items = items.map_err(|error| format!("unable to get metric {}: {error}", metric.name))?;
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
) -> Result<i64, String> {
    let unable = |error: String| {
        let (name, kind, object) = (&metric.name, &object.kind, &object.name);
        format!("unable to get metric {name}: {kind} on {namespace} {object}/{error}")
    };
    let group = object.api_version.split_once('/').map_or("", |(group, _)| group);
    let path = if group.is_empty() && object.kind == "Namespace" {
        format!("namespaces/{}/metrics/{}", escape(namespace), escape(&metric.name))
    } else {
        let found = discovery::of_kind(client, &object.api_version, &object.kind).await;
        let found = found.map_err(unable)?;
        let kind = if group.is_empty() {
            found.plural.to_string()
        } else {
            format!("{}.{group}", found.plural)
        };
        let (namespace, name) = (escape(namespace), escape(&object.name));
        format!("namespaces/{namespace}/{}/{name}/{}", escape(&kind), escape(&metric.name))
    };
    let items = custom(client, &path, &[], metric).await.map_err(unable)?;
    match items.first() {
        Some(one) => Ok(one.value.milli_value()),
        None => Err(unable("no metrics returned from custom metrics API".into())),
    }
}

/// Returns the sum of an external metric's values.
pub(super) async fn external(
    client: &Client,
    metric: &Identifier,
    namespace: &str,
) -> Result<i64, String> {
    let unable = |error: String| {
        format!("unable to get external metric {namespace}/{}: {error}", metric.name)
    };
    let (place, name) = (escape(namespace), escape(&metric.name));
    let path = format!("/apis/external.metrics.k8s.io/v1beta1/namespaces/{place}/{name}");
    let selector = selector(metric).map_err(unable)?;
    let path = format!("{path}{}", query(&[("labelSelector", &selector)]));
    let unfetched = |error: Error| {
        unable(format!(
            "unable to fetch metrics from external metrics API: {}",
            server_message(&error)
        ))
    };
    let values: Values = client.get_raw(&path).await.map_err(unfetched)?;
    if values.items.is_empty() {
        return Err(unable("no metrics returned from external metrics API".into()));
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
) -> Result<Vec<MetricValue>, String> {
    let selector = selector(metric)?;
    let parameters = [parameters, &[("metricLabelSelector", selector.as_str())]].concat();
    let mut refused = None;
    for version in CUSTOM {
        let path = format!("/apis/custom.metrics.k8s.io/{version}/{path}{}", query(&parameters));
        match client.get_raw::<Values>(&path).await {
            Ok(values) if values.items.is_empty() => {
                return Err("no metrics returned from custom metrics API".into());
            }
            Ok(values) => return Ok(values.items),
            Err(error) => {
                let next = error.is_not_found();
                refused.get_or_insert_with(|| server_message(&error));
                if !next {
                    break;
                }
            }
        }
    }
    let error = refused.unwrap_or_default();
    Err(format!("unable to fetch metrics from custom metrics API: {error}"))
}

fn selector(metric: &Identifier) -> Result<String, String> {
    let Some(selector) = &metric.selector else { return Ok(String::new()) };
    LabelSelector::selector_of(Some(selector))
        .map(|selector| selector.to_string())
        .map_err(|error| error.to_string())
}

fn query(parameters: &[(&str, &str)]) -> String {
    let given = parameters.iter().filter(|(_, value)| !value.is_empty());
    let pairs: Vec<_> = given.map(|(name, value)| format!("{name}={}", escape(value))).collect();
    if pairs.is_empty() { String::new() } else { format!("?{}", pairs.join("&")) }
}
