//! Runs `kops toolbox dump`: shows a cluster's specs, machines, Nodes and Pods, and copies the logs of machines.

use std::{
    io::{Read as _, Seek as _, SeekFrom},
    path::Path,
    time::Duration,
};

use api_meta::Tree as _;
use client::Resource;
use instances::Fleet;
use kops_api::{Object, VersionName};
use kops_aws::query_groups;
use kops_core::{CloudName, Cluster as _};
use kops_local::{COMMAND_PERIOD, check_cloud, fleet, list_objects};
use kops_store::Registry;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use crate::{
    environment::CommandEnvironment, error::Error, flags::DumpFlags, get, role::role_word,
};

/// The copied end of a log, in bytes, and the most logs of a machine.
const LONGEST_LOG: u64 = 16 << 20;
const MOST_LOGS: usize = 100;

pub(crate) async fn run(
    registry: &Registry,
    flags: &DumpFlags,
    name: &str,
    context: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    let cluster = get::find_cluster(registry, name)?;
    check_flags(flags, &cluster)?;
    let groups = registry.groups(name)?;
    let tree = |object: &Object| object.to_tree(VersionName::V1alpha2);
    let mut dump = Map::new();
    dump.insert("cluster".to_owned(), tree(&cluster));
    dump.insert("instanceGroups".to_owned(), groups.iter().map(tree).collect());
    if flags.cloud_resources {
        let instances = match cluster.cloud() {
            CloudName::Aws => aws_instances(&cluster, &groups, context).await?,
            CloudName::Local => local_instances(&fleet(registry, name))?,
            _ => Vec::new(),
        };
        dump.insert("instances".to_owned(), instances.into());
    }
    if flags.k8s_resources {
        let client = flags.connection.open(registry, &cluster, None, COMMAND_PERIOD, context)?;
        for (key, resource) in [("nodes", &Resource::NODES), ("pods", &Resource::PODS)] {
            let objects = list_objects(&client, resource, "").await?;
            dump.insert(key.to_owned(), objects.into());
        }
    }
    let mut late = Vec::new();
    if let Some(directory) = &flags.dir {
        let limits =
            LogLimits { machines: flags.max_nodes, time: flags.node_dump_timeout.to_std() };
        late = copy_logs(&fleet(registry, name), Path::new(directory), limits)?;
    }
    let dump = Value::Object(dump);
    match flags.output.as_str() {
        "json" => writeln!(context.out, "{dump:#}")?,
        _ => write!(context.out, "{}", kops_api::yaml::to_string(&dump))?,
    }
    if late.is_empty() {
        return Ok(());
    }
    Err(Error::LateLogs { machines: late.join(", ") })
}

/// Rejects flags without effect: machines are not reached by SSH.
fn check_flags(flags: &DumpFlags, cluster: &Object) -> Result<(), Error> {
    let ssh =
        [("--private-key", flags.private_key.is_some()), ("--ssh-user", flags.ssh_user.is_some())];
    if let Some((flag, _)) = ssh.into_iter().find(|(_, given)| *given) {
        let problem =
            "is for machines that are reached by SSH; kops reads logs of cloud local without it";
        return Err(Error::Flag { flag, problem });
    }
    if flags.dir.is_some() {
        // Logs are files of this machine.
        check_cloud(cluster)?;
    }
    Ok(())
}

/// Returns the machines of cloud local.
fn local_instances(fleet: &Fleet) -> Result<Vec<Value>, Error> {
    let spec = fleet.spec()?.unwrap_or_default();
    let mut instances = Vec::new();
    for group in &spec.groups {
        let role = if group.trusted { "control-plane" } else { "node" };
        for name in group.names() {
            let Some(machine) = fleet.machine(&name)? else { continue };
            instances.push(json!({
                "name": name, "id": machine.id, "instanceGroup": group.name, "roles": [role],
                "privateAddresses": [machine.address],
            }));
        }
    }
    Ok(instances)
}

/// Returns the machines on AWS.
async fn aws_instances(
    cluster: &Object,
    groups: &[Object],
    context: &CommandEnvironment<'_>,
) -> Result<Vec<Value>, Error> {
    let client = kops_aws::open_client(cluster, context.environment)?;
    let mut instances = Vec::new();
    for group in query_groups(&client, cluster.name()).await?.values() {
        let own = groups.iter().find(|own| own.name() == group.instance_group);
        let role = role_word(own.map(|own| own.spec.text("role")).unwrap_or_default());
        instances.extend(group.machines.iter().map(|machine| {
            json!({
                "name": machine.id, "id": machine.id, "instanceGroup": group.instance_group, "roles": [role],
                "zone": machine.zone, "state": machine.state,
            })
        }));
    }
    Ok(instances)
}

/// The limits of copied logs.
#[derive(Clone, Copy)]
struct LogLimits {
    machines: usize,
    /// The time for the logs of one machine.
    time: Duration,
}

/// Copies the logs of machines into a directory for each. Returns the machines whose logs took too long.
fn copy_logs(fleet: &Fleet, to: &Path, limits: LogLimits) -> Result<Vec<String>, Error> {
    let spec = fleet.spec()?.unwrap_or_default();
    let mut late = Vec::new();
    for name in spec.names().take(limits.machines) {
        let until = Instant::now() + limits.time;
        let disk = fleet.disk(&name);
        let directory = to.join(&name);
        let shown = directory.display().to_string();
        std::fs::create_dir_all(&directory)
            .map_err(kops_store::Error::file("making the directory", &shown))?;
        let entries = std::fs::read_dir(disk.join("var/log")).into_iter().flatten().flatten();
        let mut logs: Vec<String> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        logs.retain(|log| log.ends_with(".log"));
        logs.sort();
        for log in logs.iter().take(MOST_LOGS) {
            if Instant::now() >= until {
                late.push(name.clone());
                break;
            }
            copy_log(&disk, &Path::new("var/log").join(log), &directory.join(log))?;
        }
        if let Some(root) = disk.parent() {
            copy_log(root, Path::new("machine.log"), &directory.join("machine.log"))?;
        }
    }
    Ok(late)
}

/// Copies the end of a log. The machine owns its disk, so links that lead out of it are not followed.
fn copy_log(root: &Path, log: &Path, to: &Path) -> Result<(), Error> {
    // A log may be absent, or be no regular file.
    let Ok(mut file) = sys::read_beneath(root, log) else { return Ok(()) };
    let shown = to.display().to_string();
    let failed = || kops_store::Error::file("copying a log to", &shown);
    let size = file.metadata().map_err(failed())?.len();
    file.seek(SeekFrom::Start(size.saturating_sub(LONGEST_LOG))).map_err(failed())?;
    let mut copy = std::fs::File::create(to).map_err(failed())?;
    std::io::copy(&mut file.take(LONGEST_LOG), &mut copy).map_err(failed())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use instances::{FleetSpec, Group};

    use super::*;

    #[test]
    fn copies_only_logs_of_the_machine() {
        let dir = tempfile::tempdir().unwrap_or_else(|e| panic!("{e}"));
        let fleet = Fleet::at(dir.path().join("fleet"));
        let group = Group { name: "a".to_owned(), numbers: [1, 2].into(), ..Group::default() };
        let spec =
            FleetSpec { cluster: "c".to_owned(), groups: vec![group], ..FleetSpec::default() };
        fleet.write(&spec).unwrap_or_else(|e| panic!("{e}"));
        let logs = fleet.disk("a-1").join("var/log");
        fs::create_dir_all(&logs).unwrap();
        fs::write(logs.join("kubelet.log"), "own").unwrap();
        fs::write(logs.join("notes.txt"), "other").unwrap();
        fs::write(dir.path().join("secret"), "secret").unwrap();
        symlink(dir.path().join("secret"), logs.join("host.log")).unwrap();
        fs::create_dir(logs.join("pods.log")).unwrap();
        let large = fs::File::create(logs.join("large.log")).unwrap();
        large.set_len(LONGEST_LOG + 5).unwrap();
        let to = dir.path().join("dump");
        let limits = LogLimits { machines: 1, time: Duration::from_secs(60) };
        let late = copy_logs(&fleet, &to, limits).unwrap_or_else(|e| panic!("{e}"));
        assert!(late.is_empty(), "{late:?}");
        let mut names: Vec<_> =
            fs::read_dir(to.join("a-1")).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["kubelet.log", "large.log"]);
        assert_eq!(fs::metadata(to.join("a-1/large.log")).unwrap().len(), LONGEST_LOG);
        assert!(!to.join("a-2").exists(), "more machines than --max-nodes");
        let (to, limits) = (dir.path().join("late"), LogLimits { time: Duration::ZERO, ..limits });
        let late = copy_logs(&fleet, &to, limits).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(late, ["a-1"]);
        assert_eq!(fs::read_dir(to.join("a-1")).unwrap().count(), 0);
    }
}
