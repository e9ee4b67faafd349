//! The paths of a node's files.

use std::path::{Path, PathBuf};

/// The paths of a node's files. The default is kubeadm's; `up` uses the same tree below its own root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// `/etc/kubernetes`.
    pub kubernetes: PathBuf,
    /// `/etc/kubernetes/pki`.
    pub certificates: PathBuf,
    /// `/var/lib/kubelet`.
    pub kubelet: PathBuf,
}

impl Default for Layout {
    fn default() -> Self {
        Self::under(Path::new("/"))
    }
}

impl Layout {
    /// Returns kubeadm's paths below a root; `/` for kubeadm's own.
    pub fn under(root: &Path) -> Self {
        let kubernetes = root.join("etc/kubernetes");
        Self {
            certificates: kubernetes.join("pki"),
            kubelet: root.join("var/lib/kubelet"),
            kubernetes,
        }
    }

    /// Returns the directory of static Pods.
    pub fn manifests(&self) -> PathBuf {
        self.kubernetes.join("manifests")
    }

    /// Returns the path of a kubeconfig file such as `admin.conf`.
    pub fn kubeconfig(&self, name: &str) -> PathBuf {
        self.kubernetes.join(name)
    }

    /// Returns the path of a PKI file by its base name and extension, such as `etcd/ca` and `crt`.
    pub fn pki(&self, base: &str, extension: &str) -> PathBuf {
        self.certificates.join(format!("{base}.{extension}"))
    }

    /// Returns the path of the kubelet's configuration.
    pub fn kubelet_config(&self) -> PathBuf {
        self.kubelet.join("config.yaml")
    }

    /// Returns the path of the machine's part of the configuration, such as the runtime's socket, which is patched over
    /// the rest.
    pub fn kubelet_instance_config(&self) -> PathBuf {
        self.kubelet.join("instance-config.yaml")
    }

    /// Returns the path of the file with `KUBELET_KUBEADM_ARGS=`.
    pub fn kubelet_flags(&self) -> PathBuf {
        self.kubelet.join("kubeadm-flags.env")
    }
}
