//! Cached counts of Pods per node for the selectors of spreading and affinity.

use std::{collections::HashMap, sync::Arc};

use crate::{
    index::NodeIx,
    labels::Selector,
    pod::Pod,
    terms::{NamespaceMatch, Namespaces, PodTerm},
};

/// The condition for counted Pods: all parts must match.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Matcher {
    parts: Vec<(NamespaceMatch, Option<Selector>)>,
    /// `true` if terminating Pods do not count, as in spreading; in affinity they count.
    skip_terminating: bool,
}

impl Matcher {
    pub(crate) fn spread(pod: &Pod, selector: &Selector) -> Self {
        let parts = vec![(NamespaceMatch::one(pod.namespace_symbol), Some(selector.clone()))];
        Self { parts, skip_terminating: true }
    }

    pub(crate) fn terms(terms: &[Arc<PodTerm>]) -> Self {
        let parts = terms.iter().map(|t| (t.namespaces.clone(), t.selector.clone())).collect();
        Self { parts, skip_terminating: false }
    }

    fn matches(&self, pod: &Pod, namespaces: &Namespaces) -> bool {
        !(self.skip_terminating && pod.terminating)
            && self.parts.iter().all(|(ns, selector)| {
                selector.as_ref().is_some_and(|s| s.matches(&pod.labels))
                    && ns.matches(pod.namespace_symbol, namespaces)
            })
    }

    fn by_namespace_labels(&self) -> bool {
        self.parts.iter().any(|(ns, _)| ns.by_labels())
    }
}

/// The number of matching Pods by node index.
pub(crate) type PerNode = Vec<u32>;

struct Track {
    matcher: Matcher,
    counts: PerNode,
    used: u64,
}

/// The number of cached matchers. Each costs four bytes per node, and a comparison per added or removed Pod.
const MAX_TRACKS: usize = 256;

/// Counts of Pods per node for recently used selectors. They are updated when Pods are added and removed, so that
/// spreading and affinity need not visit all Pods.
#[derive(Default)]
pub(crate) struct Tracks {
    by_matcher: HashMap<Matcher, usize>,
    tracks: Vec<Track>,
    clock: u64,
}

impl Tracks {
    /// Returns the index of the matcher's counts, and counts `pods` if they are not cached.
    ///
    /// The index is valid until [`MAX_TRACKS`] other matchers are requested, which one Pod never does.
    pub(crate) fn ensure<'a>(
        &mut self,
        matcher: &Matcher,
        nodes: usize,
        namespaces: &Namespaces,
        pods: impl Iterator<Item = (NodeIx, &'a [Arc<Pod>])>,
    ) -> usize {
        self.clock += 1;
        if let Some(&at) = self.by_matcher.get(matcher) {
            self.tracks[at].used = self.clock;
            return at;
        }
        let mut counts = vec![0; nodes];
        for (node, pods) in pods {
            counts[node as usize] =
                pods.iter().filter(|pod| matcher.matches(pod, namespaces)).count() as u32;
        }
        let track = Track { matcher: matcher.clone(), counts, used: self.clock };
        let at = if self.tracks.len() < MAX_TRACKS {
            self.tracks.push(track);
            self.tracks.len() - 1
        } else {
            let oldest = (0..self.tracks.len()).min_by_key(|at| self.tracks[*at].used).unwrap_or(0);
            self.by_matcher.remove(&self.tracks[oldest].matcher);
            self.tracks[oldest] = track;
            oldest
        };
        self.by_matcher.insert(matcher.clone(), at);
        at
    }

    pub(crate) fn counts(&self, at: usize) -> &[u32] {
        &self.tracks[at].counts
    }

    pub(crate) fn add(&mut self, pod: &Pod, node: NodeIx, namespaces: &Namespaces) {
        self.each(pod, node, namespaces, |count| *count += 1);
    }

    pub(crate) fn remove(&mut self, pod: &Pod, node: NodeIx, namespaces: &Namespaces) {
        self.each(pod, node, namespaces, |count| *count = count.saturating_sub(1));
    }

    fn each(
        &mut self,
        pod: &Pod,
        node: NodeIx,
        namespaces: &Namespaces,
        change: impl Fn(&mut u32),
    ) {
        for track in &mut self.tracks {
            if track.matcher.matches(pod, namespaces) {
                if track.counts.len() <= node as usize {
                    track.counts.resize(node as usize + 1, 0);
                }
                change(&mut track.counts[node as usize]);
            }
        }
    }

    /// Drops the counts that depend on namespace labels. They are recounted on demand.
    pub(crate) fn namespace_changed(&mut self) {
        self.tracks.retain(|track| !track.matcher.by_namespace_labels());
        self.by_matcher =
            self.tracks.iter().enumerate().map(|(at, track)| (track.matcher.clone(), at)).collect();
    }

    /// Extends all counts to this number of nodes.
    pub(crate) fn grow(&mut self, nodes: usize) {
        for track in &mut self.tracks {
            track.counts.resize(nodes, 0);
        }
    }
}
