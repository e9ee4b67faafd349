//! The process of simulated nodes: kubelets whose container runtime is in memory and whose kernel interfaces are fakes.
//!
//! A simulated node registers, renews its Lease, watches its Pods, mounts volumes as plain directories, and reports the
//! status of Pods, as every kubelet does. It has no server, so `kubectl logs` and `exec` do not work for its Pods.
//! Nothing serves the addresses of its Pods. A taint keeps Pods away that do not tolerate simulated nodes.

use std::{
    fs,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    sync::Arc,
};

use api_config::{
    Kubeconfig,
    kubeconfig::{self, User},
};
use bootstrap_core::constants::NODES_GROUP;
use client::Client;
use cri::memory::MemoryRuntime;
use k8s_openapi::api::core::v1::Taint;
use pki::{Authority, KeyAlgorithm, LeafSpec, Subject, Usage, Validity};

use crate::{certs, cluster::Cluster, error::Error};

/// The range of the Pods' addresses, 256 for each node. It is reserved for benchmarks (RFC 2544).
const PODS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 0);
/// The largest number of nodes, for whose Pods the range suffices.
pub(crate) const MOST: u16 = 500;
/// The key of the label and the taint of simulated nodes.
const MARK: &str = "windlass.io/simulated";

/// Runs the simulated nodes of a cluster until shutdown.
pub async fn run(cluster: Cluster, tasks: &rt::Tasks) -> Result<(), Error> {
    let shared = Shared::read(&cluster)?;
    for index in 0..cluster.settings.simulated_nodes {
        let node = SimulatedNode::new(&cluster, index);
        let (config, client) = node.prepare(&shared, tasks)?;
        let (own, name) = (tasks.clone(), node.name.clone());
        tasks.essential(&node.name, async move {
            if let Err(error) = kubelet::run(config, Some(client), &own).await {
                tracing::error!(%error, node = name, "the simulated node ended");
            }
        });
    }
    tasks.shutdown().stopping().await;
    Ok(())
}

/// The facts that the simulated nodes of a cluster share.
struct Shared<'a> {
    cluster: &'a Cluster,
    /// The configuration of the first node's kubelet.
    kubelet: kubelet::KubeletConfiguration,
    /// The API server.
    server: kubeconfig::Cluster,
    authority: Authority,
    algorithm: KeyAlgorithm,
    validity: Validity,
}

impl<'a> Shared<'a> {
    fn read(cluster: &'a Cluster) -> Result<Self, Error> {
        let path = cluster.layout().kubelet_config();
        let text = fs::read_to_string(&path).map_err(Error::file("reading", &path))?;
        let admin = Kubeconfig::load(&cluster.layout().kubeconfig("super-admin.conf"))?;
        let (plan, authority) = (certs::plan(cluster)?, certs::authority(cluster)?);
        let validity = Validity::starting(rt::now(), plan.leaf_validity)
            .until_at_most(authority.cert().info()?.not_after);
        Ok(Self {
            cluster,
            kubelet: kubelet::parse(&text)?,
            server: admin.current()?.cluster.clone(),
            authority,
            algorithm: plan.algorithm,
            validity,
        })
    }
}

struct SimulatedNode {
    name: String,
    root: PathBuf,
    /// The address before those of its Pods.
    network: Ipv4Addr,
}

impl SimulatedNode {
    fn new(cluster: &Cluster, index: u16) -> Self {
        let name = format!("simulated-{}", index + 1);
        let network = Ipv4Addr::from_bits(PODS.to_bits() + u32::from(index) * 256);
        Self { root: cluster.root.join("simulated").join(&name), name, network }
    }

    /// Starts the node's container runtime, and returns the configuration of its kubelet.
    fn prepare(
        &self,
        shared: &Shared<'_>,
        tasks: &rt::Tasks,
    ) -> Result<(kubelet::Config, Client), Error> {
        // The runtime has forgotten the Pods of an earlier process, as after a restart of a machine.
        match fs::remove_dir_all(&self.root) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(Error::file("removing", &self.root)(error));
            }
            _ => {}
        }
        fs::create_dir_all(&self.root).map_err(Error::file("creating", &self.root))?;
        let (runtime, images) = (self.root.join("runtime"), self.root.join("images"));
        let memory = MemoryRuntime::new(self.network, Arc::new(rt::SystemClock));
        memory.serve(&runtime, &images, tasks).map_err(Error::file("serving", &runtime))?;
        let kubeconfig = self.kubeconfig(shared)?;
        let client = |agent: &str| Client::from_kubeconfig(&kubeconfig, agent);
        let mut settings = self.settings(shared, &runtime)?;
        settings.images.endpoint = Some(images.display().to_string());
        let config = kubelet::Config {
            settings,
            heartbeats: Some(client("kubelet-heartbeats")?),
            rotate_certificates: false,
            service_manager: kubelet::ServiceManager::default(),
            host: kubelet::Host {
                cgroups: Arc::new(sys::cgroup::RecordedCgroups::default()),
                mounts: Arc::new(sys::mount::RecordedMounts::default()),
            },
        };
        Ok((config, client(&version::user_agent("kubelet"))?))
    }

    /// Returns the settings of the first node's kubelet, without its files, sockets and ports.
    fn settings(&self, shared: &Shared<'_>, runtime: &Path) -> Result<kubelet::Settings, Error> {
        let config = kubelet::KubeletConfiguration {
            static_pod_path: String::new(),
            tls_cert_file: String::new(),
            tls_private_key_file: String::new(),
            enable_server: Some(false),
            healthz_port: Some(0),
            cgroup_root: String::new(),
            pod_logs_dir: self.root.join("log/pods").display().to_string(),
            container_runtime_endpoint: runtime.display().to_string(),
            register_with_taints: vec![Taint {
                key: MARK.to_owned(),
                effect: "NoSchedule".to_owned(),
                ..Taint::default()
            }],
            ..shared.kubelet.clone()
        };
        let host = kubelet::HostSettings {
            node_name: self.name.clone(),
            node_ips: vec![shared.cluster.settings.address.to_string()],
            root: self.root.join("kubelet"),
            cert_dir: self.root.join("pki"),
            labels: [(MARK.to_owned(), String::new())].into(),
        };
        Ok(kubelet::Settings::new(&config, host).map_err(kubelet::Error::from)?)
    }

    /// Returns the kubeconfig of the node, with a certificate that is as valid as the cluster's others.
    fn kubeconfig(&self, shared: &Shared<'_>) -> Result<Kubeconfig, Error> {
        let spec = LeafSpec {
            subject: Subject::new(format!("system:node:{}", self.name)).in_group(NODES_GROUP),
            alt_names: Vec::new(),
            usage: Usage::Client,
        };
        let (cert, key) = shared.authority.issue_new(&spec, shared.algorithm, shared.validity)?;
        let user = User::with_cert(&cert.to_pem(), &key.to_pem()?);
        Ok(Kubeconfig::single(&shared.cluster.name, shared.server.clone(), &self.name, user))
    }
}
