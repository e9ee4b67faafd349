use std::{collections::BTreeMap, path::PathBuf};

use clap::Parser;
use k8s_openapi::api::core::v1::Taint;

use crate::{config::ConfigError, machine::Machine};

/// The node's agent: runs the Pods that the API binds to this node, and those of static files.
#[derive(Clone, Debug, Default, Parser)]
#[command(name = "kubelet")]
pub struct Args {
    /// The kubelet's configuration file (KubeletConfiguration, kubelet.config.k8s.io/v1beta1).
    #[arg(long)]
    pub config: Option<PathBuf>,
    /// How to reach and be known to the API server; without it, only static Pods run.
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
    /// A kubeconfig with which to ask for a client certificate, where --kubeconfig does not exist yet.
    #[arg(long)]
    pub bootstrap_kubeconfig: Option<PathBuf>,
    /// Where certificates are kept; below the root directory if it is not given.
    #[arg(long)]
    pub cert_dir: Option<PathBuf>,
    /// The node's name, if it is not to be the host's.
    #[arg(long)]
    pub hostname_override: Option<String>,
    /// The node's address, or two, one of each family.
    #[arg(long, value_delimiter = ',')]
    pub node_ip: Vec<String>,
    /// Labels with which the node registers, as key=value.
    #[arg(long, value_delimiter = ',')]
    pub node_labels: Vec<String>,
    /// Taints with which the node registers, as key=value:effect.
    #[arg(long, value_delimiter = ',')]
    pub register_with_taints: Vec<String>,
    /// Where the kubelet keeps its files.
    #[arg(long, default_value = "/var/lib/kubelet")]
    pub root_dir: PathBuf,
    /// The container runtime's socket.
    #[arg(long)]
    pub container_runtime_endpoint: Option<String>,
    /// Has no effect: the runtime has its own configuration of the sandbox image.
    #[arg(long, hide = true)]
    pub pod_infra_container_image: Option<String>,
    /// Has no effect: node addresses come from --node-ip or the default route.
    #[arg(long, hide = true)]
    pub cloud_provider: Option<String>,
    /// Has no effect: verbosity is set for all of Windlass.
    #[arg(short, long, hide = true)]
    pub v: Option<String>,
}

impl Args {
    /// The node's name: the one given, or the host's.
    pub fn node_name(&self) -> String {
        match &self.hostname_override {
            Some(name) => name.trim().to_lowercase(),
            None => Machine::read().hostname,
        }
    }

    /// The taints with which the node registers; a taint without `=` has no value.
    pub fn taints(&self) -> Result<Vec<Taint>, ConfigError> {
        let taint = |text: &String| {
            let (key, effect) = text.rsplit_once(':')?;
            let (key, value) = key.split_once('=').unwrap_or((key, ""));
            let known = ["NoSchedule", "PreferNoSchedule", "NoExecute"].contains(&effect);
            (known && !key.is_empty()).then(|| Taint {
                key: key.to_owned(),
                value: (!value.is_empty()).then(|| value.to_owned()),
                effect: effect.to_owned(),
                ..Taint::default()
            })
        };
        let invalid = |text: &String| ConfigError::Invalid {
            field: "--register-with-taints",
            message: format!(
                "{text:?} is not of the form key=value:effect, with an effect such as NoSchedule"
            ),
        };
        self.register_with_taints.iter().map(|t| taint(t).ok_or_else(|| invalid(t))).collect()
    }

    /// Whether the node has yet to ask for its certificate.
    pub fn wants_enrolling(&self) -> bool {
        self.bootstrap_kubeconfig.is_some()
            && self.kubeconfig.as_ref().is_some_and(|path| !path.exists())
    }

    /// Where certificates are kept.
    pub fn cert_dir(&self) -> PathBuf {
        self.cert_dir.clone().unwrap_or_else(|| self.root_dir.join("pki"))
    }

    /// The labels by key; a label without `=` has an empty value.
    pub fn labels(&self) -> BTreeMap<String, String> {
        let pair = |label: &String| {
            let (key, value) = label.split_once('=').unwrap_or((label, ""));
            (key.to_owned(), value.to_owned())
        };
        self.node_labels.iter().map(pair).collect()
    }
}
