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
    pub fn under(root: &Path) -> Self {
        let kubernetes = root.join("etc/kubernetes");
        Self {
            certificates: kubernetes.join("pki"),
            kubelet: root.join("var/lib/kubelet"),
            kubernetes,
        }
    }

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

    pub fn kubelet_config(&self) -> PathBuf {
        self.kubelet.join("config.yaml")
    }

    pub fn kubelet_instance_config(&self) -> PathBuf {
        self.kubelet.join("instance-config.yaml")
    }

    pub fn kubelet_flags(&self) -> PathBuf {
        self.kubelet.join("kubeadm-flags.env")
    }
}
