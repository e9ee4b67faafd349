use std::path::{Path, PathBuf};

/// Where a node's files are. kubeadm's own places are the default; `up` keeps the same tree under its root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// `/etc/kubernetes`
    pub kubernetes: PathBuf,
    /// `/etc/kubernetes/pki`
    pub certificates: PathBuf,
    /// `/var/lib/kubelet`
    pub kubelet: PathBuf,
}

impl Default for Layout {
    fn default() -> Self {
        Self::under(Path::new("/"))
    }
}

impl Layout {
    /// kubeadm's places below a root; `/` for kubeadm's own.
    pub fn under(root: &Path) -> Self {
        let kubernetes = root.join("etc/kubernetes");
        Self {
            certificates: kubernetes.join("pki"),
            kubelet: root.join("var/lib/kubelet"),
            kubernetes,
        }
    }

    /// Where the kubelet finds the static Pods.
    pub fn manifests(&self) -> PathBuf {
        self.kubernetes.join("manifests")
    }

    /// A kubeconfig file such as `admin.conf`.
    pub fn kubeconfig(&self, name: &str) -> PathBuf {
        self.kubernetes.join(name)
    }

    /// A file of the PKI by its base name, such as `etcd/ca` and `crt`.
    pub fn pki(&self, base: &str, extension: &str) -> PathBuf {
        self.certificates.join(format!("{base}.{extension}"))
    }

    /// The kubelet's configuration as the cluster has it.
    pub fn kubelet_config(&self) -> PathBuf {
        self.kubelet.join("config.yaml")
    }

    /// What of it is this machine's alone, such as the runtime's socket; patched over the other.
    pub fn kubelet_instance_config(&self) -> PathBuf {
        self.kubelet.join("instance-config.yaml")
    }

    /// `KUBELET_KUBEADM_ARGS=` and the flags that no configuration has.
    pub fn kubelet_flags(&self) -> PathBuf {
        self.kubelet.join("kubeadm-flags.env")
    }
}
