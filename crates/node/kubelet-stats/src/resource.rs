//! `/metrics/resource`, which metrics-server reads.

use pod_core::Timestamp;
use telemetry::exposition::{Exposition, Labels, Metric, counter, gauge};

use crate::{
    error::StatsError,
    reading::{Group, Reading},
};

const NODE_CPU: Metric = counter(
    "node_cpu_usage_seconds_total",
    "[STABLE] Cumulative cpu time consumed by the node in core-seconds",
);
const NODE_MEMORY: Metric =
    gauge("node_memory_working_set_bytes", "[STABLE] Current working set of the node in bytes");
const NODE_SWAP: Metric = gauge(
    "node_swap_usage_bytes",
    "[ALPHA] Current swap usage of the node in bytes. Reported only on non-windows systems",
);
const CONTAINER_CPU: Metric = counter(
    "container_cpu_usage_seconds_total",
    "[STABLE] Cumulative cpu time consumed by the container in core-seconds",
);
const CONTAINER_MEMORY: Metric = gauge(
    "container_memory_working_set_bytes",
    "[STABLE] Current working set of the container in bytes",
);
const CONTAINER_SWAP: Metric = gauge(
    "container_swap_usage_bytes",
    "[ALPHA] Current amount of the container swap usage in bytes. Reported only on non-windows systems",
);
const CONTAINER_SWAP_LIMIT: Metric = gauge(
    "container_swap_limit_bytes",
    "[ALPHA] Current amount of the container swap limit in bytes. Reported only on non-windows systems",
);
const CONTAINER_START: Metric = gauge(
    "container_start_time_seconds",
    "[STABLE] Start time of the container since unix epoch in seconds",
);
const POD_CPU: Metric = counter(
    "pod_cpu_usage_seconds_total",
    "[STABLE] Cumulative cpu time consumed by the pod in core-seconds",
);
const POD_MEMORY: Metric =
    gauge("pod_memory_working_set_bytes", "[STABLE] Current working set of the pod in bytes");
const POD_SWAP: Metric = gauge(
    "pod_swap_usage_bytes",
    "[ALPHA] Current amount of the pod swap usage in bytes. Reported only on non-windows systems",
);
const ERROR: Metric = gauge(
    "resource_scrape_error",
    "[STABLE] 1 if there was an error while getting container metrics, 0 otherwise",
);

/// Returns the exposition. Without a reading it only reports the error, as upstream.
pub(crate) fn text(reading: Result<&Reading, &StatsError>) -> String {
    let mut out = Exposition::default();
    let reading =
        reading.inspect_err(|error| tracing::warn!(%error, "read the resource usage of the node"));
    out.add(ERROR, &Labels::default(), f64::from(u8::from(reading.is_err())), None);
    if let Ok(reading) = reading {
        if let Some(node) = reading.node() {
            write_usage(&mut out, &Labels::default(), node, [NODE_CPU, NODE_MEMORY, NODE_SWAP]);
        }
        for pod in reading.pods() {
            let name = [("namespace", pod.pod.namespace.as_str()), ("pod", &pod.pod.name)];
            if let Some(own) = pod.own {
                write_usage(&mut out, &Labels::of(&name), own, [POD_CPU, POD_MEMORY, POD_SWAP]);
            }
            for container in &pod.containers {
                let labels = Labels::of(&[("container", container.name)]).and(&name);
                let group = container.group;
                write_usage(
                    &mut out,
                    &labels,
                    group,
                    [CONTAINER_CPU, CONTAINER_MEMORY, CONTAINER_SWAP],
                );
                if let Some(limit) = group.usage.allowed.swap {
                    out.add(
                        CONTAINER_SWAP_LIMIT,
                        &labels,
                        limit as f64,
                        Some(group.at.as_millisecond()),
                    );
                }
                if container.created > Timestamp::UNIX_EPOCH {
                    let seconds = container.created.as_nanosecond() as f64 / 1e9;
                    out.add(CONTAINER_START, &labels, seconds, None);
                }
            }
        }
    }
    out.text()
}

fn write_usage(
    out: &mut Exposition,
    labels: &Labels,
    group: &Group,
    [cpu, memory, swap]: [Metric; 3],
) {
    let at = Some(group.at.as_millisecond());
    out.add(cpu, labels, group.usage.cpu.total as f64 / 1e9, at);
    out.add(memory, labels, group.usage.memory.working_set() as f64, at);
    out.add(swap, labels, group.usage.memory.swap as f64, at);
}
