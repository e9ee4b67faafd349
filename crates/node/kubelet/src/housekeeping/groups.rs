//! Limits of the cgroups that contain Pods.

use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::api::resource::Quantity};
use kubelet_config::ReservedGroup;
use pod_core::{
    PodRegistry, QosClass, huge_pages, qos_class,
    resources::{cpu_shares, milli, pod_amounts, whole},
};

use crate::{context::Context, node::capacity, pods::Pods};

/// The cgroups above those of Pods: the limits for all Pods, and the CPU shares of the QoS classes.
#[derive(Default)]
pub(super) struct Groups {
    set: Vec<(String, sys::cgroup::Limits)>,
    /// `true` if the groups of the system and of Kubernetes' components are limited.
    reserved: bool,
}

/// Returns the limits of a reserved group: the amounts that are reserved for it.
fn reserved_limits(group: &ReservedGroup) -> sys::cgroup::Limits {
    let amount = |name: &str| group.amounts.get(name).map(|text| Quantity(text.clone()));
    let compressible = sys::cgroup::Limits {
        cpu_shares: amount("cpu").map_or(0, |cpu| cpu_shares(milli(&cpu))),
        ..Default::default()
    };
    if group.compressible_only {
        return compressible;
    }
    let whole = |name: &str| amount(name).map_or(0, |amount| whole(&amount));
    sys::cgroup::Limits { memory: whole("memory"), pids: whole("pid"), ..compressible }
}

impl Groups {
    /// Updates the cgroups to the current Pods. Writes only if a limit has changed.
    pub(super) fn update(&mut self, ctx: &Context, pods: &Pods) -> Result<(), sys::Error> {
        if !self.reserved {
            for group in &ctx.settings.enforcement.groups {
                ctx.cgroups.restrict(&group.group, &reserved_limits(group))?;
            }
            self.reserved = true;
        }
        let amounts = capacity::unreserved(&ctx.machine, &ctx.settings);
        let amount = |name: &str, read: fn(&_) -> i64| amounts.get(name).map_or(0, read);
        let active = pods.active();
        let burstable = |pod: &&std::sync::Arc<Pod>| qos_class(pod) == QosClass::Burstable;
        let requested =
            active.iter().filter(burstable).map(|pod| pod_amounts(pod).cpu_request).sum();
        let shares =
            |milli| sys::cgroup::Limits { cpu_shares: cpu_shares(milli), ..Default::default() };
        let pages = ctx.machine.huge_pages.keys().map(|size| {
            let bytes = amount(&huge_pages::resource(*size), whole);
            (*size, u64::try_from(bytes).unwrap_or(0))
        });
        let mut all = shares(amount("cpu", milli));
        if ctx.settings.enforcement.pods {
            (all.memory, all.huge_pages) = (amount("memory", whole), pages.collect());
        }
        let mut burstable_limits = shares(requested);
        if ctx.settings.kernel.memory_qos.is_some_and(|qos| qos.reserve) {
            // A cgroup's protection reaches only as far as that of the groups above it.
            let memory = |class: QosClass| {
                let pods = active.iter().filter(|pod| qos_class(pod) == class);
                pods.map(|pod| pod_amounts(pod).memory_request).fold(0, i64::saturating_add)
            };
            burstable_limits.memory_low = memory(QosClass::Burstable);
            all.memory_low = burstable_limits.memory_low;
            all.memory_min = memory(QosClass::Guaranteed);
        }
        let names = &ctx.settings.cgroups;
        let limits = vec![
            (names.pods(), all),
            (names.class(QosClass::Burstable), burstable_limits),
            (names.class(QosClass::BestEffort), shares(0)),
        ];
        if self.set != limits {
            limits.iter().try_for_each(|(group, limits)| ctx.cgroups.ensure(group, limits))?;
            self.set = limits;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_reserved_group_to_its_amounts() {
        let amounts = [("cpu", "500m"), ("memory", "1Gi"), ("pid", "100")];
        let amounts = amounts.map(|(name, amount)| (name.to_owned(), amount.to_owned())).into();
        let mut group =
            ReservedGroup { group: "/system".to_owned(), amounts, compressible_only: false };
        let limits = reserved_limits(&group);
        assert_eq!((limits.cpu_shares, limits.memory, limits.pids), (512, 1 << 30, 100));
        group.compressible_only = true;
        let limits = reserved_limits(&group);
        assert_eq!((limits.cpu_shares, limits.memory, limits.pids), (512, 0, 0));
    }
}
