//! Flags that several commands share, and their effect on the configuration.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use api_config::{
    GoDuration,
    kubeadm::{BootstrapToken, InitConfiguration},
};
use bootstrap_core::{
    Layout,
    config::{self, Documents, Init},
    tokens::Token,
};
use clap::Args;
use rt::SystemClock;
use telemetry::{Progress, Recorder};

use super::program::Program;
use crate::{
    Error, FlagError,
    containers::{Containers, Runtime},
    error::io,
    host::{self, Host},
    images, init,
    node::Node,
    patches::Patches,
    phase,
    preflight::Ignored,
};

/// The flags that describe a cluster and its first machine.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct ClusterFlags {
    /// Path to a kubeadm configuration file
    #[arg(long)]
    pub config: Option<PathBuf>,
    /// The IP address the API Server will advertise it's listening on
    #[arg(long)]
    pub apiserver_advertise_address: Option<String>,
    /// Port for the API Server to bind to
    #[arg(long)]
    pub apiserver_bind_port: Option<i32>,
    /// Optional extra Subject Alternative Names (SANs) for the API Server serving certificate
    #[arg(long, value_delimiter = ',')]
    pub apiserver_cert_extra_sans: Vec<String>,
    /// The path where to save and store the certificates
    #[arg(long)]
    pub cert_dir: Option<String>,
    /// A stable IP address or DNS name for the control plane
    #[arg(long)]
    pub control_plane_endpoint: Option<String>,
    /// Path to the CRI socket to connect
    #[arg(long)]
    pub cri_socket: Option<String>,
    /// A set of key=value pairs that describe feature gates for various features
    #[arg(long, value_delimiter = ',')]
    pub feature_gates: Vec<String>,
    /// A container registry to pull control plane images from
    #[arg(long)]
    pub image_repository: Option<String>,
    /// A specific Kubernetes version for the control plane
    #[arg(long)]
    pub kubernetes_version: Option<String>,
    /// The node name
    #[arg(long)]
    pub node_name: Option<String>,
    /// The range of IP addresses for the pod network
    #[arg(long)]
    pub pod_network_cidr: Option<String>,
    /// The range of IP addresses for service VIPs
    #[arg(long)]
    pub service_cidr: Option<String>,
    /// Alternative domain for services, e.g. "myorg.internal"
    #[arg(long)]
    pub service_dns_domain: Option<String>,
    /// The directory where kubeconfig files are written
    #[arg(long)]
    pub kubeconfig_dir: Option<PathBuf>,
    /// Path to a directory that contains files named "target[suffix][+patchtype].extension"
    #[arg(long)]
    pub patches: Option<PathBuf>,
    /// The value of the global flag `--rootfs`.
    #[arg(skip)]
    pub rootfs: Option<PathBuf>,
    /// Don't apply any changes; just output what would be done
    #[arg(long)]
    pub dry_run: bool,
    /// A list of checks whose errors will be shown as warnings
    #[arg(long)]
    pub ignore_preflight_errors: Vec<String>,
}

impl ClusterFlags {
    /// Returns the given flags that conflict with `--config`.
    fn mixed(&self) -> Vec<&'static str> {
        let flags: [(&str, bool); 12] = [
            ("apiserver-advertise-address", self.apiserver_advertise_address.is_some()),
            ("apiserver-bind-port", self.apiserver_bind_port.is_some()),
            ("apiserver-cert-extra-sans", !self.apiserver_cert_extra_sans.is_empty()),
            ("cert-dir", self.cert_dir.is_some()),
            ("control-plane-endpoint", self.control_plane_endpoint.is_some()),
            ("feature-gates", !self.feature_gates.is_empty()),
            ("image-repository", self.image_repository.is_some()),
            ("kubernetes-version", self.kubernetes_version.is_some()),
            ("pod-network-cidr", self.pod_network_cidr.is_some()),
            ("service-cidr", self.service_cidr.is_some()),
            ("service-dns-domain", self.service_dns_domain.is_some()),
            ("patches", self.patches.is_some()),
        ];
        flags.into_iter().filter(|(_, set)| *set).map(|(name, _)| name).collect()
    }

    /// Returns the documents of the file, changed by the flags.
    pub(super) fn documents(&self) -> Result<Documents, Error> {
        let mut documents = match &self.config {
            Some(path) => {
                let mixed = self.mixed();
                if !mixed.is_empty() {
                    return Err(FlagError::Mixed(mixed.join(" ")).into());
                }
                read_file(path)?
            }
            None => Documents::default(),
        };
        self.override_init(documents.init.get_or_insert_default());
        let cluster = documents.cluster.get_or_insert_default();
        set(&mut cluster.certificates_dir, &self.cert_dir);
        set(&mut cluster.control_plane_endpoint, &self.control_plane_endpoint);
        set(&mut cluster.image_repository, &self.image_repository);
        set(&mut cluster.kubernetes_version, &self.kubernetes_version);
        set(&mut cluster.networking.pod_subnet, &self.pod_network_cidr);
        set(&mut cluster.networking.service_subnet, &self.service_cidr);
        set(&mut cluster.networking.dns_domain, &self.service_dns_domain);
        cluster.api_server.cert_sans.extend(self.apiserver_cert_extra_sans.iter().cloned());
        cluster.feature_gates.extend(gates(&self.feature_gates)?);
        Ok(documents)
    }

    fn override_init(&self, init: &mut InitConfiguration) {
        set(&mut init.local_api_endpoint.advertise_address, &self.apiserver_advertise_address);
        set(&mut init.node_registration.name, &self.node_name);
        set(&mut init.node_registration.cri_socket, &self.cri_socket);
        if let Some(port) = self.apiserver_bind_port {
            init.local_api_endpoint.bind_port = port;
        }
        init.dry_run |= self.dry_run;
    }

    pub(super) fn host(&self) -> Host {
        self.rootfs.as_ref().map_or_else(Host::default, Host::under)
    }

    /// Returns the completed and validated configuration.
    pub(super) fn init(&self, documents: Documents, program: Program) -> Result<Init, Error> {
        let mut facts = self.host().facts(program.image_repository());
        facts.token = Some(Token::generate(|below| rt::random_in(0..below)).reveal());
        let mut all = Init::complete(documents, &facts);
        images::choose_etcd(&mut all.cluster, &self.host());
        record_skipped_addons(&mut all);
        config::validate_init(&all)?;
        Ok(all)
    }

    /// Returns the file layout: the configured certificates directory, below `--rootfs` if given.
    pub(super) fn layout(&self, certificates_dir: &str) -> Layout {
        let root = self.rootfs.clone().unwrap_or_else(|| "/".into());
        let mut layout = Layout::under(&root);
        layout.certificates = root.join(certificates_dir.trim_start_matches('/'));
        if let Some(dir) = &self.kubeconfig_dir {
            layout.kubernetes.clone_from(dir);
        }
        layout
    }

    /// Builds the node that the phases work on.
    pub(super) fn node(&self, all: Init, layout: Layout, program: Program) -> Result<Node, Error> {
        let runtime: Arc<dyn Containers> =
            Arc::new(Runtime::new(&all.init.node_registration.cri_socket, self.host()));
        let patches = match (&self.patches, &all.init.patches) {
            (Some(dir), _) => Patches::load(dir)?,
            (None, Some(patches)) if !patches.directory.is_empty() => {
                Patches::load(patches.directory.as_ref())?
            }
            _ => Patches::none(),
        };
        let dry_run = all.init.dry_run;
        let mut node = Node::new(all, layout, self.host(), Arc::new(SystemClock), runtime);
        node.patches = patches;
        node.proxy_env = host::proxy_env(std::env::vars());
        node.dry_run = dry_run;
        node.program = program.name();
        node.paths = Layout {
            certificates: node.config.cluster.certificates_dir.clone().into(),
            ..Layout::default()
        };
        Ok(node)
    }

    pub(super) fn ignored(&self, configured: &[String]) -> Result<Ignored, Error> {
        Ignored::new(self.ignore_preflight_errors.iter().chain(configured).cloned())
    }
}

/// Sets a field whose flag is given.
fn set(field: &mut String, flag: &Option<String>) {
    if let Some(value) = flag {
        field.clone_from(value);
    }
}

/// Reads a configuration file and logs warnings about unused fields.
pub(super) fn read_file(path: &std::path::Path) -> Result<Documents, Error> {
    let text = std::fs::read_to_string(path).map_err(io("read", path))?;
    let read = config::read(&text)?;
    for warning in read.warnings.iter().chain(&read.strict) {
        tracing::warn!(path = %path.display(), "{warning}");
    }
    Ok(read.documents)
}

/// Records add-ons with skipped phases as disabled, so that their images are not required and an upgrade does not
/// install them.
fn record_skipped_addons(all: &mut Init) {
    let is_skipped = |name| phase::is_named(&init::phases(), &all.init.skip_phases, name);
    all.cluster.dns.disabled |= is_skipped("addon/coredns");
    all.cluster.proxy.disabled |= is_skipped("addon/kube-proxy");
}

fn gates(pairs: &[String]) -> Result<BTreeMap<String, bool>, Error> {
    pairs
        .iter()
        .map(|pair| match pair.split_once('=') {
            Some((name, value)) if value.parse::<bool>().is_ok() => {
                Ok((name.trim().to_owned(), value == "true"))
            }
            _ => Err(FlagError::FeatureGate(pair.to_owned()).into()),
        })
        .collect()
}

/// Returns the progress display: on the terminal, and recorded for `windlass timeline` except in a dry run.
pub(super) fn progress(component: &str, host: &Host, dry_run: bool) -> Progress {
    let recorder = if dry_run {
        Recorder::none()
    } else {
        Recorder::new(&host.path(host::TIMELINE_ROOT), component)
    };
    Progress::stderr(recorder)
}

/// Applies the flags `--token` and `--token-ttl` to the first token.
pub(super) fn set_token(
    init: &mut InitConfiguration,
    token: &Option<String>,
    ttl: &Option<String>,
) -> Result<(), Error> {
    if token.is_none() && ttl.is_none() {
        return Ok(());
    }
    if init.bootstrap_tokens.is_empty() {
        init.bootstrap_tokens.push(BootstrapToken::default());
    }
    let first = &mut init.bootstrap_tokens[0];
    if let Some(token) = token {
        first.token.clone_from(token);
    }
    if let Some(ttl) = ttl {
        first.ttl = Some(ttl.parse::<GoDuration>()?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use bootstrap_core::images as names;

    use super::*;

    /// Returns whether DNS and proxy are disabled, and the images that preflight requires.
    fn configured(skipped: &[&str]) -> ((bool, bool), Vec<String>) {
        let mut documents = Documents::default();
        let init = documents.init.get_or_insert_default();
        init.local_api_endpoint.advertise_address = "10.0.0.1".to_owned();
        init.node_registration.name = "node".to_owned();
        init.node_registration.cri_socket = "unix:///run/containerd.sock".to_owned();
        init.skip_phases = skipped.iter().map(|name| (*name).to_owned()).collect();
        let all = ClusterFlags::default().init(documents, Program::Kubeadm).unwrap();
        ((all.cluster.dns.disabled, all.cluster.proxy.disabled), names::all(&all.cluster))
    }

    #[test]
    fn records_skipped_addons_as_disabled() {
        for (skipped, disabled) in [
            (&[][..], (false, false)),
            (&["addon/kube-proxy"], (false, true)),
            (&["addon/coredns"], (true, false)),
            (&["addon"], (true, true)),
            (&["ADDON/all"], (true, true)),
            (&["certs", "preflight"], (false, false)),
        ] {
            let (found, images) = configured(skipped);
            assert_eq!(found, disabled, "{skipped:?}");
            let has = |name: &str| images.iter().any(|image| image.contains(name));
            assert_eq!((!has("coredns"), !has("kube-proxy")), disabled, "{images:?}");
        }
    }
}
