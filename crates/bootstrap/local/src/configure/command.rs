//! The flags of the control plane's components: kubeadm's for static Pods, and those of the document.

use api_config::{
    CommandLine, FeatureGateFlags,
    kubeadm::{Arg, EmbeddedStore, Etcd},
};
use bootstrap_core::manifests::{Component, Machine, manifest};
use clap::Parser;

use crate::{
    cluster::{Cluster, encryption_file},
    config::{ClusterConfig, ConfigError},
    error::Error,
};

const ENCRYPTION: &str = "encryption-provider-config";

/// Returns an error if the document has a flag of encryption at rest, which `up --secrets-encryption` sets itself.
pub(crate) fn check_encryption(config: &ClusterConfig) -> Result<(), ConfigError> {
    let args = &config.api_server.extra_args;
    let Some(arg) = args.iter().find(|arg| arg.name.starts_with(ENCRYPTION)) else { return Ok(()) };
    let message = format!("--{} is that of `up --secrets-encryption`; remove it here", arg.name);
    Err(ConfigError::Flags { section: "apiServer", message })
}

/// Returns the command line of a component: that of kubeadm's static Pod, with the embedded store.
fn command(cluster: &Cluster, component: Component) -> Result<Vec<String>, Error> {
    let mut init = cluster.init();
    init.cluster.etcd = Etcd {
        embedded: Some(EmbeddedStore { data_dir: cluster.store().display().to_string() }),
        ..Etcd::default()
    };
    let ca = cluster.layout().pki("ca", "crt").display().to_string();
    init.cluster.api_server.extra_args.push(Arg::new("kubelet-certificate-authority", ca));
    let encryption = encryption_file(&cluster.root);
    if encryption.exists() {
        check_encryption(&cluster.settings.config)?;
        let args = &mut init.cluster.api_server.extra_args;
        args.push(Arg::new(ENCRYPTION, encryption.display().to_string()));
        args.push(Arg::new("encryption-provider-config-automatic-reload", "true"));
    }
    if cluster.settings.address.is_ipv6() {
        init.cluster.api_server.extra_args.push(Arg::new("bind-address", "::"));
    }
    let layout = cluster.layout();
    let (node_name, local) = (&cluster.settings.node_name, &init.init.local_api_endpoint);
    let pod = manifest(component, &Machine::new(&init.cluster, local, node_name, &layout))?;
    let command = pod["spec"]["containers"][0]["command"].as_array().cloned().unwrap_or_default();
    Ok(command.iter().filter_map(|word| word.as_str().map(str::to_owned)).collect())
}

/// Parses the command line of a component. `section` is its place in the document.
fn parse<A: clap::Args>(section: &'static str, command: Vec<String>) -> Result<A, ConfigError> {
    let parsed = CommandLine::<A>::try_parse_from(command).map_err(|error| ConfigError::Flags {
        section,
        message: error.to_string().lines().next().unwrap_or_default().to_owned(),
    })?;
    Ok(parsed.args)
}

/// The flags of the scheduler.
#[derive(clap::Args)]
pub(crate) struct SchedulerFlags {
    /// The flags of its own.
    #[command(flatten)]
    pub(crate) args: scheduler::Args,
    /// The flag of feature gates.
    #[command(flatten)]
    pub(crate) features: FeatureGateFlags,
}

/// Parses the command lines of all components, so that a wrong flag is found before anything starts.
pub(super) fn try_all(cluster: &Cluster, new: &ClusterConfig) -> Result<(), Error> {
    let mut cluster = cluster.clone();
    cluster.settings.config = new.clone();
    api_server(&cluster)?.config()?;
    let args = controller_manager(&cluster)?;
    args.features.gates()?;
    let flags = scheduler(&cluster)?;
    flags.args.config(flags.features.gates()?)?;
    Ok(())
}

/// Returns the flags of the API server.
pub(crate) fn api_server(cluster: &Cluster) -> Result<apiserver::flags::Args, Error> {
    Ok(parse("apiServer", command(cluster, Component::ApiServer)?)?)
}

/// Returns the flags of the controller manager.
pub(crate) fn controller_manager(cluster: &Cluster) -> Result<controllers::Args, Error> {
    Ok(parse("controllerManager", command(cluster, Component::ControllerManager)?)?)
}

/// Returns the flags of the scheduler.
pub(crate) fn scheduler(cluster: &Cluster) -> Result<SchedulerFlags, Error> {
    Ok(parse("scheduler", command(cluster, Component::Scheduler)?)?)
}
