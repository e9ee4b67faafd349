//! The capacity of the node and the amounts that Pods may use.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kubelet_config::Settings;
use kubelet_stats::Machine;
use pod_core::{evict::Signal, fields::NodeFacts, huge_pages, resources::whole};

use crate::context::Context;

/// Returns the capacity of the machine.
pub(crate) fn capacity(machine: &Machine, settings: &Settings) -> BTreeMap<String, Quantity> {
    let disk = sys::disk_use(&settings.root).unwrap_or_default();
    let amounts = [
        ("cpu", machine.cpus.to_string()),
        ("memory", format!("{}Ki", machine.memory / 1024)),
        ("ephemeral-storage", format!("{}Ki", disk.capacity / 1024)),
        ("pods", max_pods(machine.cpus, settings).to_string()),
    ];
    let named = amounts.map(|(name, amount)| (name.to_owned(), Quantity(amount)));
    let pages = machine.huge_pages.iter().map(|(size, count)| {
        let bytes = i64::try_from(size.saturating_mul(*count)).unwrap_or(i64::MAX);
        let bytes = api_meta::Quantity::new(bytes, api_meta::QuantityFormat::BinarySi);
        (huge_pages::resource(*size), Quantity(bytes.to_string()))
    });
    named.into_iter().chain(pages).collect()
}

/// Returns the largest number of Pods: `maxPods`, or `podsPerCore` on each CPU if that is less.
fn max_pods(cpus: u64, settings: &Settings) -> i64 {
    let most = i64::from(settings.max_pods);
    let cpus = i64::try_from(cpus).unwrap_or(i64::MAX);
    match i64::from(settings.pods_per_core) {
        0 => most,
        each => most.min(cpus.saturating_mul(each)),
    }
}

/// Returns the limits of all Pods together: the capacity less the reserved amounts.
pub(crate) fn unreserved(machine: &Machine, settings: &Settings) -> BTreeMap<String, Quantity> {
    let mut amounts = capacity(machine, settings);
    for (name, reserved) in &settings.reserved {
        let Some(amount) = amounts.get_mut(name) else { continue };
        for one in reserved {
            if let (Ok(have), Ok(less)) =
                (api_meta::Quantity::parse(&amount.0), api_meta::Quantity::parse(one))
            {
                let left = have - less;
                *amount =
                    Quantity(if left.is_negative() { "0".to_owned() } else { left.to_string() });
            }
        }
    }
    amounts
}

/// Returns the allocatable amounts: the unreserved amounts, less those that eviction thresholds keep free, so that a
/// full node does not evict immediately. Memory reserved as huge pages is not allocatable as memory.
pub(crate) fn allocatable(machine: &Machine, settings: &Settings) -> BTreeMap<String, Quantity> {
    let all = capacity(machine, settings);
    let mut amounts = unreserved(machine, settings);
    let pages = all.iter().filter(|(name, _)| huge_pages::size(name).is_some());
    let huge = pages.map(|(_, bytes)| whole(bytes)).fold(0, i64::saturating_add);
    for (signal, name) in [(Signal::Memory, "memory"), (Signal::NodeFs, "ephemeral-storage")] {
        let (Some(amount), Some(all)) = (amounts.get_mut(name), all.get(name)) else { continue };
        let all = u64::try_from(whole(all)).unwrap_or(0);
        let least = i64::try_from(settings.eviction.hard_minimum(signal, all)).unwrap_or(i64::MAX);
        let apart = if name == "memory" { huge } else { 0 };
        let left = whole(amount).saturating_sub(least).saturating_sub(apart).max(0);
        let text = if name == "memory" { format!("{}Ki", left / 1024) } else { left.to_string() };
        *amount = Quantity(text);
    }
    amounts
}

/// Returns the facts about this node that a Pod with these addresses can refer to.
pub(crate) fn node_facts<'a>(ctx: &'a Context, pod_ips: &'a [String]) -> NodeFacts<'a> {
    NodeFacts {
        name: &ctx.settings.node_name,
        host_ips: &ctx.settings.node_ips,
        pod_ips,
        allocatable: allocatable(&ctx.machine, &ctx.settings),
    }
}

#[cfg(test)]
mod tests {
    use kubelet_config::HostSettings;
    use serde_json::json;

    use super::*;

    fn settings(text: &str) -> Settings {
        let host = HostSettings {
            node_name: "node".to_owned(),
            node_ips: Vec::new(),
            root: "/".into(),
            cert_dir: "/pki".into(),
            labels: BTreeMap::new(),
        };
        Settings::new(&kubelet_config::parse(text).unwrap(), host).unwrap()
    }

    #[test]
    fn limits_pods_per_core() {
        let pods = |text: &str| max_pods(4, &settings(text));
        assert_eq!(pods("{}"), 110);
        assert_eq!(pods("podsPerCore: 10"), 40);
        assert_eq!(pods("podsPerCore: 100\nmaxPods: 20"), 20);
    }

    #[test]
    fn counts_and_limits_huge_pages() {
        let settings = settings("{}");
        let huge_pages = [(2 << 20, 8), (1 << 30, 0)].into();
        let machine = Machine { huge_pages, memory: 4 << 30, ..Machine::read() };
        let text = |name: &str| allocatable(&machine, &settings).remove(name).map(|q| q.0);
        assert_eq!(text("hugepages-2Mi").as_deref(), Some("16Mi"));
        assert_eq!(text("hugepages-1Gi").as_deref(), Some("0"));
        let kept = settings.eviction.hard_minimum(Signal::Memory, 4 << 30);
        let memory = format!("{}Ki", ((4 << 30) - (16 << 20) - kept) / 1024);
        assert_eq!(text("memory"), Some(memory));
        let limits = json!({"memory": "1Mi", "hugepages-2Mi": "4Mi"});
        let containers = json!([{"name": "c", "resources": {"limits": limits}}]);
        let pod = json!({"spec": {"containers": containers}});
        let pod = serde_json::from_value(pod).unwrap();
        let limits = machine.huge_page_limits(&huge_pages::of_pod(&pod));
        assert_eq!(limits, [(2 << 20, 4 << 20), (1 << 30, 0)].into());
    }
}
