//! Command-line arguments of the kubelet.

use std::{collections::BTreeMap, path::PathBuf};

use api_config::known::KnownFlags;
use clap::Parser;

use crate::flags::{Ignored, Overlay};

/// The node agent. Runs the Pods that the API binds to this node, and those of static manifests.
#[derive(Clone, Debug, Default, Parser)]
#[command(name = "kubelet")]
pub struct Args {
    /// The kubelet's configuration file (KubeletConfiguration, kubelet.config.k8s.io/v1beta1).
    #[arg(long)]
    pub config: Option<PathBuf>,
    /// A directory of files whose names end in .conf, which override that file in the order of their names.
    #[arg(long)]
    pub config_dir: Option<PathBuf>,
    /// A kubeconfig file for the API server. Without it, only static Pods run.
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
    /// A kubeconfig file for requesting a client certificate if the file of --kubeconfig does not exist yet.
    #[arg(long)]
    pub bootstrap_kubeconfig: Option<PathBuf>,
    /// The directory for certificates. The default is pki below the root directory.
    #[arg(long)]
    pub cert_dir: Option<PathBuf>,
    /// The cloud provider: external if a cloud controller manager initializes the Node, or empty.
    #[arg(long, default_value = "")]
    pub cloud_provider: String,
    /// The node's name. The default is the host name.
    #[arg(long)]
    pub hostname_override: Option<String>,
    /// The node's address, or two, one of each family.
    #[arg(long, value_delimiter = ',')]
    pub node_ip: Vec<String>,
    /// Labels with which the node registers, as key=value.
    #[arg(long, value_delimiter = ',')]
    pub node_labels: Vec<String>,
    /// The directory for the kubelet's state.
    #[arg(long, default_value = "/var/lib/kubelet")]
    pub root_dir: PathBuf,
    /// The configuration of image credential providers (CredentialProviderConfig), or a directory of such files.
    #[arg(long)]
    pub image_credential_provider_config: Option<PathBuf>,
    /// The directory of the image credential providers' programs.
    #[arg(long)]
    pub image_credential_provider_bin_dir: Option<PathBuf>,
    /// Flags that override fields of the configuration file.
    #[command(flatten)]
    pub overlay: Overlay,
    /// Upstream flags that are accepted and have no effect.
    #[command(flatten)]
    pub ignored: KnownFlags<Ignored>,
}

impl Args {
    /// Returns the node's name: `--hostname-override`, or the host name.
    pub fn node_name(&self) -> String {
        match &self.hostname_override {
            Some(name) => name.trim().to_lowercase(),
            None => rt::node_name(),
        }
    }

    /// Returns `true` if the node must still request its client certificate.
    pub fn needs_certificate(&self) -> bool {
        self.bootstrap_kubeconfig.is_some()
            && self.kubeconfig.as_ref().is_some_and(|path| !path.exists())
    }

    /// Returns the directory for certificates.
    pub fn cert_dir(&self) -> PathBuf {
        self.cert_dir.clone().unwrap_or_else(|| self.root_dir.join("pki"))
    }

    /// Returns the labels by key. A label without `=` has an empty value.
    pub fn labels(&self) -> BTreeMap<String, String> {
        let pair = |label: &String| {
            let (key, value) = label.split_once('=').unwrap_or((label, ""));
            (key.to_owned(), value.to_owned())
        };
        self.node_labels.iter().map(pair).collect()
    }
}
