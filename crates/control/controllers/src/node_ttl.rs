//! Tells kubelets by an annotation for how long they may cache ConfigMaps and Secrets, which depends on the number of
//! nodes. Kubelets with `configMapAndSecretChangeDetectionStrategy: Cache` read it.

use std::sync::Arc;

use api_meta::ObjectMeta;
use client::{Error, Resource, WorkQueue};
use parking_lot::Mutex;
use serde_json::json;

use crate::{
    context::{Context, synced},
    shared::Watched,
    views::Node,
};

const ANNOTATION: &str = "node.alpha.kubernetes.io/ttl";

/// A range of cluster sizes. Ranges overlap, so that one node more or less does not change all others each time.
struct Sizes {
    least: usize,
    most: usize,
    seconds: u32,
}

const SIZES: [Sizes; 5] = [
    Sizes { least: 0, most: 100, seconds: 0 },
    Sizes { least: 90, most: 500, seconds: 15 },
    Sizes { least: 450, most: 1000, seconds: 30 },
    Sizes { least: 900, most: 2000, seconds: 60 },
    Sizes { least: 1800, most: usize::MAX, seconds: 300 },
];

/// Returns the position of the range of a cluster with `nodes` nodes, which was in the range `current`.
fn size(mut current: usize, nodes: usize) -> usize {
    while nodes > SIZES[current].most {
        current += 1;
    }
    while nodes < SIZES[current].least {
        current -= 1;
    }
    current
}

/// Returns the value that the annotation must get; `None` if the node has it.
fn plan(node: &ObjectMeta, seconds: u32) -> Option<String> {
    let present = node.annotations.get(ANNOTATION).and_then(|text| text.parse::<u32>().ok());
    (present != Some(seconds)).then(|| seconds.to_string())
}

pub(crate) fn start(context: Context) {
    let queue = WorkQueue::default();
    let nodes = context.watch::<Node>(Resource::NODES);
    nodes.on_key(&queue);
    let waits = vec![synced(&nodes)];
    let state = (context.clone(), nodes, Arc::new(Mutex::new(0)));
    context.run(&queue, 1, waits, state, |(context, nodes, current), key| async move {
        reconcile(&context, &nodes, &current, &key).await
    });
}

async fn reconcile(
    context: &Context,
    nodes: &Watched<Node>,
    current: &Mutex<usize>,
    name: &str,
) -> Result<(), Error> {
    let seconds = {
        let mut current = current.lock();
        *current = size(*current, nodes.len());
        SIZES[*current].seconds
    };
    let Some(node) = nodes.get(name) else { return Ok(()) };
    let Some(value) = plan(&node.metadata, seconds) else { return Ok(()) };
    let patch = json!({"metadata": {"annotations": {ANNOTATION: value}}});
    context.merge(&Resource::NODES, &node.metadata, patch).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_size_outside_of_overlap() {
        let mut current = 0;
        let mut seconds = |nodes: usize| {
            current = size(current, nodes);
            SIZES[current].seconds
        };
        for (nodes, expected) in [
            (0, 0),
            (100, 0),
            (101, 15),
            (95, 15),
            (89, 0),
            (5000, 300),
            (1800, 300),
            (1799, 60),
            (0, 0),
        ] {
            assert_eq!(seconds(nodes), expected, "{nodes} nodes");
        }
    }

    #[test]
    fn replaces_only_other_values() {
        let node = |value: &str| ObjectMeta {
            annotations: [(ANNOTATION.to_owned(), value.to_owned())].into(),
            ..ObjectMeta::default()
        };
        assert_eq!(plan(&ObjectMeta::default(), 0), Some("0".into()));
        assert_eq!(plan(&node("15"), 15), None);
        for hostile in ["30", "-15", "15s", "", &"9".repeat(1 << 20)] {
            assert_eq!(plan(&node(hostile), 15), Some("15".into()));
        }
    }
}
