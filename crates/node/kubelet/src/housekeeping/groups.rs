//! Limits of the cgroups that contain Pods.

use k8s_openapi::api::core::v1::Pod;
use pod_core::{
    PodRegistry, QosClass, huge_pages, qos_class,
    resources::{cpu_shares, milli, pod_amounts, whole},
};

use crate::{context::Context, node::capacity, pods::Pods};

/// The cgroups above those of Pods: the limits for all Pods, and the CPU shares of the QoS classes.
#[derive(Default)]
pub(super) struct Groups {
    set: Vec<(String, sys::cgroup::Limits)>,
}

impl Groups {
    /// Updates the cgroups to the current Pods. Writes only if a limit has changed.
    pub(super) fn update(&mut self, ctx: &Context, pods: &Pods) -> Result<(), sys::Error> {
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
        let all = sys::cgroup::Limits {
            memory: amount("memory", whole),
            huge_pages: pages.collect(),
            ..shares(amount("cpu", milli))
        };
        let names = &ctx.settings.cgroups;
        let limits = vec![
            (names.pods(), all),
            (names.class(QosClass::Burstable), shares(requested)),
            (names.class(QosClass::BestEffort), shares(0)),
        ];
        if self.set != limits {
            limits.iter().try_for_each(|(group, limits)| ctx.cgroups.ensure(group, limits))?;
            self.set = limits;
        }
        Ok(())
    }
}
