//! A local cluster: its settings, and the layout of its files.

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
};

use bootstrap_core::{
    Layout,
    config::{Facts, Init},
    manifests::Component,
};
use client::Client;
use net_core::Cidr;
use serde::{Deserialize, Serialize};

use crate::{
    config::{ClusterConfig, ExtraMount},
    error::Error,
};

/// The name of the cluster if `--name` is not given.
pub const DEFAULT_NAME: &str = "windlass";

/// A local cluster, or one of its further nodes.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// The cluster's name.
    pub name: String,
    /// The root directory of the cluster's or the node's files.
    pub root: PathBuf,
    /// The settings, chosen when the cluster was created.
    pub settings: Settings,
}

/// The settings in `cluster.json` under the root, which all processes of the cluster and each later `up` share.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Settings {
    /// The name of the Node.
    pub node_name: String,
    /// The node's address.
    pub address: IpAddr,
    /// The port of the API server.
    pub api_port: u16,
    /// The port of the kubelet's server.
    pub kubelet_port: u16,
    /// The Pods' address ranges, one for each IP family, separated by a comma as in kubeadm.
    pub pod_cidr: String,
    /// The Services' address ranges, in the same form.
    pub service_cidr: String,
    /// The cluster's DNS domain.
    pub dns_domain: String,
    /// `true` if packets between Pods of different nodes use a tunnel even where a plain route would do.
    #[serde(default)]
    pub tunnel: bool,
    /// The interval of snapshots in seconds, and the number of snapshots kept; `None` for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshots: Option<(u64, usize)>,
    /// The tag of etcd's image if there are several control planes. `None` for one control plane with an embedded
    /// store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd: Option<String>,
    /// The number of simulated nodes.
    #[serde(default)]
    pub simulated_nodes: u16,
    /// `true` if a further node is a control plane.
    #[serde(default)]
    pub control_plane: bool,
    /// The range of the link between the nodes; `None` until there are further nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<String>,
    /// The root of the cluster of a further node; `None` for the first node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub member_of: Option<PathBuf>,
    /// The user's kubeconfig, which holds a copy of the administrator's certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubeconfig: Option<PathBuf>,
    /// The mounts of a further node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub extra_mounts: Vec<ExtraMount>,
    /// The document of `up --config`, with the changes by flags. A later `up` may change it.
    #[serde(default)]
    pub config: ClusterConfig,
}

impl Settings {
    /// Returns the settings of a cluster's first node, with one control plane and IPv4.
    pub(crate) fn first_node(node_name: String, address: IpAddr) -> Self {
        Self {
            node_name,
            address,
            api_port: 6443,
            kubelet_port: 10250,
            pod_cidr: "10.244.0.0/16".to_owned(),
            service_cidr: "10.96.0.0/12".to_owned(),
            dns_domain: "cluster.local".to_owned(),
            tunnel: false,
            snapshots: None,
            etcd: None,
            simulated_nodes: 0,
            control_plane: true,
            link: None,
            member_of: None,
            kubeconfig: None,
            extra_mounts: Vec::new(),
            config: ClusterConfig::default(),
        }
    }
}

/// Returns the encryption configuration of the cluster with this root. Without the file, nothing is encrypted.
pub(crate) fn encryption_file(root: &Path) -> PathBuf {
    root.join("encryption-config.yaml")
}

/// Parses a list of ranges separated by commas.
pub(crate) fn ranges(list: &str) -> Result<Vec<Cidr>, Error> {
    let parse = |range: &str| {
        range.parse().map_err(|source| Error::Range { range: range.to_owned(), source })
    };
    list.split(',').map(parse).collect()
}

impl Cluster {
    /// Returns a cluster's root if `--root` is not given.
    pub(crate) fn default_root(name: &str) -> PathBuf {
        Path::new("/var/lib/windlass").join(name)
    }

    /// Returns the root of a cluster, which need not exist.
    pub fn at(name: &str, root: Option<&Path>) -> PathBuf {
        root.map_or_else(|| Self::default_root(name), Path::to_owned)
    }

    /// Reads an existing cluster.
    pub fn load(name: &str, root: &Path) -> Result<Self, Error> {
        let path = root.join("cluster.json");
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(Error::NoCluster(root.to_owned()));
            }
            Err(source) => return Err(Error::File { operation: "reading", path, source }),
        };
        let settings =
            serde_json::from_str(&text).map_err(|source| Error::Settings { path, source })?;
        Ok(Self { name: name.to_owned(), root: root.to_owned(), settings })
    }

    /// Writes the settings to `cluster.json` atomically.
    pub fn save(&self) -> Result<(), Error> {
        let path = self.root.join("cluster.json");
        let text = serde_json::to_vec_pretty(&self.settings)
            .map_err(|source| Error::Settings { path: path.clone(), source })?;
        pki::write_file(&path, &text, 0o644)?;
        Ok(())
    }

    /// Returns a client with the administrator's rights.
    pub(crate) fn admin_client(&self) -> Result<Client, Error> {
        let path = self.layout().kubeconfig("super-admin.conf");
        Ok(Client::from_kubeconfig_file(&path, "windlass")?)
    }

    /// Returns the paths of kubeadm's files below this root.
    pub fn layout(&self) -> Layout {
        Layout::under(&self.root)
    }

    /// Returns the configuration for the phases of `init`.
    pub fn init(&self) -> Init {
        let layout = self.layout();
        let mut init = Init::default();
        let settings = &self.settings;
        init.init.node_registration.name.clone_from(&settings.node_name);
        init.init.node_registration.cri_socket =
            format!("unix://{}", self.containerd_socket().display());
        init.init.node_registration.taints = Some(Vec::new());
        init.init.local_api_endpoint.advertise_address = settings.address.to_string();
        init.init.local_api_endpoint.bind_port = settings.api_port.into();
        init.cluster.cluster_name.clone_from(&self.name);
        init.cluster.certificates_dir = layout.certificates.display().to_string();
        init.cluster.networking.pod_subnet.clone_from(&settings.pod_cidr);
        init.cluster.networking.service_subnet.clone_from(&settings.service_cidr);
        init.cluster.networking.dns_domain.clone_from(&settings.dns_domain);
        // ECDSA keys are generated fast. RSA keys would take longer than the whole start.
        init.cluster.encryption_algorithm = "ECDSA-P256".to_owned();
        init.cluster.api_server.cert_sans = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        let config = &settings.config;
        init.cluster.certificate_validity_period = config.certificate_validity_period;
        init.cluster.api_server.cert_sans.extend(config.api_server.cert_sans.iter().cloned());
        init.cluster.api_server.extra_args = config.extra_args(Component::ApiServer);
        init.cluster.controller_manager.extra_args =
            config.extra_args(Component::ControllerManager);
        init.cluster.scheduler.extra_args = config.extra_args(Component::Scheduler);
        init.kubelet = self.kubelet(&layout);
        if let Some(tag) = &settings.etcd {
            self.replicate(&mut init.cluster, tag);
        }
        let facts = Facts {
            hostname: settings.node_name.clone(),
            address: Some(settings.address),
            cgroup_driver: "cgroupfs".to_owned(),
            ..Facts::default()
        };
        init.fill(&facts);
        init
    }

    /// Returns the settings that all kubelets of the cluster share.
    pub(crate) fn shared_kubelet(&self) -> api_config::KubeletConfiguration {
        let mut kubelet = api_config::KubeletConfiguration::new();
        kubelet.fail_cgroup_v1 = Some(false);
        // A developer's machine often has swap, which Pods do not use.
        kubelet.fail_swap_on = Some(false);
        // A developer's disk is often nearly full, so the kubelet does not evict for disk space.
        let off = |signal: &str| (signal.to_owned(), "0%".to_owned());
        let mut hard: std::collections::BTreeMap<_, _> =
            ["nodefs.available", "nodefs.inodesFree", "imagefs.available", "imagefs.inodesFree"]
                .map(off)
                .into();
        hard.insert("memory.available".to_owned(), "100Mi".to_owned());
        kubelet.eviction_hard = Some(hard);
        kubelet.image_gc_high_threshold_percent = Some(100);
        // The document was checked when it was read.
        self.settings.config.kubelet_over(kubelet.clone()).unwrap_or(kubelet)
    }

    pub(crate) fn kubelet(&self, layout: &Layout) -> api_config::KubeletConfiguration {
        let mut kubelet = self.shared_kubelet();
        kubelet.static_pod_path = layout.manifests().display().to_string();
        kubelet.address = self.settings.address.to_string();
        kubelet.port = self.settings.kubelet_port.into();
        kubelet.tls_cert_file = layout.kubelet.join("pki/kubelet.crt").display().to_string();
        kubelet.tls_private_key_file = layout.kubelet.join("pki/kubelet.key").display().to_string();
        kubelet.cgroup_root = self.cgroup();
        kubelet.pod_logs_dir = self.root.join("var/log/pods").display().to_string();
        kubelet
    }

    /// Returns the parent cgroup of all Pods of the node.
    pub fn cgroup(&self) -> String {
        let cluster = format!("/windlass-{}", self.name);
        if self.is_member() { format!("{cluster}/{}", self.settings.node_name) } else { cluster }
    }

    /// Returns the bridge's name, of at most 15 bytes as the kernel requires.
    pub fn bridge(&self) -> String {
        let short: String =
            self.name.chars().filter(char::is_ascii_alphanumeric).take(12).collect();
        format!("wl-{short}")
    }

    /// Returns the directory of sockets and PID files.
    pub fn run(&self) -> PathBuf {
        self.root.join("run")
    }

    /// Returns the file that exists while the agent must not start, because the images of stored Pods are missing.
    pub(crate) fn images_missing(&self) -> PathBuf {
        self.run().join("images-missing")
    }

    /// Returns the directory of the embedded store, which is used with one control plane.
    pub fn store(&self) -> PathBuf {
        self.root.join("var/lib/store")
    }

    /// Returns the directory of the processes' logs.
    pub fn logs(&self) -> PathBuf {
        self.root.join("var/log")
    }

    /// Returns the socket of the node's own containerd.
    pub fn containerd_socket(&self) -> PathBuf {
        self.run().join("containerd/containerd.sock")
    }

    /// Returns the directory of containerd's persistent data.
    pub(crate) fn containerd_root(&self) -> PathBuf {
        self.root.join("var/lib/containerd")
    }

    /// Returns the directory of CNI configurations.
    pub(crate) fn cni_conf(&self) -> PathBuf {
        self.root.join("etc/cni/net.d")
    }

    /// Returns the directory of CNI plugins.
    pub(crate) fn cni_bin(&self) -> PathBuf {
        self.root.join("opt/cni/bin")
    }

    /// Returns the directory in which the CNI plugin stores allocated addresses.
    pub(crate) fn cni_data(&self) -> PathBuf {
        self.root.join("var/lib/cni")
    }

    /// Returns the copy of the binary that the cluster runs. The CNI plugin's links point to it.
    pub fn binary(&self) -> PathBuf {
        self.home().join("bin/windlass")
    }
}

/// Returns a cluster with one node for tests.
#[cfg(test)]
pub(crate) fn example(root: &Path) -> Cluster {
    let settings = Settings::first_node("vm".to_owned(), [192, 0, 2, 10].into());
    Cluster { name: "test".to_owned(), root: root.to_owned(), settings }
}
