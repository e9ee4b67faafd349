//! The default plugins, one per file, in upstream's order.
//!
//! [`registry`] lists them. The interface is [`crate::plugin::Plugin`].

mod balanced;
mod dynamic_resources;
mod fit;
mod gang_scheduling;
mod image_locality;
mod inter_pod_affinity;
mod node_affinity;
mod node_declared_features;
mod node_name;
mod node_ports;
mod node_unschedulable;
mod node_volume_limits;
mod taint_toleration;
mod topology_spread;
mod volume_binding;
mod volume_restrictions;
mod volume_zone;

use crate::plugin::Plugin;

/// Returns all plugins. A plugin's position is also its number in the bit set of plugins that rejected a Pod.
pub fn registry() -> &'static [&'static dyn Plugin] {
    &[
        &node_unschedulable::NodeUnschedulable,
        &node_name::NodeName,
        &taint_toleration::TaintToleration,
        &node_affinity::NodeAffinity,
        &node_ports::NodePorts,
        &fit::NodeResourcesFit,
        &volume_restrictions::VolumeRestrictions,
        &node_volume_limits::NodeVolumeLimits,
        &volume_binding::VolumeBinding,
        &volume_zone::VolumeZone,
        &topology_spread::PodTopologySpread,
        &inter_pod_affinity::InterPodAffinity,
        &node_declared_features::NodeDeclaredFeatures,
        &dynamic_resources::DynamicResources,
        &balanced::NodeResourcesBalancedAllocation,
        &image_locality::ImageLocality,
        &gang_scheduling::GangScheduling,
    ]
}
