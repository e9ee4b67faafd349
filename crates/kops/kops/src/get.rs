//! Runs `kops get clusters|instancegroups|all`.

use std::{collections::BTreeSet, io::Write};

use api_meta::Tree as _;
use kops_api::{Object, VersionName, yaml};
use kops_core::Cluster as _;
use kops_store::Registry;
use serde_json::Value;

use crate::{error::Error, table};

/// Upstream's warning before complete specifications.
const FULL_WARNING: &str = "
//
//   WARNING: Do not use a '--full' cluster specification to define a Kubernetes installation.
//   You may experience unexpected behavior and other bugs.  Use only the required elements
//   and any modifications that you require.
//
//   Use the following command to retrieve only the required elements:
//   $ kops get cluster -o yaml
//

";

/// The selection of `get clusters`.
pub(crate) struct ClusterSelection<'a> {
    /// The wanted names; empty for all.
    pub(crate) names: &'a [String],
    /// `true` for complete specifications.
    pub(crate) full: bool,
    pub(crate) output: &'a str,
}

pub(crate) fn get_clusters(
    registry: &Registry,
    wanted: &ClusterSelection<'_>,
    out: &mut dyn Write,
) -> Result<(), Error> {
    let mut clusters = select(registry.clusters()?, wanted.names, "cluster")?;
    if clusters.is_empty() {
        return Err(Error::NoneFound("clusters"));
    }
    if wanted.full {
        let complete = clusters.iter().map(|cluster| registry.complete_cluster(cluster.name()));
        clusters = complete.collect::<Result<_, _>>()?;
        write!(out, "{FULL_WARNING}")?;
    }
    match wanted.output {
        "table" => print_cluster_table(&clusters, out),
        // A cluster that is selected by its name is no list.
        output => print_documents(&clusters, output, wanted.names.len() == 1, out),
    }
}

pub(crate) fn get_groups(
    registry: &Registry,
    names: &[String],
    output: &str,
    name: &str,
    out: &mut dyn Write,
) -> Result<(), Error> {
    let cluster = find_cluster(registry, name)?;
    let groups = select(registry.groups(cluster.name())?, names, "instancegroup")?;
    if groups.is_empty() {
        return Err(Error::NoneFound("InstanceGroup objects"));
    }
    match output {
        "table" => print_group_table(&cluster, &groups, out),
        output => print_documents(&groups, output, groups.len() == 1, out),
    }
}

/// Prints a cluster, its groups and the user's additional objects.
pub(crate) fn get_all(
    registry: &Registry,
    output: &str,
    name: &str,
    out: &mut dyn Write,
) -> Result<(), Error> {
    let cluster = find_cluster(registry, name)?;
    let groups = registry.groups(name)?;
    let more = additional_objects(registry, name)?;
    if output != "table" {
        let stored = std::iter::once(&cluster).chain(&groups);
        let mut all: Vec<_> = stored.map(|one| one.to_tree(VersionName::V1alpha2)).collect();
        all.extend(more);
        return print_trees(&all, output, false, out);
    }
    writeln!(out, "Cluster")?;
    print_cluster_table(std::slice::from_ref(&cluster), out)?;
    writeln!(out, "\nInstance Groups")?;
    print_group_table(&cluster, &groups, out)?;
    if more.is_empty() {
        return Ok(());
    }
    writeln!(out, "\nAddon Objects")?;
    let row = |one: &Value| ["metadata.name", "kind", "spec.version"].map(|p| one.text(p).into());
    table::print(out, ["NAME", "KIND", "VERSION"], more.iter().map(row).collect())
}

/// Returns the user's objects that are stored with a cluster.
fn additional_objects(registry: &Registry, cluster: &str) -> Result<Vec<Value>, Error> {
    let path = format!("{cluster}/clusteraddons/default");
    let Some((content, _)) = registry.read_object(&path)? else { return Ok(Vec::new()) };
    Ok(yaml::parse_all(&path, &String::from_utf8_lossy(&content))?)
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

/// Prints objects as YAML documents, or as JSON: a list unless `single`.
pub(crate) fn print_documents(
    objects: &[Object],
    output: &str,
    single: bool,
    out: &mut dyn Write,
) -> Result<(), Error> {
    let trees = objects.iter().map(|object| object.to_tree(VersionName::V1alpha2));
    print_trees(&trees.collect::<Vec<_>>(), output, single, out)
}

fn print_trees(
    trees: &[Value],
    output: &str,
    single: bool,
    out: &mut dyn Write,
) -> Result<(), Error> {
    match (output, trees) {
        ("yaml", trees) => {
            let all: Vec<_> = trees.iter().map(yaml::to_string).collect();
            write!(out, "{}", all.join("\n---\n\n"))?;
        }
        (_, [one]) if single => writeln!(out, "{one}")?,
        (_, trees) => writeln!(out, "{}", Value::from(trees))?,
    }
    Ok(())
}

fn print_cluster_table(clusters: &[Object], out: &mut dyn Write) -> Result<(), Error> {
    let row = |cluster: &Object| {
        let subnets = cluster.spec.items("networking.subnets").iter();
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
            let mut subnets = cluster.spec.items("networking.subnets").iter();
            subnets.find(|s| s.text("name") == name).map(|s| s.text("zone"))
        };
        let mut zones: BTreeSet<_> = spec.texts("zones").collect();
        zones.extend(spec.texts("subnets").filter_map(zone).filter(|z| !z.is_empty()));
        let zones: Vec<_> = zones.into_iter().collect();
        let number =
            |field| spec.opt_int(field).map_or_else(|| "-".to_owned(), |n: i64| n.to_string());
        let (role, machine) = (spec.text("role").to_owned(), spec.text("machineType").to_owned());
        let name = group.name().to_owned();
        [name, role, machine, number("minSize"), number("maxSize"), zones.join(",")]
    };
    let header = ["NAME", "ROLE", "MACHINETYPE", "MIN", "MAX", "ZONES"];
    table::print(out, header, groups.iter().map(row).collect())
}
