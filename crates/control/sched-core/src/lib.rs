//! The scheduler's pure core: it chooses nodes for Pods, explains failures, and decides when to retry.
//!
//! The core has no clock, sockets or tasks: time is an argument. The `scheduler` crate feeds it from informers and
//! carries out its decisions. Read [`Core`] first, a state machine.
//!
//! Extenders are programs beside the scheduler. The core returns a question to them as a decision
//! ([`Decision::Consult`]) and continues with the answer.
//!
//! Invariants:
//! - A Pod is compiled once ([`Pod`]): strings become symbols, quantities integers, selectors lists of symbols.
//!   Evaluating a node allocates no memory.
//! - [`Cluster`] is the only snapshot and is updated in place. Counts over all Pods (spread, affinity) are updated when
//!   a Pod is added or removed, not when one is scheduled.
//! - A plugin is one file under `plugins`, listed in [`plugins::registry`] and nowhere else.
//! - Preemption tries victims on the same cluster with the same filters, and restores the cluster.

mod cluster;
mod core;
mod default_profile;
mod devices;
mod event;
mod explain;
mod extenders;
mod groups;
mod host_port;
mod index;
mod labels;
mod maps;
mod matching;
mod node;
mod nodeaffinity;
mod observe;
mod pod;
mod preempt;
mod prepared;
mod profile;
mod queue;
mod resources;
mod schedule;
mod sym;
mod taints;
mod term_index;
mod terms;
mod tracks;
mod view;
mod volumes;

pub mod plugin;
pub mod plugins;

pub use self::{
    cluster::Cluster,
    core::{Config, Core, Decision, Failure},
    devices::{
        ClaimChange, ClassRequest, DeviceBinding, EXTENDED_RESOURCE_CLAIM, ExtendedClaim,
        RequestMapping,
        view::{
            AllocatedDevice, AllocatedDevices, Allocation, CLAIM_FINALIZER, DeviceClassView,
            DeviceTaintRuleSpecView, DeviceTaintRuleView, DeviceTaintView, DeviceTolerationView,
            DeviceView, ResourceClaimView, ResourcePoolView, ResourceSliceSpecView,
            ResourceSliceView,
        },
    },
    event::{Event, NodeChange},
    extenders::{
        AcceptedNode, Answer, Consultation, Extender, NodeOpinions, NodeVictims, Question,
        RejectedNode,
    },
    groups::GroupOutcome,
    index::NodeIx,
    labels::{Labels, Selector},
    node::{Hot, Node},
    observe::{Observer, QueueName, Stage, StageResult},
    pod::{Pod, PodRef},
    profile::{Candidates, FitScoring, Profile},
    queue::{QueueLengths, Tries},
    resources::Resources,
    sym::Sym,
    view::{
        BudgetView, CsiDriverView, CsiNodeView, LabelSelectorView, NodeAffinityView, NodeView,
        PersistentVolumeView, PodGroupView, PodView, SpreadView, SpreaderKey, SpreaderView,
        StorageCapacityView, StorageClassView, VolumeClaimView,
    },
    volumes::{ClaimBinding, Progress},
};

#[cfg(test)]
mod tests;
