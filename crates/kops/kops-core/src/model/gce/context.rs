//! The inputs shared by all parts of the model: names, zones, subnets and tags.

use std::collections::BTreeMap;

use api_meta::Tree as _;
use kops_api::Object;
use serde_json::Value;

use super::names;
use crate::{
    error::Error,
    gce::{Kind, Ref, operations::Labels},
    model::{bucket::Scheme, queries},
    names::{gce, gce_role_tag},
    node_inputs::NodeInputs,
};

/// The services that machines can read the state store from.
pub(super) const SCHEMES: &[Scheme] = &[Scheme::Gs, Scheme::S3];
/// The label with the cluster.
const CLUSTER_LABEL: &str = "k8s-io-cluster-name";

/// The inputs of the model, besides the complete cluster and its complete groups.
#[derive(Clone, Debug, Default)]
pub struct GceInputs {
    /// The inputs of the machines' configurations.
    pub node: NodeInputs,
    /// The public SSH keys for machines, in OpenSSH's format.
    pub ssh_keys: Vec<String>,
    /// Manifests of add-ons and the channel that lists them: contents by name below `addons/`. kOps does not generate
    /// them.
    pub addons: BTreeMap<String, String>,
}

pub(super) struct Context<'a> {
    /// The complete cluster.
    pub(super) cluster: &'a Object,
    /// The cluster's spec.
    pub(super) spec: &'a Value,
    /// The complete groups.
    pub(super) groups: &'a [Object],
    /// The facts besides the objects.
    pub(super) inputs: &'a GceInputs,
    /// The cluster's name.
    pub(super) name: &'a str,
    /// The project.
    pub(super) project: &'a str,
    /// The region.
    pub(super) region: &'a str,
}

impl<'a> Context<'a> {
    pub(super) fn new(
        cluster: &'a Object,
        groups: &'a [Object],
        inputs: &'a GceInputs,
    ) -> Result<Self, Error> {
        let spec = &cluster.spec;
        let project = spec.text("cloudProvider.gce.project");
        if project.is_empty() {
            let field = "spec.project".to_owned();
            return Err(Error::Missing { field, hint: ": the project on GCE" });
        }
        Ok(Self {
            cluster,
            spec,
            groups,
            inputs,
            name: cluster.name(),
            project,
            region: region(spec)?,
        })
    }

    /// Returns the name of one of the cluster's resources.
    pub(super) fn resource_name(&self, object: &str) -> Result<String, Error> {
        names::suffixed(object, self.name)
    }

    /// Returns the reference to the network.
    pub(super) fn network(&self) -> Ref {
        let existing = self.spec.text("networking.networkID");
        let name = if existing.is_empty() {
            names::network(self.name)
        } else {
            existing.rsplit('/').next().unwrap_or(existing).to_owned()
        };
        Ref::new(Kind::Network, name)
    }

    /// Returns the reference to a subnet of the spec.
    pub(super) fn subnet(&self, subnet: &Value) -> Result<Ref, Error> {
        let name = match subnet.text("id") {
            "" => self.resource_name(subnet.text("name"))?,
            id => id.to_owned(),
        };
        Ok(Ref::new(Kind::Subnetwork, name))
    }

    /// Returns the groups with a role.
    pub(super) fn of_role(&self, role: &'a str) -> impl Iterator<Item = &'a Object> {
        self.groups.iter().filter(move |group| group.spec.text("role") == role)
    }

    /// Reports whether there are dedicated API servers.
    pub(super) fn has_api_servers(&self) -> bool {
        self.of_role("APIServer").next().is_some()
    }

    /// Returns the zones of a group, sorted by name.
    pub(super) fn zones(&self, group: &'a Object) -> Result<Vec<&'a str>, Error> {
        let mut zones: Vec<&str> = group.spec.texts("zones").collect();
        zones.sort_unstable();
        zones.dedup();
        let what = format!("spec.zones of instance group {}", group.name());
        if zones.is_empty() {
            return Err(Error::Missing { field: what, hint: "" });
        }
        let is_inside = |zone: &str| {
            zone.rsplit_once('-')
                .is_some_and(|(region, rest)| region == self.region && !rest.is_empty())
        };
        match zones.iter().find(|zone| !is_inside(zone)) {
            Some(zone) => {
                let reason = format!("is not a zone of the subnets' region {}", self.region);
                Err(Error::value(&what, *zone, reason))
            }
            None => Ok(zones),
        }
    }

    /// Returns the only zone of a group. `why` is a clause for errors.
    pub(super) fn only_zone(&self, group: &'a Object, why: &str) -> Result<&'a str, Error> {
        match self.zones(group)?.as_slice() {
            [zone] => Ok(zone),
            _ => {
                let reason = format!("{why}, so it must be in one zone");
                Err(Error::value("instance group", group.name(), reason))
            }
        }
    }

    /// Returns the network tag of a role's machines.
    pub(super) fn tag(&self, role: &str) -> String {
        gce_role_tag(self.name, role)
    }

    /// Returns the tags of the machines with API servers.
    pub(super) fn api_tags(&self) -> Vec<String> {
        let mut tags = vec![self.tag("control-plane")];
        tags.extend(self.has_api_servers().then(|| self.tag("apiserver")));
        tags
    }

    /// Returns the tags of control planes and of machines with API servers, with the older one of control planes.
    pub(super) fn master_tags(&self) -> Vec<String> {
        let mut tags = self.api_tags();
        tags.push(self.tag("master"));
        tags
    }

    /// Returns the label of the cluster's resources.
    pub(super) fn cluster_label(&self) -> (String, String) {
        (CLUSTER_LABEL.to_owned(), gce(self.name))
    }

    /// Returns the labels of a resource with a name.
    pub(super) fn labels(&self, name: &str) -> Labels {
        [self.cluster_label(), ("name".to_owned(), name.to_owned())].into()
    }

    /// Reports whether Pods have addresses of the network.
    pub(super) fn has_alias_ranges(&self) -> bool {
        self.spec.has("networking.gcp") || self.spec.has("networking.kindnet")
    }

    /// Returns the subnet of a group. On GCE a subnet spans the region.
    pub(super) fn subnet_of(&self, group: &Object) -> Result<&'a Value, Error> {
        match queries::subnets_of(self.spec, group)?.as_slice() {
            [subnet] => Ok(subnet),
            _ => {
                let reason = "has several subnets, but on GCE a subnet spans the region: name one";
                Err(Error::value("instance group", group.name(), reason))
            }
        }
    }
}

/// Returns the region of the subnets.
fn region(spec: &Value) -> Result<&str, Error> {
    let mut found = "";
    for subnet in spec.items("networking.subnets") {
        let (name, region) = (subnet.text("name"), subnet.text("region"));
        if region.is_empty() {
            let field = format!("spec.subnets[{name}].region");
            return Err(Error::Missing { field, hint: ": a subnet on GCE spans a region" });
        }
        if !found.is_empty() && region != found {
            let reason = format!("is another region than {found}: a cluster is in one region");
            return Err(Error::value(&format!("spec.subnets[{name}].region"), region, reason));
        }
        found = region;
    }
    if found.is_empty() {
        return Err(Error::Missing { field: "spec.subnets".to_owned(), hint: "" });
    }
    Ok(found)
}
