//! Computes the proposal of each metric of an autoscaler, and its entry in the status.

use api_meta::{Quantity, QuantityFormat, Tree as _};
use client::Client;
use serde_json::{Value, json};

use super::{
    object::{Metric, NamedMetric, ResourceMetric},
    replicas::{self, PodTarget, Proposal, Samples, ScaledPod, Terms},
    sources,
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
    pub(super) there: i32,
    pub(super) terms: Terms,
}

impl MetricQuery<'_> {
    /// Evaluates one metric: its proposal, its description and its status entry. The error is a reason and a message.
    pub(super) async fn propose(
        &self,
        metric: &Metric,
    ) -> Result<(Proposal, String, Value), (&'static str, String)> {
        let kind = metric.r#type.as_str();
        match (kind, metric) {
            ("Resource", Metric { resource: Some(source), .. }) => {
                self.by_resource(kind, source).await.map_err(|e| {
                    let what = format!("failed to get {} resource metric value", source.name);
                    ("FailedGetResourceMetric", format!("{what}: {e}"))
                })
            }
            ("ContainerResource", Metric { container_resource: Some(source), .. }) => {
                self.by_resource(kind, source).await.map_err(|e| {
                    let what = format!("failed to get {} container metric value", source.container);
                    ("FailedGetContainerResourceMetric", format!("{what}: {e}"))
                })
            }
            ("Pods", Metric { pods: Some(source), .. }) => {
                self.by_pods(source).await.map_err(|e| {
                    ("FailedGetPodsMetric", format!("failed to get pods metric value: {e}"))
                })
            }
            ("Object", Metric { object: Some(source), .. }) => {
                self.by_object(source).await.map_err(|e| {
                    ("FailedGetObjectMetric", format!("failed to get object metric value: {e}"))
                })
            }
            ("External", Metric { external: Some(source), .. }) => {
                self.by_external(source).await.map_err(|e| {
                    let what =
                        format!("failed to get {} external metric value", source.metric.name);
                    ("FailedGetExternalMetric", format!("{what}: {e}"))
                })
            }
            _ => Err(("InvalidMetricSourceType", format!("unknown metric source type {kind:?}"))),
        }
    }

    async fn by_resource(
        &self,
        kind: &str,
        source: &ResourceMetric,
    ) -> Result<(Proposal, String, Value), String> {
        let (name, container, target) = (&source.name, &source.container, &source.target);
        let (target, failed, words) =
            match (&target.average_value, target.average_utilization) {
                (Some(value), _) => {
                    (PodTarget::Average(value.milli_value()), "usage", format!("{name} resource"))
                }
                (None, Some(percent)) => {
                    let of = if kind == "Resource" { "" } else { " container" };
                    let words = format!("{name}{of} resource utilization (percentage of request)");
                    (PodTarget::Utilization { percent, container }, "utilization", words)
                }
                (None, None) => return Err(
                    "invalid resource metric source: neither an average utilization target nor an \
                                        average value (usage) target was set"
                        .into(),
                ),
            };
        let namespace = self.namespace;
        let failed = |error: String| format!("failed to get {name} {failed}: {error}");
        let samples =
            sources::resource(self.client, name, container, namespace, &self.selected.text).await;
        let samples: Samples = samples.map_err(failed)?;
        let current = self.current;
        let terms = self.terms;
        let proposal =
            replicas::by_pods(&self.selected.pods, samples, name, &target, current, &terms)
                .map_err(failed)?;
        let mut status =
            json!({"name": name, "current": {"averageValue": amount(name, proposal.value)}});
        if let Some(utilization) = proposal.utilization {
            status.put("current.averageUtilization", json!(utilization));
        }
        let field = if kind == "Resource" { "resource" } else { "containerResource" };
        if !container.is_empty() {
            status.put("container", json!(container));
        }
        Ok((proposal, words, json!({"type": kind, field: status})))
    }

    async fn by_pods(&self, source: &NamedMetric) -> Result<(Proposal, String, Value), String> {
        let (client, metric) = (self.client, &source.metric);
        let Some(target) = &source.target.average_value else {
            return Err("invalid pods metric source: no average value target was set".into());
        };
        let namespace = self.namespace;
        let samples = sources::pods(client, metric, namespace, &self.selected.text).await?;
        let target = PodTarget::Average(target.milli_value());
        let (current, terms) = (self.current, self.terms);
        let proposal =
            replicas::by_pods(&self.selected.pods, samples, "", &target, current, &terms)?;
        let current = json!({"averageValue": amount("", proposal.value)});
        let status = json!({"type": "Pods", "pods": {"metric": metric, "current": current}});
        Ok((proposal, format!("pods metric {}", metric.name), status))
    }

    async fn by_object(&self, source: &NamedMetric) -> Result<(Proposal, String, Value), String> {
        let (metric, object) = (&source.metric, &source.described_object);
        let namespace = self.namespace;
        let value = sources::object(self.client, metric, namespace, object).await?;
        let (proposal, current) = self.propose_for_value(source, value).ok_or_else(|| {
            "invalid object metric source: neither a value target nor an average value target was set".to_owned()
        })?;
        let status = json!({"metric": metric, "describedObject": object, "current": current});
        let words = format!("{} metric {}", object.kind, metric.name);
        Ok((proposal?, words, json!({"type": "Object", "object": status})))
    }

    async fn by_external(&self, source: &NamedMetric) -> Result<(Proposal, String, Value), String> {
        let metric = &source.metric;
        let namespace = self.namespace;
        let value = sources::external(self.client, metric, namespace).await?;
        let (proposal, current) = self.propose_for_value(source, value).ok_or_else(|| {
            "invalid external metric source: neither a value target nor an average value target was set".to_owned()
        })?;
        let status =
            json!({"type": "External", "external": {"metric": metric, "current": current}});
        Ok((proposal?, format!("external metric {}", metric.name), status))
    }

    /// Proposes a size from a value that is compared as a whole or per replica; `None` if the target has neither form.
    fn propose_for_value(
        &self,
        source: &NamedMetric,
        value: i64,
    ) -> Option<(Result<Proposal, String>, Value)> {
        let tolerance = self.terms.tolerance;
        if let Some(share) = &source.target.average_value {
            let there = self.there;
            let proposal = replicas::by_share(value, share.milli_value(), there, tolerance);
            return Some((Ok(proposal), json!({"averageValue": amount("", proposal.value)})));
        }
        let target = source.target.value.as_ref()?.milli_value();
        let current = self.current;
        let proposal = replicas::by_value(&self.selected.pods, value, target, current, tolerance);
        Some((proposal, json!({"value": amount("", value)})))
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
