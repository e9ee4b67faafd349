//! Preparation of a Pod for scheduling: its profile, and the counts that its constraints need.

use std::sync::Arc;

use crate::{
    cluster::Cluster,
    labels::Selector,
    pod::{Pod, Spread},
    profile::Profile,
    sym::Sym,
    terms::PodTerm,
    tracks::Matcher,
};

/// A spread constraint and the index of its counts.
pub(crate) struct TrackedSpread {
    pub(crate) spread: Spread,
    pub(crate) track: usize,
    pub(crate) by_host: bool,
}

/// The indexes of the counts for a Pod's constraints. Counting changes the cluster, so it precedes the plugins.
pub(crate) struct PreparedPod {
    pub(crate) profile: Arc<Profile>,
    pub(crate) hard_spread: Vec<TrackedSpread>,
    pub(crate) soft_spread: Vec<TrackedSpread>,
    /// `true` if the soft constraints are the system's defaults, and not those of the Pod or the profile.
    pub(crate) default_spread: bool,
    pub(crate) affinity_track: Option<usize>,
    pub(crate) anti_tracks: Vec<usize>,
    pub(crate) preferred_tracks: Vec<usize>,
}

const HOSTNAME: &str = "kubernetes.io/hostname";
const ZONE: &str = "topology.kubernetes.io/zone";

/// Ensures that the cluster counts Pods for the constraints of this Pod, and returns the indexes of the counts.
pub(crate) fn prepare(cluster: &mut Cluster, pod: &Pod) -> PreparedPod {
    let profile = cluster.profiles.of(&pod.scheduler_name).clone();
    let mut out = PreparedPod {
        hard_spread: Vec::new(),
        soft_spread: Vec::new(),
        default_spread: pod.spread.is_empty() && profile.default_spread().is_none(),
        affinity_track: None,
        anti_tracks: Vec::new(),
        preferred_tracks: Vec::new(),
        profile,
    };
    for spread in constraints(cluster, pod, &out.profile) {
        let hard = spread.hard;
        let tracked = track_spread(cluster, pod, spread);
        if hard { out.hard_spread.push(tracked) } else { out.soft_spread.push(tracked) }
    }
    if !pod.affinity.is_empty() {
        out.affinity_track = Some(track_terms(cluster, &pod.affinity));
    }
    for term in &pod.anti_affinity {
        out.anti_tracks.push(track_terms(cluster, std::slice::from_ref(term)));
    }
    for (_, term) in &pod.preferred_pods {
        out.preferred_tracks.push(track_terms(cluster, std::slice::from_ref(term)));
    }
    out
}

/// Returns the Pod's own spread constraints, or else the defaults of its profile.
fn constraints(cluster: &Cluster, pod: &Pod, profile: &Profile) -> Vec<Spread> {
    if !pod.spread.is_empty() || profile.default_spread().is_some_and(<[_]>::is_empty) {
        return pod.spread.clone();
    }
    let Some(selector) = cluster.default_selector(pod) else { return Vec::new() };
    match profile.default_spread() {
        Some(list) => {
            let selected =
                |spread: &Spread| Spread { selector: selector.clone(), ..spread.clone() };
            list.iter().map(selected).collect()
        }
        None => [(HOSTNAME, 3), (ZONE, 5)]
            .map(|(topology, max_skew)| default_spread(topology, max_skew, selector.clone()))
            .into(),
    }
}

fn default_spread(topology: &str, max_skew: i64, selector: Selector) -> Spread {
    Spread {
        topology: Sym::of(topology),
        max_skew,
        min_domains: 1,
        hard: false,
        selector,
        honor_affinity: true,
        honor_taints: false,
    }
}

fn track_spread(cluster: &mut Cluster, pod: &Pod, spread: Spread) -> TrackedSpread {
    cluster.ensure_column(spread.topology);
    let track = cluster.ensure_track(&Matcher::spread(pod, &spread.selector));
    let by_host = spread.topology == Sym::of(HOSTNAME);
    TrackedSpread { spread, track, by_host }
}

fn track_terms(cluster: &mut Cluster, terms: &[Arc<PodTerm>]) -> usize {
    terms.iter().for_each(|term| cluster.ensure_column(term.topology));
    cluster.ensure_track(&Matcher::terms(terms))
}
