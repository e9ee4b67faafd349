//! The objects of a cluster's store, from its spec and its keysets.

use std::net::IpAddr;

use bootstrap_core::{
    config::{Documents, Facts, Init},
    constants::OWN_REPOSITORY,
};
use kops_api::{Object, Spec as _, VersionName, yaml};
use kops_core::{
    Machines, NodeInputs, World, boot_config, channels_pod, complete, complete_group, etcd_spec,
    node_config,
};
use serde_json::{Value, json};
use vfs::Secrecy;

use crate::{Error, KOPS, addons, create, keys::Keyset};

/// The annotation of an upstream manifest whose program is replaced by ours.
pub(crate) const PROGRAM_ANNOTATION: &str = "kops.windlass.local/runs";
/// The API's port on its machines.
pub(crate) const API_PORT: u16 = 443;

/// An object for the store.
pub(crate) struct StoredObject {
    /// The object's name below the cluster's directory.
    pub(crate) name: String,
    pub(crate) content: String,
    pub(crate) secrecy: Secrecy,
    /// The kind shown in the plan.
    pub(crate) kind: &'static str,
}

/// A group with its machines' user data.
pub(crate) struct Machine {
    pub(crate) group: Object,
    pub(crate) user_data: String,
}

/// The results of a cluster's spec.
pub(crate) struct Model {
    pub(crate) kept: Vec<StoredObject>,
    pub(crate) machines: Vec<Machine>,
}

/// Completes a cluster and its groups.
pub(crate) fn completed(
    cluster: &Object,
    groups: &[Object],
) -> Result<(Object, Vec<Object>), Error> {
    let world = World::default();
    let channel = create::channel(cluster.spec.text("channel"), false)?;
    let whole = complete(cluster, groups, &world, &Machines::default())?;
    let groups = groups.iter().map(|group| complete_group(&whole, group, &channel, &world));
    let groups = groups.collect::<Result<_, _>>()?;
    Ok((whole, groups))
}

/// Builds the objects to store and the machines' user data. Both objects must be complete.
pub(crate) fn build(
    cluster: &Object,
    groups: Vec<Object>,
    keysets: &[Keyset],
    mut inputs: NodeInputs,
) -> Result<Model, Error> {
    KOPS.clone_into(&mut inputs.kops);
    for keyset in keysets {
        inputs.keysets.insert(keyset.name.clone(), keyset.public()?);
    }
    let open = |kind, name: String, content: String| StoredObject {
        name,
        content,
        secrecy: Secrecy::Open,
        kind,
    };
    let file = |name: String, content: String| open("ManagedFile", name, content);
    let mut kept = Vec::new();
    let v1alpha2 = VersionName::V1alpha2;
    kept.push(file("cluster-completed.spec".into(), cluster.to_yaml(v1alpha2)));
    kept.push(file("kops-version.txt".into(), KOPS.to_owned()));
    for etcd in cluster.spec.list("etcdClusters") {
        let name = etcd.text("name");
        kept.push(file(format!("backups/etcd/{name}/control/etcd-cluster-spec"), etcd_spec(etcd)));
    }
    let channels = annotate_program(&channels_pod(cluster, KOPS), "channels")?;
    kept.push(file("manifests/channels/kops-channels.yaml".into(), channels));
    kept.extend(addons::all(cluster)?.into_iter().map(|(name, content)| file(name, content)));
    let mut machines = Vec::new();
    for group in groups {
        let config = node_config(cluster, &group, &inputs)?;
        let role = group.spec.text("role").to_ascii_lowercase();
        let role = if role == "controlplane" { "control-plane".to_owned() } else { role };
        let name = format!("igconfig/{role}/{}/nodeupconfig.yaml", group.name());
        let user_data = boot_config(cluster, &group, &inputs, &config);
        kept.push(file(name, config));
        machines.push(Machine { group, user_data });
    }
    Ok(Model { kept, machines })
}

/// Annotates an upstream manifest so that the machine runs our program.
fn annotate_program(manifest: &str, program: &str) -> Result<String, Error> {
    let mut tree = api_codec::from_yaml(manifest.as_bytes()).map_err(|e| {
        kops_api::Error::Yaml { what: "a manifest".to_owned(), cause: e.to_string() }
    })?;
    let mut annotations = tree.at("metadata.annotations").cloned().unwrap_or_else(|| json!({}));
    if let Value::Object(annotations) = &mut annotations {
        annotations.insert(PROGRAM_ANNOTATION.to_owned(), program.into());
    }
    tree.set("metadata.annotations", annotations);
    Ok(yaml::to_string(&tree))
}

/// The cluster's parameters for the phases of `init`.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) services: String,
    pub(crate) pods: String,
    pub(crate) domain: String,
}

impl Shape {
    pub(crate) fn of(cluster: &Object) -> Self {
        let text = |path| cluster.spec.text(path).to_owned();
        Self {
            name: cluster.name().to_owned(),
            version: text("kubernetesVersion"),
            services: text("networking.serviceClusterIPRange"),
            pods: text("networking.podCIDR"),
            domain: text("clusterDNSDomain"),
        }
    }

    /// Returns the API's name in the machines' hosts files.
    pub(crate) fn api(&self) -> String {
        format!("api.internal.{}", self.name)
    }

    /// Returns the configuration of `init`, for a machine if one is given.
    pub(crate) fn init(&self, machine: Option<(&str, IpAddr)>) -> Init {
        let mut documents = Documents::default();
        let cluster = documents.cluster.get_or_insert_default();
        cluster.cluster_name.clone_from(&self.name);
        cluster.kubernetes_version = format!("v{}", self.version);
        cluster.networking.service_subnet.clone_from(&self.services);
        cluster.networking.pod_subnet.clone_from(&self.pods);
        cluster.networking.dns_domain.clone_from(&self.domain);
        cluster.control_plane_endpoint = format!("{}:{API_PORT}", self.api());
        cluster.image_repository = OWN_REPOSITORY.to_owned();
        cluster.encryption_algorithm = "ECDSA-P256".to_owned();
        let names =
            [self.api(), format!("api.{}", self.name), "localhost".into(), "127.0.0.1".into()];
        cluster.api_server.cert_sans = names.into();
        let init = documents.init.get_or_insert_default();
        init.local_api_endpoint.bind_port = API_PORT.into();
        let mut facts = Facts {
            image_repository: OWN_REPOSITORY.to_owned(),
            cgroup_driver: "cgroupfs".to_owned(),
            ..Facts::default()
        };
        if let Some((name, address)) = machine {
            init.node_registration.name = name.to_owned();
            init.local_api_endpoint.advertise_address = address.to_string();
            facts.hostname = name.to_owned();
            facts.address = Some(address);
        }
        Init::complete(documents, &facts)
    }
}
