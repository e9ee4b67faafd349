//! Huge pages: what a Pod's resources are called, what it and its containers may have, and of which size a volume's are.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::{
    api::core::v1::{Container, Pod, ResourceRequirements},
    apimachinery::pkg::api::resource::Quantity,
};

use crate::{Role, members, numa_memory::HUGE_PAGES, resources::whole};

/// What a volume's medium begins with that is of huge pages.
pub const MEDIUM: &str = "HugePages";

/// Bytes by the pages' size, which is in bytes, too.
pub type Amounts = BTreeMap<u64, u64>;

/// The resource's name for pages of so many bytes, as `hugepages-2Mi`.
pub fn resource(size: u64) -> String {
    let size = i64::try_from(size).unwrap_or(i64::MAX);
    format!("{HUGE_PAGES}{}", api_meta::Quantity::new(size, api_meta::QuantityFormat::BinarySi))
}

/// The pages' size in bytes, if a resource of this name is huge pages.
pub fn size(resource: &str) -> Option<u64> {
    parse(resource.strip_prefix(HUGE_PAGES)?)
}

fn parse(size: &str) -> Option<u64> {
    let size = api_meta::Quantity::parse(size).ok()?.value();
    u64::try_from(size).ok().filter(|size| *size > 0)
}

fn listed(amounts: Option<&BTreeMap<String, Quantity>>) -> impl Iterator<Item = (u64, u64)> + '_ {
    let amount = |quantity| u64::try_from(whole(quantity)).unwrap_or(0);
    amounts.into_iter().flatten().filter_map(move |(name, q)| Some((size(name)?, amount(q))))
}

fn limits(resources: Option<&ResourceRequirements>) -> Amounts {
    listed(resources.and_then(|resources| resources.limits.as_ref())).collect()
}

fn of_pod_level(pod: &Pod) -> Amounts {
    limits(pod.spec.as_ref().and_then(|spec| spec.resources.as_ref()))
}

/// What a container may have: of a size that it does not name, as much as the Pod's own limit.
pub fn of_container(pod: &Pod, container: &Container) -> Amounts {
    let mut amounts = of_pod_level(pod);
    amounts.extend(limits(container.resources.as_ref()));
    amounts
}

/// What a Pod may have at once, which is also what it asks for: huge pages cannot be promised to several.
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
        listed(pod.spec.as_ref().and_then(|spec| spec.overhead.as_ref())).collect();
    add(&mut running, &overhead);
    running
}

/// Why a volume of huge pages cannot be, in upstream's words.
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

/// Of which size the pages of a volume are: the medium says it, or else what the Pod's containers ask for.
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
    let asked = containers.chain(own).flat_map(|resources| {
        listed(resources.requests.as_ref()).chain(listed(resources.limits.as_ref()))
    });
    let sizes: BTreeSet<u64> = asked.map(|(size, _)| size).collect();
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
    fn names_are_read_as_they_are_written() {
        for (bytes, name) in [(2 * MI, "hugepages-2Mi"), (1 << 30, "hugepages-1Gi")] {
            assert_eq!(resource(bytes), name);
            assert_eq!(size(name), Some(bytes));
        }
        for other in ["hugepages-", "hugepages-0", "hugepages--2Mi", "hugepages-x", "memory"] {
            assert_eq!(size(other), None, "{other}");
        }
    }

    #[test]
    fn a_pod_may_have_what_its_containers_have_at_once() {
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
    fn a_volumes_pages_are_of_a_size_that_the_pod_asks_for() {
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
