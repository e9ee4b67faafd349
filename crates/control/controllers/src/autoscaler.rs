//! Scales targets by metrics: the HorizontalPodAutoscaler.

mod object;
mod proposals;
mod replicas;
mod sources;
mod stabilization;

use std::{collections::HashMap, sync::Arc};

use api_meta::{Selector, SelectorError, Timestamp, Tree as _};
use client::{Client, Error, ListOptions, Resource, WorkQueue};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::{
    context::{Context, synced},
    discovery,
    pods::OwnerOf,
    shared::Watched,
    views::Condition,
};
use object::Autoscaler;
use proposals::{MetricError, MetricQuery, SelectedPods};
use replicas::{ScaledPod, Terms, Tolerance};
use stabilization::{History, Sizes};

const AUTOSCALERS: Resource = Resource::HORIZONTAL_POD_AUTOSCALERS;

/// The number of attempts to write a scale before a conflict is returned.
const WRITES: usize = 5;

struct Reconciler {
    context: Context,
    autoscalers: Watched<Autoscaler>,
    queue: WorkQueue<String>,
    /// The state of each autoscaler, by its key.
    states: Mutex<HashMap<String, AutoscalerState>>,
}

#[derive(Default)]
struct AutoscalerState {
    history: History,
    selector: Option<Selector>,
}

pub(crate) fn start(context: Context) {
    let queue = WorkQueue::default();
    let autoscalers = context.watch::<Autoscaler>(AUTOSCALERS);
    // Ignore changes of the status: this controller writes it.
    autoscalers.on_key_if(&queue, |change| {
        change.old.map(|old| &old.spec) != change.new.map(|new| &new.spec)
    });
    let waits = vec![synced(&autoscalers)];
    let workers = context.config.autoscaling.workers;
    let own = Arc::new(Reconciler {
        context: context.clone(),
        autoscalers,
        queue: queue.clone(),
        states: Mutex::default(),
    });
    context.run(&queue, workers, waits, own, |own, key| async move { own.reconcile(&key).await });
}

/// A target's scale subresource, as read from the API.
struct Scale {
    path: String,
    object: Value,
}

impl Scale {
    async fn read(client: &Client, path: String) -> Result<Self, Error> {
        let object = client.get_raw(&path).await?;
        Ok(Self { path, object })
    }

    fn count(&self, part: &str) -> i32 {
        let count = self.object[part]["replicas"].as_i64().unwrap_or(0);
        i32::try_from(count).unwrap_or(i32::MAX)
    }

    /// Writes the replica count. Retries after a conflict, because a scale has no other field to overwrite.
    async fn write(mut self, client: &Client, replicas: i32) -> Result<(), Error> {
        for attempt in 1.. {
            self.object.put("spec.replicas", replicas);
            let body = self.object.to_string().into();
            match client.call(http::Method::PUT, &self.path, "application/json", body).await {
                Err(error) if error.is_conflict() && attempt < WRITES => {
                    self = Self::read(client, self.path).await?;
                }
                other => return other.map(drop),
            }
        }
        Ok(())
    }
}

/// The reason for which the metrics of an autoscaler recommend no size.
#[derive(Debug, thiserror::Error)]
enum RecommendationError {
    #[error("selector is required")]
    NoSelector,
    #[error("couldn't convert selector into a corresponding internal selector object: {0}")]
    Selector(#[source] SelectorError),
    #[error("unable to get pods while calculating replica count: {}", .0.server_message())]
    Pods(#[source] Error),
    #[error("pods by selector {selector} are controlled by multiple HPAs: [{}]", autoscalers.join(" "))]
    Ambiguous { selector: String, autoscalers: Vec<String> },
    #[error("invalid metrics ({failed} invalid out of {all}), first error is: {}",
        first.as_ref().map(MetricError::to_string).unwrap_or_default())]
    Metrics { failed: usize, all: usize, first: Option<MetricError> },
}

/// The results of reconciling one autoscaler, collected for its status.
struct Evaluation<'a> {
    context: &'a Context,
    owner: OwnerOf,
    autoscaler: &'a Autoscaler,
    conditions: Vec<Condition>,
    metrics: Vec<Value>,
    now: Timestamp,
}

impl Evaluation<'_> {
    fn condition(&mut self, kind: &str, status: bool, reason: &str, message: impl Into<String>) {
        let status = if status { "True" } else { "False" };
        let old = self.conditions.iter().position(|c| c.r#type == kind);
        let since = old.map(|i| &self.conditions[i]).filter(|c| c.status == status);
        let new = Condition {
            r#type: kind.into(),
            status: status.into(),
            reason: Some(reason.into()),
            message: Some(message.into()),
            last_transition_time: since
                .map_or(Some(self.now.to_seconds()), |c| c.last_transition_time),
            ..Condition::default()
        };
        match old {
            Some(index) => self.conditions[index] = new,
            None => self.conditions.push(new),
        }
    }

    fn warn(&self, reason: &str, message: &str) {
        self.context.events.warning(self.owner.object(), reason, message);
    }

    /// Reports an error as an Event and as the cause of inactive scaling.
    fn inactive(&mut self, reason: &str, error: RecommendationError) -> RecommendationError {
        let message = error.to_string();
        self.warn(reason, &message);
        self.condition("ScalingActive", false, reason, message);
        error
    }

    fn terms(&self) -> Terms {
        let settings = &self.context.config.autoscaling;
        Terms {
            tolerance: Tolerance::new(settings.tolerance, self.autoscaler.spec.behavior.as_ref()),
            cpu_initialization: settings.cpu_initialization,
            initial_readiness: settings.initial_readiness,
            now: self.now,
        }
    }
}

impl Reconciler {
    async fn reconcile(&self, key: &str) -> Result<(), Error> {
        let Some(autoscaler) = self.autoscalers.get(key) else {
            self.states().remove(key);
            return Ok(());
        };
        // Metrics change without an event, so requeue the key whatever the result.
        self.queue.add_after(key.to_owned(), self.context.config.autoscaling.period);
        let mut evaluation = Evaluation {
            context: &self.context,
            owner: OwnerOf::new(AUTOSCALERS, &autoscaler.metadata),
            autoscaler: &autoscaler,
            conditions: autoscaler.status.conditions.clone(),
            metrics: Vec::new(),
            now: self.context.now(),
        };
        let sizes = self.size(key, &mut evaluation).await;
        self.write_status(&evaluation, sizes).await
    }

    fn states(&self) -> parking_lot::MutexGuard<'_, HashMap<String, AutoscalerState>> {
        self.states.lock()
    }

    /// Scales the target and returns the result; `None` if the target's scale cannot be read.
    async fn size(&self, key: &str, evaluation: &mut Evaluation<'_>) -> Option<Sizing> {
        let spec = &evaluation.autoscaler.spec;
        let scale = self.scale(evaluation).await?;
        evaluation.condition(
            "AbleToScale",
            true,
            "SucceededGetScale",
            "the HPA controller was able to get the target's current scale",
        );
        let current = scale.count("spec");
        self.states()
            .entry(key.to_owned())
            .or_default()
            .history
            .record_current(current, evaluation.now);
        let unchanged = Sizing {
            current,
            desired: evaluation.autoscaler.status.desired_replicas,
            scaled: false,
        };
        let (desired, reason) = if current == 0 {
            let message = "scaling is disabled since the replica count of the target is zero";
            evaluation.condition("ScalingActive", false, "ScalingDisabled", message);
            (0, String::new())
        } else if current > spec.max_replicas {
            (spec.max_replicas, "Current number of replicas above Spec.MaxReplicas".to_owned())
        } else if current < spec.min() {
            (spec.min(), "Current number of replicas below Spec.MinReplicas".to_owned())
        } else {
            match self.recommend(key, evaluation, &scale).await {
                Some(recommended) => recommended,
                None => return Some(unchanged),
            }
        };
        if desired == current {
            return Some(Sizing { desired, ..unchanged });
        }
        match scale.write(&self.context.client, desired).await {
            Ok(()) => {
                let message =
                    format!("the HPA controller was able to update the target scale to {desired}");
                evaluation.condition("AbleToScale", true, "SucceededRescale", message);
                let message = format!("New size: {desired}; reason: {reason}");
                self.context.events.normal(evaluation.owner.object(), "SuccessfulRescale", message);
                let behavior = spec.behavior.as_ref();
                let mut states = self.states();
                let state = states.entry(key.to_owned()).or_default();
                state.history.record_step(desired - current, behavior, evaluation.now);
                Some(Sizing { current, desired, scaled: true })
            }
            Err(error) => {
                let error = error.server_message();
                let message = format!("New size: {desired}; reason: {reason}; error: {error}");
                evaluation.warn("FailedRescale", &message);
                let message =
                    format!("the HPA controller was unable to update the target scale: {error}");
                evaluation.condition("AbleToScale", false, "FailedUpdateScale", message);
                Some(unchanged)
            }
        }
    }

    async fn scale(&self, evaluation: &mut Evaluation<'_>) -> Option<Scale> {
        let target = &evaluation.autoscaler.spec.scale_target_ref;
        let client = &self.context.client;
        let error = match discovery::of_kind(client, &target.api_version, &target.kind).await {
            Ok(resource) => {
                let namespace = &evaluation.autoscaler.metadata.namespace;
                let path = resource.object(namespace, &target.name, "scale");
                match Scale::read(client, path).await {
                    Ok(scale) => return Some(scale),
                    Err(error) => error.server_message(),
                }
            }
            Err(error) => error.to_string(),
        };
        evaluation.warn("FailedGetScale", &error);
        let message =
            format!("the HPA controller was unable to get the target's current scale: {error}");
        evaluation.condition("AbleToScale", false, "FailedGetScale", message);
        None
    }

    /// Returns the recommended size, limited by the scaling behavior, and the reason. `None` if no metric is usable.
    async fn recommend(
        &self,
        key: &str,
        evaluation: &mut Evaluation<'_>,
        scale: &Scale,
    ) -> Option<(i32, String)> {
        let spec = &evaluation.autoscaler.spec;
        let current = scale.count("spec");
        let (proposed, metric) = match self.evaluate_metrics(key, evaluation, scale).await {
            Ok(largest) => largest,
            Err(error) => {
                evaluation.warn("FailedComputeMetricsReplicas", &error.to_string());
                return None;
            }
        };
        let reason = match proposed.cmp(&current) {
            std::cmp::Ordering::Greater => format!("{metric} above target"),
            _ => "All metrics below target".to_owned(),
        };
        let sizes = Sizes { min: spec.min(), max: spec.max_replicas, current };
        let window = self.context.config.autoscaling.downscale_stabilization;
        let limited_size = {
            let mut states = self.states();
            let history = &mut states.entry(key.to_owned()).or_default().history;
            history.limit(sizes, proposed, spec.behavior.as_ref(), window, evaluation.now)
        };
        evaluation.condition("AbleToScale", true, limited_size.able.0, limited_size.able.1);
        let (limited, why, message) = limited_size.limited;
        evaluation.condition("ScalingLimited", limited, why, message);
        Some((limited_size.replicas, reason))
    }

    /// Returns the largest proposal of all metrics and a description of its metric. A metric that fails is ignored,
    /// unless the others would shrink the target.
    async fn evaluate_metrics(
        &self,
        key: &str,
        evaluation: &mut Evaluation<'_>,
        scale: &Scale,
    ) -> Result<(i32, String), RecommendationError> {
        let selected = self.pods(key, evaluation, scale).await?;
        let metrics = &evaluation.autoscaler.spec.metrics;
        let query = MetricQuery {
            client: &self.context.client,
            namespace: &evaluation.autoscaler.metadata.namespace,
            selected: &selected,
            current: scale.count("spec"),
            observed: scale.count("status"),
            terms: evaluation.terms(),
        };
        let (mut best, mut failed) = (None::<(i32, String)>, Vec::new());
        for metric in metrics {
            match query.propose(metric).await {
                Ok(result) => {
                    evaluation.metrics.push(result.status);
                    let replicas = result.proposal.replicas;
                    if best.as_ref().is_none_or(|(largest, _)| replicas > *largest) {
                        best = Some((replicas, result.description));
                    }
                }
                Err(error) => {
                    // A metric without a value keeps its position in the status.
                    evaluation.metrics.push(json!({"type": ""}));
                    evaluation.warn(error.reason(), &error.to_string());
                    failed.push(error);
                }
            }
        }
        match best {
            Some((replicas, name)) if failed.is_empty() || replicas >= scale.count("spec") => {
                let message = format!(
                    "the HPA was able to successfully calculate a replica count from {name}"
                );
                evaluation.condition("ScalingActive", true, "ValidMetricFound", message);
                Ok((replicas, name))
            }
            _ => {
                let (count, all) = (failed.len(), metrics.len());
                let first = failed.into_iter().next();
                let reason = first.as_ref().map_or("InvalidMetricSourceType", MetricError::reason);
                let cause = first.as_ref().map(MetricError::to_string).unwrap_or_default();
                let message = format!("the HPA was unable to compute the replica count: {cause}");
                evaluation.condition("ScalingActive", false, reason, message);
                Err(RecommendationError::Metrics { failed: count, all, first })
            }
        }
    }

    /// Returns the target's Pods. Fails if another autoscaler selects one of them.
    async fn pods(
        &self,
        key: &str,
        evaluation: &mut Evaluation<'_>,
        scale: &Scale,
    ) -> Result<SelectedPods, RecommendationError> {
        let text = scale.object.text("status.selector").to_owned();
        if text.is_empty() {
            let error = RecommendationError::NoSelector;
            evaluation.warn("SelectorRequired", &error.to_string());
            let message = "the HPA target's scale is missing a selector";
            evaluation.condition("ScalingActive", false, "InvalidSelector", message);
            return Err(error);
        }
        let selector: Selector = text.parse().map_err(|error| {
            evaluation.inactive("InvalidSelector", RecommendationError::Selector(error))
        })?;
        let namespace = &evaluation.autoscaler.metadata.namespace;
        let options = ListOptions::labels(&text);
        let listed = self.context.client.list(&Resource::PODS, namespace, &options).await;
        let listed = listed.map_err(RecommendationError::Pods)?;
        let selected = SelectedPods { text, pods: listed.items };
        let mut autoscalers = self.rivals(key, namespace, selector, &selected.pods);
        if !autoscalers.is_empty() {
            autoscalers.insert(0, key.to_owned());
            let error = RecommendationError::Ambiguous { selector: selected.text, autoscalers };
            return Err(evaluation.inactive("AmbiguousSelector", error));
        }
        Ok(selected)
    }

    /// Returns the other autoscalers of the namespace that select one of these Pods.
    fn rivals(
        &self,
        key: &str,
        namespace: &str,
        selector: Selector,
        pods: &[ScaledPod],
    ) -> Vec<String> {
        let mut states = self.states();
        states.entry(key.to_owned()).or_default().selector = Some(selector);
        let prefix = format!("{namespace}/");
        let others = states.iter().filter(|(other, _)| *other != key && other.starts_with(&prefix));
        let claims = |state: &AutoscalerState| {
            let selector = state.selector.as_ref();
            selector.is_some_and(|s| pods.iter().any(|pod| s.matches(pod.labels())))
        };
        let mut rivals: Vec<String> =
            others.filter(|(_, state)| claims(state)).map(|(other, _)| other.clone()).collect();
        rivals.sort();
        rivals
    }

    async fn write_status(
        &self,
        evaluation: &Evaluation<'_>,
        sized: Option<Sizing>,
    ) -> Result<(), Error> {
        let meta = &evaluation.autoscaler.metadata;
        let client = &self.context.client;
        let mut object: Value = client.get(&AUTOSCALERS, &meta.namespace, &meta.name).await?;
        if *object.at("metadata.uid") != meta.uid.as_str() {
            return Ok(());
        }
        let old = object.clone();
        object.put("status.conditions", json!(evaluation.conditions));
        if let Some(sized) = sized {
            let metrics = (!evaluation.metrics.is_empty()).then_some(&evaluation.metrics);
            object.put("status.currentReplicas", sized.current);
            object.put("status.desiredReplicas", sized.desired);
            object.put("status.currentMetrics", json!(metrics));
            if sized.scaled {
                object.put("status.lastScaleTime", json!(evaluation.now.to_seconds()));
            }
        }
        if object == old {
            return Ok(());
        }
        let written = client
            .update_status::<_, Value>(&AUTOSCALERS, &meta.namespace, &meta.name, &object)
            .await;
        if let Err(error) = &written {
            evaluation.warn("FailedUpdateStatus", &error.server_message());
        }
        written.map(drop)
    }
}

/// The current and the desired size of a target. `scaled` is `true` if the scale was written now.
struct Sizing {
    current: i32,
    desired: i32,
    scaled: bool,
}
