//! Computes the proposal of each metric of an autoscaler, and its entry in the status.

use api_meta::{Quantity, QuantityFormat, Tree as _};
use client::Client;
use serde_json::{Value, json};

use super::{
    object::{Metric, NamedMetric, ResourceMetric},
    replicas::{self, PodTarget, Proposal, ReplicaError, ScaledPod, Terms},
    sources::{self, SourceError},
};

/// The Pods of a target, and the label selector as text for metric queries.
pub(super) struct SelectedPods {
    pub(super) text: String,
    pub(super) pods: Vec<ScaledPod>,
}

/// A target whose metrics are queried, and the client for the queries.
pub(super) struct MetricQuery<'a> {
    pub(super) client: &'a Client,
    pub(super) namespace: &'a str,
    pub(super) selected: &'a SelectedPods,
    /// The target's `spec.replicas`.
    pub(super) current: i32,
    /// The target's `status.replicas`.
    pub(super) observed: i32,
    pub(super) terms: Terms,
}

/// An evaluated metric.
pub(super) struct MetricResult {
    pub(super) proposal: Proposal,
    /// The description for conditions and Events.
    pub(super) description: String,
    /// The entry of the autoscaler's status.
    pub(super) status: Value,
}

/// A metric that proposes no size.
#[derive(Debug, thiserror::Error)]
pub(super) enum MetricError {
    #[error("failed to get {metric} resource metric value: {source}")]
    Resource { metric: String, source: ValueError },
    #[error("failed to get {container} container metric value: {source}")]
    ContainerResource { container: String, source: ValueError },
    #[error("failed to get pods metric value: {0}")]
    Pods(#[source] ValueError),
    #[error("failed to get object metric value: {0}")]
    Object(#[source] ValueError),
    #[error("failed to get {metric} external metric value: {source}")]
    External { metric: String, source: ValueError },
    #[error("unknown metric source type {0:?}")]
    UnknownType(String),
}

impl MetricError {
    /// Returns the reason of the condition and of the Event.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::Resource { .. } => "FailedGetResourceMetric",
            Self::ContainerResource { .. } => "FailedGetContainerResourceMetric",
            Self::Pods(_) => "FailedGetPodsMetric",
            Self::Object(_) => "FailedGetObjectMetric",
            Self::External { .. } => "FailedGetExternalMetric",
            Self::UnknownType(_) => "InvalidMetricSourceType",
        }
    }
}

/// A metric value that cannot be read or compared with a target.
#[derive(Debug, thiserror::Error)]
pub(super) enum ValueError {
    #[error("failed to get {resource} {figure}: {source}")]
    Resource { resource: String, figure: &'static str, source: Box<ValueError> },
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error(transparent)]
    Replicas(#[from] ReplicaError),
    #[error("invalid {kind} metric source: {problem}")]
    Target { kind: &'static str, problem: &'static str },
}

const NO_UTILIZATION: &str =
    "neither an average utilization target nor an average value (usage) target was set";
const NO_VALUE: &str = "neither a value target nor an average value target was set";

impl MetricQuery<'_> {
    /// Evaluates one metric.
    pub(super) async fn propose(&self, metric: &Metric) -> Result<MetricResult, MetricError> {
        let kind = metric.r#type.as_str();
        match (kind, metric) {
            ("Resource", Metric { resource: Some(source), .. }) => {
                let result = self.by_resource(kind, source).await;
                let metric = source.name.clone();
                result.map_err(|source| MetricError::Resource { metric, source })
            }
            ("ContainerResource", Metric { container_resource: Some(source), .. }) => {
                let result = self.by_resource(kind, source).await;
                let container = source.container.clone();
                result.map_err(|source| MetricError::ContainerResource { container, source })
            }
            ("Pods", Metric { pods: Some(source), .. }) => {
                self.by_pods(source).await.map_err(MetricError::Pods)
            }
            ("Object", Metric { object: Some(source), .. }) => {
                self.by_object(source).await.map_err(MetricError::Object)
            }
            ("External", Metric { external: Some(source), .. }) => {
                let result = self.by_external(source).await;
                let metric = source.metric.name.clone();
                result.map_err(|source| MetricError::External { metric, source })
            }
            _ => Err(MetricError::UnknownType(kind.to_owned())),
        }
    }

    async fn by_resource(
        &self,
        kind: &str,
        source: &ResourceMetric,
    ) -> Result<MetricResult, ValueError> {
        let (name, container, target) = (&source.name, &source.container, &source.target);
        let (target, figure, description) =
            match (&target.average_value, target.average_utilization) {
                (Some(value), _) => {
                    (PodTarget::Average(value.milli_value()), "usage", format!("{name} resource"))
                }
                (None, Some(percent)) => {
                    let of = if kind == "Resource" { "" } else { " container" };
                    let text = format!("{name}{of} resource utilization (percentage of request)");
                    (PodTarget::Utilization { percent, container }, "utilization", text)
                }
                (None, None) => {
                    return Err(ValueError::Target { kind: "resource", problem: NO_UTILIZATION });
                }
            };
        let failed = |source: ValueError| ValueError::Resource {
            resource: name.clone(),
            figure,
            source: source.into(),
        };
        let (namespace, selector) = (self.namespace, &self.selected.text);
        let samples = sources::resource(self.client, name, container, namespace, selector).await;
        let samples = samples.map_err(|error| failed(error.into()))?;
        let pods = &self.selected.pods;
        let proposal = replicas::by_pods(pods, samples, name, &target, self.current, &self.terms)
            .map_err(|error| failed(error.into()))?;
        let mut status =
            json!({"name": name, "current": {"averageValue": amount(name, proposal.value)}});
        if let Some(utilization) = proposal.utilization {
            status.put("current.averageUtilization", json!(utilization));
        }
        let field = if kind == "Resource" { "resource" } else { "containerResource" };
        if !container.is_empty() {
            status.put("container", json!(container));
        }
        let status = json!({"type": kind, field: status});
        Ok(MetricResult { proposal, description, status })
    }

    async fn by_pods(&self, source: &NamedMetric) -> Result<MetricResult, ValueError> {
        let (client, metric) = (self.client, &source.metric);
        let Some(target) = &source.target.average_value else {
            let problem = "no average value target was set";
            return Err(ValueError::Target { kind: "pods", problem });
        };
        let namespace = self.namespace;
        let samples = sources::pods(client, metric, namespace, &self.selected.text).await?;
        let target = PodTarget::Average(target.milli_value());
        let (current, terms) = (self.current, self.terms);
        let proposal =
            replicas::by_pods(&self.selected.pods, samples, "", &target, current, &terms)?;
        let current = json!({"averageValue": amount("", proposal.value)});
        let status = json!({"type": "Pods", "pods": {"metric": metric, "current": current}});
        let description = format!("pods metric {}", metric.name);
        Ok(MetricResult { proposal, description, status })
    }

    async fn by_object(&self, source: &NamedMetric) -> Result<MetricResult, ValueError> {
        let (metric, object) = (&source.metric, &source.described_object);
        let namespace = self.namespace;
        let value = sources::object(self.client, metric, namespace, object).await?;
        let (proposal, current) = self.propose_for_value("object", source, value)?;
        let status = json!({"metric": metric, "describedObject": object, "current": current});
        let status = json!({"type": "Object", "object": status});
        let description = format!("{} metric {}", object.kind, metric.name);
        Ok(MetricResult { proposal, description, status })
    }

    async fn by_external(&self, source: &NamedMetric) -> Result<MetricResult, ValueError> {
        let metric = &source.metric;
        let namespace = self.namespace;
        let value = sources::external(self.client, metric, namespace).await?;
        let (proposal, current) = self.propose_for_value("external", source, value)?;
        let status =
            json!({"type": "External", "external": {"metric": metric, "current": current}});
        let description = format!("external metric {}", metric.name);
        Ok(MetricResult { proposal, description, status })
    }

    /// Proposes a size from a value that is compared as a whole or per replica. Returns the current value, too, for the
    /// status. `kind` names the source in errors.
    fn propose_for_value(
        &self,
        kind: &'static str,
        source: &NamedMetric,
        value: i64,
    ) -> Result<(Proposal, Value), ValueError> {
        let tolerance = self.terms.tolerance;
        if let Some(share) = &source.target.average_value {
            let share = share.milli_value();
            let proposal = replicas::by_share(value, share, self.observed, tolerance);
            return Ok((proposal, json!({"averageValue": amount("", proposal.value)})));
        }
        let Some(target) = &source.target.value else {
            return Err(ValueError::Target { kind, problem: NO_VALUE });
        };
        let (pods, target) = (&self.selected.pods, target.milli_value());
        let proposal = replicas::by_value(pods, value, target, self.current, tolerance)?;
        Ok((proposal, json!({"value": amount("", value)})))
    }
}

/// Formats thousandths as a quantity. Memory uses binary units, as metrics-server does.
fn amount(resource: &str, thousandths: i64) -> Value {
    if resource == "memory" {
        let bytes = thousandths.saturating_add(999).div_euclid(1000);
        return json!(Quantity::new(bytes, QuantityFormat::BinarySi));
    }
    json!(Quantity::parse(&format!("{thousandths}m")).unwrap_or_else(|_| {
        Quantity::new(thousandths.div_euclid(1000), QuantityFormat::DecimalSi)
    }))
}
