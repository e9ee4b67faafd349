//! The command `upgrade`.

use std::path::PathBuf;

use api_config::kubeadm::{Patches, Timeouts, UpgradeConfiguration};
use bootstrap_core::{
    Layout,
    config::{self, document},
    constants::DEFAULT_CERTIFICATES_DIR,
    manifests::Component as StaticPod,
    upgrade::{Allowed, parse_version},
};
use clap::Subcommand;
use serde_json::{Value, json};

use super::{
    confirm::confirmed,
    flags::{self, ClusterFlags},
    global::{GlobalFlags, Subcommands},
    init::dry_run_dir,
    output::Output,
    program::Program,
    table::table,
    workflow::{Phased, Workflow, descriptions},
};
use crate::{
    Error, UpgradeError, cluster, phase,
    upgrade::{self, Component, Ctx, Options, Plan, ReviewCorefile, Role},
};
use version::KUBERNETES_VERSION;

/// The subcommands of `upgrade`.
#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Check which versions are available to upgrade to and validate whether your current cluster is upgradeable
    Plan(Box<PlanFlags>),
    /// Upgrade your Kubernetes cluster to the specified version
    Apply(Box<Workflow<ApplyFlags>>),
    /// Upgrade commands for a node in the cluster
    Node(Box<Workflow<NodeFlags>>),
    /// Show what differences would be applied to existing static pod manifests
    Diff(Box<DiffFlags>),
}

/// The flags of all subcommands.
#[derive(Clone, Debug, Default, clap::Args)]
struct CommonFlags {
    /// Path to a kubeadm configuration file
    #[arg(long)]
    config: Option<PathBuf>,
    /// The kubeconfig file to use when talking to the cluster
    #[arg(long)]
    kubeconfig: Option<PathBuf>,
    /// A list of checks whose errors will be shown as warnings
    #[arg(long)]
    ignore_preflight_errors: Vec<String>,
}

/// The flags that choose among versions.
#[derive(Clone, Debug, Default, clap::Args)]
struct VersionFlags {
    /// The version to upgrade to
    version: Option<String>,
    /// Show unstable versions of Kubernetes as an upgrade alternative and allow upgrading to an alpha/beta version
    #[arg(long)]
    allow_experimental_upgrades: bool,
    /// Show release candidate versions of Kubernetes as an upgrade alternative and allow upgrading to one
    #[arg(long)]
    allow_release_candidate_upgrades: bool,
    /// Print the configuration that will be used in the upgrade
    #[arg(long)]
    print_config: bool,
}

/// The flags of the commands that change a machine.
#[derive(Clone, Debug, Default, clap::Args)]
struct ChangeFlags {
    /// Perform the renewal of certificates used by component changed during upgrades
    #[arg(long, num_args(0..=1), require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    certificate_renewal: Option<bool>,
    /// Do not change any state, just output what actions would be performed
    #[arg(long)]
    dry_run: bool,
    /// Perform the upgrade of etcd
    #[arg(long, num_args(0..=1), require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    etcd_upgrade: Option<bool>,
    /// Path to a directory that contains files named "target[suffix][+patchtype].extension"
    #[arg(long)]
    patches: Option<PathBuf>,
    /// List of phases to be skipped
    #[arg(long, value_delimiter = ',')]
    skip_phases: Vec<String>,
}

#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct ApplyFlags {
    #[command(flatten)]
    common: CommonFlags,
    #[command(flatten)]
    version: VersionFlags,
    #[command(flatten)]
    change: ChangeFlags,
    /// Force upgrading although some requirements might not be met. This also implies non-interactive mode
    #[arg(short, long)]
    force: bool,
    /// Perform the upgrade and do not prompt for confirmation (non-interactive mode)
    #[arg(short, long)]
    yes: bool,
}

impl Phased for ApplyFlags {
    const COMMAND: &'static str = "upgrade apply";

    fn phases() -> Vec<(&'static str, &'static str)> {
        descriptions(upgrade::apply_phases())
    }
}

#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct NodeFlags {
    #[command(flatten)]
    common: CommonFlags,
    #[command(flatten)]
    change: ChangeFlags,
}

impl Phased for NodeFlags {
    const COMMAND: &'static str = "upgrade node";

    fn phases() -> Vec<(&'static str, &'static str)> {
        descriptions(upgrade::node_phases())
    }
}

#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct PlanFlags {
    #[command(flatten)]
    common: CommonFlags,
    #[command(flatten)]
    version: VersionFlags,
    /// Perform the upgrade of etcd
    #[arg(long, num_args(0..=1), require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    etcd_upgrade: Option<bool>,
    #[command(flatten)]
    output: Output,
}

#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct DiffFlags {
    #[command(flatten)]
    common: CommonFlags,
    /// The version to compare with
    version: Option<String>,
    /// Number of lines of context in the diff
    #[arg(short, long)]
    context_lines: Option<usize>,
}

pub(super) async fn run(
    args: Subcommands<Command>,
    program: Program,
    review_corefile: ReviewCorefile,
) -> Result<(), Error> {
    let site = Site { global: args.global, program, review_corefile };
    match args.command {
        Command::Plan(flags) => site.plan(*flags).await,
        Command::Apply(workflow) => match workflow.chosen() {
            Some((flags, only)) => site.apply(flags, &only).await,
            None => Ok(()),
        },
        Command::Node(workflow) => match workflow.chosen() {
            Some((flags, only)) => site.node(flags, &only).await,
            None => Ok(()),
        },
        Command::Diff(flags) => site.diff(*flags).await,
    }
}

/// The machine on which the command runs.
struct Site {
    global: GlobalFlags,
    program: Program,
    review_corefile: ReviewCorefile,
}

/// The settings of one command, from its flags and its part of the UpgradeConfiguration.
#[derive(Default)]
struct Settings {
    /// The target version; empty for the one of the cluster's configuration.
    version: String,
    options: Options,
    dry_run: bool,
    ignored: Vec<String>,
    patches: Option<Patches>,
    pull_policy: String,
    timeouts: Option<Timeouts>,
}

impl Site {
    async fn plan(&self, flags: PlanFlags) -> Result<(), Error> {
        let file = configuration(&flags.common)?;
        let of = &file.plan;
        let version = flags.version.version.as_deref().unwrap_or(&of.kubernetes_version);
        // A plan without a version is one for the version of this program.
        let version = if version.is_empty() { KUBERNETES_VERSION } else { version };
        let options = Options {
            allowed: flags.version.allowed(of.allow_experimental_upgrades, of.allow_rc_upgrades),
            etcd: flags.etcd_upgrade.or(of.etcd_upgrade).unwrap_or(true),
            ..Options::default()
        };
        let settings = Settings {
            version: version.to_owned(),
            options,
            dry_run: of.dry_run.unwrap_or_default(),
            ignored: of.ignore_preflight_errors.clone(),
            timeouts: file.timeouts.clone(),
            ..Settings::default()
        };
        let mut ctx = self.context(&flags.common, settings, "upgrade plan").await?;
        if flags.version.print_config || of.print_config == Some(true) {
            print_configuration(&ctx)?;
        }
        let plan = upgrade::plan(&mut ctx).await?;
        match flags.output.of("UpgradePlan", vec![object(&plan)])? {
            Some(text) => print!("{text}"),
            None => print!("{}", text(&plan, self.program.name())),
        }
        Ok(())
    }

    async fn apply(&self, flags: ApplyFlags, only: &[String]) -> Result<(), Error> {
        let file = configuration(&flags.common)?;
        let of = &file.apply;
        let force = flags.force || of.force_upgrade == Some(true);
        let version = flags.version.version.clone().unwrap_or(of.kubernetes_version.clone());
        if version.is_empty() {
            return Err(UpgradeError::NoVersion { program: self.program.name() }.into());
        }
        let change = &flags.change;
        let settings = Settings {
            version,
            options: Options {
                allowed: flags
                    .version
                    .allowed(of.allow_experimental_upgrades, of.allow_rc_upgrades),
                force,
                ..change.options(of.certificate_renewal, of.etcd_upgrade)
            },
            dry_run: change.dry_run || of.dry_run == Some(true),
            ignored: of.ignore_preflight_errors.clone(),
            patches: change.patches(&of.patches),
            pull_policy: of.image_pull_policy.clone(),
            timeouts: file.timeouts.clone(),
        };
        let mut ctx = self.context(&flags.common, settings, "upgrade apply").await?;
        if !force && !flags.yes {
            ctx.confirm = Some(|| confirmed("upgrade", "yes"));
        }
        if flags.version.print_config || of.print_config == Some(true) {
            print_configuration(&ctx)?;
        }
        let skip = change.skipped(&of.skip_phases);
        self.run(&upgrade::apply_phases(), only, skip, &mut ctx).await?;
        if only.is_empty() && !ctx.node.dry_run {
            println!(
                "\n[upgrade] SUCCESS! A control plane node of your cluster was upgraded to \"v{}\".\n\n[upgrade] Now \
                 please proceed with upgrading the rest of the nodes by following the right order.",
                ctx.target
            );
        }
        Ok(())
    }

    async fn node(&self, flags: NodeFlags, only: &[String]) -> Result<(), Error> {
        let file = configuration(&flags.common)?;
        let (of, change) = (&file.node, &flags.change);
        let settings = Settings {
            version: String::new(),
            options: change.options(of.certificate_renewal, of.etcd_upgrade),
            dry_run: change.dry_run || of.dry_run == Some(true),
            ignored: of.ignore_preflight_errors.clone(),
            patches: change.patches(&of.patches),
            pull_policy: of.image_pull_policy.clone(),
            timeouts: file.timeouts.clone(),
        };
        let mut ctx = self.context(&flags.common, settings, "upgrade node").await?;
        let skip = change.skipped(&of.skip_phases);
        self.run(&upgrade::node_phases(), only, skip, &mut ctx).await?;
        if only.is_empty() && !ctx.node.dry_run {
            if ctx.is_control_plane() {
                println!(
                    "[upgrade] The control plane instance for this node was successfully upgraded!"
                );
            }
            println!(
                "[upgrade] The configuration for this node was successfully upgraded!\n[upgrade] Now you should go \
                 ahead and upgrade the kubelet package using your package manager."
            );
        }
        Ok(())
    }

    async fn diff(&self, flags: DiffFlags) -> Result<(), Error> {
        let file = configuration(&flags.common)?;
        let of = &file.diff;
        let version = flags.version.clone().unwrap_or(of.kubernetes_version.clone());
        if version.is_empty() {
            return Err(UpgradeError::NoVersion { program: self.program.name() }.into());
        }
        let settings = Settings {
            version,
            options: Options { etcd: true, ..Options::default() },
            dry_run: true,
            timeouts: file.timeouts.clone(),
            ..Settings::default()
        };
        let ctx = self.context(&flags.common, settings, "upgrade diff").await?;
        let lines = flags.context_lines.or(of.context_lines.and_then(|n| usize::try_from(n).ok()));
        for change in upgrade::diff(&ctx, lines.unwrap_or(3))? {
            print!("{}", change.text);
        }
        Ok(())
    }

    async fn run(
        &self,
        phases: &[phase::Phase<Ctx>],
        only: &[String],
        skip: &[String],
        ctx: &mut Ctx,
    ) -> Result<(), Error> {
        let progress = flags::progress("upgrade", &ctx.node.host, ctx.node.dry_run);
        phase::run(phases, only, skip, &progress, ctx).await
    }

    /// Reads the machine's and the cluster's configuration.
    async fn context(
        &self,
        common: &CommonFlags,
        settings: Settings,
        command: &'static str,
    ) -> Result<Ctx, Error> {
        let flags = self.global.add_to(ClusterFlags {
            ignore_preflight_errors: common.ignore_preflight_errors.clone(),
            ..ClusterFlags::default()
        });
        let layout = flags.layout(DEFAULT_CERTIFICATES_DIR);
        let client = cluster::client(&self.kubeconfig(common, &layout))?;
        eprintln!(
            "[upgrade] Reading configuration from the \"kubeadm-config\" ConfigMap in namespace \"kube-system\"..."
        );
        let read = upgrade::read_machine(&client, &layout).await;
        let machine = read.map_err(|error| upgrade::explain(&layout.kubernetes, error))?;
        if machine.role == Role::Worker && command != "upgrade node" {
            let manifest = layout.manifests().join(StaticPod::ApiServer.file());
            return Err(UpgradeError::NoControlPlane { command, manifest }.into());
        }
        let mut documents = machine.documents;
        let init = documents.init.get_or_insert_default();
        init.dry_run = settings.dry_run;
        init.patches = settings.patches;
        init.timeouts = settings.timeouts;
        init.node_registration.image_pull_policy = settings.pull_policy;
        let cluster = documents.cluster.get_or_insert_default();
        if !settings.version.is_empty() {
            cluster.kubernetes_version = format!("v{}", parse_version(&settings.version)?);
        }
        if settings.options.etcd {
            crate::images::forget_older_etcd(cluster, &flags.host());
        }
        let mut all = flags.init(documents, self.program)?;
        (all.custom_kubelet, all.custom_proxy) = (machine.custom_kubelet, machine.custom_proxy);
        let target = parse_version(&all.cluster.kubernetes_version)?;
        let layout = flags.layout(&all.cluster.certificates_dir);
        let mut node = flags.node(all, layout, self.program)?;
        node.use_client(client);
        let mut ctx = Ctx::new(node, machine.role, target, settings.options);
        ctx.review_corefile = self.review_corefile;
        ctx.ignored = flags.ignored(&settings.ignored)?;
        if settings.dry_run && command != "upgrade diff" {
            let directory = dry_run_dir("KUBEADM_UPGRADE_DRYRUN_DIR", "kubeadm-upgrade-dryrun")?;
            eprintln!("[dryrun] Files are written below {}", directory.display());
            ctx.dry_run = Some(directory);
        }
        Ok(ctx)
    }

    /// Returns the kubeconfig file: the given one, the administrator's, or on a worker the kubelet's.
    fn kubeconfig(&self, common: &CommonFlags, layout: &Layout) -> PathBuf {
        match &common.kubeconfig {
            Some(path) => self.global.path(path),
            None => ["admin.conf", "kubelet.conf"]
                .map(|file| layout.kubeconfig(file))
                .into_iter()
                .find(|path| path.exists())
                .unwrap_or_else(|| layout.kubeconfig("admin.conf")),
        }
    }
}

impl VersionFlags {
    /// Returns the allowed unstable versions, from the flags and the configuration.
    fn allowed(&self, experimental: Option<bool>, release_candidates: Option<bool>) -> Allowed {
        let experimental = self.allow_experimental_upgrades || experimental == Some(true);
        Allowed {
            experimental,
            release_candidates: experimental
                || self.allow_release_candidate_upgrades
                || release_candidates == Some(true),
        }
    }
}

impl ChangeFlags {
    /// Returns the options of a command that is not forced, from the flags and the configuration.
    fn options(&self, renewal: Option<bool>, etcd: Option<bool>) -> Options {
        Options {
            renew_certificates: self.certificate_renewal.or(renewal).unwrap_or(true),
            etcd: self.etcd_upgrade.or(etcd).unwrap_or(true),
            ..Options::default()
        }
    }

    /// Returns the phases to skip.
    fn skipped<'a>(&'a self, configured: &'a [String]) -> &'a [String] {
        if self.skip_phases.is_empty() { configured } else { &self.skip_phases }
    }

    fn patches(&self, configured: &Option<Patches>) -> Option<Patches> {
        match &self.patches {
            Some(path) => Some(Patches { directory: path.to_string_lossy().into_owned() }),
            None => configured.clone(),
        }
    }
}

/// Returns the validated UpgradeConfiguration of the file, or its defaults.
fn configuration(common: &CommonFlags) -> Result<UpgradeConfiguration, Error> {
    let read = common.config.as_deref().map(flags::read_file).transpose()?;
    let mut upgrade = read.and_then(|documents| documents.upgrade).unwrap_or_default();
    config::default_upgrade(&mut upgrade);
    config::validate_upgrade(&upgrade)?;
    Ok(upgrade)
}

fn print_configuration(ctx: &Ctx) -> Result<(), Error> {
    let document = document("ClusterConfiguration", &ctx.node.config.cluster)?;
    println!("[upgrade/config] Configuration used:");
    for line in api_config::yaml::to_string(&document)?.lines() {
        println!("\t{line}");
    }
    Ok(())
}

/// Builds the object for structured output.
fn object(plan: &Plan) -> Value {
    let component = |c: &Component| json!({"name": c.name, "currentVersion": c.current, "newVersion": c.target, "nodeName": c.node});
    let all: Vec<Value> = plan.manual.iter().chain(&plan.upgraded).map(component).collect();
    let upgrades = if plan.has_upgrade() {
        json!([{"description": description(plan), "components": all}])
    } else {
        json!([])
    };
    let configs: Vec<Value> = plan
        .configs
        .iter()
        .map(|config| {
            json!({
                "group": config.group, "currentVersion": config.version, "preferredVersion": config.version,
                "manualUpgradeRequired": false,
            })
        })
        .collect();
    json!({"availableUpgrades": upgrades, "configVersions": configs})
}

/// Describes the target as upstream does: by the series of its minor version.
fn description(plan: &Plan) -> String {
    let series =
        |version: &str| version.rsplit_once('.').map_or("", |(series, _)| series).to_owned();
    let (cluster, target) = (series(&plan.cluster), series(&plan.target));
    if cluster == target {
        format!("version in the {cluster} series")
    } else {
        "stable version".to_owned()
    }
}

/// Formats a plan as text.
fn text(plan: &Plan, program: &str) -> String {
    let mut text = format!(
        "[upgrade/versions] Cluster version: {}\n[upgrade/versions] kubeadm version: {}\n[upgrade/versions] Target \
         version: {}\n\n",
        plan.cluster, KUBERNETES_VERSION, plan.target
    );
    if plan.has_upgrade() {
        let row = |c: &Component| {
            vec![c.name.to_owned(), c.node.clone(), c.current.clone(), c.target.clone()]
        };
        let head = ["COMPONENT", "NODE", "CURRENT", "TARGET"];
        text += &format!(
            "Components that must be upgraded manually after you have upgraded the control plane with '{program} \
             upgrade apply':\n{}\nUpgrade to the latest {}:\n\n{}\nYou can now apply the upgrade by executing the \
             following command:\n\n\t{program} upgrade apply {}\n\n",
            table(&head, plan.manual.iter().map(row)),
            description(plan),
            table(&head, plan.upgraded.iter().map(row)),
            plan.target
        );
    } else {
        text += &format!(
            "Awesome, you're up-to-date! Enjoy! Another build of {} is applied by:\n\n\t{program} upgrade apply {}\n\n",
            plan.target, plan.target
        );
    }
    let line = "_".repeat(69);
    let head = ["API GROUP", "CURRENT VERSION", "PREFERRED VERSION", "MANUAL UPGRADE REQUIRED"];
    let rows = plan.configs.iter().map(|config| {
        [config.group, config.version, config.version, "no"].map(str::to_owned).to_vec()
    });
    text += &format!(
        "{line}\n\n\nThe table below shows the current state of component configs as understood by this version of \
         kubeadm.\nConfigs that have a \"yes\" mark in the \"MANUAL UPGRADE REQUIRED\" column require manual config \
         upgrade or\nresetting to kubeadm defaults before a successful upgrade can be performed. The version to \
         manually\nupgrade to is denoted in the \"PREFERRED VERSION\" column.\n\n{}{line}\n\n",
        table(&head, rows)
    );
    text
}
