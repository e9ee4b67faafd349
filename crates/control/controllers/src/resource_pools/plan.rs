//! Counts the devices of pools.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use api_meta::Tree as _;
use sched_core::ResourceSliceView;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::views::ResourceClaim;

/// The number of pools that a request without a limit shows.
const LIMIT: usize = 100;
/// The longest text of a pool's error, in bytes.
const MAX_ERROR: usize = 256;

/// The pools that a request selects.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PoolRequestSpec {
    pub(super) driver: String,
    pool_name: Option<String>,
    limit: Option<usize>,
}

/// The pools that match a request.
pub(super) struct MatchingPools {
    /// The number of all matching pools.
    pub(super) count: usize,
    /// The number of pools that lack slices.
    pub(super) incomplete: usize,
    /// The status of the first pools by name, up to the limit of the request.
    pub(super) shown: Vec<Value>,
}

/// Counts the devices of the pools that match a request. Only the slices of a pool's latest generation count.
pub(super) fn pools(
    spec: &PoolRequestSpec,
    slices: &[Arc<ResourceSliceView>],
    claims: &[Arc<ResourceClaim>],
) -> MatchingPools {
    let matches = |slice: &&Arc<ResourceSliceView>| {
        let wanted = spec.pool_name.as_deref();
        *slice.spec.driver == *spec.driver
            && wanted.is_none_or(|wanted| *slice.spec.pool.name == *wanted)
    };
    let mut by_pool: BTreeMap<&str, Vec<&ResourceSliceView>> = BTreeMap::new();
    for slice in slices.iter().filter(matches) {
        by_pool.entry(&slice.spec.pool.name).or_default().push(slice);
    }
    let allocated = allocated(&spec.driver, claims);
    let none = HashSet::new();
    let mut out = MatchingPools { count: by_pool.len(), incomplete: 0, shown: Vec::new() };
    for (name, slices) in by_pool {
        let latest = slices.iter().map(|slice| slice.spec.pool.generation).max().unwrap_or(0);
        let current: Vec<_> =
            slices.into_iter().filter(|slice| slice.spec.pool.generation == latest).collect();
        let mut pool = json!({"driver": spec.driver, "poolName": name, "generation": latest});
        if let Some(node) = only_node(&current) {
            pool.set("nodeName", json!(node));
        }
        match missing(&spec.driver, name, latest, &current) {
            Some(error) => {
                out.incomplete += 1;
                pool.set("validationError", json!(error));
            }
            None => count(&mut pool, &current, allocated.get(name).unwrap_or(&none)),
        }
        if out.shown.len() < spec.limit.unwrap_or(LIMIT) {
            out.shown.push(pool);
        }
    }
    out
}

/// Returns the names of a driver's allocated devices by pool. Devices that are used with admin access remain available.
fn allocated<'a>(
    driver: &str,
    claims: &'a [Arc<ResourceClaim>],
) -> HashMap<&'a str, HashSet<&'a str>> {
    let allocations = claims.iter().filter_map(|claim| claim.status.allocation.as_ref());
    let mut devices: HashMap<&str, HashSet<&str>> = HashMap::new();
    for device in allocations.flat_map(|allocation| &allocation.devices.results) {
        if *device.driver == *driver && device.admin_access != Some(true) {
            devices.entry(&device.pool).or_default().insert(&device.device);
        }
    }
    devices
}

/// Returns the error of a pool that lacks slices.
fn missing(
    driver: &str,
    pool: &str,
    generation: i64,
    slices: &[&ResourceSliceView],
) -> Option<String> {
    let expected = slices.iter().map(|slice| slice.spec.pool.resource_slice_count).max()?;
    let observed = slices.len();
    if usize::try_from(expected).unwrap_or(0) <= observed {
        return None;
    }
    let mut text = format!(
        "pool {driver}/{pool} is incomplete: observed {observed}/{expected} slices at generation {generation}"
    );
    text.truncate(text.floor_char_boundary(MAX_ERROR));
    Some(text)
}

/// Returns the node of a pool whose slices are all for one node.
fn only_node<'a>(slices: &[&'a ResourceSliceView]) -> Option<&'a str> {
    let node = slices.first()?.spec.nodes.node_name.as_deref()?;
    slices.iter().all(|slice| slice.spec.nodes.node_name.as_deref() == Some(node)).then_some(node)
}

/// Adds the counts of a complete pool. As upstream in v1.36, no device counts as unavailable because of a taint.
fn count(pool: &mut Value, slices: &[&ResourceSliceView], allocated: &HashSet<&str>) {
    let devices = || slices.iter().flat_map(|slice| &slice.spec.devices);
    let total = devices().count();
    let used = devices().filter(|device| allocated.contains(&*device.name)).count();
    pool.set("resourceSliceCount", json!(slices.len()));
    pool.set("totalDevices", json!(total));
    pool.set("allocatedDevices", json!(used));
    pool.set("availableDevices", json!(total - used));
    pool.set("unavailableDevices", json!(0));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(
        pool: &str,
        node: &str,
        generation: i64,
        count: i64,
        devices: &[&str],
    ) -> Arc<ResourceSliceView> {
        let devices: Vec<_> = devices.iter().map(|name| json!({ "name": name })).collect();
        let slice = json!({"metadata": {"name": "s"}, "spec": {"driver": "d", "nodeName": node,
            "pool": {"name": pool, "generation": generation, "resourceSliceCount": count},
            "devices": devices}});
        Arc::new(serde_json::from_value(slice).unwrap())
    }

    fn claim(pool: &str, device: &str, admin: bool) -> Arc<ResourceClaim> {
        let result = json!({"request": "r", "driver": "d", "pool": pool, "device": device,
            "adminAccess": admin});
        let claim = json!({"status": {"allocation": {"devices": {"results": [result]}}}});
        Arc::new(serde_json::from_value(claim).unwrap())
    }

    fn spec(pool: Option<&str>, limit: Option<usize>) -> PoolRequestSpec {
        PoolRequestSpec { driver: "d".into(), pool_name: pool.map(str::to_owned), limit }
    }

    #[test]
    fn counts_devices_of_latest_generation() {
        let slices = [
            slice("a", "n", 1, 1, &["old"]),
            slice("a", "n", 2, 2, &["x", "y"]),
            slice("a", "n", 2, 2, &["z"]),
            slice("b", "n", 1, 2, &["x"]),
        ];
        // A device that two claims share counts once, and one of an administrator not at all.
        let claims = [
            claim("a", "x", false),
            claim("a", "x", false),
            claim("a", "y", true),
            claim("a", "old", false),
        ];
        let found = pools(&spec(None, None), &slices, &claims);
        assert_eq!((found.count, found.incomplete), (2, 1));
        let a = json!({"driver": "d", "poolName": "a", "generation": 2, "nodeName": "n",
            "resourceSliceCount": 2, "totalDevices": 3, "allocatedDevices": 1,
            "availableDevices": 2, "unavailableDevices": 0});
        let b = json!({"driver": "d", "poolName": "b", "generation": 1, "nodeName": "n",
            "validationError": "pool d/b is incomplete: observed 1/2 slices at generation 1"});
        assert_eq!(found.shown, [a, b]);
    }

    #[test]
    fn selects_pools_and_limits_answer() {
        let slices: Vec<_> =
            (0..3000).map(|i| slice(&format!("p{i:04}"), &format!("n{i}"), 1, 1, &["x"])).collect();
        let found = pools(&spec(None, None), &slices, &[]);
        assert_eq!((found.count, found.shown.len()), (3000, LIMIT));
        let found = pools(&spec(None, Some(2)), &slices, &[]);
        assert_eq!(found.shown[1]["poolName"], "p0001");
        let found = pools(&spec(Some("p0007"), None), &slices, &[]);
        assert_eq!((found.count, &found.shown[0]["poolName"]), (1, &json!("p0007")));
        assert_eq!(pools(&spec(Some("none"), None), &slices, &[]).count, 0);
        let mixed = [slice("m", "n1", 1, 2, &[]), slice("m", "n2", 1, 2, &[])];
        assert!(pools(&spec(None, None), &mixed, &[]).shown[0].get("nodeName").is_none());
    }

    #[test]
    fn limits_length_of_error() {
        let long = "p".repeat(300);
        let found = pools(&spec(None, None), &[slice(&long, "n", 1, 2, &[])], &[]);
        assert_eq!(found.shown[0]["validationError"].as_str().unwrap().len(), MAX_ERROR);
    }
}
