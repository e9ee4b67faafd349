//! The objects that machines read from the state store: specs, configurations, and manifests of static Pods and
//! add-ons. Private keys are not in the model: they are written to the store directly, and never to Terraform files.

use std::collections::BTreeMap;

use api_meta::Tree as _;
use kops_api::{Object, VersionName};
use serde_json::Value;

use super::{
    bucket::{BucketPath, Scheme},
    user_data,
};
use crate::{
    aws::StoreObject, channels_pod, error::Error, etcd_pod, etcd_spec, healthcheck_pod,
    node::group_directory, node_config, node_config_path, node_inputs::NodeInputs,
};

/// The list of add-ons.
const CHANNEL: &str = "bootstrap-channel.yaml";

/// The inputs of the objects.
#[derive(Clone, Copy)]
pub(super) struct StoreContext<'a> {
    /// The complete cluster.
    pub(super) cluster: &'a Object,
    /// The complete groups.
    pub(super) groups: &'a [Object],
    /// The inputs of the machines' configurations.
    pub(super) node: &'a NodeInputs,
    /// The manifests of add-ons, by name below `addons/`.
    pub(super) addons: &'a BTreeMap<String, String>,
    /// The public keys of service accounts, if the spec publishes them.
    pub(super) key_set: &'a str,
    /// The services that the machines can read.
    pub(super) schemes: &'a [Scheme],
}

/// An object with its name in the model.
pub(super) struct NamedObject {
    /// The name.
    pub(super) name: String,
    /// The service that has the bucket.
    pub(super) scheme: Scheme,
    /// The object.
    pub(super) object: StoreObject,
}

/// Returns the objects of a cluster.
pub(super) fn objects(context: StoreContext<'_>) -> Result<Vec<NamedObject>, Error> {
    let base = context.cluster.spec.text("configStore.base");
    let mut store = Store { context, objects: Vec::new(), base };
    let kops = &context.node.kops;
    let completed = context.cluster.to_yaml(VersionName::V1alpha2);
    store.put("cluster-completed.spec", "cluster-completed.spec", completed)?;
    store.put("kops-version.txt", "kops-version.txt", kops.clone())?;
    store.add_etcd()?;
    let channels = channels_pod(context.cluster, kops);
    let path = "manifests/channels/kops-channels.yaml";
    store.put("manifests-channels-kops-channels", path, channels)?;
    let pod = "kube-apiserver-healthcheck";
    let path = format!("manifests/static/{pod}.yaml");
    store.put(&format!("manifests-static-{pod}"), &path, healthcheck_pod(context.cluster, kops))?;
    for group in context.groups {
        store.add_group(group)?;
    }
    store.add_addons()?;
    store.add_discovery()?;
    Ok(store.objects)
}

struct Store<'a> {
    context: StoreContext<'a>,
    objects: Vec<NamedObject>,
    base: &'a str,
}

impl Store<'_> {
    /// Adds an object below the cluster's directory. `name` is its name in the model.
    fn put(&mut self, name: &str, path: &str, content: String) -> Result<(), Error> {
        self.put_at(self.base, name, path, content)
    }

    fn put_at(&mut self, base: &str, name: &str, path: &str, content: String) -> Result<(), Error> {
        let place = BucketPath::parse(base, self.context.schemes)?;
        let key = format!("{}/{path}", place.prefix).trim_start_matches('/').to_owned();
        // A name in the spec must not lead out of the cluster's directory.
        if key.split('/').any(|part| ["", ".", ".."].contains(&part)) {
            return Err(Error::value("the state store", key, "is not the name of an object"));
        }
        let object = StoreObject { bucket: place.bucket, key, content };
        self.objects.push(NamedObject { name: name.to_owned(), scheme: place.scheme, object });
        Ok(())
    }

    fn add_etcd(&mut self) -> Result<(), Error> {
        let context = self.context;
        let servers = context.groups.iter().any(|one| one.spec.text("role") == "APIServer");
        for etcd in context.cluster.spec.items("etcdClusters") {
            let name = etcd.text("name");
            let backups = etcd.text("backups.backupStore");
            let known = format!("etcd-cluster-spec-{name}");
            self.put_at(backups, &known, "control/etcd-cluster-spec", etcd_spec(etcd))?;
            for member in etcd.items("etcdMembers") {
                let kops = &context.node.kops;
                let pod = etcd_pod(context.cluster, etcd, kops, servers)?;
                let one = format!("{name}-{}", member.text("instanceGroup"));
                let path = format!("manifests/etcd/{one}.yaml");
                self.put(&format!("manifests-etcdmanager-{one}"), &path, pod)?;
            }
        }
        Ok(())
    }

    fn add_group(&mut self, group: &Object) -> Result<(), Error> {
        let context = self.context;
        let role = group.spec.text("role");
        if role == "Bastion" && group.spec.items("additionalUserData").is_empty() {
            return Ok(());
        }
        let name = group.name();
        let config = node_config(context.cluster, group, context.node)?;
        self.put(&format!("nodeupconfig-{name}"), &node_config_path(role, name), config)?;
        if group.spec.text("manager") == "Karpenter" {
            let script = user_data::script(context.cluster, group, context.node)?;
            self.put(
                &format!("nodeupscript-{name}"),
                &format!("{}/nodeupscript.sh", group_directory(role, name)),
                script,
            )?;
        }
        Ok(())
    }

    /// Adds the add-ons of the channel. Their manifests are inputs; kOps does not generate them.
    fn add_addons(&mut self) -> Result<(), Error> {
        let context = self.context;
        let addons = context.addons;
        let missing = |name: &str| Error::Unknown {
            what: "manifest of add-ons",
            name: format!("addons/{name}"),
            remedy: "kOps generates no add-ons for clouds: take upstream's from its state store or from a directory",
        };
        let channel = addons.get(CHANNEL).ok_or_else(|| missing(CHANNEL))?;
        let listed = kops_api::yaml::parse(&format!("addons/{CHANNEL}"), channel.as_bytes())?;
        let known = format!("{}-addons", context.cluster.name());
        for addon in listed.items("spec.addons") {
            let path = addon.text("manifest");
            let content = addons.get(path).ok_or_else(|| missing(path))?;
            let (name, id) = (addon.text("name"), addon.text("id"));
            let name = if id.is_empty() {
                format!("{known}-{name}")
            } else {
                format!("{known}-{name}-{id}")
            };
            self.put(&name, &format!("addons/{path}"), content.clone())?;
        }
        self.put(&format!("{known}-bootstrap"), &format!("addons/{CHANNEL}"), channel.clone())
    }

    /// Adds the OIDC documents by which others verify service account tokens: the issuer and its keys.
    fn add_discovery(&mut self) -> Result<(), Error> {
        let context = self.context;
        let place =
            context.cluster.spec.text("serviceAccountIssuerDiscovery.discoveryStore").to_owned();
        if place.is_empty() {
            return Ok(());
        }
        if context.key_set.is_empty() {
            return Err(Error::Missing {
                field: "the key set of service accounts".to_owned(),
                hint: ": it is published, and derived from the keyset service-account",
            });
        }
        let issuer = context.cluster.spec.text("kubeAPIServer.serviceAccountIssuer");
        let document = discovery(issuer);
        let path = ".well-known/openid-configuration";
        self.put_at(&place, "discovery.json", path, document)?;
        self.put_at(&place, "keys.json", "openid/v1/jwks", context.key_set.to_owned())
    }
}

/// Returns the OIDC discovery document, formatted as Go does: one member per line without indentation.
fn discovery(issuer: &str) -> String {
    let text = |text: &str| Value::from(text).to_string();
    let list = |items: &[&str]| {
        let items: Vec<_> = items.iter().map(|item| text(item)).collect();
        format!("[\n{}\n]", items.join(",\n"))
    };
    let members = [
        ("issuer", text(issuer)),
        ("jwks_uri", text(&format!("{issuer}/openid/v1/jwks"))),
        ("authorization_endpoint", text("urn:kubernetes:programmatic_authorization")),
        ("response_types_supported", list(&["id_token"])),
        ("subject_types_supported", list(&["public"])),
        ("id_token_signing_alg_values_supported", list(&["RS256"])),
        ("claims_supported", list(&["sub", "iss"])),
    ];
    let members: Vec<_> =
        members.iter().map(|(name, value)| format!("\"{name}\": {value}")).collect();
    format!("{{\n{}\n}}", members.join(",\n"))
}
