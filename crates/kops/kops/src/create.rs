//! Runs `kops create cluster`: builds a cluster and its groups from flags.

use bootstrap_core::constants::KUBERNETES_VERSION;
use kops_api::{Object, Spec as _, VersionName};
use kops_core::{World, channel::Channel, create::Options};

use crate::{
    CommandEnvironment, Error, KOPS, change, flags::UpdateCluster, registry::Registry, update,
};

/// The flags of `create cluster`, named as upstream's.
#[derive(clap::Args, Debug)]
pub(crate) struct CreateCluster {
    cluster: Option<String>,
    /// The cloud of its machines: local (this machine) or metal
    #[arg(long)]
    cloud: Option<String>,
    /// A file with the recommended versions
    #[arg(long, default_value = "stable")]
    channel: String,
    /// The zones of its machines [default with --cloud local: local]
    #[arg(long, value_delimiter = ',')]
    zones: Vec<String>,
    /// The zones of the control planes, if they differ
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
    /// The etcd clusters [default: main,events; with --cloud local: main]
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
    /// A field of the cluster to set: path=value
    #[arg(long)]
    set: Vec<String>,
    /// A field of the cluster to unset: path
    #[arg(long)]
    unset: Vec<String>,
    /// Show the objects, and store nothing
    #[arg(long)]
    dry_run: bool,
    /// yaml or json, with --dry-run
    #[arg(short, long, default_value = "", value_parser = ["", "yaml", "json"])]
    output: String,
    /// Create its machines, too
    #[arg(short, long)]
    yes: bool,
}

/// Builds the cluster and groups that the flags describe.
fn build_objects(
    command: &CreateCluster,
    state: &str,
    name: &str,
) -> Result<(Object, Vec<Object>), Error> {
    let name = command.cluster.as_deref().unwrap_or(name);
    let cloud = command.cloud.clone().unwrap_or_default();
    let local = cloud == "local";
    if !["", "local", "metal"].contains(&cloud.as_str()) {
        let text = format!(
            "--cloud {cloud}: clouds are not queried yet, so machine types and subnets are unknown; create the objects \
             with upstream's kops create cluster --dry-run -o yaml, and store them with create -f"
        );
        return Err(Error::Usage(text));
    }
    let or = |given: &[String], default: &[&str]| {
        if given.is_empty() && local {
            default.iter().map(|text| (*text).to_owned()).collect()
        } else {
            given.to_vec()
        }
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

/// Reads a channel from a file. Upstream's channels are not downloaded, so `needed` requires a file or a version.
pub(crate) fn channel(name: &str, needed: bool) -> Result<Channel, Error> {
    let path = name.strip_prefix("file://").unwrap_or(name);
    if path.starts_with('/') || path.starts_with('.') {
        let text = std::fs::read(path).map_err(Error::file("reading the channel", path))?;
        return Ok(Channel::read(path, &text)?);
    }
    if needed {
        let text = format!(
            "channel {name} cannot be downloaded yet: set --kubernetes-version, or use a file with --channel /path"
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
    around: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    let (cluster, groups) = build_objects(command, state, name)?;
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
    change::store_all(registry, all, around)?;
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

fn show(
    objects: &[Object],
    output: &str,
    around: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
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
