use std::{
    fmt::Display,
    net::IpAddr,
    path::{Path, PathBuf},
    str::FromStr,
};

use bootstrap_core::{
    Layout,
    config::{Facts, Init},
};
use serde::{Deserialize, Serialize};

use crate::Error;

/// The cluster that is meant where `--name` is not given.
pub const DEFAULT_NAME: &str = "windlass";

/// One local cluster: its name, where its files are, and what was decided when it was made.
#[derive(Clone, Debug)]
pub struct Cluster {
    pub name: String,
    pub root: PathBuf,
    pub settings: Settings,
}

/// Kept in `cluster.json` under the root, so that every process of the cluster, and every later `up`, agrees.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Settings {
    pub node_name: String,
    pub address: IpAddr,
    pub api_port: u16,
    pub kubelet_port: u16,
    /// One range for each family of addresses that Pods have, as kubeadm writes them: with a comma.
    pub pod_cidr: String,
    pub service_cidr: String,
    pub dns_domain: String,
    /// Whether packets between Pods of different nodes go through a tunnel, even where a plain route would do.
    #[serde(default)]
    pub tunnel: bool,
    /// How often all objects are saved, in seconds, and how many such files are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshots: Option<(u64, usize)>,
    /// Where several control planes keep the objects in etcd: the tag of its image. Else the one has a store of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd: Option<String>,
    /// For a further node: whether it is a control plane, too.
    #[serde(default)]
    pub control_plane: bool,
    /// The range of the link between the first node and further ones, once there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<String>,
    /// For a further node: the root of its cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub member_of: Option<PathBuf>,
    /// The user's kubeconfig, which holds a copy of the administrator's certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubeconfig: Option<PathBuf>,
}

/// The ranges of a list with commas.
pub(crate) fn ranges<T: FromStr<Err: Display>>(list: &str) -> Result<Vec<T>, Error> {
    let parse = |text: &str| {
        text.parse().map_err(|e| Error::Other(format!("range of addresses {text}: {e}")))
    };
    list.split(',').map(parse).collect()
}

/// The admission plugins of `up` beside upstream's defaults. Without `DenyServiceExternalIPs` whoever may write a
/// Service may take other addresses' traffic (CVE-2020-8554), and nothing under `up` needs external addresses.
pub(crate) const ADMISSION_PLUGINS: [&str; 2] = ["NodeRestriction", "DenyServiceExternalIPs"];

impl Cluster {
    /// Where a cluster lies unless `--root` says otherwise.
    pub(crate) fn default_root(name: &str) -> PathBuf {
        Path::new("/var/lib/windlass").join(name)
    }

    /// The root of a cluster that may not be there yet.
    pub fn at(name: &str, root: Option<&Path>) -> PathBuf {
        root.map_or_else(|| Self::default_root(name), Path::to_owned)
    }

    /// An existing cluster.
    pub fn load(name: &str, root: &Path) -> Result<Self, Error> {
        let path = root.join("cluster.json");
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(Error::NoCluster(root.to_owned()));
            }
            Err(source) => return Err(Error::File { operation: "reading", path, source }),
        };
        let settings = serde_json::from_str(&text)
            .map_err(|e| Error::Settings { path, detail: e.to_string() })?;
        Ok(Self { name: name.to_owned(), root: root.to_owned(), settings })
    }

    /// Writes the settings to `cluster.json`, in place of the file as a whole.
    pub fn save(&self) -> Result<(), Error> {
        let path = self.root.join("cluster.json");
        let text = serde_json::to_vec_pretty(&self.settings)
            .map_err(|e| Error::Settings { path: path.clone(), detail: e.to_string() })?;
        pki::write_file(&path, &text, 0o644)?;
        Ok(())
    }

    /// Where kubeadm's files lie below this root.
    pub fn layout(&self) -> Layout {
        Layout::under(&self.root)
    }

    /// Everything that `init` would work on.
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
        // The whole start takes a second: RSA keys alone would take longer.
        init.cluster.encryption_algorithm = "ECDSA-P256".to_owned();
        init.cluster.api_server.cert_sans = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
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

    /// What all kubelets of the cluster have in common.
    pub(crate) fn shared_kubelet(&self) -> api_config::KubeletConfiguration {
        let mut kubelet = api_config::KubeletConfiguration::new();
        kubelet.fail_cgroup_v1 = Some(false);
        // A machine that people work on has a disk that is nearly full more often than not.
        let off = |signal: &str| (signal.to_owned(), "0%".to_owned());
        let mut hard: std::collections::BTreeMap<_, _> =
            ["nodefs.available", "nodefs.inodesFree", "imagefs.available", "imagefs.inodesFree"]
                .map(off)
                .into();
        hard.insert("memory.available".to_owned(), "100Mi".to_owned());
        kubelet.eviction_hard = Some(hard);
        kubelet.image_gc_high_threshold_percent = Some(100);
        kubelet
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

    /// The cgroup that everything of the node's Pods lies under.
    pub fn cgroup(&self) -> String {
        let cluster = format!("/windlass-{}", self.name);
        if self.is_member() { format!("{cluster}/{}", self.settings.node_name) } else { cluster }
    }

    /// An interface's name has at most 15 bytes.
    pub fn bridge(&self) -> String {
        let short: String =
            self.name.chars().filter(char::is_ascii_alphanumeric).take(12).collect();
        format!("wl-{short}")
    }

    /// Sockets and pid files of the cluster's processes.
    pub fn run(&self) -> PathBuf {
        self.root.join("run")
    }

    /// The embedded store, where one control plane has it.
    pub fn store(&self) -> PathBuf {
        self.root.join("var/lib/store")
    }

    /// Where each process writes its log.
    pub fn logs(&self) -> PathBuf {
        self.root.join("var/log")
    }

    /// The socket of the cluster's own containerd.
    pub fn containerd_socket(&self) -> PathBuf {
        self.run().join("containerd/containerd.sock")
    }

    /// What the container runtime keeps from one start to the next.
    pub(crate) fn containerd_root(&self) -> PathBuf {
        self.root.join("var/lib/containerd")
    }

    /// Where containerd finds the Pod network's configuration.
    pub(crate) fn cni_conf(&self) -> PathBuf {
        self.root.join("etc/cni/net.d")
    }

    /// Where containerd finds the CNI plugin.
    pub(crate) fn cni_bin(&self) -> PathBuf {
        self.root.join("opt/cni/bin")
    }

    /// Where the plugin keeps which addresses are taken.
    pub(crate) fn cni_data(&self) -> PathBuf {
        self.root.join("var/lib/cni")
    }

    /// The copy of the binary that the cluster runs; the CNI plugin's links point to it.
    pub fn binary(&self) -> PathBuf {
        self.home().join("bin/windlass")
    }
}
