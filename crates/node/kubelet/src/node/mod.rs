//! The node: its registration, its status and its heartbeats.

mod lease;
mod own;
mod patience;
mod register;
mod status;

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use pod_core::{evict::Signal, huge_pages, resources::whole};

use crate::context::Context;

pub(crate) use lease::Heartbeats;
pub(crate) use own::OwnNode;
pub(crate) use register::run;

/// The kubelet version that the Node reports: the version of Kubernetes that is implemented.
pub(crate) const VERSION: &str = "v1.36.2";

/// Returns the capacity of the machine.
pub(crate) fn capacity(ctx: &Context) -> BTreeMap<String, Quantity> {
    let disk = sys::disk_use(&ctx.settings.root).unwrap_or_default();
    let amounts = [
        ("cpu", ctx.machine.cpus.to_string()),
        ("memory", format!("{}Ki", ctx.machine.memory / 1024)),
        ("ephemeral-storage", format!("{}Ki", disk.capacity / 1024)),
        ("pods", ctx.settings.max_pods.to_string()),
    ];
    let named = amounts.map(|(name, amount)| (name.to_owned(), Quantity(amount)));
    let pages = ctx.machine.huge_pages.iter().map(|(size, count)| {
        let bytes = i64::try_from(size.saturating_mul(*count)).unwrap_or(i64::MAX);
        let bytes = api_meta::Quantity::new(bytes, api_meta::QuantityFormat::BinarySi);
        (huge_pages::resource(*size), Quantity(bytes.to_string()))
    });
    named.into_iter().chain(pages).collect()
}

/// Returns the limits of all Pods together: the capacity less the reserved amounts.
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

/// Returns the allocatable amounts: the unreserved amounts, less those that eviction thresholds keep free, so that a
/// full node does not evict immediately. Memory reserved as huge pages is not allocatable as memory.
pub(crate) fn allocatable(ctx: &Context) -> BTreeMap<String, Quantity> {
    let all = capacity(ctx);
    let mut amounts = unreserved(ctx);
    let pages = all.iter().filter(|(name, _)| huge_pages::size(name).is_some());
    let huge = pages.map(|(_, bytes)| whole(bytes)).fold(0, i64::saturating_add);
    for (signal, name) in [(Signal::Memory, "memory"), (Signal::NodeFs, "ephemeral-storage")] {
        let (Some(amount), Some(all)) = (amounts.get_mut(name), all.get(name)) else { continue };
        let all = u64::try_from(whole(all)).unwrap_or(0);
        let kept =
            i64::try_from(ctx.settings.eviction.hard_minimum(signal, all)).unwrap_or(i64::MAX);
        let apart = if name == "memory" { huge } else { 0 };
        let left = whole(amount).saturating_sub(kept).saturating_sub(apart).max(0);
        let text = if name == "memory" { format!("{}Ki", left / 1024) } else { left.to_string() };
        *amount = Quantity(text);
    }
    amounts
}
