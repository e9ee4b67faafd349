use std::{collections::BTreeMap, path::PathBuf};

use api_config::known::Known;
use clap::Parser;

use crate::{
    flags::{Ignored, Overlay},
    machine::Machine,
};

/// The node's agent: runs the Pods that the API binds to this node, and those of static files.
#[derive(Clone, Debug, Default, Parser)]
#[command(name = "kubelet")]
pub struct Args {
    /// The kubelet's configuration file (KubeletConfiguration, kubelet.config.k8s.io/v1beta1).
    #[arg(long)]
    pub config: Option<PathBuf>,
    /// A directory of files whose names end in .conf, which override that file in the order of their names.
    #[arg(long)]
    pub config_dir: Option<PathBuf>,
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
    /// Where the kubelet keeps its files.
    #[arg(long, default_value = "/var/lib/kubelet")]
    pub root_dir: PathBuf,
    #[command(flatten)]
    pub overlay: Overlay,
    #[command(flatten)]
    pub ignored: Known<Ignored>,
}

impl Args {
    /// The node's name: the one given, or the host's.
    pub fn node_name(&self) -> String {
        match &self.hostname_override {
            Some(name) => name.trim().to_lowercase(),
            None => Machine::read().hostname,
        }
    }

    /// Whether the node has yet to ask for its certificate.
    pub(crate) fn wants_enrolling(&self) -> bool {
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
