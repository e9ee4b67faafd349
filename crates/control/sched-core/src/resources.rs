//! Amounts of resources, and the requests of Pods.

use std::collections::BTreeMap;

use api_meta::Quantity;

use crate::{
    sym::Sym,
    view::{ContainerView, PodSpecView},
};

/// The processor and memory that a container without a request counts with in scores, so that such Pods are spread too.
const DEFAULT_CPU: i64 = 100;
const DEFAULT_MEMORY: i64 = 200 * 1024 * 1024;

/// Amounts of resources: processor in thousandths of a core, all others in whole units.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// Processor, in thousandths.
    pub cpu: i64,
    /// Memory, in bytes.
    pub memory: i64,
    /// Ephemeral storage, in bytes.
    pub ephemeral: i64,
    /// Extended resources and huge pages, sorted by symbol.
    pub extended: Vec<(Sym, i64)>,
}

impl Resources {
    pub(crate) fn from_map(map: &BTreeMap<Box<str>, Quantity>) -> Self {
        let mut out = Self::default();
        for (name, quantity) in map {
            match &**name {
                "cpu" => out.cpu = quantity.milli_value(),
                "memory" => out.memory = quantity.value(),
                "ephemeral-storage" => out.ephemeral = quantity.value(),
                // The number of Pods is a limit of nodes and not a request.
                "pods" => {}
                other => out.extended.push((Sym::of(other), quantity.value())),
            }
        }
        out.extended.sort_unstable();
        out
    }

    /// Returns the amount of an extended resource; 0 without one.
    pub fn extended(&self, name: Sym) -> i64 {
        self.extended.binary_search_by_key(&name, |e| e.0).map_or(0, |at| self.extended[at].1)
    }

    /// Adds `sign` times `other`.
    pub(crate) fn add(&mut self, other: &Resources, sign: i64) {
        self.cpu = self.cpu.saturating_add(sign * other.cpu);
        self.memory = self.memory.saturating_add(sign * other.memory);
        self.ephemeral = self.ephemeral.saturating_add(sign * other.ephemeral);
        for &(name, amount) in &other.extended {
            *self.entry(name) += sign * amount;
        }
    }

    fn max(&mut self, other: &Resources) {
        self.cpu = self.cpu.max(other.cpu);
        self.memory = self.memory.max(other.memory);
        self.ephemeral = self.ephemeral.max(other.ephemeral);
        for &(name, amount) in &other.extended {
            let largest = self.entry(name);
            *largest = (*largest).max(amount);
        }
    }

    /// Replaces processor and memory by those of the Pod as a whole, as far as it has them.
    fn replace(&mut self, whole: &BTreeMap<Box<str>, Quantity>) {
        let amounts = Self::from_map(whole);
        if whole.contains_key("cpu") {
            self.cpu = amounts.cpu;
        }
        if whole.contains_key("memory") {
            self.memory = amounts.memory;
        }
    }

    fn entry(&mut self, name: Sym) -> &mut i64 {
        let at = match self.extended.binary_search_by_key(&name, |e| e.0) {
            Ok(at) => at,
            Err(at) => {
                self.extended.insert(at, (name, 0));
                at
            }
        };
        &mut self.extended[at].1
    }
}

/// Returns the requests to reserve for a Pod, and its processor and memory for scores.
///
/// Init containers run one after another, beside the sidecars that started before them. The result is the maximum of
/// that and of all containers and sidecars together. Pod-level requests replace the sums.
pub(crate) fn pod_requests(spec: &PodSpecView) -> (Resources, [i64; 2]) {
    let actual = total(spec, Resources::from_map);
    let scored = total(spec, |map| {
        let own = Resources::from_map(map);
        Resources {
            cpu: if map.contains_key("cpu") { own.cpu } else { DEFAULT_CPU },
            memory: if map.contains_key("memory") { own.memory } else { DEFAULT_MEMORY },
            ..Resources::default()
        }
    });
    (actual, [scored.cpu, scored.memory])
}

/// Returns a Pod's limits, by the rules of requests. The overhead increases a limit, but creates none.
pub(crate) fn pod_limits(spec: &PodSpecView) -> Resources {
    let none = BTreeMap::new();
    let of = |c: &ContainerView| {
        Resources::from_map(c.resources.as_ref().map_or(&none, |requirements| &requirements.limits))
    };
    let mut limits = summed(spec, of);
    if let Some(pod) = &spec.resources {
        limits.replace(&pod.limits);
    }
    let overhead = Resources::from_map(&spec.overhead);
    for (limit, more) in [
        (&mut limits.cpu, overhead.cpu),
        (&mut limits.memory, overhead.memory),
        (&mut limits.ephemeral, overhead.ephemeral),
    ] {
        *limit = if *limit == 0 { 0 } else { limit.saturating_add(more) };
    }
    limits
}

fn total(spec: &PodSpecView, of: impl Fn(&BTreeMap<Box<str>, Quantity>) -> Resources) -> Resources {
    let none = BTreeMap::new();
    let mut running = summed(spec, |c| of(c.resources.as_ref().map_or(&none, |r| &r.requests)));
    if let Some(pod) = &spec.resources {
        running.replace(&pod.requests);
    }
    running.add(&Resources::from_map(&spec.overhead), 1);
    running
}

/// Returns the largest amounts that the containers need at the same time.
fn summed(spec: &PodSpecView, requests: impl Fn(&ContainerView) -> Resources) -> Resources {
    let mut running = Resources::default();
    let mut peak = Resources::default();
    for init in &spec.init_containers {
        let own = requests(init);
        if init.restart_policy.as_deref() == Some("Always") {
            running.add(&own, 1);
            peak.max(&running);
        } else {
            let mut beside = running.clone();
            beside.add(&own, 1);
            peak.max(&beside);
        }
    }
    for container in &spec.containers {
        running.add(&requests(container), 1);
    }
    running.max(&peak);
    running
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_init_containers_and_sidecars() {
        let spec: PodSpecView = serde_json::from_value(serde_json::json!({
            "overhead": {"cpu": "10m"},
            "initContainers": [
                {"restartPolicy": "Always", "resources": {"requests": {"cpu": "100m"}}},
                {"resources": {"requests": {"cpu": "1", "memory": "1Gi"}}},
            ],
            "containers": [{"resources": {"requests": {"cpu": "200m"}}}, {}],
        }))
        .unwrap();
        let (actual, scored) = pod_requests(&spec);
        assert_eq!((actual.cpu, actual.memory), (1110, 1 << 30));
        assert_eq!(scored[0], 1110);
    }

    #[test]
    fn adds_overhead_to_existing_limits_only() {
        let spec: PodSpecView = serde_json::from_value(serde_json::json!({
            "overhead": {"cpu": "10m", "memory": "1Mi"},
            "containers": [{"resources": {"limits": {"cpu": "200m"}}}, {}],
        }))
        .unwrap();
        let limits = pod_limits(&spec);
        assert_eq!((limits.cpu, limits.memory), (210, 0));
    }
}
