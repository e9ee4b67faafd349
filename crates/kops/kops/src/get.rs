//! Runs `kops get`.

use std::{collections::BTreeSet, io::Write};

use kops_api::{Object, Spec as _, VersionName};
use kops_core::Cluster as _;
use kops_store::Registry;

use crate::{
    error::Error,
    flags::{Get, Show},
    table,
};

pub(crate) fn run(
    registry: &Registry,
    command: &Get,
    name: &str,
    out: &mut dyn Write,
) -> Result<(), Error> {
    match command {
        Get::Clusters(show) => get_clusters(registry, show, name, out),
        Get::Instances(_) | Get::Keypairs(_) => Ok(()),
        Get::Groups(show) => {
            let cluster = find_cluster(registry, name)?;
            let all = registry.groups(cluster.name())?;
            let groups = select(all, &show.names, "instancegroup")?;
            if groups.is_empty() {
                return Err(Error::NoneFound("InstanceGroup objects"));
            }
            match show.output.as_str() {
                "table" => print_group_table(&cluster, &groups, out),
                output => print_documents(&groups, output, out),
            }
        }
        Get::All(show) => {
            let name = show.names.first().map_or(name, String::as_str);
            let cluster = find_cluster(registry, name)?;
            let groups = registry.groups(cluster.name())?;
            if show.output != "table" {
                let all: Vec<_> = std::iter::once(cluster).chain(groups).collect();
                return print_documents(&all, &show.output, out);
            }
            writeln!(out, "Cluster")?;
            print_cluster_table(std::slice::from_ref(&cluster), out)?;
            writeln!(out, "\nInstance Groups")?;
            print_group_table(&cluster, &groups, out)
        }
    }
}

fn get_clusters(
    registry: &Registry,
    show: &Show,
    name: &str,
    out: &mut dyn Write,
) -> Result<(), Error> {
    let names = match (show.names.is_empty(), name) {
        (true, "") => Vec::new(),
        (true, name) => vec![name.to_owned()],
        (false, _) => show.names.clone(),
    };
    let clusters = select(registry.clusters()?, &names, "cluster")?;
    if clusters.is_empty() {
        return Err(Error::NoneFound("clusters"));
    }
    match show.output.as_str() {
        "table" => print_cluster_table(&clusters, out),
        output => print_documents(&clusters, output, out),
    }
}

/// Returns the named cluster, which must exist.
pub(crate) fn find_cluster(registry: &Registry, name: &str) -> Result<Object, Error> {
    if name.is_empty() {
        return Err(Error::Flag { flag: "--name", problem: "is required" });
    }
    let found = registry.cluster(name)?;
    found
        .map(|(cluster, _)| cluster)
        .ok_or_else(|| kops_store::Error::object("cluster", name, "was not found").into())
}

/// Returns the named objects in order, or all if no name is given.
fn select(all: Vec<Object>, names: &[String], kind: &'static str) -> Result<Vec<Object>, Error> {
    if names.is_empty() {
        return Ok(all);
    }
    let find = |name: &String| {
        let found = all.iter().find(|object| object.name() == name).cloned();
        found.ok_or_else(|| Error::NotFound { kind, name: name.clone() })
    };
    names.iter().map(find).collect()
}

fn print_documents(objects: &[Object], output: &str, out: &mut dyn Write) -> Result<(), Error> {
    let version = VersionName::V1alpha2;
    if output == "yaml" {
        let all: Vec<_> = objects.iter().map(|object| object.to_yaml(version)).collect();
        write!(out, "{}", all.join("\n---\n\n"))?;
        return Ok(());
    }
    let all: Vec<_> = objects.iter().map(|object| object.to_tree(version).to_string()).collect();
    match &all[..] {
        [one] => writeln!(out, "{one}")?,
        all => writeln!(out, "[{}]", all.join(","))?,
    }
    Ok(())
}

fn print_cluster_table(clusters: &[Object], out: &mut dyn Write) -> Result<(), Error> {
    let row = |cluster: &Object| {
        let subnets = cluster.spec.list("networking.subnets").iter();
        let zones: BTreeSet<_> =
            subnets.map(|subnet| subnet.text("zone")).filter(|zone| !zone.is_empty()).collect();
        let zones: Vec<_> = zones.into_iter().collect();
        [cluster.name().to_owned(), cluster.cloud().word().to_owned(), zones.join(",")]
    };
    table::print(out, ["NAME", "CLOUD", "ZONES"], clusters.iter().map(row).collect())
}

fn print_group_table(
    cluster: &Object,
    groups: &[Object],
    out: &mut dyn Write,
) -> Result<(), Error> {
    let row = |group: &Object| {
        let spec = &group.spec;
        let zone = |name: &str| {
            let mut subnets = cluster.spec.list("networking.subnets").iter();
            subnets.find(|s| s.text("name") == name).map(|s| s.text("zone"))
        };
        let mut zones: BTreeSet<_> = spec.texts("zones").into_iter().collect();
        zones.extend(spec.texts("subnets").into_iter().filter_map(zone).filter(|z| !z.is_empty()));
        let zones: Vec<_> = zones.into_iter().collect();
        let number = |field| spec.int(field).map_or_else(|| "-".to_owned(), |n: i64| n.to_string());
        let (role, machine) = (spec.text("role").to_owned(), spec.text("machineType").to_owned());
        let name = group.name().to_owned();
        [name, role, machine, number("minSize"), number("maxSize"), zones.join(",")]
    };
    let header = ["NAME", "ROLE", "MACHINETYPE", "MIN", "MAX", "ZONES"];
    table::print(out, header, groups.iter().map(row).collect())
}
