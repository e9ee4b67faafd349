//! A naive model of scheduling that visits all Pods each time, as the documentation describes it.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::{Cluster, schedule::check_node};

#[derive(Clone, Debug)]
struct PodSpec {
    app: u8,
    cpu: i64,
    port: Option<u16>,
    zone: Option<u8>,
    tolerates: bool,
    /// `spread`: hard spread over zones. `near`: affinity to an app. `far`: anti-affinity to an app, by zone if `true`.
    spread: bool,
    near: Option<u8>,
    far: Option<(u8, bool)>,
}

#[derive(Clone, Debug)]
struct NodeSpec {
    zone: Option<u8>,
    cpu: i64,
    tainted: bool,
    cordoned: bool,
}

#[derive(Clone, Debug)]
enum Step {
    SetNode(u8, NodeSpec),
    RemoveNode(u8),
    Place(u8, PodSpec, u8),
    RemovePod(u8),
    Ask(PodSpec),
}

fn pod_spec() -> impl Strategy<Value = PodSpec> {
    let far = prop::option::of((0..3u8, any::<bool>()));
    let basics =
        (0..3u8, 0..5i64, prop::option::of(1..3u16), prop::option::of(0..3u8), any::<bool>());
    (basics, any::<bool>(), prop::option::of(0..3u8), far).prop_map(
        |((app, cpu, port, zone, tolerates), spread, near, far)| PodSpec {
            app,
            cpu: cpu * 500,
            port,
            zone,
            tolerates,
            spread,
            near,
            far,
        },
    )
}

fn node_spec() -> impl Strategy<Value = NodeSpec> {
    (
        prop::option::weighted(0.8, 0..3u8),
        1..6i64,
        prop::bool::weighted(0.2),
        prop::bool::weighted(0.1),
    )
        .prop_map(|(zone, cpu, tainted, cordoned)| NodeSpec {
            zone,
            cpu: cpu * 1000,
            tainted,
            cordoned,
        })
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (0..6u8, node_spec()).prop_map(|(n, spec)| Step::SetNode(n, spec)),
        1 => (0..6u8).prop_map(Step::RemoveNode),
        5 => (0..20u8, pod_spec(), 0..6u8).prop_map(|(p, spec, n)| Step::Place(p, spec, n)),
        2 => (0..20u8).prop_map(Step::RemovePod),
        4 => pod_spec().prop_map(Step::Ask),
    ];
    prop::collection::vec(step, 1..60)
}

const ZONE: &str = "topology.kubernetes.io/zone";

fn real_pod(name: &str, spec: &PodSpec) -> Arc<Pod> {
    let term = |app: u8, key: &str| json!([{"topologyKey": key, "labelSelector": {"matchLabels": {"app": app.to_string()}}}]);
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let mut extra =
        json!({"metadata": {"labels": {"app": spec.app.to_string()}}, "spec": {"affinity": {}}});
    let to = &mut extra["spec"];
    if let Some(port) = spec.port {
        to["initContainers"] =
            json!([{"image": "i", "restartPolicy": "Always", "ports": [{"hostPort": port}]}]);
    }
    if let Some(zone) = spec.zone {
        to["nodeSelector"] = json!({ZONE: zone.to_string()});
    }
    if spec.tolerates {
        to["tolerations"] = json!([{"key": "t", "operator": "Exists"}]);
    }
    if spec.spread {
        to["topologySpreadConstraints"] = json!([{
            "maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"app": spec.app.to_string()}}}]);
    }
    if let Some(app) = spec.near {
        to["affinity"]["podAffinity"] = json!({required: term(app, ZONE)});
    }
    if let Some((app, by_zone)) = spec.far {
        let key = if by_zone { ZONE } else { "kubernetes.io/hostname" };
        to["affinity"]["podAntiAffinity"] = json!({required: term(app, key)});
    }
    pod(name, &format!("{}m", spec.cpu), extra)
}

fn real_node(name: &str, spec: &NodeSpec) -> Node {
    let mut extra = json!({"spec": {"unschedulable": spec.cordoned}});
    if let Some(zone) = spec.zone {
        extra["metadata"]["labels"][ZONE] = json!(zone.to_string());
    }
    if spec.tainted {
        extra["spec"]["taints"] = json!([{"key": "t", "effect": "NoSchedule"}]);
    }
    node(name, &format!("{}m", spec.cpu), extra)
}

#[derive(Default)]
struct Model {
    nodes: BTreeMap<u8, NodeSpec>,
    pods: BTreeMap<u8, (PodSpec, u8)>,
}

impl Model {
    fn on(&self, node: u8) -> impl Iterator<Item = &PodSpec> {
        self.pods.values().filter(move |p| p.1 == node).map(|p| &p.0)
    }

    fn zone(&self, node: u8) -> Option<u8> {
        self.nodes.get(&node).and_then(|n| n.zone)
    }

    fn in_zone(&self, zone: u8) -> impl Iterator<Item = &PodSpec> {
        self.pods.values().filter(move |p| self.zone(p.1) == Some(zone)).map(|p| &p.0)
    }

    fn fits(&self, pod: &PodSpec, at: u8) -> bool {
        let node = &self.nodes[&at];
        let used: i64 = self.on(at).map(|p| p.cpu).sum();
        let clash = |p: &PodSpec| p.port.is_some() && p.port == pod.port;
        !node.cordoned
            && (!node.tainted || pod.tolerates)
            && pod.zone.is_none_or(|zone| node.zone == Some(zone))
            && (pod.cpu == 0 || used + pod.cpu <= node.cpu)
            && !self.on(at).any(clash)
            && self.spreads(pod, at)
            && self.is_near(pod, at)
            && self.is_far(pod, at)
    }

    fn spreads(&self, pod: &PodSpec, at: u8) -> bool {
        if !pod.spread {
            return true;
        }
        let Some(own) = self.zone(at) else { return false };
        let allowed = |n: &&NodeSpec| pod.zone.is_none_or(|zone| n.zone == Some(zone));
        let zones: std::collections::BTreeSet<u8> =
            self.nodes.values().filter(allowed).filter_map(|n| n.zone).collect();
        let count = |zone: u8| self.in_zone(zone).filter(|p| p.app == pod.app).count();
        let least = zones.iter().map(|z| count(*z)).min().unwrap_or(0);
        count(own) + 1 - least <= 1
    }

    fn is_near(&self, pod: &PodSpec, at: u8) -> bool {
        let Some(app) = pod.near else { return true };
        let Some(zone) = self.zone(at) else { return false };
        let anywhere = (0..3).any(|z| self.in_zone(z).any(|p| p.app == app));
        self.in_zone(zone).any(|p| p.app == app) || (!anywhere && pod.app == app)
    }

    fn is_far(&self, pod: &PodSpec, at: u8) -> bool {
        let zone = self.zone(at);
        let same = |by_zone: bool, other: u8| {
            if by_zone { zone.is_some() && self.zone(other) == zone } else { other == at }
        };
        self.pods.values().all(|(other, there)| {
            pod.far.is_none_or(|(app, by_zone)| other.app != app || !same(by_zone, *there))
                && other.far.is_none_or(|(app, by_zone)| pod.app != app || !same(by_zone, *there))
        })
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn filters_agree_with_naive_model(steps in steps()) {
        let mut cluster = Cluster::new();
        let mut model = Model::default();
        for step in steps {
            match step {
                Step::SetNode(n, spec) => {
                    cluster.set_node(real_node(&format!("n{n}"), &spec));
                    model.nodes.insert(n, spec);
                }
                Step::RemoveNode(n) => {
                    // The Pods of a deleted node are removed first, as the Pod garbage collector does.
                    let there: Vec<u8> =
                        model.pods.iter().filter(|(_, p)| p.1 == n).map(|(p, _)| *p).collect();
                    for p in there {
                        model.pods.remove(&p);
                        cluster.remove_pod(&format!("p{p}"));
                    }
                    model.nodes.remove(&n);
                    cluster.remove_node(&format!("n{n}"));
                }
                Step::Place(p, spec, n) => {
                    if model.nodes.contains_key(&n) {
                        let name = format!("p{p}");
                        cluster.add_pod(real_pod(&name, &spec), &format!("n{n}").into());
                        model.pods.insert(p, (spec, n));
                    }
                }
                Step::RemovePod(p) => {
                    cluster.remove_pod(&format!("p{p}"));
                    model.pods.remove(&p);
                }
                Step::Ask(spec) => {
                    let asked = real_pod("asked", &spec);
                    for n in model.nodes.keys().copied().collect::<Vec<_>>() {
                        let ix = cluster.find_node(&format!("n{n}")).unwrap();
                        let passes = check_node(&mut cluster, &asked, ix, None);
                        prop_assert_eq!(passes, model.fits(&spec, n), "node {} for {:?}", n, spec);
                    }
                }
            }
        }
        for ix in cluster.live_nodes() {
            let hot = &cluster.hot[ix as usize];
            let sum: i64 = cluster.pods_on(ix).iter().map(|p| p.requests.cpu).sum();
            prop_assert_eq!((hot.used_cpu, hot.used_pods), (sum, cluster.pods_on(ix).len() as i64));
        }
    }
}
