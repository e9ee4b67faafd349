//! The plugin NodeResourcesFit: nodes with enough free resources.

use std::borrow::Cow;

use crate::{
    cluster::Cluster,
    event::Event,
    index::NodeIx,
    plugin::{Cx, Filter, MAX_SCORE, Plan, Plugin, Scorer, Verdict},
    pod::Pod,
};

/// Requires the requested resources. Scores prefer emptier nodes (`LeastAllocated`) or fuller (`MostAllocated`).
pub(super) struct NodeResourcesFit;

struct Evaluator<'a>(Cx<'a>);

const CPU: u32 = 0;
const MEMORY: u32 = 1;
const EPHEMERAL: u32 = 2;
const PODS: u32 = 3;
/// Extended resources follow; those beyond the size of the bit set share the last number.
const EXTENDED: u32 = 4;
const LAST: u32 = 31;

impl Plugin for NodeResourcesFit {
    fn name(&self) -> &'static str {
        "NodeResourcesFit"
    }

    fn weight(&self) -> i64 {
        1
    }

    fn plan<'a>(&self, cx: Cx<'a>) -> Plan<'a> {
        Plan::Check(Box::new(Evaluator(cx)))
    }

    fn scorer<'a>(&self, cx: Cx<'a>, _: &[NodeIx]) -> Option<Box<dyn Scorer + 'a>> {
        Some(Box::new(Evaluator(cx)))
    }

    fn wakes(&self, cluster: &Cluster, pod: &Pod, event: &Event<'_>) -> bool {
        match event {
            Event::Node { ix, change } => {
                (change.added || change.allocatable) && fits(cluster, pod, *ix)
            }
            Event::PodGone { node, .. } => fits(cluster, pod, *node),
            // A class may serve an extended resource that nodes lack.
            Event::Devices => !pod.extended_requests.is_empty(),
            _ => false,
        }
    }
}

/// Reports whether the node has the requested resources now.
fn fits(cluster: &Cluster, pod: &Pod, node: NodeIx) -> bool {
    shortage(cluster, pod, node).passes()
}

fn shortage(cluster: &Cluster, pod: &Pod, ix: NodeIx) -> Verdict {
    let (hot, requested) = (&cluster.hot[ix as usize], &pod.requests);
    let mut verdict = Verdict::PASS;
    if hot.used_pods + 1 > hot.pods {
        verdict.reasons |= 1 << PODS;
    }
    let mut compare = |number: u32, requested: i64, used: i64, has: i64| {
        if requested > 0 && requested > has - used {
            verdict.reasons |= 1 << number;
            // Even an empty node would be too small.
            verdict.unresolvable |= requested > has;
        }
    };
    compare(CPU, requested.cpu, hot.used_cpu, hot.cpu);
    compare(MEMORY, requested.memory, hot.used_memory, hot.memory);
    compare(EPHEMERAL, requested.ephemeral, hot.used_ephemeral, hot.ephemeral);
    if requested.extended.is_empty() {
        return verdict;
    }
    let profile = cluster.profiles.of(&pod.scheduler_name);
    for (at, &(name, amount)) in requested.extended.iter().enumerate() {
        if pod.extended_names.get(at).is_some_and(|name| profile.ignores(name)) {
            continue;
        }
        let node = &cluster.nodes[ix as usize];
        let (used, has) = (node.used_extended.extended(name), node.allocatable.extended(name));
        // The plugin DynamicResources checks resources that only devices serve.
        if has > 0 || !cluster.devices.serves(name) {
            compare((EXTENDED + at as u32).min(LAST), amount, used, has);
        }
    }
    verdict
}

impl Filter for Evaluator<'_> {
    fn check(&self, node: NodeIx) -> Verdict {
        shortage(self.0.cluster, self.0.pod, node)
    }

    fn reason(&self, number: u32) -> Cow<'static, str> {
        match number {
            CPU => "Insufficient cpu".into(),
            MEMORY => "Insufficient memory".into(),
            EPHEMERAL => "Insufficient ephemeral-storage".into(),
            PODS => "Too many pods".into(),
            other => {
                let name = self.0.pod.extended_names.get((other - EXTENDED) as usize);
                format!("Insufficient {}", name.map_or("extended resources", |n| n)).into()
            }
        }
    }
}

impl Scorer for Evaluator<'_> {
    fn score(&self, node: NodeIx) -> i64 {
        let (hot, pod) = (&self.0.cluster.hot[node as usize], self.0.pod);
        let scoring = self.0.prepared.profile.fit;
        let part = |capacity: i64, used: i64| {
            if capacity == 0 {
                None
            } else {
                let used = used.min(capacity);
                let counted = if scoring.most_allocated { used } else { capacity - used };
                Some(counted * MAX_SCORE / capacity)
            }
        };
        let cpu = part(hot.cpu, hot.scored_cpu + pod.scored[0]);
        let memory = part(hot.memory, hot.scored_memory + pod.scored[1]);
        match (cpu.filter(|_| scoring.cpu != 0), memory.filter(|_| scoring.memory != 0)) {
            (Some(cpu), Some(memory)) => {
                (cpu * scoring.cpu + memory * scoring.memory) / (scoring.cpu + scoring.memory)
            }
            (one, other) => one.or(other).unwrap_or(0),
        }
    }
}
