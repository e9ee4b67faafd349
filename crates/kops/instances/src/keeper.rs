//! The keeper process: keeps each group at its size, each machine connected, and each identity valid.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    fs,
    net::IpAddr,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, SystemTime},
};

use nix::{sys::signal, unistd::Pid};
use pki::{KeyAlgorithm, LeafSpec, Subject, Usage, Validity};
use sys::supervision::exited;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
    time::{Instant, sleep},
};

use crate::{
    attach,
    document::{self, Machine, pid_file},
    error::Error,
    fleet::{Fleet, FleetSpec, Group},
    guard::{self, Role},
    identity::not_before,
    json, link,
    process::{END_TIMEOUT, background, record, start_error},
    space::{self, MountNamespace, Processes},
    volume::AttachedVolume,
};

const POLL: Duration = Duration::from_millis(20);
/// The lifetime of an identity certificate. The keeper renews it at half of it.
const IDENTITY_PERIOD: Duration = Duration::from_secs(3600);
const SETTLED: Duration = Duration::from_secs(60);
/// Removal of disks waits for this long, so that new machines start first.
const SWEEP: Duration = Duration::from_secs(20);

/// Kills machine `name` if its ID is still `id`, like a power failure. The keeper then creates a new machine from the
/// group's current settings.
pub fn replace(fleet: &Fleet, name: &str, id: &str) -> Result<(), Error> {
    if fleet.machine(name)?.is_some_and(|machine| machine.id == id)
        && let Some(pid) = pid_file(&fleet.machine_root(name)).running()
    {
        sys::process::kill(pid);
    }
    Ok(())
}

/// Runs the keeper until shutdown. Machines outlive their keeper, and the next keeper adopts them.
pub async fn keep(fleet: Fleet, tasks: &rt::Tasks) -> Result<(), Error> {
    let own = std::process::id();
    if Role::Keeper.running(&fleet).is_some_and(|pid| pid != own.cast_signed()) {
        return Ok(());
    }
    Role::Keeper.record(&fleet, own)?;
    let watched = fleet.clone();
    tasks.keep("guard", move || guard::watch_guard(watched.clone()));
    let cleaned = fleet.clone();
    tasks.keep("disks of machines that ended", move || sweep(cleaned.clone()));
    let mut hangups = signal(SignalKind::hangup()).map_err(Error::Signal)?;
    let mut machines: BTreeMap<String, watch::Sender<FleetSpec>> = BTreeMap::new();
    let mut companions = BTreeSet::new();
    loop {
        let spec = fleet.spec()?.unwrap_or_default();
        for companion in &spec.companions {
            if companions.insert(companion.name.clone()) {
                let (fleet, companion) = (fleet.clone(), companion.clone());
                let name = format!("companion {}", companion.name);
                tasks.spawn_until_shutdown(&name, async move {
                    guard::keep_companion(&fleet, &companion).await;
                });
            }
        }
        // The task of a removed machine sees this in the new state, and returns.
        machines.values().for_each(|sender| drop(sender.send_replace(spec.clone())));
        machines.retain(|name, sender| spec.group_of(name).is_some() && !sender.is_closed());
        for name in spec.names() {
            let Entry::Vacant(free) = machines.entry(name.clone()) else {
                continue;
            };
            let (sender, receiver) = watch::channel(spec.clone());
            let fleet = fleet.clone();
            tasks.spawn_until_shutdown(&format!("machine {name}"), async move {
                keep_machine(&fleet, &name, receiver).await;
            });
            free.insert(sender);
        }
        for name in unwanted_machines(&fleet, &spec) {
            if let Err(error) = remove_machine(&fleet, &spec, &name, false).await {
                tracing::error!(%error, machine = name, "cannot end a removed machine");
            }
        }
        let Some(Some(())) = tasks.shutdown().unless_stopping(hangups.recv()).await else {
            return Ok(());
        };
    }
}

/// Returns the machines that exist but are not wanted.
fn unwanted_machines(fleet: &Fleet, spec: &FleetSpec) -> Vec<String> {
    let entries = fs::read_dir(fleet.root.join("machines")).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| spec.group_of(name).is_none()).collect()
}

/// Keeps one machine running while it is wanted: creates it, waits for its end, and creates it again.
async fn keep_machine(fleet: &Fleet, name: &str, mut changes: watch::Receiver<FleetSpec>) {
    let mut backoff = rt::Backoff::new(Duration::from_millis(200), Duration::from_secs(30));
    loop {
        let spec = changes.borrow_and_update().clone();
        let Some(group) = spec.group_of(name) else {
            return;
        };
        let started = Instant::now();
        match ensure_running(fleet, &spec, group, name).await {
            Ok(pid) => {
                tokio::select! {
                    () = exited(pid) => tracing::warn!(machine = name, "the machine ended; creating a new one"),
                    () = renew_identity(fleet, name) => {}
                    changed = changes.changed() => match changed {
                        // Another size, or other settings of future machines: this machine continues.
                        Ok(()) => continue,
                        Err(_) => return,
                    },
                }
            }
            Err(error) => tracing::error!(%error, machine = name, "cannot create the machine"),
        }
        if let Err(error) = remove_machine(fleet, &spec, name, false).await {
            tracing::error!(%error, machine = name, "cannot clean up after the machine");
        }
        if started.elapsed() > SETTLED {
            backoff.reset();
        }
        sleep(backoff.next(0.0)).await;
    }
}

/// Returns the PID of the machine's first process. Starts the process if it does not run.
async fn ensure_running(
    fleet: &Fleet,
    spec: &FleetSpec,
    group: &Group,
    name: &str,
) -> Result<i32, Error> {
    let root = fleet.machine_root(name);
    let address = spec.addresses.get(name).copied();
    let address = address.ok_or_else(|| Error::MissingAddress { machine: name.to_owned() })?;
    let pid = match pid_file(&root).running().filter(|pid| space::is_inside(*pid)) {
        Some(pid) => pid,
        None => {
            remove_machine(fleet, spec, name, false).await?;
            let (attached, own, machine) = (fleet.clone(), spec.clone(), name.to_owned());
            let work = move || attach::attach(&attached, &own, &machine);
            let volumes = tokio::task::spawn_blocking(work).await??;
            start_machine(fleet, spec, group, Created { name, address, volumes })?
        }
    };
    let own = spec.link()?;
    let connect = move || {
        space::ready(pid)?;
        link::connect(&own, address, false, pid)
    };
    let done = tokio::task::spawn_blocking(connect).await;
    done??;
    Ok(pid)
}

/// A machine that is created, with its attached volumes.
struct Created<'a> {
    name: &'a str,
    address: IpAddr,
    volumes: Vec<AttachedVolume>,
}

/// Creates a machine, and returns the PID of its first process.
fn start_machine(
    fleet: &Fleet,
    spec: &FleetSpec,
    group: &Group,
    created: Created<'_>,
) -> Result<i32, Error> {
    let Created { name, address, volumes } = created;
    let root = fleet.machine_root(name);
    let directory = root.join("document");
    fs::create_dir_all(&directory).map_err(sys::Error::at("creating", &directory))?;
    let machine = Machine {
        cluster: spec.cluster.clone(),
        group: group.name.clone(),
        name: name.to_owned(),
        id: rt::id(),
        made: creation_time(rt::now()),
        address,
        gateway: spec.gateway()?,
        cgroup: format!("{}/{name}", spec.cgroup()),
        trusted: group.trusted,
        user_data: group.user_data.clone(),
        volumes,
    };
    json::write(&document::path(&root), &machine)?;
    issue_identity(fleet, name)?;
    if machine.trusted {
        copy_trusted_files(fleet, &directory.join("told"))?;
    }
    let mut command = Command::new(fleet.binary());
    command.args(["internal", "hold", "--root"]).arg(&fleet.root).args(["--machine", name]);
    let command = background(command, &root.join("machine.log"))?;
    let failed = start_error(&command);
    // Tokio reaps the process, because a zombie would look alive.
    let start = || tokio::process::Command::from(command).spawn();
    let child = space::among(Processes::New, start)?.map_err(failed)?;
    let pid = child.id().unwrap_or_default();
    record(&pid_file(&root), pid)?;
    Ok(pid.cast_signed())
}

/// Copies the files for trusted machines.
fn copy_trusted_files(fleet: &Fleet, to: &Path) -> Result<(), Error> {
    let from = fleet.trusted_files();
    let files = match fs::read_dir(&from) {
        Ok(files) => files,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(sys::Error::at("listing", &from)(error).into()),
    };
    for file in files {
        let file = file.map_err(sys::Error::at("listing", &from))?;
        let content = fs::read(file.path()).map_err(sys::Error::at("reading", file.path()))?;
        pki::write_file(&to.join(file.file_name()), &content, pki::KEY_MODE)?;
    }
    Ok(())
}

/// Issues a machine's identity: a client certificate with its name and group.
fn issue_identity(fleet: &Fleet, name: &str) -> Result<(), Error> {
    let root = fleet.machine_root(name);
    let machine = Machine::load(&document::path(&root))?;
    let authority = fleet.authority()?;
    let spec = LeafSpec {
        subject: Subject::new(machine.name).in_group(machine.group),
        alt_names: Vec::new(),
        usage: Usage::Client,
    };
    // The start of validity encodes the machine's creation time, also after renewals.
    let validity =
        Validity { not_before: not_before(machine.made), not_after: rt::now() + IDENTITY_PERIOD };
    let (cert, key) = authority.issue_new(&spec, KeyAlgorithm::EcdsaP256, validity)?;
    pki::write_key(&root.join("document/identity.key"), &key)?;
    pki::write_cert(&root.join("document/identity.crt"), &cert)?;
    Ok(())
}

/// Returns a creation time in whole seconds, as certificates store it. Rounds up, so that it is not before the end of
/// the previous machine.
fn creation_time(now: SystemTime) -> i64 {
    let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    (since + Duration::from_millis(999)).as_secs().cast_signed()
}

/// Renews a machine's identity before it expires, until the future is dropped.
async fn renew_identity(fleet: &Fleet, name: &str) {
    loop {
        sleep(IDENTITY_PERIOD / 2).await;
        if let Err(error) = issue_identity(fleet, name) {
            tracing::error!(%error, machine = name, "cannot renew the machine's identity");
        }
    }
}

/// Ends every process of a machine and removes its disk, and its volumes if `volumes` is set.
async fn remove_machine(
    fleet: &Fleet,
    spec: &FleetSpec,
    name: &str,
    volumes: bool,
) -> Result<(), Error> {
    let root = fleet.machine_root(name);
    let cgroups = sys::cgroup::detect();
    let group = format!("{}/{name}", spec.cgroup());
    let first = pid_file(&root);
    let namespace = first.running().and_then(MountNamespace::of);
    let start = Instant::now();
    loop {
        let mut targets = namespace.as_ref().map(MountNamespace::processes).unwrap_or_default();
        targets.extend(first.running());
        if targets.is_empty() {
            break;
        }
        for pid in targets {
            let _ = signal::kill(Pid::from_raw(pid), signal::Signal::SIGKILL);
        }
        if let Err(error) = cgroups.kill(&group) {
            tracing::warn!(%error, machine = name, "cannot kill the machine's Pods");
        }
        if start.elapsed() > END_TIMEOUT {
            return Err(Error::Processes { machine: name.to_owned() });
        }
        sleep(POLL).await;
    }
    // Its mounts end with it.
    drop(namespace);
    for _ in 0..50 {
        if cgroups.remove(&group).is_ok() {
            break;
        }
        sleep(POLL).await;
    }
    if let Some(address) = spec.addresses.get(name) {
        link::unplug(&spec.link()?, *address)?;
    }
    let own = fleet.volumes(name);
    attach::detach(own.clone()).await?;
    if volumes && own.exists() {
        fs::remove_dir_all(&own).map_err(sys::Error::at("removing", &own))?;
    }
    if !root.exists() {
        return Ok(());
    }
    let aside = trash_directory(fleet);
    fs::create_dir_all(&aside).map_err(sys::Error::at("creating", &aside))?;
    Ok(fs::rename(&root, aside.join(rt::id())).map_err(sys::Error::at("setting aside", &root))?)
}

/// Returns the directory for the disks of ended machines.
fn trash_directory(fleet: &Fleet) -> PathBuf {
    fleet.root.join("gone")
}

/// Removes the disks of ended machines, delayed so that new machines, which are waited for, use the host's disk first.
async fn sweep(fleet: Fleet) {
    loop {
        sleep(SWEEP).await;
        let aside = trash_directory(&fleet);
        let work = move || {
            for entry in fs::read_dir(&aside).into_iter().flatten().flatten() {
                if let Err(error) = fs::remove_dir_all(entry.path()) {
                    tracing::warn!(%error, path = %entry.path().display(), "cannot remove the disk of an ended \
                         machine");
                }
            }
        };
        if let Err(error) = tokio::task::spawn_blocking(work).await {
            tracing::error!(%error, "the task that removes disks failed");
        }
    }
}

/// Removes a fleet with its machines, volumes and link. Does nothing if the directory has no mark, and fails if it
/// belongs to another cluster.
pub async fn remove(fleet: &Fleet, cluster: &str) -> Result<(), Error> {
    match fleet.owner()? {
        None => return Ok(()),
        Some(owner) if owner == cluster => {}
        Some(owner) => {
            let reason = format!("it belongs to cluster {owner}, not {cluster}");
            return Err(Error::Foreign { path: fleet.root.clone(), reason });
        }
    }
    guard::stop_all(fleet).await?;
    let spec = fleet.spec()?.unwrap_or_default();
    let entries = fs::read_dir(fleet.root.join("machines")).into_iter().flatten().flatten();
    for name in entries.filter_map(|entry| entry.file_name().into_string().ok()) {
        remove_machine(fleet, &spec, &name, true).await?;
    }
    attach::detach(fleet.root.clone()).await?;
    if !spec.link.is_empty() {
        link::remove(&spec.link()?, spec.addresses.values().copied())?;
    }
    let _ = sys::cgroup::detect().remove(&spec.cgroup());
    Ok(fs::remove_dir_all(&fleet.root).map_err(sys::Error::at("removing", &fleet.root))?)
}
