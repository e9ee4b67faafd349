//! The process that keeps a fleet's machines: each group at its size, each machine's cable in, each identity fresh.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    fs,
    os::unix::{fs::MetadataExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, SystemTime},
};

use nix::{sys::signal, unistd::Pid};
use pki::{KeyAlgorithm, LeafSpec, Subject, Usage, Validity};
use sys::{kept::exited, process::PidFile};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
    time::{Instant, sleep},
};

use crate::{
    Error, Fleet, Group, Machine, Wanted, fleet,
    guard::{self, Role},
    link,
    machine::{document, pid_file},
    space::{self, Processes},
};

pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_millis(20);
/// An identity is for the start of a machine; what asks later has what it asked for.
const IDENTITY: Duration = Duration::from_secs(3600);
const SETTLED: Duration = Duration::from_secs(60);
/// Long enough for a machine to come up.
const SWEEP: Duration = Duration::from_secs(20);

pub(crate) fn record(file: &PidFile, pid: u32) -> Result<(), Error> {
    file.record(pid.cast_signed()).map_err(|e| Error::Other(e.to_string()))
}

pub(crate) fn background(mut command: Command, log: &Path) -> Result<Command, Error> {
    let open = || fs::OpenOptions::new().create(true).append(true).open(log);
    let (out, err) = (
        open().map_err(Error::file("opening the log", log))?,
        open().map_err(Error::file("opening the log", log))?,
    );
    command.stdin(Stdio::null()).stdout(out).stderr(err).process_group(0);
    Ok(command)
}

pub(crate) fn not_started(command: &Command) -> impl FnOnce(std::io::Error) -> Error + use<> {
    let program = command.get_program().to_string_lossy().into_owned();
    |source| Error::Start { program, source }
}

/// Ends a machine as a loss of power would, if it still is the one that is meant; the keeper makes another, of what its
/// group is made of now.
pub fn replace(fleet: &Fleet, name: &str, id: &str) -> Result<(), Error> {
    if fleet.machine(name)?.is_some_and(|machine| machine.id == id)
        && let Some(pid) = pid_file(&fleet.machine_root(name)).running()
    {
        sys::process::kill(pid);
    }
    Ok(())
}

/// Keeps a fleet until shutdown. Machines go on without their keeper; the next one adopts them.
pub async fn keep(fleet: Fleet, tasks: &rt::Tasks) -> Result<(), Error> {
    let own = std::process::id();
    if Role::Keeper.running(&fleet).is_some_and(|pid| pid != own.cast_signed()) {
        return Ok(());
    }
    Role::Keeper.record(&fleet, own)?;
    let minded = fleet.clone();
    tasks.keep("guard", move || guard::mind(minded.clone()));
    let swept = fleet.clone();
    tasks.keep("disks of machines that ended", move || sweep(swept.clone()));
    let mut hangups = signal(SignalKind::hangup())
        .map_err(|e| Error::Other(format!("listening for SIGHUP: {e}")))?;
    let mut kept: BTreeMap<String, watch::Sender<Wanted>> = BTreeMap::new();
    let mut beside = BTreeSet::new();
    loop {
        let wanted = fleet.wanted()?.unwrap_or_default();
        for companion in &wanted.companions {
            if beside.insert(companion.name.clone()) {
                let (fleet, companion) = (fleet.clone(), companion.clone());
                let name = format!("companion {}", companion.name);
                tasks.spawn_until_shutdown(&name, async move {
                    guard::accompany(&fleet, &companion).await;
                });
            }
        }
        // One that is not wanted any more is told so, and ends itself.
        kept.values().for_each(|told| drop(told.send_replace(wanted.clone())));
        kept.retain(|name, told| wanted.group_of(name).is_some() && !told.is_closed());
        for name in wanted.groups.iter().flat_map(Group::names) {
            let Entry::Vacant(free) = kept.entry(name.clone()) else {
                continue;
            };
            let (tell, told) = watch::channel(wanted.clone());
            let fleet = fleet.clone();
            tasks.spawn_until_shutdown(&format!("machine {name}"), async move {
                tend(&fleet, &name, told).await;
            });
            free.insert(tell);
        }
        for name in left_over(&fleet, &wanted) {
            if let Err(error) = end(&fleet, &wanted, &name, false).await {
                tracing::error!(%error, machine = name, "ending a machine that is not wanted");
            }
        }
        let Some(Some(())) = tasks.shutdown().unless_stopping(hangups.recv()).await else {
            return Ok(());
        };
    }
}

/// Machines that are there and not wanted.
fn left_over(fleet: &Fleet, wanted: &Wanted) -> Vec<String> {
    let entries = fs::read_dir(fleet.root.join("machines")).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| wanted.group_of(name).is_none()).collect()
}

/// Keeps one machine: makes it, waits for its end, and makes it anew, for as long as it is wanted.
async fn tend(fleet: &Fleet, name: &str, mut told: watch::Receiver<Wanted>) {
    let mut backoff = rt::Backoff::new(Duration::from_millis(200), Duration::from_secs(30));
    loop {
        let wanted = told.borrow_and_update().clone();
        let Some(group) = wanted.group_of(name) else { return };
        let started = Instant::now();
        match bring_up(fleet, &wanted, group, name).await {
            Ok(pid) => {
                tokio::select! {
                    () = exited(pid) => tracing::warn!(machine = name, "ended; making another"),
                    () = refresh(fleet, name) => {}
                    changed = told.changed() => match changed {
                        // Its size alone, or what the next machines are made of: this one goes on.
                        Ok(()) => continue,
                        Err(_) => return,
                    },
                }
            }
            Err(error) => tracing::error!(%error, machine = name, "making a machine"),
        }
        if let Err(error) = end(fleet, &wanted, name, false).await {
            tracing::error!(%error, machine = name, "ending what is left of a machine");
        }
        if started.elapsed() > SETTLED {
            backoff.reset();
        }
        sleep(backoff.next(0.0)).await;
    }
}

/// The pid of the machine's first process, which is started if it does not run.
async fn bring_up(fleet: &Fleet, wanted: &Wanted, group: &Group, name: &str) -> Result<i32, Error> {
    let root = fleet.machine_root(name);
    let address = wanted.addresses.get(name).copied();
    let address = address.ok_or_else(|| {
        Error::Other(format!("machine {name} has no address in the fleet's settings"))
    })?;
    let pid = match pid_file(&root).running().filter(|pid| space::is_inside(*pid)) {
        Some(pid) => pid,
        None => {
            end(fleet, wanted, name, false).await?;
            let directory = root.join("document");
            fs::create_dir_all(&directory).map_err(Error::file("creating", &directory))?;
            let machine = Machine {
                cluster: wanted.cluster.clone(),
                group: group.name.clone(),
                name: name.to_owned(),
                id: rt::id(),
                made: made(rt::now()),
                address,
                gateway: wanted.gateway()?,
                cgroup: format!("{}/{name}", wanted.cgroup()),
                trusted: group.trusted,
                user_data: group.user_data.clone(),
            };
            fleet::write(&document(&root), &machine)?;
            identify(fleet, name)?;
            if machine.trusted {
                tell(fleet, &directory.join("told"))?;
            }
            let mut command = Command::new(fleet.binary());
            command.args(["internal", "hold", "--root"]).arg(&fleet.root).args(["--machine", name]);
            let command = background(command, &root.join("machine.log"))?;
            let failed = not_started(&command);
            // Tokio takes its end, lest it stay as a zombie that looks alive.
            let runtime = tokio::runtime::Handle::current();
            let start = || {
                let _inside = runtime.enter();
                tokio::process::Command::from(command).spawn()
            };
            let child = space::among(Processes::New, start)?.map_err(failed)?;
            let pid = child.id().unwrap_or_default();
            record(&pid_file(&root), pid)?;
            pid.cast_signed()
        }
    };
    let own = wanted.link()?;
    let connect = move || {
        space::ready(pid)?;
        link::connect(&own, address, false, pid)
    };
    let done = tokio::task::spawn_blocking(connect).await;
    done.map_err(|e| Error::Other(e.to_string()))??;
    mounts_of(&root);
    Ok(pid)
}

/// Copies what trusted machines are told.
fn tell(fleet: &Fleet, to: &Path) -> Result<(), Error> {
    let from = fleet.told();
    let files = match fs::read_dir(&from) {
        Ok(files) => files,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Error::file("listing", &from)(error)),
    };
    for file in files {
        let file = file.map_err(Error::file("listing", &from))?;
        let content = fs::read(file.path()).map_err(Error::file("reading", file.path()))?;
        pki::write_file(&to.join(file.file_name()), &content, pki::KEY_MODE)?;
    }
    Ok(())
}

/// Gives a machine the certificate by which it is known to those who configure it.
fn identify(fleet: &Fleet, name: &str) -> Result<(), Error> {
    let root = fleet.machine_root(name);
    let machine = Machine::load(&document(&root))?;
    let authority = fleet.authority()?;
    let spec = LeafSpec {
        subject: Subject::new(machine.name).in_group(machine.group),
        alt_names: Vec::new(),
        usage: Usage::Client,
    };
    // It says when the machine was made, however often it is renewed.
    let validity =
        Validity { not_before: crate::not_before(machine.made), not_after: rt::now() + IDENTITY };
    let (cert, key) = authority.issue_new(&spec, KeyAlgorithm::EcdsaP256, validity)?;
    pki::write_key(&root.join("document/identity.key"), &key)?;
    pki::write_cert(&root.join("document/identity.crt"), &cert)?;
    Ok(())
}

/// The moment as certificates tell it, in whole seconds: rather late than before the end of the machine that was there.
fn made(now: SystemTime) -> i64 {
    let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    (since + Duration::from_millis(999)).as_secs().cast_signed()
}

/// Renews a machine's identity before it expires, for as long as it is let run.
async fn refresh(fleet: &Fleet, name: &str) {
    loop {
        sleep(IDENTITY / 2).await;
        if let Err(error) = identify(fleet, name) {
            tracing::error!(%error, machine = name, "renewing a machine's identity");
        }
    }
}

/// Ends every process of a machine and takes its disk away; its volumes, too, if it is said so.
async fn end(fleet: &Fleet, wanted: &Wanted, name: &str, volumes: bool) -> Result<(), Error> {
    let root = fleet.machine_root(name);
    let cgroups = sys::cgroup::detect();
    let group = format!("{}/{name}", wanted.cgroup());
    let mounts = mounts_of(&root);
    let start = Instant::now();
    loop {
        let mut targets = mounts.map(space::with_mounts).unwrap_or_default();
        targets.extend(pid_file(&root).running());
        if targets.is_empty() {
            break;
        }
        for pid in targets {
            let _ = signal::kill(Pid::from_raw(pid), signal::Signal::SIGKILL);
        }
        if let Err(error) = cgroups.kill(&group) {
            tracing::warn!(%error, machine = name, "ending a machine's Pods");
        }
        if start.elapsed() > PATIENCE {
            return Err(Error::Other(format!(
                "processes of machine {name} do not end; `ps` shows which, and what they wait for"
            )));
        }
        sleep(LOOK).await;
    }
    for _ in 0..50 {
        if cgroups.remove(&group).is_ok() {
            break;
        }
        sleep(LOOK).await;
    }
    if let Some(address) = wanted.addresses.get(name) {
        link::unplug(&wanted.link()?, *address)?;
    }
    let own = fleet.volumes(name);
    if volumes && own.exists() {
        fs::remove_dir_all(&own).map_err(Error::file("removing", &own))?;
    }
    if !root.exists() {
        return Ok(());
    }
    let aside = gone(fleet);
    fs::create_dir_all(&aside).map_err(Error::file("creating", &aside))?;
    fs::rename(&root, aside.join(rt::id())).map_err(Error::file("setting aside", &root))
}

/// Where the disks are of machines that ended.
fn gone(fleet: &Fleet) -> PathBuf {
    fleet.root.join("gone")
}

/// Takes those disks away a while later: what they are on is the next machines' first, who are waited for.
async fn sweep(fleet: Fleet) {
    loop {
        sleep(SWEEP).await;
        let aside = gone(&fleet);
        let work = move || {
            for entry in fs::read_dir(&aside).into_iter().flatten().flatten() {
                if let Err(error) = fs::remove_dir_all(entry.path()) {
                    tracing::warn!(%error, path = %entry.path().display(), "removing a machine's disk");
                }
            }
        };
        if let Err(error) = tokio::task::spawn_blocking(work).await {
            tracing::error!(%error, "removing machines' disks");
        }
    }
}

/// The namespace of mounts of a machine's processes, while one is known; kept beside the pid, because the first process
/// may be gone while others are left.
fn mounts_of(root: &Path) -> Option<u64> {
    let path = root.join("mounts");
    let known = pid_file(root).running().filter(|pid| space::is_inside(*pid));
    let inode = known.and_then(|pid| fs::metadata(space::file(pid, "mnt")).ok()).map(|m| m.ino());
    match inode {
        Some(inode) => {
            let _ = fs::write(&path, inode.to_string());
            Some(inode)
        }
        None => fs::read_to_string(&path).ok()?.trim().parse().ok(),
    }
}

/// Ends a fleet and takes away all that it made, the link and the volumes included. Nothing is touched in a directory
/// that is not marked as the cluster's.
pub async fn remove(fleet: &Fleet, cluster: &str) -> Result<(), Error> {
    match fleet.owner()? {
        None => return Ok(()),
        Some(owner) if owner == cluster => {}
        Some(owner) => {
            let reason = format!("it is of cluster {owner}, not {cluster}");
            return Err(Error::Foreign { path: fleet.root.clone(), reason });
        }
    }
    guard::end(fleet).await?;
    let wanted = fleet.wanted()?.unwrap_or_default();
    let entries = fs::read_dir(fleet.root.join("machines")).into_iter().flatten().flatten();
    for name in entries.filter_map(|entry| entry.file_name().into_string().ok()) {
        end(fleet, &wanted, &name, true).await?;
    }
    if !wanted.link.is_empty() {
        link::remove(&wanted.link()?, wanted.addresses.values().copied())?;
    }
    let _ = sys::cgroup::detect().remove(&wanted.cgroup());
    fs::remove_dir_all(&fleet.root).map_err(Error::file("removing", &fleet.root))
}
