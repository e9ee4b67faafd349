//! The node: its registration, its status and its heartbeats.

mod lease;
mod own;
mod register;
mod status;

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use pod_core::{evict::Signal, resources::whole};

use crate::context::Context;

pub(crate) use lease::Heartbeats;
pub(crate) use own::Own;
pub(crate) use register::run;

/// The version that the node reports: upstream's whose behaviour this is.
pub(crate) const VERSION: &str = "v1.36.2";

/// What the machine has for all.
pub(crate) fn capacity(ctx: &Context) -> BTreeMap<String, Quantity> {
    let disk = sys::disk_use(&ctx.settings.root).unwrap_or_default();
    let amounts = [
        ("cpu", ctx.machine.cpus.to_string()),
        ("memory", format!("{}Ki", ctx.machine.memory / 1024)),
        ("ephemeral-storage", format!("{}Ki", disk.capacity / 1024)),
        ("pods", ctx.settings.max_pods.to_string()),
    ];
    amounts.into_iter().map(|(name, amount)| (name.to_owned(), Quantity(amount))).collect()
}

/// What Pods are limited to together: all but what is reserved.
pub(crate) fn unreserved(ctx: &Context) -> BTreeMap<String, Quantity> {
    let mut amounts = capacity(ctx);
    for (name, reserved) in &ctx.settings.reserved {
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

/// What Pods may ask for: what is not reserved, less what thresholds keep free, so that a node that is full does not
/// at once evict.
pub(crate) fn allocatable(ctx: &Context) -> BTreeMap<String, Quantity> {
    let all = capacity(ctx);
    let mut amounts = unreserved(ctx);
    for (signal, name) in [(Signal::Memory, "memory"), (Signal::NodeFs, "ephemeral-storage")] {
        let (Some(amount), Some(all)) = (amounts.get_mut(name), all.get(name)) else { continue };
        let all = u64::try_from(whole(all)).unwrap_or(0);
        let kept = i64::try_from(ctx.settings.eviction.kept_free(signal, all)).unwrap_or(i64::MAX);
        let left = whole(amount).saturating_sub(kept).max(0);
        let text = if name == "memory" { format!("{}Ki", left / 1024) } else { left.to_string() };
        *amount = Quantity(text);
    }
    amounts
}
