//! `kops create cluster`: a cluster and its groups by flags.

use bootstrap_core::constants::KUBERNETES_VERSION;
use kops_api::{Object, Spec as _, VersionName};
use kops_core::{World, channel::Channel, create::Options};

use crate::{Error, KOPS, Surroundings, change, flags::UpdateCluster, registry::Registry, update};

/// Upstream's flags.
#[derive(clap::Args, Debug)]
pub(crate) struct CreateCluster {
    cluster: Option<String>,
    /// Where its machines are: local (this machine) or metal
    #[arg(long)]
    cloud: Option<String>,
    /// A file that says which versions are recommended
    #[arg(long, default_value = "stable")]
    channel: String,
    /// The zones that its machines are in [default with --cloud local: local]
    #[arg(long, value_delimiter = ',')]
    zones: Vec<String>,
    /// The zones of the control planes, if they are others
    #[arg(long, alias = "master-zones", value_delimiter = ',')]
    control_plane_zones: Vec<String>,
    #[arg(long, alias = "master-count", default_value_t = 0)]
    control_plane_count: u32,
    #[arg(long, default_value_t = 0)]
    node_count: u32,
    #[arg(long, default_value = "")]
    kubernetes_version: String,
    /// The Pod network [default: cilium; with --cloud local: cni, which is Windlass' own]
    #[arg(long)]
    networking: Option<String>,
    /// Its etcd clusters [default: main,events; with --cloud local: main]
    #[arg(long, value_delimiter = ',')]
    etcd_clusters: Vec<String>,
    #[arg(long, default_value = "RBAC")]
    authorization: String,
    #[arg(long, value_delimiter = ',')]
    admin_access: Vec<String>,
    #[arg(long, value_delimiter = ',')]
    ssh_access: Vec<String>,
    #[arg(long, value_delimiter = ',')]
    network_cidr: Vec<String>,
    #[arg(long, default_value = "")]
    topology: String,
    #[arg(long, default_value = "")]
    dns: String,
    #[arg(long, default_value = "")]
    dns_zone: String,
    #[arg(long, default_value = "")]
    api_public_name: String,
    #[arg(long, value_delimiter = ',')]
    kubernetes_feature_gates: Vec<String>,
    /// A field of the cluster: path=value
    #[arg(long)]
    set: Vec<String>,
    /// A field of the cluster that is to go: path
    #[arg(long)]
    unset: Vec<String>,
    /// Show the objects, and keep nothing
    #[arg(long)]
    dry_run: bool,
    /// yaml or json, with --dry-run
    #[arg(short, long, default_value = "", value_parser = ["", "yaml", "json"])]
    output: String,
    /// Make its machines, too
    #[arg(short, long)]
    yes: bool,
}

/// The cluster and its groups that the flags ask for.
fn made(command: &CreateCluster, state: &str, name: &str) -> Result<(Object, Vec<Object>), Error> {
    let name = command.cluster.as_deref().unwrap_or(name);
    let cloud = command.cloud.clone().unwrap_or_default();
    let local = cloud == "local";
    if !["", "local", "metal"].contains(&cloud.as_str()) {
        let text = format!(
            "--cloud {cloud}: what there is in a cloud is not asked yet, which machine types and subnets follow from; make \
             the objects with upstream's kops create cluster --dry-run -o yaml, and keep them with create -f"
        );
        return Err(Error::Usage(text));
    }
    let or = |given: &[String], default: &[&str]| match given.is_empty() && local {
        true => default.iter().map(|text| (*text).to_owned()).collect(),
        false => given.to_vec(),
    };
    let usual = Options::default();
    let networking = if local { "cni" } else { usual.networking.as_str() };
    let own = KUBERNETES_VERSION.trim_start_matches('v');
    let version = match command.kubernetes_version.as_str() {
        "" if local => own,
        version => version,
    };
    let etcd = or(&command.etcd_clusters, &["main"]);
    let options = Options {
        name: name.to_owned(),
        store: state.to_owned(),
        zones: or(&command.zones, &["local"]),
        cloud,
        channel: command.channel.clone(),
        kubernetes_version: version.to_owned(),
        feature_gates: command.kubernetes_feature_gates.clone(),
        authorization: command.authorization.clone(),
        admin_access: command.admin_access.clone(),
        ssh_access: command.ssh_access.clone(),
        control_plane_zones: command.control_plane_zones.clone(),
        control_plane_count: command.control_plane_count,
        node_count: command.node_count,
        etcd_clusters: if etcd.is_empty() { usual.etcd_clusters.clone() } else { etcd },
        networking: command.networking.clone().unwrap_or_else(|| networking.to_owned()),
        network_cidrs: command.network_cidr.clone(),
        topology: command.topology.clone(),
        dns: command.dns.clone(),
        dns_zone: command.dns_zone.clone(),
        api_public_name: command.api_public_name.clone(),
        sets: command.set.clone(),
        unsets: command.unset.clone(),
        ..usual
    };
    let channel = channel(&options.channel, version.is_empty())?;
    Ok(kops_core::create::create(&options, &channel, &World::default(), &KOPS.parse()?)?)
}

/// A channel's file. Upstream's names are not fetched: without them a version must be given.
pub(crate) fn channel(name: &str, needed: bool) -> Result<Channel, Error> {
    let path = name.strip_prefix("file://").unwrap_or(name);
    if path.starts_with('/') || path.starts_with('.') {
        let text = std::fs::read(path).map_err(Error::file("reading the channel", path))?;
        return Ok(Channel::read(path, &text)?);
    }
    if needed {
        let text = format!(
            "channel {name} is not fetched from the network yet: give --kubernetes-version, or a file as --channel /path"
        );
        return Err(Error::Usage(text));
    }
    Ok(Channel::default())
}

pub(crate) async fn run(
    registry: &Registry,
    command: &CreateCluster,
    state: &str,
    name: &str,
    around: &mut Surroundings<'_>,
) -> Result<(), Error> {
    let (cluster, groups) = made(command, state, name)?;
    let name = cluster.name().to_owned();
    let all: Vec<Object> = std::iter::once(cluster).chain(groups.clone()).collect();
    if command.dry_run {
        return show(&all, &command.output, around);
    }
    if !command.output.is_empty() {
        return Err(Error::Usage("--output is for --dry-run".to_owned()));
    }
    if registry.cluster(&name)?.is_some() {
        let text =
            format!("cluster {name:?} already exists; use 'kops update cluster' to apply changes");
        return Err(Error::Usage(text));
    }
    change::keep(registry, all, around)?;
    let update = UpdateCluster { yes: command.yes, ..UpdateCluster::default() };
    update::run(registry, &update, &name, around).await?;
    if command.yes {
        return Ok(());
    }
    let out = &mut around.out;
    writeln!(out, "\nCluster configuration has been created.\n")?;
    writeln!(out, "Suggestions:\n * list clusters with: kops get cluster")?;
    writeln!(out, " * edit this cluster with: kops edit cluster {name}")?;
    for (role, what) in [("Node", "node"), ("ControlPlane", "control-plane")] {
        if let Some(group) = groups.iter().find(|group| group.spec.text("role") == role) {
            let group = group.name();
            writeln!(
                out,
                " * edit your {what} instance group: kops edit ig --name={name} {group}"
            )?;
        }
    }
    writeln!(
        out,
        "\nFinally configure your cluster with: kops update cluster --name {name} --yes\n"
    )?;
    Ok(())
}

fn show(objects: &[Object], output: &str, around: &mut Surroundings<'_>) -> Result<(), Error> {
    let version = VersionName::V1alpha2;
    if output == "json" {
        let all: Vec<_> =
            objects.iter().map(|object| object.to_tree(version).to_string()).collect();
        writeln!(around.out, "[{}]", all.join(","))?;
        return Ok(());
    }
    let all: Vec<_> = objects.iter().map(|object| object.to_yaml(version)).collect();
    write!(around.out, "{}", all.join("\n---\n\n"))?;
    Ok(())
}
