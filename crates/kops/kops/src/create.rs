//! Runs `kops create cluster`: builds a cluster and its groups from flags.

use bootstrap_core::constants::KUBERNETES_VERSION;
use kops_api::{Object, Spec as _, VersionName};
use kops_core::{World, create::Options};
use kops_store::{KOPS_VERSION, Registry, read_channel};

use crate::{
    change,
    environment::CommandEnvironment,
    error::Error,
    flags::{CreateCluster, UpdateCluster},
    update,
};

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
        return Err(Error::CloudFlag(cloud));
    }
    let or_local = |values: &[String], default: &[&str]| {
        if values.is_empty() && local {
            default.iter().map(|text| (*text).to_owned()).collect()
        } else {
            values.to_vec()
        }
    };
    let usual = Options::default();
    let networking = if local { "cni" } else { usual.networking.as_str() };
    let own_version = KUBERNETES_VERSION.trim_start_matches('v');
    let version = match command.kubernetes_version.as_str() {
        "" if local => own_version,
        version => version,
    };
    let etcd = or_local(&command.etcd_clusters, &["main"]);
    let options = Options {
        name: name.to_owned(),
        store: state.to_owned(),
        zones: or_local(&command.zones, &["local"]),
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
    let channel = read_channel(&options.channel, version.is_empty())?;
    Ok(kops_core::create::create(&options, &channel, &World::default(), &KOPS_VERSION.parse()?)?)
}

pub(crate) async fn run(
    registry: &Registry,
    command: &CreateCluster,
    state: &str,
    name: &str,
    context: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    let (cluster, groups) = build_objects(command, state, name)?;
    let name = cluster.name().to_owned();
    let objects: Vec<Object> = std::iter::once(cluster).chain(groups.clone()).collect();
    if command.dry_run {
        return show(&objects, &command.output, context);
    }
    if !command.output.is_empty() {
        return Err(Error::Flag { flag: "--output", problem: "is for --dry-run" });
    }
    if registry.cluster(&name)?.is_some() {
        let problem = "already exists; use 'kops update cluster' to apply changes";
        return Err(kops_store::Error::object("cluster", &name, problem).into());
    }
    change::store_objects(registry, objects, context)?;
    let update = UpdateCluster { yes: command.yes, ..UpdateCluster::default() };
    update::run(registry, &update, &name, context).await?;
    if command.yes {
        return Ok(());
    }
    let out = &mut context.out;
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
    context: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    let version = VersionName::V1alpha2;
    if output == "json" {
        let all: Vec<_> =
            objects.iter().map(|object| object.to_tree(version).to_string()).collect();
        writeln!(context.out, "[{}]", all.join(","))?;
        return Ok(());
    }
    let all: Vec<_> = objects.iter().map(|object| object.to_yaml(version)).collect();
    write!(context.out, "{}", all.join("\n---\n\n"))?;
    Ok(())
}
