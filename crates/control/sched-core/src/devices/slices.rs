//! ResourceSlices by pool: finds the slices of the latest generation and checks that they are complete.

use std::collections::{BTreeMap, HashMap, HashSet};

use api_meta::Quantity;
use serde_json::Value;

use crate::{
    devices::{
        selectors::{self, DeviceError},
        view::{
            DeviceNodesView, DeviceTaintRuleView, DeviceTaintView, DeviceView, ResourceSliceView,
        },
    },
    node::Node,
    nodeaffinity::NodeSelector,
};

/// The names of a driver and a pool.
pub(super) type PoolId = (Box<str>, Box<str>);

/// The nodes that can use a device.
#[derive(Debug)]
pub(super) enum Nodes {
    One(Box<str>),
    All,
    Selected(NodeSelector, Value),
    /// No nodes are specified, or the specification is invalid.
    None,
}

impl Nodes {
    fn new(view: &DeviceNodesView) -> Self {
        let name = view.node_name.as_ref().filter(|name| !name.is_empty());
        match (name, view.all_nodes, &view.node_selector) {
            (Some(name), ..) => Self::One(name.clone()),
            (None, Some(true), _) => Self::All,
            (None, _, Some(selector)) => match node_selector(selector) {
                Some(compiled) => Self::Selected(compiled, selector.clone()),
                None => Self::None,
            },
            (None, ..) => Self::None,
        }
    }

    fn reach(&self, node: &Node) -> bool {
        match self {
            Self::One(name) => **name == *node.name,
            Self::All => true,
            Self::Selected(selector, _) => selector.matches(node),
            Self::None => false,
        }
    }
}

/// Compiles a NodeSelector of the API.
pub(super) fn node_selector(value: &Value) -> Option<NodeSelector> {
    let view = serde::Deserialize::deserialize(value).ok()?;
    NodeSelector::new(&BTreeMap::new(), Some(&view))
}

/// A device with its CEL value.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) view: DeviceView,
    /// The device's own nodes, if the slice selects nodes per device.
    pub(super) nodes: Option<Nodes>,
    pub(super) cel_value: Result<cel::Value<'static>, DeviceError>,
    /// The taints that DeviceTaintRules add to those of the slice, by rule name.
    rule_taints: BTreeMap<Box<str>, DeviceTaintView>,
}

impl Device {
    pub(super) fn is_shareable(&self) -> bool {
        self.view.allow_multiple_allocations == Some(true)
    }

    /// Returns the taints of the slice and of the rules.
    pub(super) fn taints(&self) -> impl Iterator<Item = &DeviceTaintView> {
        self.view.taints.iter().chain(self.rule_taints.values())
    }
}

#[derive(Debug)]
pub(super) struct Slice {
    pool: PoolId,
    generation: i64,
    /// The number of slices of the pool.
    pool_size: i64,
    nodes: Nodes,
    each_its_own: bool,
    pub(super) devices: Vec<Device>,
    counters: Vec<(Box<str>, Counters)>,
}

/// Amounts by counter name.
pub(super) type Counters = BTreeMap<Box<str>, Quantity>;

impl Slice {
    fn new(view: &ResourceSliceView) -> Self {
        let spec = &view.spec;
        let each_its_own = spec.per_device_node_selection == Some(true);
        let devices = spec.devices.iter().map(|device| Device {
            nodes: each_its_own.then(|| Nodes::new(&device.nodes)),
            cel_value: selectors::cel_value(&spec.driver, device),
            view: device.clone(),
            rule_taints: BTreeMap::new(),
        });
        let counters = spec.shared_counters.iter().map(|set| {
            let counters = set.counters.iter().map(|(name, c)| (name.clone(), c.value)).collect();
            (set.name.clone(), counters)
        });
        Self {
            pool: (spec.driver.clone(), spec.pool.name.clone()),
            generation: spec.pool.generation,
            pool_size: spec.pool.resource_slice_count,
            nodes: Nodes::new(&spec.nodes),
            each_its_own,
            devices: devices.collect(),
            counters: counters.collect(),
        }
    }

    /// Sets or removes the taint of a rule on the devices.
    fn apply_rule(&mut self, name: &str, rule: Option<&DeviceTaintRuleView>) {
        let (driver, pool) = &self.pool;
        for device in &mut self.devices {
            match rule.filter(|rule| rule.spec.concerns(driver, pool, &device.view.name)) {
                Some(rule) => drop(device.rule_taints.insert(name.into(), rule.spec.taint.clone())),
                None => drop(device.rule_taints.remove(name)),
            }
        }
    }

    /// Returns the nodes that can use a device of the slice.
    pub(super) fn nodes<'a>(&'a self, device: &'a Device) -> &'a Nodes {
        device.nodes.as_ref().unwrap_or(&self.nodes)
    }

    /// Returns the devices of the slice that a node can use.
    pub(super) fn devices_for<'a>(&'a self, node: &'a Node) -> impl Iterator<Item = &'a Device> {
        self.devices.iter().filter(move |device| self.nodes(device).reach(node))
    }

    /// Reports whether a node can use a device of the slice.
    fn is_for(&self, node: &Node) -> bool {
        if self.each_its_own {
            self.devices_for(node).next().is_some()
        } else {
            self.nodes.reach(node)
        }
    }

    /// Returns the only node that can use the slice.
    fn only(&self) -> Option<&str> {
        match &self.nodes {
            Nodes::One(name) if !self.each_its_own && self.counters.is_empty() => Some(name),
            _ => None,
        }
    }
}

/// The reason why no device of a pool is allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flaw {
    /// Slices are missing, because the driver is still writing them.
    Incomplete,
    /// Two devices have the same name, or a device consumes unknown counters.
    Invalid,
}

/// The slices of one pool.
#[derive(Debug)]
pub(super) struct Pool {
    pub(super) id: PoolId,
    /// Slices by name, of all generations.
    slices: BTreeMap<Box<str>, Slice>,
    latest: i64,
    pub(super) flaw: Option<Flaw>,
    /// `true` if some devices have binding conditions; other pools are preferred.
    has_conditions: bool,
}

impl Pool {
    fn new(id: PoolId) -> Self {
        Self { id, slices: BTreeMap::new(), latest: 0, flaw: None, has_conditions: false }
    }

    /// Returns the slices of the latest generation.
    pub(super) fn slices(&self) -> impl Iterator<Item = &Slice> {
        self.slices.values().filter(|slice| slice.generation == self.latest)
    }

    /// Returns the counter sets by name, with their total amounts.
    pub(super) fn counters(&self) -> impl Iterator<Item = &(Box<str>, Counters)> {
        self.slices().flat_map(|slice| &slice.counters)
    }

    fn devices(&self) -> impl Iterator<Item = &Device> {
        self.slices().flat_map(|slice| &slice.devices)
    }

    fn changed(&mut self) {
        self.latest = self.slices.values().map(|slice| slice.generation).max().unwrap_or(0);
        let conditional = self.devices().any(|d| !d.view.binding_conditions.is_empty());
        self.has_conditions = conditional;
        let count = self.slices().count() as i64;
        let complete = self.slices().all(|slice| slice.pool_size == count);
        self.flaw = if complete {
            (!self.is_valid()).then_some(Flaw::Invalid)
        } else {
            Some(Flaw::Incomplete)
        };
    }

    fn is_valid(&self) -> bool {
        let mut names = HashSet::new();
        let mut sets: HashMap<&str, &Counters> = HashMap::new();
        self.counters().all(|(name, counters)| sets.insert(name, counters).is_none())
            && self.devices().all(|device| {
                let drawn = &device.view.consumes_counters;
                names.insert(&*device.view.name)
                    && drawn.iter().all(|from| {
                        let set = sets.get(&*from.counter_set);
                        set.is_some_and(|set| from.counters.keys().all(|c| set.contains_key(c)))
                    })
            })
    }
}

/// All pools, with indexes by node.
#[derive(Default)]
pub(super) struct Pools {
    pools: BTreeMap<PoolId, Pool>,
    /// The pool of each slice, by slice name.
    of_slice: HashMap<Box<str>, PoolId>,
    /// The number of slices for a single node, by node and pool.
    local: HashMap<Box<str>, BTreeMap<PoolId, u32>>,
    /// The number of other slices, by pool.
    shared: BTreeMap<PoolId, u32>,
    /// The rules that taint devices, by name.
    rules: BTreeMap<Box<str>, DeviceTaintRuleView>,
}

impl Pools {
    pub(super) fn set(&mut self, name: &str, view: Option<&ResourceSliceView>) {
        if let Some(id) = self.of_slice.remove(name)
            && let Some(pool) = self.pools.get_mut(&id)
        {
            let gone = pool.slices.remove(name);
            if pool.slices.is_empty() {
                self.pools.remove(&id);
            } else {
                pool.changed();
            }
            gone.into_iter().for_each(|slice| self.count(&slice, false));
        }
        let Some(mut slice) = view.map(Slice::new) else { return };
        for (name, rule) in &self.rules {
            slice.apply_rule(name, Some(rule));
        }
        self.count(&slice, true);
        let id = slice.pool.clone();
        self.of_slice.insert(name.into(), id.clone());
        let pool = self.pools.entry(id.clone()).or_insert_with(|| Pool::new(id));
        pool.slices.insert(name.into(), slice);
        pool.changed();
    }

    /// Sets or removes a rule that taints devices.
    pub(super) fn set_rule(&mut self, name: &str, view: Option<&DeviceTaintRuleView>) {
        match view {
            Some(view) => drop(self.rules.insert(name.into(), view.clone())),
            None => drop(self.rules.remove(name)),
        }
        let slices = self.pools.values_mut().flat_map(|pool| pool.slices.values_mut());
        slices.for_each(|slice| slice.apply_rule(name, view));
    }

    fn count(&mut self, slice: &Slice, comes: bool) {
        let counts = match slice.only() {
            Some(node) => self.local.entry(node.into()).or_default(),
            None => &mut self.shared,
        };
        let count = counts.entry(slice.pool.clone()).or_default();
        *count = if comes { *count + 1 } else { count.saturating_sub(1) };
        if *count == 0 {
            counts.remove(&slice.pool);
        }
        if let Some(node) = slice.only()
            && self.local.get(node).is_some_and(BTreeMap::is_empty)
        {
            self.local.remove(node);
        }
    }

    /// Returns the pools with devices for a node, in the order of the search.
    pub(super) fn of(&self, node: &Node) -> Vec<&Pool> {
        let local = self.local.get(&*node.name).into_iter().flat_map(BTreeMap::keys);
        let ids: std::collections::BTreeSet<&PoolId> = local.chain(self.shared.keys()).collect();
        let pools = ids.into_iter().filter_map(|id| self.pools.get(id));
        let mut pools: Vec<_> =
            pools.filter(|pool| pool.slices().any(|slice| slice.is_for(node))).collect();
        pools.sort_by_key(|pool| pool.has_conditions);
        pools
    }
}
