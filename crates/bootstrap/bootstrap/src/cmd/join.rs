//! The command `join`.

use api_config::kubeadm::{JoinConfiguration, JoinControlPlane};
use bootstrap_core::{Layout, config};

use super::{
    flags::{self, ClusterFlags},
    global::WithGlobal,
    init::dry_run_dir,
    program::Program,
    workflow::{Phased, Workflow, descriptions},
};
use crate::{Error, FlagError, join, phase};

/// The flags of `join` and of `join phase`.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct Flags {
    /// Address of the cluster's API server, as host:port
    api_server_endpoint: Option<String>,
    #[command(flatten)]
    cluster: ClusterFlags,
    /// Create a new control plane instance on this node
    #[arg(long)]
    control_plane: bool,
    /// Use this key to decrypt the certificate secrets uploaded by init
    #[arg(long)]
    certificate_key: Option<String>,
    /// For file-based discovery, a file or URL from which to load cluster information
    #[arg(long)]
    discovery_file: Option<String>,
    /// For token-based discovery, the token used to validate cluster information fetched from the API server
    #[arg(long)]
    discovery_token: Option<String>,
    /// For token-based discovery, validate that the root CA public key matches this hash
    #[arg(long, value_delimiter = ',')]
    discovery_token_ca_cert_hash: Vec<String>,
    /// For token-based discovery, allow joining without --discovery-token-ca-cert-hash pinning
    #[arg(long)]
    discovery_token_unsafe_skip_ca_verification: bool,
    /// Specify the token used to temporarily authenticate with the Kubernetes Control Plane while joining the node
    #[arg(long)]
    tls_bootstrap_token: Option<String>,
    /// Use this token for both discovery-token and tls-bootstrap-token when those values are not provided
    #[arg(long)]
    token: Option<String>,
    /// List of phases to be skipped
    #[arg(long, value_delimiter = ',')]
    skip_phases: Vec<String>,
}

impl Phased for Flags {
    const COMMAND: &'static str = "join";

    fn phases() -> Vec<(&'static str, &'static str)> {
        descriptions(join::phases())
    }
}

pub(super) async fn run(args: WithGlobal<Workflow<Flags>>, program: Program) -> Result<(), Error> {
    let Some((mut flags, only)) = args.own.chosen() else { return Ok(()) };
    flags.cluster = args.global.add_to(flags.cluster);
    let mut documents = flags.cluster.documents()?;
    let from_file = documents.join.is_some();
    let mut join = documents.join.take().unwrap_or_default();
    flags.change(&mut join, flags.api_server_endpoint.as_deref(), from_file)?;
    let facts = flags.cluster.host().facts(program.image_repository());
    config::default_join(&mut join, &facts);
    config::validate_join(&join)?;
    // The cluster's settings are read from it later; these are the machine's.
    let init = documents.init.get_or_insert_default();
    init.node_registration = join.node_registration.clone();
    init.timeouts.clone_from(&join.timeouts);
    init.patches.clone_from(&join.patches);
    init.dry_run = join.dry_run;
    if let Some(control_plane) = &join.control_plane {
        init.local_api_endpoint = control_plane.local_api_endpoint.clone();
    }
    let mut all = config::Init::complete(documents, &facts);
    let mut layout = flags.cluster.layout(&all.cluster.certificates_dir);
    if let Some(dir) = std::path::Path::new(&join.ca_cert_path).parent() {
        layout.certificates = flags.cluster.host().path(&dir.to_string_lossy());
        all.cluster.certificates_dir = dir.to_string_lossy().into_owned();
    }
    if join.dry_run {
        let dir = dry_run_dir("KUBEADM_JOIN_DRYRUN_DIR", "kubeadm-join-dryrun")?;
        eprintln!("[dryrun] Files are written below {}", dir.display());
        layout = Layout { certificates: dir.join("pki"), kubernetes: dir.clone(), kubelet: dir };
    }
    let progress = flags::progress("join", &flags.cluster.host(), join.dry_run);
    let skip = if flags.skip_phases.is_empty() {
        join.skip_phases.clone()
    } else {
        flags.skip_phases.clone()
    };
    let ignored = flags.cluster.ignored(&join.node_registration.ignore_preflight_errors)?;
    let (as_control_plane, dry_run) = (join.control_plane.is_some(), join.dry_run);
    let mut ctx = join::Ctx::new(join, flags.cluster.node(all, layout, program)?);
    ctx.ignored = ignored;
    phase::run(&join::phases(), &only, &skip, &progress, &mut ctx).await?;
    if only.is_empty() && !dry_run {
        println!(
            "\nThis node has joined the cluster{}.\n\nRun 'kubectl get nodes' to see this node join the cluster.",
            if as_control_plane { " and a new control plane instance was created" } else { "" }
        );
    }
    Ok(())
}

impl Flags {
    fn change(
        &self,
        join: &mut JoinConfiguration,
        endpoint: Option<&str>,
        from_file: bool,
    ) -> Result<(), Error> {
        let cluster = &self.cluster;
        if let Some(file) = &self.discovery_file {
            join.discovery.file.get_or_insert_default().kube_config_path.clone_from(file);
        } else if !from_file || endpoint.is_some() || self.token.is_some() {
            let token = join.discovery.bootstrap_token.get_or_insert_default();
            if let Some(text) = self.discovery_token.as_ref().or(self.token.as_ref()) {
                token.token.clone_from(text);
            }
            if let Some(endpoint) = endpoint {
                endpoint.clone_into(&mut token.api_server_endpoint);
            }
            token.ca_cert_hashes.extend(self.discovery_token_ca_cert_hash.iter().cloned());
            token.unsafe_skip_ca_verification |= self.discovery_token_unsafe_skip_ca_verification;
        }
        if let Some(token) = self.tls_bootstrap_token.as_ref().or(self.token.as_ref()) {
            join.discovery.tls_bootstrap_token.clone_from(token);
        }
        let node = &mut join.node_registration;
        if let Some(name) = &cluster.node_name {
            node.name.clone_from(name);
        }
        if let Some(socket) = &cluster.cri_socket {
            node.cri_socket.clone_from(socket);
        }
        join.dry_run |= cluster.dry_run;
        let wants_control_plane = self.control_plane || join.control_plane.is_some();
        if !wants_control_plane {
            let misplaced =
                self.certificate_key.is_some() || cluster.apiserver_advertise_address.is_some();
            return if misplaced { Err(FlagError::NeedsControlPlane.into()) } else { Ok(()) };
        }
        let control_plane = join.control_plane.get_or_insert_with(JoinControlPlane::default);
        if let Some(key) = &self.certificate_key {
            control_plane.certificate_key.clone_from(key);
        }
        if let Some(address) = &cluster.apiserver_advertise_address {
            control_plane.local_api_endpoint.advertise_address.clone_from(address);
        }
        if let Some(port) = cluster.apiserver_bind_port {
            control_plane.local_api_endpoint.bind_port = port;
        }
        Ok(())
    }
}
