//! Upstream's option builders, in their order: fixed defaults from the table, and computed values.

use api_meta::Tree as _;
use kops_api::Object;
use serde_json::{Value, json};

use super::{context::BuildContext, defaults};
use crate::{
    cluster::{CloudName, Cluster},
    error::Error,
    etcd,
    images::remap,
    names, ranges,
    version::Version,
    world::World,
};

const PAUSE: &str = "registry.k8s.io/pause:3.10.1";

/// The client URL of the main etcd cluster, and the API server's overrides for the others.
const ETCD_MAIN: &str = "https://127.0.0.1:4001";
const ETCD_OVERRIDES: [(&str, &str); 2] = [
    ("events", "/events#https://127.0.0.1:4002"),
    ("leases", "coordination.k8s.io/leases#https://127.0.0.1:4004"),
];

type Builder = fn(&mut Object, &BuildContext) -> Result<(), Error>;

const BUILDERS: &[(&str, Builder)] = &[
    ("Defaults", nothing),
    ("Etcd", etcd_version),
    ("EtcdManager", etcd_manager),
    ("APIServer", api_server),
    ("Containerd", containerd),
    ("Networking", networking),
    ("KubeDNS", kube_dns),
    ("Kubelet", kubelet),
    ("KubeControllerManager", controller_manager),
    ("KubeScheduler", scheduler),
    ("KubeProxy", kube_proxy),
    ("CloudConfiguration", nothing),
    ("Calico", nothing),
    ("Cilium", nothing),
    ("Kindnet", kindnet),
    ("Discovery", discovery),
    ("ClusterAutoscaler", nothing),
    ("NodeTerminationHandler", nothing),
    ("NodeProblemDetector", nothing),
    ("AWS", nothing),
    ("CloudControllerManager", cloud_controller_manager),
    ("GCPPDCSIDriver", nothing),
    ("Karpenter", nothing),
];

pub(super) fn run(cluster: &mut Object, context: &BuildContext) -> Result<(), Error> {
    for (name, build) in BUILDERS {
        defaults::fill(cluster, context, name);
        build(cluster, context)?;
    }
    Ok(())
}

fn nothing(_: &mut Object, _: &BuildContext) -> Result<(), Error> {
    Ok(())
}

fn etcd_version(cluster: &mut Object, context: &BuildContext) -> Result<(), Error> {
    let [old, new] = etcd::LATEST;
    let version = if context.control_plane.is_before(34) { old } else { new };
    cluster.spec.items_mut("etcdClusters").for_each(|etcd| etcd.put_default("version", version));
    Ok(())
}

fn etcd_manager(cluster: &mut Object, context: &BuildContext) -> Result<(), Error> {
    // etcd's programs are mounted as image volumes, which need a feature gate before 1.36.
    if etcd::mounts_images(&cluster.spec) && context.control_plane.is_before(36) {
        cluster.spec.put_default("controlPlaneKubelet.featureGates.ImageVolume", "true");
    }
    let base = cluster.spec.text("configStore.base").trim_end_matches('/').to_owned();
    for etcd in cluster.spec.items_mut("etcdClusters") {
        let store = format!("{base}/backups/etcd/{}", etcd.text("name"));
        etcd.put_default("backups.backupStore", store);
        let version = etcd.text("version").trim_start_matches('v').to_owned();
        if !etcd::is_supported(&version) {
            let latest = etcd::LATEST.join(" or ");
            let reason =
                format!("is not a supported version of etcd: use {latest}, or leave it out");
            return Err(Error::value("spec.etcdClusters.version", version, reason));
        }
    }
    Ok(())
}

/// Returns a component's image, from the registry in the spec.
fn image(spec: &Value, component: &str) -> String {
    let version = spec.text("kubernetesVersion");
    remap(spec, format!("registry.k8s.io/{component}:v{version}"))
}

fn api_server(cluster: &mut Object, _: &BuildContext) -> Result<(), Error> {
    let spec = &mut cluster.spec;
    let count = |spec: &Value, name: &str| {
        let found = spec.items("etcdClusters").iter().find(|etcd| etcd.text("name") == name);
        found.map(|etcd| etcd.items("etcdMembers").len())
    };
    let members = count(spec, "main").unwrap_or(0);
    if members == 0 {
        return Err(Error::Missing {
            field: "spec.etcdClusters: one with the name main".into(),
            hint: "",
        });
    }
    spec.put_default("kubeAPIServer.apiServerCount", members);
    let etcd: Version = spec.items("etcdClusters")[0].text("version").parse()?;
    spec.put_default("kubeAPIServer.storageBackend", format!("etcd{}", etcd.major));
    spec.put("kubeAPIServer.image", image(spec, "kube-apiserver"));
    spec.put(
        "kubeAPIServer.serviceClusterIPRange",
        spec.text("networking.serviceClusterIPRange").to_owned(),
    );
    spec.put("kubeAPIServer.etcdServers", [ETCD_MAIN].as_slice());
    let present = |name: &&(&str, &str)| count(spec, name.0).is_some();
    let overrides: Vec<_> =
        ETCD_OVERRIDES.iter().filter(present).map(|(_, server)| *server).collect();
    spec.put("kubeAPIServer.etcdServersOverrides", overrides);
    let mut plugins = spec.items("kubeAPIServer.enableAdmissionPlugins").to_vec();
    plugins.extend_from_slice(spec.items("kubeAPIServer.appendAdmissionPlugins"));
    spec.put("kubeAPIServer.enableAdmissionPlugins", plugins);
    Ok(())
}

fn containerd(cluster: &mut Object, _: &BuildContext) -> Result<(), Error> {
    let pause = remap(&cluster.spec, PAUSE.to_owned());
    cluster.spec.put_default("containerd.sandboxImage", pause);
    Ok(())
}

fn networking(cluster: &mut Object, _: &BuildContext) -> Result<(), Error> {
    if cluster.spec.has("networking.classic") {
        let what = "networking.classic".to_owned();
        return Err(Error::Unsupported {
            what,
            remedy: "use cilium, calico, kindnet or another network",
        });
    }
    Ok(())
}

/// Returns the address of cluster DNS: number 10 of the Service range.
fn dns_ip(spec: &Value) -> Result<String, Error> {
    Ok(ranges::service_ip(spec.text("networking.serviceClusterIPRange"), 10)?.to_string())
}

fn kube_dns(cluster: &mut Object, _: &BuildContext) -> Result<(), Error> {
    let ip = dns_ip(&cluster.spec)?;
    cluster.spec.put_default("kubeDNS.serverIP", ip);
    let domain = cluster.spec.text("clusterDNSDomain").to_owned();
    cluster.spec.put_default("kubeDNS.domain", domain);
    Ok(())
}

fn kubelet(cluster: &mut Object, _: &BuildContext) -> Result<(), Error> {
    let spec = &mut cluster.spec;
    let dns = if spec.flag("kubeDNS.nodeLocalDNS.enabled") {
        spec.text("kubeDNS.nodeLocalDNS.localIP").to_owned()
    } else {
        dns_ip(spec)?
    };
    for kubelet in ["kubelet", "controlPlaneKubelet"] {
        let domain = spec.text("clusterDNSDomain").to_owned();
        spec.put(&format!("{kubelet}.clusterDomain"), domain);
        spec.put_default(&format!("{kubelet}.clusterDNS"), dns.clone());
    }
    if cluster.cloud() == CloudName::Gce {
        let tag = names::gce_role_tag(cluster.name(), "node");
        cluster.spec.put("cloudProvider.gce.nodeTags", tag);
    }
    Ok(())
}

fn controller_manager(cluster: &mut Object, _: &BuildContext) -> Result<(), Error> {
    let name = cluster.name().to_owned();
    let v6 = cluster.is_ipv6_only();
    let spec = &mut cluster.spec;
    spec.put("kubeControllerManager.clusterName", name);
    spec.put("kubeControllerManager.image", image(spec, "kube-controller-manager"));
    if !v6 {
        let pods = spec.text("networking.podCIDR").to_owned();
        spec.put_default("kubeControllerManager.clusterCIDR", pods);
    }
    let pods = spec.text("kubeControllerManager.clusterCIDR").to_owned();
    if pods.contains(':') {
        let range = ranges::parse("spec.kubeControllerManager.clusterCIDR", &pods)?;
        // Nodes and their Pods share the bits evenly, but nodes get at most 16.
        let node = (range.host_bits() / 2).min(16);
        spec.put("kubeControllerManager.nodeCIDRMaskSize", range.prefix + node);
    }
    Ok(())
}

fn scheduler(cluster: &mut Object, _: &BuildContext) -> Result<(), Error> {
    let image = image(&cluster.spec, "kube-scheduler");
    cluster.spec.put_default("kubeScheduler.image", image);
    Ok(())
}

fn kube_proxy(cluster: &mut Object, _: &BuildContext) -> Result<(), Error> {
    let v6 = cluster.is_ipv6_only();
    let spec = &mut cluster.spec;
    spec.put("kubeProxy.image", image(spec, "kube-proxy"));
    let pods = spec.text("kubeControllerManager.clusterCIDR").to_owned();
    if !v6
        && !spec.has("networking.amazonVPC")
        && !pods.is_empty()
        && !spec.has("kubeProxy.clusterCIDR")
    {
        spec.put("kubeProxy.clusterCIDR", pods);
    }
    Ok(())
}

fn kindnet(cluster: &mut Object, _: &BuildContext) -> Result<(), Error> {
    let v6 = cluster.is_ipv6_only();
    let spec = &mut cluster.spec;
    if spec.has("networking.kindnet") && !v6 && !spec.has("networking.kindnet.masquerade") {
        let ranges = ["networkCIDR", "podCIDR", "serviceClusterIPRange"];
        let ranges = ranges.map(|field| spec.text(&format!("networking.{field}")).to_owned());
        let known: Vec<_> = ranges.into_iter().filter(|range| !range.is_empty()).collect();
        spec.put(
            "networking.kindnet.masquerade",
            json!({"enabled": true, "nonMasqueradeCIDRs": known}),
        );
    }
    Ok(())
}

fn discovery(cluster: &mut Object, context: &BuildContext) -> Result<(), Error> {
    let issuer = match cluster.spec.at("kubeAPIServer.serviceAccountIssuer").as_str() {
        Some(issuer) => issuer.to_owned(),
        None => issuer(cluster, context.world)?,
    };
    cluster.spec.put("kubeAPIServer.serviceAccountJWKSURI", format!("{issuer}/openid/v1/jwks"));
    cluster.spec.put("kubeAPIServer.serviceAccountIssuer", issuer);
    Ok(())
}

/// Returns the issuer of service account tokens: a public store, a service, or the API server by a name that the
/// verifiers can resolve.
fn issuer(cluster: &Object, world: &World) -> Result<String, Error> {
    let spec = &cluster.spec;
    let store = spec.text("serviceAccountIssuerDiscovery.discoveryStore");
    if !store.is_empty() {
        return store_url(store, cluster.is_ipv6_only(), world);
    }
    if spec.has("serviceAccountIssuerDiscovery.discoveryService") {
        let url = spec.text("serviceAccountIssuerDiscovery.discoveryService.url");
        let field = "spec.serviceAccountIssuerDiscovery.discoveryService.url".to_owned();
        return match url {
            "" => Err(Error::Missing { field, hint: "" }),
            url => Ok(url.to_owned()),
        };
    }
    let open = spec.texts("api.access").any(|range| ["0.0.0.0/0", "::/0"].contains(&range));
    let public = spec.text("api.publicName");
    if spec.flag("kubeAPIServer.anonymousAuth") && open && !public.is_empty() {
        Ok(format!("https://{public}"))
    } else {
        Ok(format!("https://api.internal.{}", cluster.name()))
    }
}

/// Returns the URL at which a store's objects are readable without credentials.
fn store_url(store: &str, v6: bool, world: &World) -> Result<String, Error> {
    let (scheme, path) = store.split_once("://").unwrap_or(("", store));
    let path = path.trim_end_matches('/');
    let (bucket, key) = path.split_once('/').unwrap_or((path, ""));
    let slash = if key.is_empty() { "" } else { "/" };
    match scheme {
        "s3" => {
            let remedy = "its region must be known: check that it exists and that you may read it";
            let region = world.bucket_regions.get(bucket);
            let region =
                region.ok_or(Error::Unknown { what: "bucket", name: bucket.to_owned(), remedy })?;
            let stack = if v6 { "dualstack." } else { "" };
            // The wildcard certificate does not cover bucket names with dots.
            let host = format!("s3.{stack}{region}.amazonaws.com");
            if bucket.contains('.') {
                Ok(format!("https://{host}/{bucket}{slash}{key}"))
            } else {
                Ok(format!("https://{bucket}.{host}{slash}{key}"))
            }
        }
        "gs" => Ok(format!("https://storage.googleapis.com/{path}")),
        // Stores in memory exist only in tests, including upstream's.
        "memfs" => Ok(format!("https://{path}")),
        _ => Err(Error::value(
            "spec.serviceAccountIssuerDiscovery.discoveryStore",
            store,
            "cannot be read without credentials: use s3:// or gs://",
        )),
    }
}

fn cloud_controller_manager(cluster: &mut Object, _: &BuildContext) -> Result<(), Error> {
    let cloud = cluster.cloud();
    let name = match cloud {
        CloudName::Aws => cluster.name().to_owned(),
        CloudName::Gce => names::gce(cluster.name()),
        _ => return Ok(()),
    };
    let v6 = cluster.is_ipv6_only();
    let spec = &mut cluster.spec;
    spec.put("cloudControllerManager.clusterName", name);
    if !v6 || cloud == CloudName::Gce {
        let pods = spec.text("networking.podCIDR").to_owned();
        spec.put_default("cloudControllerManager.clusterCIDR", pods);
    }
    Ok(())
}
