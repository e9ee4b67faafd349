//! The command `reset`.

use std::path::PathBuf;

use bootstrap_core::config;

use super::{
    confirm::confirmed,
    flags::{self, ClusterFlags},
    global::WithGlobal,
    program::Program,
    workflow::{Phased, Workflow, descriptions},
};
use telemetry::{Progress, Recorder};

use crate::{
    Error, phase,
    reset::{self, CleanUp},
};

/// The flags of `reset` and of `reset phase`.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct Flags {
    /// Path to a kubeadm configuration file
    #[arg(long)]
    config: Option<PathBuf>,
    /// The path to the directory where the certificates are stored
    #[arg(long)]
    cert_dir: Option<String>,
    /// Path to the CRI socket to connect
    #[arg(long)]
    cri_socket: Option<String>,
    /// The kubeconfig file to use when talking to the cluster
    #[arg(long)]
    kubeconfig: Option<PathBuf>,
    /// Reset the node without prompting for confirmation
    #[arg(short, long)]
    force: bool,
    /// Cleanup the "/etc/kubernetes/tmp" directory
    #[arg(long)]
    cleanup_tmp_dir: bool,
    /// Don't apply any changes; just output what would be done
    #[arg(long)]
    dry_run: bool,
    /// A list of checks whose errors will be shown as warnings
    #[arg(long)]
    ignore_preflight_errors: Vec<String>,
    /// List of phases to be skipped
    #[arg(long, value_delimiter = ',')]
    skip_phases: Vec<String>,
}

impl Phased for Flags {
    const COMMAND: &'static str = "reset";

    fn phases() -> Vec<(&'static str, &'static str)> {
        descriptions(reset::phases())
    }
}

pub(super) async fn run(args: WithGlobal<Workflow<Flags>>, clean_up: CleanUp) -> Result<(), Error> {
    let Some((flags, only)) = args.own.chosen() else { return Ok(()) };
    let mut configuration = match &flags.config {
        Some(path) => flags::read_file(path)?.reset.unwrap_or_default(),
        None => Default::default(),
    };
    if let Some(dir) = &flags.cert_dir {
        configuration.certificates_dir.clone_from(dir);
    }
    if let Some(socket) = &flags.cri_socket {
        configuration.cri_socket.clone_from(socket);
    }
    configuration.force |= flags.force;
    configuration.dry_run |= flags.dry_run;
    configuration.cleanup_tmp_dir |= flags.cleanup_tmp_dir;
    config::default_reset(&mut configuration);
    config::validate_reset(&configuration)?;
    if !configuration.force && !configuration.dry_run {
        eprintln!(
            "[reset] WARNING: Changes made to this host by 'init' or 'join' will be reverted."
        );
        if !confirmed("reset", "force")? {
            return Err(Error::Aborted);
        }
    }
    let cluster = ClusterFlags {
        rootfs: args.global.rootfs.clone(),
        cert_dir: Some(configuration.certificates_dir.clone()),
        cri_socket: Some(configuration.cri_socket.clone()),
        dry_run: configuration.dry_run,
        ignore_preflight_errors: flags.ignore_preflight_errors.clone(),
        ..ClusterFlags::default()
    };
    let all = cluster.init(cluster.documents()?, Program::Kubeadm)?;
    let layout = cluster.layout(&all.cluster.certificates_dir);
    let ignored = cluster.ignored(&configuration.ignore_preflight_errors)?;
    let skip = if flags.skip_phases.is_empty() {
        configuration.skip_phases.clone()
    } else {
        flags.skip_phases
    };
    // A reset removes the timeline of the machine and does not record one.
    let progress = Progress::stderr(Recorder::none());
    let mut node = cluster.node(all, layout, Program::Kubeadm)?;
    if let Some(path) = &flags.kubeconfig {
        node.use_client(crate::cluster::client(&args.global.path(path))?);
    }
    let mut ctx = reset::Ctx { node, reset: configuration, ignored, clean_up, snapshots: None };
    phase::run(&reset::phases(), &only, &skip, &progress, &mut ctx).await?;
    if let Some(directory) = &ctx.snapshots {
        println!(
            "\nThe reset process keeps the cluster's snapshots in {directory}, from which a new cluster can be made \
             (windlass snapshot restore). To remove them, run: rm -r {directory}"
        );
    }
    println!(
        "\nThe reset process does not clean CNI configuration of others. To do so, you must remove /etc/cni/net.d\n\
         The reset process does not remove users' kubeconfig files, such as $HOME/.kube/config."
    );
    Ok(())
}
