//! Huge pages: names of resources, limits of Pods and containers, and page sizes of volumes.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::{
    api::core::v1::{Container, Pod, ResourceRequirements},
    apimachinery::pkg::api::resource::Quantity,
};

use crate::{
    numa_memory::HUGE_PAGES,
    resources::whole,
    spec::{Role, members},
};

/// The prefix of the medium of emptyDir volumes on huge pages.
pub const MEDIUM: &str = "HugePages";

/// Bytes by page size; both are in bytes.
pub type Amounts = BTreeMap<u64, u64>;

/// Returns the resource name for a page size in bytes, for example `hugepages-2Mi`.
pub fn resource(size: u64) -> String {
    let size = i64::try_from(size).unwrap_or(i64::MAX);
    format!("{HUGE_PAGES}{}", api_meta::Quantity::new(size, api_meta::QuantityFormat::BinarySi))
}

/// Returns the page size in bytes of a resource name, if it stands for huge pages.
pub fn size(resource: &str) -> Option<u64> {
    parse(resource.strip_prefix(HUGE_PAGES)?)
}

fn parse(size: &str) -> Option<u64> {
    let size = api_meta::Quantity::parse(size).ok()?.value();
    u64::try_from(size).ok().filter(|size| *size > 0)
}

fn page_amounts(
    amounts: Option<&BTreeMap<String, Quantity>>,
) -> impl Iterator<Item = (u64, u64)> + '_ {
    let amount = |quantity| u64::try_from(whole(quantity)).unwrap_or(0);
    amounts.into_iter().flatten().filter_map(move |(name, q)| Some((size(name)?, amount(q))))
}

fn limits(resources: Option<&ResourceRequirements>) -> Amounts {
    page_amounts(resources.and_then(|resources| resources.limits.as_ref())).collect()
}

fn of_pod_level(pod: &Pod) -> Amounts {
    limits(pod.spec.as_ref().and_then(|spec| spec.resources.as_ref()))
}

/// Returns a container's limits. A size that the container does not limit has the Pod's own limit.
pub fn of_container(pod: &Pod, container: &Container) -> Amounts {
    let mut amounts = of_pod_level(pod);
    amounts.extend(limits(container.resources.as_ref()));
    amounts
}

/// Returns a Pod's limits, which are also its requests, because huge pages cannot be overcommitted.
pub fn of_pod(pod: &Pod) -> Amounts {
    let (mut init, mut sidecars, mut running) = (Amounts::new(), Amounts::new(), Amounts::new());
    let add = |sum: &mut Amounts, more: &Amounts| {
        for (size, bytes) in more {
            let sum = sum.entry(*size).or_default();
            *sum = sum.saturating_add(*bytes);
        }
    };
    for member in members(pod) {
        let own = limits(member.container.resources.as_ref());
        match member.role {
            Role::Init => {
                let mut beside = sidecars.clone();
                add(&mut beside, &own);
                for (size, bytes) in beside {
                    let most = init.entry(size).or_default();
                    *most = bytes.max(*most);
                }
            }
            Role::Sidecar => add(&mut sidecars, &own),
            Role::App => add(&mut running, &own),
            Role::Ephemeral => {}
        }
    }
    add(&mut running, &sidecars);
    for (size, bytes) in init {
        let most = running.entry(size).or_default();
        *most = bytes.max(*most);
    }
    running.extend(of_pod_level(pod));
    let overhead: Amounts =
        page_amounts(pod.spec.as_ref().and_then(|spec| spec.overhead.as_ref())).collect();
    add(&mut running, &overhead);
    running
}

/// The error of an emptyDir volume on huge pages. The messages are upstream's.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum MediumError {
    #[error("medium {0}: its page size cannot be read; write it as {MEDIUM}-2Mi")]
    Size(String),
    #[error("medium: {0} can't be used if container requests multiple huge page sizes")]
    Several(String),
    #[error(
        "medium {0}: hugePages storage requested, but there is no resource request for huge pages"
    )]
    NotRequested(String),
}

/// Returns the page size of a volume: that of the medium, or else the only one that the Pod requests.
pub fn of_medium(pod: &Pod, medium: &str) -> Result<u64, MediumError> {
    let named = match medium.strip_prefix(MEDIUM) {
        Some("") => None,
        rest => {
            let size = rest.and_then(|rest| parse(rest.strip_prefix('-')?));
            Some(size.ok_or_else(|| MediumError::Size(medium.to_owned()))?)
        }
    };
    let members = members(pod);
    let lasting = members.iter().filter(|member| member.role != Role::Ephemeral);
    let containers = lasting.filter_map(|member| member.container.resources.as_ref());
    let own = pod.spec.as_ref().and_then(|spec| spec.resources.as_ref());
    let amounts = containers.chain(own).flat_map(|resources| {
        page_amounts(resources.requests.as_ref()).chain(page_amounts(resources.limits.as_ref()))
    });
    let sizes: BTreeSet<u64> = amounts.map(|(size, _)| size).collect();
    match named {
        Some(size) if sizes.contains(&size) => Ok(size),
        None if sizes.len() > 1 => Err(MediumError::Several(medium.to_owned())),
        named => sizes
            .first()
            .copied()
            .filter(|_| named.is_none())
            .ok_or_else(|| MediumError::NotRequested(medium.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::tests::steps::pod;

    const MI: u64 = 1 << 20;

    fn container(name: &str, limits: Value) -> Value {
        json!({ "name": name, "resources": { "limits": limits } })
    }

    #[test]
    fn parses_names_as_formatted() {
        for (bytes, name) in [(2 * MI, "hugepages-2Mi"), (1 << 30, "hugepages-1Gi")] {
            assert_eq!(resource(bytes), name);
            assert_eq!(size(name), Some(bytes));
        }
        for other in ["hugepages-", "hugepages-0", "hugepages--2Mi", "hugepages-x", "memory"] {
            assert_eq!(size(other), None, "{other}");
        }
    }

    #[test]
    fn sums_limits_of_concurrent_containers() {
        let mut side = container("side", json!({ "hugepages-2Mi": "2Mi" }));
        side["restartPolicy"] = json!("Always");
        let spec = json!({
            "overhead": { "hugepages-1Gi": "1Gi" },
            "initContainers": [side, container("init", json!({ "hugepages-2Mi": "10Mi" }))],
            "containers": [
                container("a", json!({ "hugepages-2Mi": "4Mi", "memory": "1Gi" })),
                container("b", json!({ "hugepages-2Mi": "4Mi" })),
            ],
        });
        let both = pod(spec.clone());
        assert_eq!(of_pod(&both), [(2 * MI, 12 * MI), (1 << 30, 1 << 30)].into());
        let mut spec = spec;
        spec["resources"] = json!({ "limits": { "hugepages-2Mi": "20Mi" } });
        spec["containers"][1]["resources"] = json!({});
        let level = pod(spec);
        assert_eq!(of_pod(&level).get(&(2 * MI)), Some(&(20 * MI)));
        let containers = &level.spec.as_ref().unwrap().containers;
        assert_eq!(of_container(&level, &containers[0]), [(2 * MI, 4 * MI)].into());
        assert_eq!(of_container(&level, &containers[1]), [(2 * MI, 20 * MI)].into());
    }

    #[test]
    fn requires_page_size_that_the_pod_requests() {
        let asking = |limits: Value| pod(json!({ "containers": [container("c", limits)] }));
        let (none, one) = (asking(json!({})), asking(json!({ "hugepages-2Mi": "2Mi" })));
        let two = asking(json!({ "hugepages-2Mi": "2Mi", "hugepages-1Gi": "1Gi" }));
        assert_eq!(of_medium(&one, "HugePages"), Ok(2 * MI));
        assert_eq!(of_medium(&two, "HugePages-1Gi"), Ok(1 << 30));
        for (pod, medium, words) in [
            (&none, "HugePages", "medium HugePages: hugePages storage requested, but there is no"),
            (&one, "HugePages-1Gi", "medium HugePages-1Gi: hugePages storage requested, but there"),
            (&two, "HugePages", "medium: HugePages can't be used if container requests multiple"),
            (&two, "HugePages-", "medium HugePages-: its page size cannot be read"),
            (&two, "HugePages2Mi", "medium HugePages2Mi: its page size cannot be read"),
        ] {
            let error = of_medium(pod, medium).unwrap_err().to_string();
            assert!(error.starts_with(words), "{error}");
        }
    }
}
