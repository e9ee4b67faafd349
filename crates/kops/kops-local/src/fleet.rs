//! The fleet of a cluster: its directory, its store and its addresses.

use std::path::PathBuf;

use instances::{Fleet, FleetSpec, Group};
use kops_store::Registry;

use crate::{error::Error, gateway};

/// Returns the fleet's directory, beside the store, which contains only objects.
pub fn fleet(registry: &Registry, cluster: &str) -> Fleet {
    let store = registry.directory();
    Fleet::at(PathBuf::from(format!("{}-instances", store.trim_end_matches('/'))).join(cluster))
}

/// Returns the store of a fleet's cluster.
pub(crate) fn open_registry(fleet: &Fleet, spec: &FleetSpec) -> Result<Registry, Error> {
    if let Some(registry) = gateway::open_registry(fleet)? {
        return Ok(registry);
    }
    let directory = spec.secret.first().ok_or(Error::MissingStore)?;
    Ok(Registry::open(&format!("file://{}", directory.display()), &|_| None)?)
}

/// Returns the addresses of a fleet's control planes, in order.
pub fn api_addresses(spec: &FleetSpec) -> Vec<String> {
    let groups = spec.groups.iter().filter(|group| group.trusted);
    let names = groups.flat_map(Group::names);
    names.filter_map(|name| Some(spec.addresses.get(&name)?.to_string())).collect()
}
