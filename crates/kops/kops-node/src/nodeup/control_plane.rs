//! The additional parts of control planes: keys of the authorities from the store, and static Pods.

use std::{net::IpAddr, path::Path};

use api_config::{
    Kubeconfig,
    kubeadm::Arg,
    kubeconfig::{Cluster as Server, User},
};
use api_meta::Tree as _;
use bootstrap::{host::Host, patches::Patches};
use bootstrap_core::{
    Layout,
    config::Init,
    constants::{self, ETCD_CLIENT_PORT},
};
use kops_core::{
    content_hash,
    dns::{EXTERNAL, INTERNAL},
    node_config_path,
};
use kops_store::{ENCRYPTION_CONFIG, ETCD, Keyset, SERVICE_ACCOUNT};
use pki::{AltName, KeyAlgorithm, LeafSpec, Subject, Usage, Validity};
use serde_json::{Value, json};

use super::{
    authority::{NodeAuthority, signer_id},
    context::NodeContext,
    etcd_cluster::{EtcdCluster, MAIN},
    etcd_pod,
    manifest::{make_directory, make_parent},
    member::{self, MemberStart},
    proxy,
};
use crate::{
    controller::{CONFIG, DIRECTORY, PORT, USER},
    error::Error,
    parameters::{API_PORT, CERTIFICATE_PERIOD, ClusterParameters, PROXY_USER},
    protokube,
    store_access::{open, read_secret},
};

const PATCHES: &str = "/opt/kops/patches";
/// The CPU request of the main etcd, which is upstream's default.
pub const ETCD_CPU: &str = "200m";

/// Returns the group's configuration from the store.
pub(super) fn read_node_config(base: &str, boot: &Value) -> Result<String, Error> {
    let name = node_config_path(boot.text("InstanceGroupRole"), boot.text("InstanceGroupName"));
    let content = read_object(base, &name)?;
    String::from_utf8(content)
        .map_err(|source| Error::Encoding { name: format!("{base}/{name}"), source })
}

/// Reads an object of the store, which must exist.
pub(super) fn read_object(base: &str, name: &str) -> Result<Vec<u8>, Error> {
    let found = open(base)?.read(name)?;
    found
        .map(|(content, _)| content)
        .ok_or_else(|| Error::Missing { name: format!("{base}/{name}") })
}

/// Writes the API server's configuration of encryption at rest, and returns its path; `None` if the cluster has none.
/// The file is in the directory that the API server's Pod mounts.
fn write_encryption_config(context: &NodeContext) -> Result<Option<String>, Error> {
    let hash = context.config.text("APIServerConfig.EncryptionConfigSecretHash");
    if hash.is_empty() {
        return Ok(None);
    }
    let base = store_url(context);
    let config = read_secret(&open(base)?, ENCRYPTION_CONFIG)?
        .ok_or_else(|| Error::Missing { name: format!("{base}/secrets/{ENCRYPTION_CONFIG}") })?;
    if content_hash(&config) != hash {
        return Err(Error::EncryptionConfig);
    }
    let path = Layout::default().pki(ENCRYPTION_CONFIG, "yaml");
    pki::write_file(&path, &config, pki::KEY_MODE)?;
    Ok(Some(path.display().to_string()))
}

fn read_keyset(base: &str, name: &str) -> Result<Keyset, Error> {
    let path = format!("pki/private/{name}/keyset.yaml");
    Ok(Keyset::parse(&path, name, &read_object(base, &path)?)?)
}

fn read_authority(context: &NodeContext, name: &str) -> Result<NodeAuthority, Error> {
    NodeAuthority::new(&context.config, &read_keyset(store_url(context), name)?)
}

/// Returns the URL of the cluster's directory in the store.
pub(super) fn store_url(context: &NodeContext) -> &str {
    context.boot.text("ConfigBase").trim_end_matches('/')
}

fn parameters(context: &NodeContext) -> ClusterParameters {
    let config = &context.config;
    ClusterParameters {
        name: config.text("ClusterName").to_owned(),
        version: config.text("KubernetesVersion").to_owned(),
        services: config.text("Networking.serviceClusterIPRange").to_owned(),
        pods: config.text("ControlPlaneConfig.KubeControllerManager.clusterCIDR").to_owned(),
        domain: config.text("APIServerConfig.ClusterDNSDomain").to_owned(),
    }
}

/// Writes the authorities' files, and returns the configuration of `init` for the rest, with the starts of etcd's
/// members.
pub(super) async fn write_files(context: &NodeContext) -> Result<(Init, Vec<MemberStart>), Error> {
    // Nothing is changed, least of all the volume, on a machine that cannot run etcd.
    let (tag, etcds) = (etcd_tag()?, EtcdCluster::all_of(&context.config)?);
    let (base, layout) = (store_url(context), Layout::default());
    let ca = read_authority(context, "kubernetes-ca")?;
    let aggregator = read_authority(context, "apiserver-aggregator-ca")?;
    let clients = read_authority(context, "etcd-clients-ca")?;
    for (authority, file) in [(&ca, "ca"), (&aggregator, "front-proxy-ca"), (&clients, "etcd/ca")] {
        make_parent(&layout.pki(file, "key"))?;
        authority.write(&layout.pki(file, "key"), &layout.pki(file, "crt"))?;
    }
    let signer = read_keyset(base, SERVICE_ACCOUNT)?;
    let signer = signer.authority_of(signer_id(&context.config, SERVICE_ACCOUNT))?;
    pki::write_key(&layout.pki("sa", "key"), signer.key())?;
    let verifiers = context.config.text("APIServerConfig.ServiceAccountPublicKeys");
    pki::write_file(&layout.pki("sa", "pub"), verifiers.as_bytes(), pki::KEY_MODE)?;
    write_controller_files(context, &ca)?;
    write_protokube_files(context, &clients)?;
    write_proxy_files(context, &ca)?;
    let mut init = parameters(context).init(Some((&context.machine.name, context.machine.address)));
    let encryption_config = write_encryption_config(context)?;
    let mut starts = Vec::new();
    for etcd in &etcds {
        let member = member::prepare(context, etcd, base, &clients).await?;
        let local = member.local_etcd(etcd, &context.machine.address.to_string(), &tag);
        if *etcd == MAIN {
            init.cluster.etcd.local = Some(local);
        } else {
            etcd_pod::write_etcd_pod(context, &init, etcd, local)?;
        }
        starts.push(member.start);
    }
    let api = context.config.at("APIServerConfig.KubeAPIServer").clone();
    // Clients connect to the balancer's address, so the server's certificate must contain it.
    let names = &mut init.cluster.api_server.cert_sans;
    names.push(context.machine.gateway.to_string());
    let public = context.config.text("APIServerConfig.API.publicName");
    let others = context.config.texts("APIServerConfig.API.additionalSANs");
    let all = others.chain([public]).filter(|name| !name.is_empty());
    names.extend(all.map(str::to_owned));
    let args = &mut init.cluster.api_server.extra_args;
    if api.opt_flag("anonymousAuth") == Some(false) {
        args.push(Arg::new("anonymous-auth", "false"));
    }
    if let Some(path) = encryption_config {
        args.push(Arg::new("encryption-provider-config", path));
    }
    let overrides = api.texts("etcdServersOverrides").collect::<Vec<_>>().join(",");
    if !overrides.is_empty() {
        args.push(Arg::new("etcd-servers-overrides", overrides));
    }
    // The discovery document names the location of its keys.
    let issuer = api.text("serviceAccountIssuer");
    if !issuer.is_empty() {
        args.push(Arg::new("service-account-issuer", issuer));
    }
    Ok((init, starts))
}

/// Returns the image tag of the installed etcd.
fn etcd_tag() -> Result<String, Error> {
    let program = Host::default().program(constants::ETCD).ok_or(Error::MissingEtcd)?;
    Ok(format!("{}-0", bootstrap::images::etcd_version(&program)?))
}

/// Writes kops-controller's certificate, signing authority and settings.
fn write_controller_files(context: &NodeContext, ca: &NodeAuthority) -> Result<(), Error> {
    let (base, authority) = (store_url(context), &ca.authority);
    let directory = Path::new(DIRECTORY);
    make_directory(directory)?;
    let validity = Validity::starting(rt::now(), CERTIFICATE_PERIOD);
    let cluster = &context.machine.cluster;
    let serving = LeafSpec {
        subject: Subject::new("kops-controller"),
        alt_names: vec![AltName::dns(format!("kops-controller.internal.{cluster}"))],
        usage: Usage::Server,
    };
    let (cert, key) = authority.issue_new(&serving, KeyAlgorithm::EcdsaP256, validity)?;
    pki::write_key(&directory.join("kops-controller.key"), &key)?;
    pki::write_cert(&directory.join("kops-controller.crt"), &cert)?;
    pki::write_key(&directory.join("kubernetes-ca.key"), authority.key())?;
    pki::write_cert(&directory.join("kubernetes-ca.crt"), authority.cert())?;
    local_kubeconfig(cluster, USER, ca)?.write(&directory.join("kubeconfig"))?;
    let settings = json!({"cluster": cluster, "store": base, "listen": format!("0.0.0.0:{PORT}")});
    pki::write_file(Path::new(CONFIG), settings.to_string().as_bytes(), pki::KEY_MODE)?;
    Ok(())
}

/// Returns a kubeconfig for a user at the API server of this machine, with a new certificate.
fn local_kubeconfig(cluster: &str, user: &str, ca: &NodeAuthority) -> Result<Kubeconfig, Error> {
    let client =
        LeafSpec { subject: Subject::new(user), alt_names: Vec::new(), usage: Usage::Client };
    let validity = Validity::starting(rt::now(), CERTIFICATE_PERIOD);
    let (cert, key) = ca.authority.issue_new(&client, KeyAlgorithm::EcdsaP256, validity)?;
    let server = Server::with_ca(format!("https://127.0.0.1:{API_PORT}"), &ca.trusted);
    Ok(Kubeconfig::single(cluster, server, user, User::with_cert(&cert.to_pem(), &key.to_pem()?)))
}

/// Writes kube-proxy's credentials.
fn write_proxy_files(context: &NodeContext, ca: &NodeAuthority) -> Result<(), Error> {
    proxy::write_kubeconfig(&local_kubeconfig(&context.machine.cluster, PROXY_USER, ca)?)
}

/// Returns the location of the backups, the only part of the store that protokube may write.
pub(super) fn backups_url(base: &str) -> String {
    format!("{base}/backups/etcd/{ETCD}")
}

/// Writes protokube's etcd client certificate and its settings.
fn write_protokube_files(context: &NodeContext, clients: &NodeAuthority) -> Result<(), Error> {
    let base = store_url(context);
    let directory = Path::new(protokube::DIRECTORY);
    make_directory(directory)?;
    let client = LeafSpec {
        subject: Subject::new("protokube"),
        alt_names: Vec::new(),
        usage: Usage::Client,
    };
    let validity = Validity::starting(rt::now(), CERTIFICATE_PERIOD);
    let (cert, key) = clients.authority.issue_new(&client, KeyAlgorithm::EcdsaP256, validity)?;
    pki::write_key(&directory.join("protokube.key"), &key)?;
    pki::write_cert(&directory.join("protokube.crt"), &cert)?;
    pki::write_file(&directory.join("etcd-ca.crt"), clients.trusted.as_bytes(), pki::PUBLIC_MODE)?;
    let settings = json!({
        "cluster": context.machine.cluster, "store": base, "backups": backups_url(base),
        "etcd": format!("https://127.0.0.1:{ETCD_CLIENT_PORT}"),
    });
    Ok(pki::write_file(
        Path::new(protokube::CONFIG),
        settings.to_string().as_bytes(),
        pki::KEY_MODE,
    )?)
}

/// Returns patches of the Pods of the main etcd and of the API server: their requests and probes, and the names that
/// dns-controller publishes.
pub(super) fn write_patches(context: &NodeContext) -> Result<Patches, Error> {
    let mut patches = vec![("etcd+json.json", request_patch())];
    if context.config.opt_flag("APIServerConfig.KubeAPIServer.anonymousAuth") == Some(false) {
        patches.push(("kube-apiserver+json.json", probes_patch()));
    }
    if let Some(patch) = names_patch(&context.config, context.boot.text("ClusterName")) {
        patches.push(("kube-apiserver+merge.json", patch));
    }
    make_directory(Path::new(PATCHES))?;
    for (name, patch) in patches {
        let text = patch.to_string();
        pki::write_file(&Path::new(PATCHES).join(name), text.as_bytes(), pki::PUBLIC_MODE)?;
    }
    Ok(Patches::load(Path::new(PATCHES))?)
}

/// Returns the patch that makes the main etcd request what its spec says; other values are rejected.
fn request_patch() -> Value {
    let path = "/spec/containers/0/resources/requests/cpu";
    json!([{"op": "replace", "path": path, "value": ETCD_CPU}])
}

/// Returns the patch for an API server that forbids anonymous requests: the kubelet probes only the port.
fn probes_patch() -> Value {
    let probes = ["livenessProbe", "readinessProbe", "startupProbe"];
    let patch = probes.iter().flat_map(|probe| {
        let at = format!("/spec/containers/0/{probe}");
        [
            json!({"op": "remove", "path": format!("{at}/httpGet")}),
            json!({"op": "add", "path": format!("{at}/tcpSocket"), "value": {"port": API_PORT}}),
        ]
    });
    patch.collect()
}

/// Returns the patch with the annotations for dns-controller; `None` for a cluster without a DNS zone.
fn names_patch(config: &Value, cluster: &str) -> Option<Value> {
    if config.text("DNSZone").is_empty() {
        return None;
    }
    let public = match config.text("APIServerConfig.API.publicName") {
        "" => format!("api.{cluster}"),
        name => name.to_owned(),
    };
    let annotations = json!({INTERNAL: format!("api.internal.{cluster}"), EXTERNAL: public});
    Some(json!({"metadata": {"annotations": annotations}}))
}

/// Returns a worker's configuration of `init`, with the same image names as a control plane's.
pub(super) fn worker_init(context: &NodeContext) -> Init {
    let address: IpAddr = context.machine.address;
    let mut init = parameters(context).init(Some((&context.machine.name, address)));
    // A worker has no etcd member, so etcd's image is not pulled.
    init.cluster.etcd.local = None;
    init
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn main_etcd_requests_what_its_spec_says() {
        let mut init = crate::parameters::ClusterParameters {
            name: "a.local".to_owned(),
            version: "1.36.2".to_owned(),
            services: "100.64.0.0/13".to_owned(),
            pods: "100.96.0.0/11".to_owned(),
            domain: "cluster.local".to_owned(),
        }
        .init(Some(("cp-1", "172.29.0.2".parse().unwrap())));
        init.cluster.etcd.local = Some(api_config::kubeadm::LocalEtcd::default());
        let layout = Layout::default();
        let local = &init.init.local_api_endpoint;
        let machine =
            bootstrap_core::manifests::Machine::new(&init.cluster, local, "cp-1", &layout);
        let etcd = bootstrap_core::manifests::Component::Etcd;
        let pod = bootstrap_core::manifests::manifest(etcd, &machine).unwrap();
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("etcd+json.json"), request_patch().to_string()).unwrap();
        let pod = Patches::load(dir.path()).unwrap().apply("etcd", pod).unwrap();
        let requests = &pod["spec"]["containers"][0]["resources"]["requests"];
        assert_eq!(requests, &json!({"cpu": "200m", "memory": "100Mi"}));
    }

    #[test]
    fn api_server_claims_names_in_clusters_with_a_zone() {
        let patch = |config: Value| names_patch(&config, "demo.example.test");
        assert_eq!(patch(json!({})), None);
        let of = |external: &str| {
            json!({"metadata": {"annotations": {
                INTERNAL: "api.internal.demo.example.test", EXTERNAL: external,
            }}})
        };
        let zone = "example.test@192.0.2.53";
        assert_eq!(patch(json!({"DNSZone": zone})), Some(of("api.demo.example.test")));
        let public = json!({"API": {"publicName": "kube.example.test"}});
        let config = json!({"DNSZone": zone, "APIServerConfig": public});
        assert_eq!(patch(config), Some(of("kube.example.test")));
    }
}
