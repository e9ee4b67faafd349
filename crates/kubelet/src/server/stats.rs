use api_meta::Tree as _;
use std::{collections::BTreeMap, fmt::Write as _};

use cri::v1;
use http::{Response, StatusCode};
use pod_core::Timestamp;
use serde_json::{Map, Value, json};
use serve::Body;

use super::{answer, text};
use crate::{
    context::{Context, of_nanos},
    pods::Pods,
    runtime::label,
};

const EXPOSITION: &str = "text/plain; version=0.0.4; charset=utf-8";

fn time(at: Timestamp) -> String {
    Timestamp::from_second(at.as_second()).unwrap_or(at).to_string()
}

fn cpu(stats: &v1::ContainerStats) -> Option<Value> {
    let cpu = stats.cpu.as_ref()?;
    let mut value = json!({ "time": time(of_nanos(cpu.timestamp)) });
    if let Some(total) = &cpu.usage_core_nano_seconds {
        value.put(&["usageCoreNanoSeconds"], json!(total.value));
    }
    if let Some(rate) = &cpu.usage_nano_cores {
        value.put(&["usageNanoCores"], json!(rate.value));
    }
    Some(value)
}

fn memory(stats: &v1::ContainerStats) -> Option<Value> {
    let memory = stats.memory.as_ref()?;
    let mut value = json!({ "time": time(of_nanos(memory.timestamp)) });
    let fields = [
        ("availableBytes", &memory.available_bytes),
        ("usageBytes", &memory.usage_bytes),
        ("workingSetBytes", &memory.working_set_bytes),
        ("rssBytes", &memory.rss_bytes),
        ("pageFaults", &memory.page_faults),
        ("majorPageFaults", &memory.major_page_faults),
    ];
    for (name, field) in fields {
        if let Some(field) = field {
            value.put(&[name], json!(field.value));
        }
    }
    Some(value)
}

/// The statistics of the node and its Pods (stats.k8s.io, as `/stats/summary` has them).
pub(super) async fn summary(ctx: &Context) -> Response<Body> {
    let stats = match ctx.cri.list_container_stats().await {
        Ok(stats) => stats,
        Err(error) => return text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    };
    let mut pods: BTreeMap<String, (Value, Vec<Value>)> = BTreeMap::new();
    for one in &stats {
        let Some(attributes) = &one.attributes else { continue };
        let of = |name: &str| attributes.labels.get(name).cloned().unwrap_or_default();
        let uid = of(label::POD_UID);
        let reference = json!({ "name": of(label::POD_NAME), "namespace": of(label::POD_NAMESPACE), "uid": uid.clone() });
        let mut container = Map::from_iter([("name".to_owned(), json!(of(label::CONTAINER)))]);
        container.extend(cpu(one).map(|cpu| ("cpu".to_owned(), cpu)));
        container.extend(memory(one).map(|memory| ("memory".to_owned(), memory)));
        pods.entry(uid).or_insert_with(|| (reference, Vec::new())).1.push(Value::Object(container));
    }
    let pods: Vec<Value> = pods
        .into_values()
        .map(|(reference, containers)| json!({ "podRef": reference, "containers": containers }))
        .collect();
    let disk = sys::disk_use(&ctx.settings.root).unwrap_or_default();
    let now = time(ctx.now());
    let usage = ctx.cgroups.usage("/").unwrap_or_default();
    super::json(&json!({
        "node": {
            "nodeName": ctx.settings.node_name,
            "cpu": { "time": now, "usageCoreNanoSeconds": usage.cpu_nanoseconds },
            "memory": {
                "time": now,
                "availableBytes": ctx.machine.memory.saturating_sub(usage.working_set),
                "usageBytes": usage.memory,
                "workingSetBytes": usage.working_set,
            },
            "fs": {
                "time": now,
                "availableBytes": disk.available,
                "capacityBytes": disk.capacity,
                "usedBytes": disk.capacity.saturating_sub(disk.available),
                "inodesFree": disk.inodes_free,
                "inodes": disk.inodes,
            },
        },
        "pods": pods,
    }))
}

/// The metrics that metrics-server reads.
pub(super) async fn resource_metrics(ctx: &Context) -> Response<Body> {
    let stats = match ctx.cri.list_container_stats().await {
        Ok(stats) => stats,
        Err(error) => return text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    };
    let node = ctx.cgroups.usage("/").unwrap_or_default();
    let mut cpu = String::new();
    let mut memory = String::new();
    for one in &stats {
        let Some(attributes) = &one.attributes else { continue };
        let of = |name: &str| attributes.labels.get(name).cloned().unwrap_or_default();
        let labels = format!(
            "{{container={:?},namespace={:?},pod={:?}}}",
            of(label::CONTAINER),
            of(label::POD_NAMESPACE),
            of(label::POD_NAME)
        );
        if let Some(used) = one.cpu.as_ref().and_then(|c| c.usage_core_nano_seconds.as_ref()) {
            let _ = writeln!(
                cpu,
                "container_cpu_usage_seconds_total{labels} {}",
                used.value as f64 / 1e9
            );
        }
        if let Some(used) = one.memory.as_ref().and_then(|m| m.working_set_bytes.as_ref()) {
            let _ = writeln!(memory, "container_memory_working_set_bytes{labels} {}", used.value);
        }
    }
    let out = format!(
        "# TYPE container_cpu_usage_seconds_total counter\n{cpu}# TYPE container_memory_working_set_bytes gauge\n{memory}\
         # TYPE node_cpu_usage_seconds_total counter\nnode_cpu_usage_seconds_total {}\n\
         # TYPE node_memory_working_set_bytes gauge\nnode_memory_working_set_bytes {}\n\
         # TYPE resource_scrape_error gauge\nresource_scrape_error 0\n",
        node.cpu_nanoseconds as f64 / 1e9,
        node.working_set
    );
    answer(StatusCode::OK, EXPOSITION, out)
}

/// The kubelet's own metrics.
pub(super) fn metrics(ctx: &Context, pods: &Pods) -> Response<Body> {
    let pods = pods.list();
    let containers: usize = pods
        .iter()
        .map(|p| {
            p.status
                .iter()
                .flat_map(|s| s.container_statuses.iter().flatten())
                .filter(|c| c.started == Some(true))
                .count()
        })
        .sum();
    let mut out = format!(
        "# TYPE kubelet_node_name gauge\nkubelet_node_name{{node={:?}}} 1\n\
         # TYPE kubelet_desired_pods gauge\nkubelet_desired_pods {}\n\
         # TYPE kubelet_running_containers gauge\nkubelet_running_containers{{container_state=\"running\"}} {containers}\n",
        ctx.settings.node_name,
        pods.len()
    );
    out.push_str(&rt::panics_text());
    answer(StatusCode::OK, EXPOSITION, out)
}
