//! The scheduler's pure core: which node a Pod goes to, why not to the others, and when to try again.
//!
//! Nothing here knows a clock, a socket or a task: time comes in as an argument, and [`Core`] is a state
//! machine that the `scheduler` crate feeds with what its informers see and whose decisions it carries out.
//!
//! Invariants:
//! - A Pod is compiled once ([`Pod`]): its strings become symbols, its quantities integers, its selectors
//!   lists of symbols. Evaluating a node allocates nothing.
//! - [`Cluster`] is the one snapshot, kept up to date in place. What plugins would have to count over all
//!   Pods (spread, affinity) is counted when a Pod comes or goes, not when one is scheduled.
//! - A plugin is one file under `plugins`, listed in [`plugins::registry`]; there is no second list.
//! - Preemption tries its victims on the same cluster and the same filters, and puts everything back.

mod cluster;
mod core;
mod devices;
mod explain;
mod labels;
mod node;
mod nodeaffinity;
mod pod;
mod preempt;
mod profile;
mod queue;
mod resources;
mod schedule;
mod sym;
mod terms;
mod tracks;
mod view;
mod volumes;

pub mod plugin;
pub mod plugins;

pub use self::{
    cluster::{Cluster, NodeIx},
    core::{Config, Core, Decision, Failure, Victim},
    devices::{
        ClaimChange, DeviceBinding,
        view::{
            AllocatedDevice, AllocatedDevices, Allocation, CLAIM_FINALIZER, DeviceClassView,
            DeviceTaintView, DeviceTolerationView, DeviceView, ResourceClaimView, ResourcePoolView,
            ResourceSliceSpecView, ResourceSliceView,
        },
    },
    labels::{Labels, Selector},
    node::{Hot, Node},
    pod::{Pod, PodRef},
    profile::{Candidates, FitScoring, Profile},
    queue::{Event, NodeChange, QueueLengths},
    resources::Resources,
    schedule::{Outcome, Placement, schedule},
    sym::Sym,
    view::{
        BudgetView, CsiDriverView, CsiNodeView, LabelSelectorView, NodeAffinityView, NodeView,
        PersistentVolumeView, PodView, SpreadView, SpreaderView, StorageCapacityView,
        StorageClassView, VolumeClaimView,
    },
    volumes::{ClaimBinding, Progress},
};

#[cfg(test)]
mod tests;
