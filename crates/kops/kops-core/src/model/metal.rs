//! A cluster on machines that kOps does not make: its objects in the state store, and its machines' boot
//! configurations.

use std::collections::BTreeMap;

use api_meta::Tree as _;
use kops_api::Object;

use super::{
    bucket::Scheme,
    store::{self, StoreContext},
};
use crate::{boot_config, error::Error, node_config, node_inputs::NodeInputs};

/// The stores that the machines' nodeup reads.
const SCHEMES: &[Scheme] = &[Scheme::S3, Scheme::File];

/// The inputs of a model, besides the complete cluster and its complete groups.
#[derive(Clone, Debug, Default)]
pub struct MetalInputs {
    /// The inputs of the machines' configurations. The addresses of the API are the spec's.
    pub node: NodeInputs,
    /// The manifests of add-ons, by name below `addons/`.
    pub addons: BTreeMap<String, String>,
}

/// An object of the state store.
#[derive(Clone, Debug)]
pub struct PlacedObject {
    /// The object's URL.
    pub url: String,
    /// The content.
    pub content: String,
}

/// A cluster's objects and boot configurations.
#[derive(Clone, Debug)]
pub struct Model {
    /// The objects that machines read from the state store.
    pub objects: Vec<PlacedObject>,
    /// The boot configurations of machines, by instance group.
    pub boot_configs: BTreeMap<String, String>,
}

/// Builds the model of a complete cluster and its complete groups.
pub fn metal(cluster: &Object, groups: &[Object], inputs: &MetalInputs) -> Result<Model, Error> {
    let cluster = cluster.normalized();
    let name = cluster.spec.text("api.publicName");
    if name.is_empty() {
        return Err(Error::Missing {
            field: "spec.api.publicName".to_owned(),
            hint: ": machines of cloud metal reach the API by it; set the address of a control plane",
        });
    }
    let node = NodeInputs { api_addresses: vec![name.to_owned()], ..inputs.node.clone() };
    let objects = store::objects(StoreContext {
        cluster: &cluster,
        groups,
        node: &node,
        addons: &inputs.addons,
        key_set: "",
        schemes: SCHEMES,
    })?;
    let placed = objects.into_iter().map(|named| PlacedObject {
        url: format!("{}{}/{}", named.scheme.prefix(), named.object.bucket, named.object.key),
        content: named.object.content,
    });
    let mut boot_configs = BTreeMap::new();
    for group in groups.iter().filter(|group| group.spec.text("role") != "Bastion") {
        let config = node_config(&cluster, group, &node)?;
        let boot = boot_config(&cluster, group, &node, &config);
        boot_configs.insert(group.name().to_owned(), boot);
    }
    Ok(Model { objects: placed.collect(), boot_configs })
}
