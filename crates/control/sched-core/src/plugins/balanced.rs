//! The plugin NodeResourcesBalancedAllocation: scores nodes by the balance of processor and memory.

use crate::{
    index::NodeIx,
    plugin::{Cx, MAX_SCORE, Plugin, Scorer},
};

/// Prefers nodes whose processor and memory would be used in equal shares.
pub(super) struct NodeResourcesBalancedAllocation;

struct Evaluator<'a>(Cx<'a>);

impl Plugin for NodeResourcesBalancedAllocation {
    fn name(&self) -> &'static str {
        "NodeResourcesBalancedAllocation"
    }

    fn weight(&self) -> i64 {
        1
    }

    fn scorer<'a>(&self, cx: Cx<'a>, _: &[NodeIx]) -> Option<Box<dyn Scorer + 'a>> {
        (!cx.pod.requests_nothing()).then(|| Box::new(Evaluator(cx)) as _)
    }
}

impl Scorer for Evaluator<'_> {
    fn score(&self, node: NodeIx) -> i64 {
        let (hot, requests) = (&self.0.cluster.hot[node as usize], &self.0.pod.requests);
        let share = |used: i64, capacity: i64| (used as f64 / capacity as f64).min(1.0);
        // A single resource cannot be unbalanced.
        if hot.cpu == 0 || hot.memory == 0 {
            return MAX_SCORE;
        }
        let cpu = share(hot.used_cpu + requests.cpu, hot.cpu);
        let memory = share(hot.used_memory + requests.memory, hot.memory);
        // The standard deviation of two values is half their distance.
        ((1.0 - (cpu - memory).abs() / 2.0) * MAX_SCORE as f64) as i64
    }
}
