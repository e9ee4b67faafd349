//! Allocates Pod CIDRs to nodes, one of each family.

use std::{collections::HashMap, sync::Arc};

use api_meta::{Cidr, Family, ObjectMeta};
use client::{Error, Resource, WorkQueue};
use events::ObjectRef;
use parking_lot::Mutex;
use serde_json::json;

use crate::{
    blocks::Blocks,
    config::Config,
    context::{Context, synced},
    shared::Watched,
    views::Node,
};

/// The CIDRs and each node's share of them.
#[derive(Default)]
struct Ranges {
    blocks: Vec<Blocks>,
    allocated: HashMap<String, Vec<Cidr>>,
}

#[derive(Debug, PartialEq)]
enum Plan {
    /// The node has its CIDRs.
    Nothing,
    Assign(Vec<Cidr>),
    /// A CIDR has no free block.
    Exhausted,
}

impl Ranges {
    fn new(config: &Config) -> Self {
        let services: Vec<Cidr> =
            config.service_cidrs.iter().filter_map(|text| text.parse().ok()).collect();
        let mut out = Self::default();
        for text in &config.cluster_cidrs {
            let blocks = text.parse::<Cidr>().ok().and_then(|range| {
                let mask = match range.family() {
                    Family::V4 => config.node_cidr_mask_v4,
                    Family::V6 => config.node_cidr_mask_v6,
                };
                Blocks::new(range, mask)
            });
            match blocks {
                Some(mut blocks) => {
                    services.iter().for_each(|service| blocks.occupy(*service));
                    out.blocks.push(blocks);
                }
                None => tracing::error!(
                    range = text,
                    "--cluster-cidr is not a range with room for a node's CIDR; nodes get no addresses from it"
                ),
            }
        }
        out
    }

    /// Records a node's CIDRs, or allocates some if it has none.
    fn plan(&mut self, node: &Node) -> Plan {
        let name = &node.metadata.name;
        let has: Vec<Cidr> =
            node.spec.pod_cidrs.iter().filter_map(|text| text.parse().ok()).collect();
        if !has.is_empty() {
            // Release an allocation that was never written.
            if self.allocated.get(name) != Some(&has) {
                self.release(name);
                has.iter().for_each(|cidr| self.blocks.iter_mut().for_each(|b| b.occupy(*cidr)));
                self.allocated.insert(name.clone(), has);
            }
            return Plan::Nothing;
        }
        if let Some(allocated) = self.allocated.get(name) {
            return Plan::Assign(allocated.clone());
        }
        let mut allocated = Vec::new();
        for blocks in &mut self.blocks {
            allocated.extend(blocks.allocate());
        }
        self.allocated.insert(name.clone(), allocated.clone());
        if allocated.len() < self.blocks.len() {
            self.release(name);
            return Plan::Exhausted;
        }
        if allocated.is_empty() { Plan::Nothing } else { Plan::Assign(allocated) }
    }

    fn release(&mut self, node: &str) {
        for cidr in self.allocated.remove(node).unwrap_or_default() {
            self.blocks.iter_mut().for_each(|blocks| blocks.release(cidr));
        }
    }
}

pub(crate) fn start(context: Context) {
    if !context.config.allocate_node_cidrs {
        return;
    }
    let queue = WorkQueue::default();
    let nodes = context.watch::<Node>(Resource::NODES);
    nodes.on_key(&queue);
    let ranges = Arc::new(Mutex::new(Ranges::new(&context.config)));
    let waits = vec![occupied(&nodes, &ranges)];
    let state = (context.clone(), nodes, ranges);
    context.run(&queue, 1, waits, state, |(context, nodes, ranges), key| async move {
        reconcile(&context, &nodes, &ranges, &key).await
    });
}

/// Waits until the CIDRs of existing nodes are recorded. No allocation may happen earlier.
fn occupied(
    nodes: &Watched<Node>,
    ranges: &Arc<Mutex<Ranges>>,
) -> futures_util::future::BoxFuture<'static, ()> {
    let (nodes, ranges, listed) = (nodes.clone(), ranges.clone(), synced(nodes));
    Box::pin(async move {
        listed.await;
        for node in nodes.list() {
            if !node.spec.pod_cidrs.is_empty() {
                ranges.lock().plan(&node);
            }
        }
    })
}

async fn reconcile(
    context: &Context,
    nodes: &Watched<Node>,
    ranges: &Mutex<Ranges>,
    name: &str,
) -> Result<(), Error> {
    let Some(node) = nodes.get(name).filter(|node| !node.metadata.terminating()) else {
        ranges.lock().release(name);
        return Ok(());
    };
    let plan = ranges.lock().plan(&node);
    match plan {
        Plan::Nothing => Ok(()),
        Plan::Assign(cidrs) => {
            let cidrs: Vec<_> = cidrs.iter().map(Cidr::to_string).collect();
            let patch = json!({"metadata": {"uid": node.metadata.uid},
                "spec": {"podCIDR": cidrs[0], "podCIDRs": cidrs}});
            context.merge(&Resource::NODES, &node.metadata, patch).await?;
            tracing::info!(node = name, ?cidrs, "allocated Pod CIDRs to the node");
            Ok(())
        }
        Plan::Exhausted => {
            let message = format!("Node {name} status is now: CIDRNotAvailable");
            context.events.normal(object(&node.metadata), "CIDRNotAvailable", message);
            Ok(())
        }
    }
}

/// The object of Events about a node.
pub(crate) fn object(node: &ObjectMeta) -> ObjectRef {
    ObjectRef {
        api_version: "v1".into(),
        kind: "Node".into(),
        name: node.name.clone(),
        uid: node.uid.clone(),
        ..ObjectRef::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, cidrs: &[&str]) -> Node {
        let value = json!({"metadata": {"name": name}, "spec": {"podCIDRs": cidrs}});
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn allocates_one_range_per_family() {
        let config = Config {
            cluster_cidrs: vec!["10.244.0.0/23".into(), "fd00::/48".into()],
            ..Config::default()
        };
        let mut ranges = Ranges::new(&config);
        assert_eq!(ranges.plan(&node("old", &["10.244.0.0/24", "fd00::/64"])), Plan::Nothing);
        let Plan::Assign(given) = ranges.plan(&node("a", &[])) else { panic!() };
        let texts: Vec<_> = given.iter().map(Cidr::to_string).collect();
        assert_eq!(texts, ["10.244.1.0/24", "fd00:0:0:1::/64"]);
        // A stale read allocates the same CIDRs again.
        assert_eq!(ranges.plan(&node("a", &[])), Plan::Assign(given));
        assert_eq!(ranges.plan(&node("b", &[])), Plan::Exhausted);
        ranges.release("old");
        assert!(matches!(ranges.plan(&node("b", &[])), Plan::Assign(_)));
    }
}
