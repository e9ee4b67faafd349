//! The plugin ImageLocality: scores nodes by the images that they have.

use crate::{
    index::NodeIx,
    plugin::{Cx, MAX_SCORE, Plugin, Scorer},
};

/// Prefers nodes that have the Pod's images. Scores depend on image size and on the share of nodes with the image, so
/// that one node with a rare image does not attract all Pods.
pub(super) struct ImageLocality;

const SMALLEST: i64 = 23 * 1024 * 1024;
const LARGEST_PER_CONTAINER: i64 = 1000 * 1024 * 1024;

struct Evaluator<'a> {
    cx: Cx<'a>,
    /// The share of nodes that have each of the Pod's images.
    shares: Vec<f64>,
}

impl Plugin for ImageLocality {
    fn name(&self) -> &'static str {
        "ImageLocality"
    }

    fn weight(&self) -> i64 {
        1
    }

    fn scorer<'a>(&self, cx: Cx<'a>, _: &[NodeIx]) -> Option<Box<dyn Scorer + 'a>> {
        let total = cx.cluster.node_count() as f64;
        let nodes = |image| cx.cluster.image_nodes.get(image).copied().unwrap_or(0);
        let shares: Vec<_> = cx.pod.images.iter().map(|i| f64::from(nodes(i)) / total).collect();
        shares.iter().any(|s| *s > 0.0).then(|| Box::new(Evaluator { cx, shares }) as _)
    }
}

impl Scorer for Evaluator<'_> {
    fn score(&self, node: NodeIx) -> i64 {
        let (node, pod) = (self.cx.cluster.node(node), self.cx.pod);
        let worth =
            |(image, share): (_, &f64)| (node.image(image).unwrap_or(0) as f64 * share) as i64;
        let sum: i64 = pod.images.iter().copied().zip(&self.shares).map(worth).sum();
        let largest = LARGEST_PER_CONTAINER * pod.images.len() as i64;
        MAX_SCORE * (sum.clamp(SMALLEST, largest) - SMALLEST) / (largest - SMALLEST)
    }
}
