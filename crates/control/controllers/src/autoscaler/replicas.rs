//! Computes the replica count for a metric from Pods and samples. Pure functions; amounts are in thousandths.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use api_meta::{ObjectMeta, Quantity, Timestamp, null_default};
use serde::Deserialize;

use super::object::{Behavior, Rules};
use crate::views::{Labels, PodStatus, condition};

/// The fields of a Pod that the autoscaler reads, including resource requests.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ScaledPod {
    pub(super) metadata: ObjectMeta,
    pub(super) spec: ScaledPodSpec,
    pub(super) status: PodStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ScaledPodSpec {
    #[serde(deserialize_with = "null_default")]
    containers: Vec<ScaledContainer>,
    #[serde(deserialize_with = "null_default")]
    init_containers: Vec<ScaledContainer>,
    resources: Option<Resources>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ScaledContainer {
    name: String,
    restart_policy: Option<String>,
    #[serde(deserialize_with = "null_default")]
    resources: Resources,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Resources {
    #[serde(deserialize_with = "null_default")]
    requests: BTreeMap<String, Quantity>,
}

/// The value of a metric for one Pod.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sample {
    pub(super) at: Timestamp,
    /// The time over which the value is averaged.
    pub(super) window: Duration,
    pub(super) value: i64,
}

/// Samples by Pod name.
pub(super) type Samples = BTreeMap<String, Sample>;

/// The deviation from the target ratio that causes no scaling.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tolerance {
    up: f64,
    down: f64,
}

impl Tolerance {
    pub(super) fn new(default: f64, behavior: Option<&Behavior>) -> Self {
        let of = |rules: Option<&Rules>| {
            rules.and_then(|rules| rules.tolerance.as_ref()).map_or(default, Quantity::as_f64)
        };
        Self {
            up: of(behavior.and_then(|b| b.scale_up.as_ref())),
            down: of(behavior.and_then(|b| b.scale_down.as_ref())),
        }
    }

    fn holds(self, ratio: f64) -> bool {
        1.0 - self.down <= ratio && ratio <= 1.0 + self.up
    }
}

/// The parameters of the calculation that do not depend on the metric.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    pub(super) tolerance: Tolerance,
    /// The time after a Pod's start in which its CPU usage counts only if the Pod is ready.
    pub(super) cpu_initialization: Duration,
    /// A Pod that became unready within this time after its start counts as never ready.
    pub(super) initial_readiness: Duration,
    pub(super) now: Timestamp,
}

/// The size that a metric requires.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Proposal {
    pub(super) replicas: i32,
    /// The mean of the samples, or the object's value.
    pub(super) value: i64,
    /// Usage in percent of the requests.
    pub(super) utilization: Option<i32>,
}

/// The target of an average over Pods.
pub(super) enum PodTarget<'a> {
    /// Percent of the requests of the Pods, or of this container if it is not empty.
    Utilization {
        percent: i32,
        container: &'a str,
    },
    Average(i64),
}

/// The reason for which no size can be computed.
#[derive(Debug, PartialEq, thiserror::Error)]
pub(super) enum ReplicaError {
    #[error("no pods returned by selector while calculating replica count")]
    NoPods,
    #[error("unable to calculate ready pods: {}", Self::NoPods)]
    NoneReady,
    #[error("did not receive metrics for targeted pods (pods might be unready)")]
    MissingSamples,
    #[error("no metrics returned matched known pods")]
    UnmatchedSamples,
    #[error("missing request for {resource} in container {container} of Pod {pod}")]
    MissingRequest { resource: String, container: String, pod: String },
    #[error("container {container} not found in Pod {pod}")]
    UnknownContainer { container: String, pod: String },
}

/// Computes the size from a metric of each Pod. `resource` is empty for a metric that is not a resource.
pub(super) fn by_pods(
    pods: &[ScaledPod],
    mut samples: Samples,
    resource: &str,
    target: &PodTarget<'_>,
    current: i32,
    terms: &Terms,
) -> Result<Proposal, ReplicaError> {
    if pods.is_empty() {
        return Err(ReplicaError::NoPods);
    }
    let groups = Groups::of(pods, &samples, resource, terms);
    samples.retain(|name, _| !groups.ignored.contains(name) && !groups.unready.contains(name));
    if samples.is_empty() {
        return Err(ReplicaError::MissingSamples);
    }
    let measure = Measure::new(pods, resource, target)?;
    let Usage { ratio, mean: value, utilization } = measure.compare(&samples)?;
    let proposal = |replicas| Proposal { replicas, value, utilization };
    let unready_matter = !groups.unready.is_empty() && ratio > 1.0;
    if !unready_matter && groups.missing.is_empty() {
        return Ok(proposal(if terms.tolerance.holds(ratio) {
            current
        } else {
            count(ratio * groups.ready as f64)
        }));
    }
    // Pods without a sample count with the value that changes the size least.
    let assume = |name: &String, value| {
        (name.clone(), Sample { at: terms.now, window: Duration::ZERO, value })
    };
    if ratio < 1.0 {
        samples.extend(groups.missing.iter().map(|name| assume(name, measure.full(name))));
    } else if ratio > 1.0 {
        samples.extend(groups.missing.iter().map(|name| assume(name, 0)));
    }
    if unready_matter {
        samples.extend(groups.unready.iter().map(|name| assume(name, 0)));
    }
    let new_ratio = measure.compare(&samples)?.ratio;
    let turned = (ratio < 1.0 && new_ratio > 1.0) || (ratio > 1.0 && new_ratio < 1.0);
    let replicas = count(new_ratio * samples.len() as f64);
    let backwards =
        (new_ratio < 1.0 && replicas > current) || (new_ratio > 1.0 && replicas < current);
    let stay = terms.tolerance.holds(new_ratio) || turned || backwards;
    Ok(proposal(if stay { current } else { replicas }))
}

/// Computes the size from one value that all replicas share.
pub(super) fn by_value(
    pods: &[ScaledPod],
    value: i64,
    target: i64,
    current: i32,
    tolerance: Tolerance,
) -> Result<Proposal, ReplicaError> {
    let ratio = value as f64 / target as f64;
    let replicas = if current == 0 {
        count(ratio)
    } else if tolerance.holds(ratio) {
        current
    } else if pods.is_empty() {
        return Err(ReplicaError::NoneReady);
    } else {
        let ready = pods.iter().filter(|p| p.status.phase == "Running" && p.is_ready()).count();
        count(ratio * ready as f64)
    };
    Ok(Proposal { replicas, value, utilization: None })
}

/// Computes the size from a total value and the target share of each replica. `replicas` is the current number.
pub(super) fn by_share(value: i64, share: i64, replicas: i32, tolerance: Tolerance) -> Proposal {
    let each = |replicas: i32| value as f64 / f64::from(replicas);
    let holds = tolerance.holds(each(replicas) / share as f64);
    let desired = if holds { replicas } else { count(value as f64 / share as f64) };
    Proposal { replicas: desired, value: each(replicas).ceil() as i64, utilization: None }
}

/// Rounds up and clamps to the range of a replica count.
fn count(number: f64) -> i32 {
    number.ceil().clamp(0.0, i32::MAX.into()) as i32
}

/// Names of Pods, grouped by how their samples are used.
#[derive(Debug, Default)]
struct Groups<'a> {
    ready: usize,
    unready: BTreeSet<&'a String>,
    missing: BTreeSet<&'a String>,
    ignored: BTreeSet<&'a String>,
}

impl<'a> Groups<'a> {
    fn of(pods: &'a [ScaledPod], samples: &Samples, resource: &str, terms: &Terms) -> Self {
        let mut groups = Self::default();
        for pod in pods {
            let name = &pod.metadata.name;
            let sample = samples.get(name);
            if pod.metadata.terminating() || pod.status.phase == "Failed" {
                groups.ignored.insert(name);
            } else if pod.status.phase == "Pending" {
                groups.unready.insert(name);
            } else if let Some(sample) = sample {
                if resource == "cpu" && pod.too_young(sample, terms) {
                    groups.unready.insert(name);
                } else {
                    groups.ready += 1;
                }
            } else {
                groups.missing.insert(name);
            }
        }
        groups
    }
}

impl ScaledPod {
    pub(super) fn labels(&self) -> &Labels {
        &self.metadata.labels
    }

    fn is_ready(&self) -> bool {
        crate::views::is_true(&self.status.conditions, "Ready")
    }

    /// Reports whether the sample may come from a Pod that is still starting and so does not show its load.
    fn too_young(&self, sample: &Sample, terms: &Terms) -> bool {
        let ready = condition(&self.status.conditions, "Ready");
        let (Some(ready), Some(start)) = (ready, self.status.start_time) else { return true };
        let since = ready.last_transition_time.unwrap_or(start);
        let unready = ready.status == "False";
        if start.plus(terms.cpu_initialization) > terms.now {
            unready || sample.at < since.plus(sample.window)
        } else {
            unready && start.plus(terms.initial_readiness) > since
        }
    }

    /// Returns the request of the Pod, or of one of its containers. Pod-level requests take precedence.
    fn request(&self, resource: &str, container: &str) -> Result<i64, ReplicaError> {
        let whole = self.spec.resources.as_ref().filter(|r| !r.requests.is_empty());
        if let Some(request) =
            whole.and_then(|r| r.requests.get(resource)).filter(|_| container.is_empty())
        {
            return Ok(request.milli_value());
        }
        let sidecars = self.spec.init_containers.iter();
        let sidecars = sidecars.filter(|c| c.restart_policy.as_deref() == Some("Always"));
        let mut sum = None;
        for one in self.spec.containers.iter().chain(sidecars) {
            if !container.is_empty() && one.name != container {
                continue;
            }
            let Some(request) = one.resources.requests.get(resource) else {
                return Err(ReplicaError::MissingRequest {
                    resource: resource.to_owned(),
                    container: one.name.clone(),
                    pod: self.metadata.name.clone(),
                });
            };
            sum = Some(sum.unwrap_or(0_i64).saturating_add(request.milli_value()));
        }
        sum.ok_or_else(|| ReplicaError::UnknownContainer {
            container: container.to_owned(),
            pod: self.metadata.name.clone(),
        })
    }
}

/// The usage in comparison with the target.
struct Usage {
    /// The ratio of usage to target.
    ratio: f64,
    /// The mean of the samples.
    mean: i64,
    /// The usage in percent of the requests, if that is the target.
    utilization: Option<i32>,
}

/// The value that samples are compared with.
enum Measure {
    Requests { percent: i32, requests: BTreeMap<String, i64> },
    Average(i64),
}

impl Measure {
    fn new(
        pods: &[ScaledPod],
        resource: &str,
        target: &PodTarget<'_>,
    ) -> Result<Self, ReplicaError> {
        match target {
            PodTarget::Average(value) => Ok(Self::Average(*value)),
            PodTarget::Utilization { percent, container } => {
                let requests = pods
                    .iter()
                    .map(|pod| Ok((pod.metadata.name.clone(), pod.request(resource, container)?)));
                Ok(Self::Requests {
                    percent: *percent,
                    requests: requests.collect::<Result<_, ReplicaError>>()?,
                })
            }
        }
    }

    /// Compares the samples with the target.
    fn compare(&self, samples: &Samples) -> Result<Usage, ReplicaError> {
        match self {
            Self::Average(target) => {
                let sum: i64 = samples.values().map(|sample| sample.value).sum();
                let mean = sum / (samples.len() as i64).max(1);
                let ratio = mean as f64 / *target as f64;
                Ok(Usage { ratio, mean, utilization: None })
            }
            Self::Requests { percent, requests } => {
                let pairs =
                    samples.iter().filter_map(|(name, s)| Some((s.value, *requests.get(name)?)));
                let (mut used, mut requested, mut number) = (0_i64, 0_i64, 0_i64);
                for (value, request) in pairs {
                    used = used.saturating_add(value);
                    requested = requested.saturating_add(request);
                    number += 1;
                }
                if requested == 0 {
                    return Err(ReplicaError::UnmatchedSamples);
                }
                let utilization = i128::from(used) * 100 / i128::from(requested);
                let utilization = i32::try_from(utilization).unwrap_or(i32::MAX);
                let ratio = f64::from(utilization) / f64::from(*percent);
                Ok(Usage { ratio, mean: used / number, utilization: Some(utilization) })
            }
        }
    }

    /// The usage that is assumed for a Pod without a sample when the target would shrink.
    fn full(&self, name: &str) -> i64 {
        match self {
            Self::Average(target) => *target,
            Self::Requests { percent, requests } => {
                let request = requests.get(name).copied().unwrap_or(0);
                request.saturating_mul(i64::from((*percent).max(100))) / 100
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NOW: i64 = 1_800_000_000;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_unix(NOW + second, 0)
    }

    fn terms() -> Terms {
        Terms {
            tolerance: Tolerance::new(0.1, None),
            cpu_initialization: Duration::from_secs(120),
            initial_readiness: Duration::from_secs(10),
            now: at(0),
        }
    }

    /// A Pod with one container that requests one core.
    fn pod(name: &str, phase: &str, ready: &str, started: i64, since: i64) -> ScaledPod {
        serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]},
            "status": {"phase": phase, "startTime": at(started),
                "conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": at(since)}]},
        }))
        .unwrap()
    }

    fn steady(name: &str) -> ScaledPod {
        pod(name, "Running", "True", -3600, -3500)
    }

    fn samples(values: &[(&str, i64)]) -> Samples {
        let sample = |value| Sample { at: at(-5), window: Duration::from_secs(30), value };
        values.iter().map(|(name, value)| ((*name).to_owned(), sample(*value))).collect()
    }

    fn cpu(
        pods: &[ScaledPod],
        values: &[(&str, i64)],
        percent: i32,
        current: i32,
    ) -> Result<i32, ReplicaError> {
        let target = PodTarget::Utilization { percent, container: "" };
        by_pods(pods, samples(values), "cpu", &target, current, &terms()).map(|p| p.replicas)
    }

    #[test]
    fn scales_by_utilization_of_requests() {
        let three = [steady("a"), steady("b"), steady("c")];
        for (used, percent, wanted) in [
            ([300, 500, 700], 30, 5),
            ([100, 100, 100], 50, 1),
            ([500, 500, 540], 50, 3),
            ([500, 500, 600], 50, 3),
            ([900, 900, 900], 50, 6),
        ] {
            let values = [("a", used[0]), ("b", used[1]), ("c", used[2])];
            assert_eq!(cpu(&three, &values, percent, 3), Ok(wanted), "{used:?} of {percent}");
        }
    }

    #[test]
    fn starting_and_missing_pods_damp_scaling() {
        let starting = pod("c", "Running", "False", -30, -30);
        let pods = [steady("a"), steady("b"), starting];
        // Usage is two thirds of the load that three Pods should carry; without the starting Pod it seems higher.
        assert_eq!(cpu(&pods, &[("a", 500), ("b", 700), ("c", 10)], 30, 3), Ok(4));
        assert_eq!(cpu(&pods, &[("a", 450), ("b", 450), ("c", 900)], 30, 3), Ok(3));
        let missing = [steady("a"), steady("b"), steady("c"), steady("d")];
        assert_eq!(cpu(&missing, &[("a", 100), ("b", 100), ("c", 100)], 50, 4), Ok(3));
        assert_eq!(cpu(&missing, &[("a", 900), ("b", 900), ("c", 900)], 50, 4), Ok(6));
        let gone: ScaledPod = {
            let mut pod = steady("d");
            pod.metadata.deletion_timestamp = Some(at(-1));
            pod
        };
        assert_eq!(cpu(&[steady("a"), gone], &[("a", 900), ("d", 0)], 50, 2), Ok(2));
    }

    #[test]
    fn reports_missing_pods_metrics_and_requests() {
        assert_eq!(cpu(&[], &[("a", 1)], 50, 1), Err(ReplicaError::NoPods));
        let error = cpu(&[steady("a")], &[], 50, 1).unwrap_err().to_string();
        assert!(error.contains("did not receive metrics"));
        let mut bare = steady("a");
        bare.spec.containers[0].resources.requests.clear();
        let error = cpu(&[bare], &[("a", 1)], 50, 1).unwrap_err().to_string();
        assert_eq!(error, "missing request for cpu in container c of Pod a");
    }

    #[test]
    fn scales_by_object_value_and_share() {
        let tolerance = terms().tolerance;
        let pods = [steady("a"), steady("b")];
        assert_eq!(by_value(&pods, 4_000, 1_000, 2, tolerance).unwrap().replicas, 8);
        assert_eq!(by_value(&pods, 1_050, 1_000, 2, tolerance).unwrap().replicas, 2);
        assert_eq!(by_value(&[], i64::MAX, 1, 0, tolerance).unwrap().replicas, i32::MAX);
        assert_eq!(
            by_share(8_600, 2_000, 4, tolerance),
            Proposal { replicas: 4, value: 2_150, utilization: None }
        );
        assert_eq!(by_share(20_000, 2_000, 4, tolerance).replicas, 10);
    }

    #[test]
    fn applies_tolerance_of_direction() {
        let behavior = serde_json::from_value(json!({"scaleUp": {"tolerance": "500m"}})).unwrap();
        let tolerance = Tolerance::new(0.1, Some(&behavior));
        assert!(tolerance.holds(1.5) && tolerance.holds(0.9) && !tolerance.holds(0.8));
    }
}
