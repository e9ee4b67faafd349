//! Cloud local: a cluster's groups are instances on this machine.

use std::{
    collections::BTreeSet,
    io::{Read as _, Write},
    path::{Path, PathBuf},
};

use bootstrap_core::constants::KUBERNETES_VERSION;
use client::{ListOptions, Resource};
use data_encoding::HEXLOWER;
use instances::{Companion, Fleet, FleetSpec, Group};
use kops_api::{Kind, Object, Spec as _};
use kops_core::{CloudName, Cluster as _, Version};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::{
    Error,
    flags::Show,
    gateway, get, keys, kubeconfig,
    model::{API_PORT, Machine},
    registry::Registry,
    table,
};

/// The authority of machine identities, stored for kops-controller.
pub(crate) const IDENTITY_CA: &str = "manifests/local/identity-ca.crt";

/// The user name of the machines' keeper at the API server.
pub(crate) const KEEPER: &str = "kops-instances";
/// The namespace of Nodes' Leases.
pub(crate) const LEASES: &str = "kube-node-lease";
/// The annotation of a group with the time after which a machine with an unready Node is replaced.
const REPAIR_AFTER: &str = "kops.windlass.local/repair-after";
const USUAL_REPAIR_AFTER: u64 = 60;
/// The lifetime of the balancer's certificate. Without a valid one it keeps its initial servers, which stay the same.
const BALANCER_PERIOD: std::time::Duration = std::time::Duration::from_secs(455 * 86_400);

/// Returns the fleet's directory, beside the store, which contains only objects.
pub(crate) fn fleet(registry: &Registry, cluster: &str) -> Fleet {
    let store = registry.directory();
    Fleet::at(PathBuf::from(format!("{}-instances", store.trim_end_matches('/'))).join(cluster))
}

/// The supported fields of a spec. Other fields are rejected instead of silently ignored.
const FIELDS: [&str; 17] = [
    "api",
    "authorization",
    "channel",
    "cloudLabels",
    "configStore",
    "etcdClusters",
    "iam",
    "kubelet",
    "kubernetesVersion",
    "networking",
    "rollingUpdate",
    "sshAccess",
    "controlPlaneKubelet",
    "kubeAPIServer",
    "clusterDNSDomain",
    "updatePolicy",
    "kubeControllerManager",
];
/// The supported fields within parts of the spec.
const PARTS: [(&str, &[&str]); 5] = [
    ("kubelet", &["anonymousAuth"]),
    ("controlPlaneKubelet", &["anonymousAuth"]),
    ("kubeAPIServer", &["anonymousAuth"]),
    ("kubeControllerManager", &[]),
    ("authorization", &["rbac"]),
];

/// The supported fields of an instance group.
const GROUP_FIELDS: [&str; 11] = [
    "cloudLabels",
    "fileAssets",
    "manager",
    "maxSize",
    "minSize",
    "nodeLabels",
    "role",
    "rollingUpdate",
    "subnets",
    "taints",
    "updatePolicy",
];

/// Rejects a cluster or an instance group with a field that this cloud would ignore, before it is stored.
pub(crate) fn check_fields(object: &Object) -> Result<(), Error> {
    let (known, parts, of) = match object.kind {
        Kind::Cluster => (&FIELDS[..], &PARTS[..], String::new()),
        _ => (&GROUP_FIELDS[..], &[][..], format!(" of instance group {}", object.name())),
    };
    let members = |path: &str| -> Vec<&String> {
        let found = if path.is_empty() { Some(&object.spec) } else { object.spec.at(path) };
        let found = found.and_then(Value::as_object).into_iter().flatten();
        found.filter(|(_, value)| !value.is_null()).map(|(name, _)| name).collect()
    };
    if let Some(name) = members("").iter().find(|name| !known.contains(&name.as_str())) {
        return refused(&format!("spec.{name}{of}"));
    }
    for (part, known) in parts {
        if let Some(name) = members(part).iter().find(|name| !known.contains(&name.as_str())) {
            return refused(&format!("spec.{part}.{name}{of}"));
        }
    }
    Ok(())
}

fn refused(what: &str) -> Result<(), Error> {
    Err(Error::Usage(format!("{what}: cloud local does not do this yet; remove it")))
}

/// Rejects clusters of other clouds.
pub(crate) fn check_cloud(cluster: &Object) -> Result<(), Error> {
    if cluster.cloud() == CloudName::Local {
        return Ok(());
    }
    let text = format!(
        "cloud {} is not supported yet: all commands work with --cloud local; with aws only update cluster, get \
         instances and delete cluster",
        cluster.cloud().word()
    );
    Err(Error::Usage(text))
}

/// Rejects unsupported settings by name.
///
/// `users` are the stored objects before completion.
pub(crate) fn check(users: &[&Object], cluster: &Object, groups: &[Object]) -> Result<(), Error> {
    users.iter().try_for_each(|object| check_fields(object))?;
    if !cluster.spec.has("networking.cni") {
        return refused("a Pod network other than --networking cni, which is Windlass' own");
    }
    let etcd = cluster.spec.list("etcdClusters");
    if let Some(other) = etcd.iter().map(|etcd| etcd.text("name")).find(|name| *name != "main") {
        return refused(&format!("etcd cluster {other:?} beside main"));
    }
    let (wanted, own): (Version, Version) =
        (cluster.spec.text("kubernetesVersion").parse()?, KUBERNETES_VERSION.parse()?);
    if (wanted.major, wanted.minor) != (own.major, own.minor) {
        return refused(&format!("Kubernetes {wanted}: machines run this binary, which is {own}"));
    }
    for group in groups {
        let (name, role) = (group.name(), group.spec.text("role"));
        if !["ControlPlane", "Node"].contains(&role) {
            return refused(&format!("role {role} of instance group {name}"));
        }
        if group.spec.int("minSize") != group.spec.int("maxSize") {
            return refused(&format!("minSize of instance group {name} other than its maxSize"));
        }
        repair_after(group)?;
        if role == "ControlPlane" && group.spec.int("minSize") != Some(1) {
            return refused(&format!(
                "a size other than 1 of instance group {name} of control planes"
            ));
        }
    }
    Ok(())
}

fn size(group: &Object) -> u32 {
    group.spec.int("minSize").and_then(|size| u32::try_from(size).ok()).unwrap_or(0)
}

fn is_control_plane(group: &Object) -> bool {
    group.spec.text("role") == "ControlPlane"
}

/// Returns the seconds after which a group's machines with unready Nodes are replaced; `None` for never.
fn repair_after(group: &Object) -> Result<Option<u64>, Error> {
    let annotations = group.metadata.get("annotations");
    let Some(text) = annotations.and_then(|all| all.get(REPAIR_AFTER)).and_then(Value::as_str)
    else {
        return Ok(Some(USUAL_REPAIR_AFTER));
    };
    let wrong = |e: &dyn std::fmt::Display| {
        Error::Usage(format!(
            "metadata.annotations[{REPAIR_AFTER}] of instance group {}: {text:?}: {e}; set a duration such as 1m, or \
             0s for never",
            group.name()
        ))
    };
    let period: api_config::GoDuration = text.parse().map_err(|e| wrong(&e))?;
    match period.to_std().as_secs() {
        0 => Ok(None),
        // A kubelet reports every ten seconds, and a new machine needs some time to start.
        seconds if seconds < 30 => Err(wrong(&"it is less than 30s")),
        seconds => Ok(Some(seconds)),
    }
}

/// Returns the store of a fleet's cluster; see [`wanted_fleet`].
pub(crate) fn registry(fleet: &Fleet, wanted: &FleetSpec) -> Result<Registry, Error> {
    if let Some(registry) = gateway::registry(fleet)? {
        return Ok(registry);
    }
    let directory = wanted.secret.first();
    let directory = directory.ok_or_else(|| {
        Error::Usage(
            "the fleet's settings name no state store; run kops update cluster --yes to write them"
                .to_owned(),
        )
    })?;
    Registry::open(&format!("file://{}", directory.display()), &|_| None)
}

/// Returns the wanted fleet without user data, which is built from the machines' addresses.
pub(crate) fn wanted_fleet(
    fleet: &Fleet,
    old: Option<&FleetSpec>,
    cluster: &Object,
    groups: &[Object],
    registry: &Registry,
) -> Result<FleetSpec, Error> {
    let mut wanted = old.cloned().unwrap_or_default();
    cluster.name().clone_into(&mut wanted.cluster);
    wanted.secret =
        if registry.is_here() { vec![PathBuf::from(registry.directory())] } else { Vec::new() };
    let before = |name: &str| {
        let groups = old.map(|old| old.groups.as_slice()).unwrap_or_default();
        groups.iter().find(|group| group.name == name).cloned().unwrap_or_default()
    };
    let group = |group: &Object| {
        let mut made = Group {
            name: group.name().to_owned(),
            trusted: is_control_plane(group),
            user_data: String::new(),
            repair_after: repair_after(group)?,
            ..before(group.name())
        };
        made.resize(size(group));
        Ok::<_, Error>(made)
    };
    wanted.groups = groups.iter().map(group).collect::<Result<_, _>>()?;
    if let Some(old) = old {
        same_control_planes(old, &wanted)?;
    }
    let ranges = ["networking.podCIDR", "networking.serviceClusterIPRange"];
    let ranges: Vec<_> =
        ranges.iter().filter_map(|path| cluster.spec.text(path).parse().ok()).collect();
    wanted.assign(&ranges)?;
    wanted.companions = balancer(fleet, &wanted)?;
    if !registry.is_here() {
        wanted.companions.push(gateway::companion(fleet));
    }
    Ok(wanted)
}

/// Returns the path of one of the balancer's files.
fn balancer_file(fleet: &Fleet, name: &str) -> PathBuf {
    fleet.root.join("balancer").join(name)
}

/// Returns the balancer, if several machines serve the API. It gives the API one stable address.
fn balancer(fleet: &Fleet, wanted: &FleetSpec) -> Result<Vec<Companion>, Error> {
    if api_addresses(wanted).len() < 2 {
        return Ok(Vec::new());
    }
    let listen = std::net::SocketAddr::new(wanted.gateway()?, API_PORT).to_string();
    let file = |name: &str| balancer_file(fleet, name).display().to_string();
    let args = [
        "balancer".to_owned(),
        format!("--listen={listen}"),
        format!("--servers={}", file("servers")),
        format!("--certificate-authority={}", file("ca.crt")),
        format!("--kubeconfig={}", file("kubeconfig")),
    ];
    Ok(vec![Companion { name: "balancer".to_owned(), args: args.into() }])
}

/// Writes the balancer's files: the initial servers, their authority, and its credentials for discovering others.
pub(crate) fn write_balancer_files(
    registry: &Registry,
    fleet: &Fleet,
    wanted: &FleetSpec,
    now: std::time::SystemTime,
) -> Result<(), Error> {
    if api_addresses(wanted).len() < 2 {
        return Ok(());
    }
    let subject = pki::Subject::new(KEEPER);
    let access =
        kubeconfig::issue_kubeconfig(registry, &wanted.cluster, subject, BALANCER_PERIOD, now)?;
    let directory = balancer_file(fleet, "");
    let shown = directory.display().to_string();
    std::fs::create_dir_all(&directory).map_err(Error::file("making the directory", &shown))?;
    let authority = keys::read(registry, &wanted.cluster, "kubernetes-ca")?;
    let authority = authority.map(|keyset| keyset.certificates()).unwrap_or_default();
    let ca = balancer_file(fleet, "ca.crt");
    pki::write_file(&ca, authority.as_bytes(), pki::PUBLIC_MODE)?;
    let port = |address: String| {
        if address.contains(':') {
            format!("[{address}]:{API_PORT}\n")
        } else {
            format!("{address}:{API_PORT}\n")
        }
    };
    let servers: String = api_addresses(wanted).into_iter().map(port).collect();
    let known = balancer_file(fleet, "servers");
    pki::write_file(&known, servers.as_bytes(), pki::PUBLIC_MODE)?;
    access.write(&balancer_file(fleet, "kubeconfig"))?;
    Ok(())
}

/// Rejects a change of the control planes. Each is an etcd member; an additional member would find no quorum that knows
/// it, and a removed one would be missing permanently.
fn same_control_planes(old: &FleetSpec, new: &FleetSpec) -> Result<(), Error> {
    let names = |wanted: &FleetSpec| -> BTreeSet<String> {
        wanted.groups.iter().filter(|group| group.trusted).flat_map(Group::names).collect()
    };
    let (had, has) = (names(old), names(new));
    if had == has {
        return Ok(());
    }
    let joined = |names: &BTreeSet<String>| names.iter().cloned().collect::<Vec<_>>().join(", ");
    Err(Error::Usage(format!(
        "the cluster's control planes are {}, and would be {}: cloud local does not change etcd's members yet; \
         make another cluster, or take the change back",
        joined(&had),
        joined(&has)
    )))
}

/// Returns the addresses of a fleet's control planes, in order.
pub(crate) fn api_addresses(wanted: &FleetSpec) -> Vec<String> {
    let groups = wanted.groups.iter().filter(|group| group.trusted);
    let names = groups.flat_map(Group::names);
    names.filter_map(|name| Some(wanted.addresses.get(&name)?.to_string())).collect()
}

/// Sets the user data of each group.
pub(crate) fn set_user_data(wanted: &mut FleetSpec, machines: &[Machine]) {
    for group in &mut wanted.groups {
        let found = machines.iter().find(|machine| machine.group.name() == group.name);
        group.user_data = found.map(|machine| machine.user_data.clone()).unwrap_or_default();
    }
}

/// Returns the URL and the hash of the only program that machines run.
pub(crate) fn program() -> Result<(String, String), Error> {
    let path = std::env::current_exe()?;
    Ok((format!("file://{}/windlass", instances::PROGRAMS), hash(&path)?))
}

/// Returns the SHA-256 sum of a file, in hexadecimal.
pub(crate) fn hash(path: &Path) -> Result<String, Error> {
    let name = path.display().to_string();
    let mut file = std::fs::File::open(path).map_err(Error::file("reading", &name))?;
    let (mut sum, mut buffer) = (Sha256::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut buffer).map_err(Error::file("reading", &name))? {
            0 => break,
            read => sum.update(buffer.get(..read).unwrap_or_default()),
        }
    }
    Ok(HEXLOWER.encode(&sum.finalize()))
}

/// Applies a wanted fleet: its programs, its settings and its keeper.
pub(crate) fn apply(fleet: &Fleet, wanted: &FleetSpec) -> Result<(), Error> {
    fleet.write(wanted)?;
    let (target, own) = (fleet.binary(), std::env::current_exe()?);
    let failed = |what| Error::file(what, &target.display().to_string());
    std::fs::create_dir_all(fleet.programs()).map_err(failed("making a directory for"))?;
    let renewed = !target.exists() || hash(&target)? != hash(&own)?;
    if renewed {
        // Machines still run the old binary, so it is replaced instead of overwritten.
        let beside = target.with_extension("new");
        std::fs::copy(&own, &beside).map_err(failed("copying the binary to"))?;
        std::fs::rename(&beside, &target).map_err(failed("putting in place"))?;
    }
    Ok(instances::start(fleet, renewed)?)
}

/// Prints the machines that a deletion would terminate.
pub(crate) fn describe(fleet: &Fleet, out: &mut dyn Write) -> Result<(), Error> {
    let Some(wanted) = fleet.wanted()? else { return Ok(()) };
    let rows = wanted.addresses.iter();
    let rows =
        rows.map(|(name, address)| ["instance".to_owned(), name.clone(), address.to_string()]);
    table::print(out, ["TYPE", "NAME", "ID"], rows.collect())
}

/// Runs `kops get instances`.
pub(crate) async fn instances(
    registry: &Registry,
    show: &Show,
    name: &str,
    out: &mut dyn Write,
) -> Result<(), Error> {
    let cluster = get::named(registry, name)?;
    let fleet = fleet(registry, name);
    let wanted = fleet.wanted()?.unwrap_or_default();
    // Show the machines even without an API server.
    let nodes = match kubeconfig::admin(registry, &cluster, rt::now()) {
        Ok(client) => {
            client.list::<Value>(&Resource::NODES, "", &ListOptions::default()).await.ok()
        }
        Err(_) => None,
    };
    let nodes = nodes.map(|list| list.items).unwrap_or_default();
    let mut rows = Vec::new();
    for group in &wanted.groups {
        let counted: BTreeSet<_> = group.members().collect();
        for name in group.names() {
            let Some(machine) = fleet.machine(&name)? else { continue };
            let node = nodes.iter().any(|node| node.text("metadata.name") == name);
            let status = if !counted.contains(&name) {
                "Detached"
            } else if machine.version() == group.version() {
                "UpToDate"
            } else {
                "NeedsUpdate"
            };
            let role = if group.trusted { "control-plane" } else { "node" };
            rows.push([
                machine.id,
                if node { name.clone() } else { String::new() },
                status.to_owned(),
                role.to_owned(),
                machine.address.to_string(),
                group.name.clone(),
            ]);
        }
    }
    if show.output != "table" {
        return described(&rows, &show.output, out);
    }
    table::print(out, ["ID", "NODE-NAME", "STATUS", "ROLES", "INTERNAL-IP", "INSTANCE-GROUP"], rows)
}

/// Prints machines as documents with upstream's fields.
fn described(rows: &[[String; 6]], output: &str, out: &mut dyn Write) -> Result<(), Error> {
    let rows = rows.iter().map(|[id, node, status, role, address, group]| {
        json!({
            "id": id, "nodeName": node, "status": status, "roles": [role],
            "internalIP": address, "externalIP": "", "instanceGroup": group, "machineType": "", "state": "",
        })
    });
    let all = Value::from(rows.collect::<Vec<_>>());
    match output {
        "json" => writeln!(out, "{all}")?,
        _ => write!(out, "{}", kops_api::yaml::to_string(&all))?,
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_changes_of_control_planes() {
        let of = |groups: &[(&str, u32, bool)]| FleetSpec {
            groups: groups
                .iter()
                .map(|(name, size, trusted)| Group {
                    name: (*name).to_owned(),
                    numbers: (1..=*size).collect(),
                    trusted: *trusted,
                    ..Group::default()
                })
                .collect(),
            ..FleetSpec::default()
        };
        let old = of(&[("cp-a", 1, true), ("nodes", 1, false)]);
        assert!(same_control_planes(&old, &of(&[("nodes", 5, false), ("cp-a", 1, true)])).is_ok());
        for other in [
            of(&[("cp-a", 1, true), ("cp-b", 1, true)]),
            of(&[("cp-b", 1, true)]),
            of(&[("cp-a", 2, true)]),
            of(&[("cp-a", 1, false)]),
        ] {
            let error = same_control_planes(&old, &other).unwrap_err().to_string();
            assert!(error.contains("the cluster's control planes are cp-a-1"), "{error}");
        }
    }
}
