//! The process that keeps a cluster's machines on this machine: those that end are made anew by [`instances`], and those whose
//! Nodes do not become Ready again are ended here, so that they are.

use std::{net::IpAddr, path::PathBuf, time::Duration};

use client::{Client, Resource};
use events::{EventRecorder, ObjectRef};
use instances::{Fleet, Group, Wanted};
use kops_api::Spec as _;
use kops_core::{
    heal::{Healing, Patient, heal},
    life,
};
use pki::Subject;
use tokio::time::{Instant, sleep, timeout};

use crate::{
    Error, kubeconfig,
    local::{self, KEEPER},
    registry::Registry,
    seen::{self, Seen},
};

const LOOK: Duration = Duration::from_secs(5);
/// How long a control plane has to say whether its member of etcd answers.
const ANSWER: Duration = Duration::from_secs(3);
/// For how long the certificate is good by which it speaks to the API, which is made anew in time.
const PERIOD: Duration = Duration::from_secs(30 * 86_400);

/// `internal fleet`: keeps the machines of a cluster, and heals them, until shutdown.
pub async fn keep(root: PathBuf, tasks: &rt::Tasks) -> Result<(), Error> {
    let fleet = Fleet::at(root);
    let (healed, own) = (fleet.clone(), tasks.clone());
    tasks.keep("healing", move || {
        let (fleet, tasks) = (healed.clone(), own.clone());
        async move {
            if let Err(error) = look_after(&fleet, &tasks).await {
                tracing::warn!(%error, "healing machines");
            }
        }
    });
    Ok(instances::keep(fleet, tasks).await?)
}

/// Looks after the machines, for as long as its certificate is good.
async fn look_after(fleet: &Fleet, tasks: &rt::Tasks) -> Result<(), Error> {
    let wanted = fleet.wanted()?.unwrap_or_default();
    let registry = local::registry(fleet, &wanted)?;
    let subject = Subject::new(KEEPER);
    let made = kubeconfig::made(&registry, &wanted.cluster, subject, PERIOD, rt::now())?;
    let client = Client::from_kubeconfig(&made, "kops-instances/v1.36.2 (windlass)")?;
    let recorder = EventRecorder::start(client.clone(), KEEPER, &rt::hostname(), tasks);
    let (until, mut waited) = (Instant::now() + PERIOD / 2, String::new());
    while Instant::now() < until {
        sleep(LOOK).await;
        let wanted = fleet.wanted()?.unwrap_or_default();
        begin_anew(&registry, fleet, &wanted)?;
        // Out of reach the API says nothing of the machines.
        let Ok(seen) = Seen::look(&client, fleet, &wanted).await else { continue };
        let patients = patients(&wanted, &seen, &made).await?;
        match heal(&patients, rt::now().into()) {
            Healing::Nothing => waited.clear(),
            Healing::Wait { machine, reason } => {
                if waited != reason {
                    tracing::warn!(machine, reason, "is not ready, and is not replaced");
                    recorder.warning(regarding(&seen, &machine), "InstanceNotReplaced", &reason);
                }
                waited = reason;
            }
            Healing::Replace { machine, ill } => {
                replace(&registry, fleet, &seen, &machine, ill, &recorder)?;
            }
        }
    }
    Ok(())
}

/// Ends all control planes at once that began before a command to restore a backup: those that come begin with that.
fn begin_anew(registry: &Registry, fleet: &Fleet, wanted: &Wanted) -> Result<(), Error> {
    let backups = registry.backups(&wanted.cluster);
    let mark = backups.mark()?.map(|(mark, _)| mark);
    let Some(restore) = backups.pending(mark.as_ref())? else { return Ok(()) };
    for name in wanted.groups.iter().filter(|group| group.trusted).flat_map(Group::names) {
        let Some(machine) = fleet.machine(&name)? else { continue };
        if restore.is_after(machine.made) {
            tracing::warn!(
                machine = name,
                backup = restore.backup,
                "ends, because a backup is restored"
            );
            instances::replace(fleet, &name, &machine.id)?;
        }
    }
    Ok(())
}

/// What is known of each machine that counts.
async fn patients(
    wanted: &Wanted,
    seen: &Seen,
    access: &api_config::Kubeconfig,
) -> Result<Vec<Patient>, Error> {
    let mut all = Vec::new();
    for group in &wanted.groups {
        for name in group.members() {
            let Some(machine) = seen.machines.get(&name) else { continue };
            let (ready, since) = seen.node(&name).map(life::readiness).unwrap_or_default();
            all.push(Patient {
                control_plane: group.trusted,
                made: seen::made(machine),
                seen: seen.sign(&name),
                ready,
                since,
                repair_after: group.repair_after.map(Duration::from_secs),
                member_answers: group.trusted && answers(access, machine.address).await?,
                name,
            });
        }
    }
    Ok(all)
}

/// Whether a control plane's API server is ready, which it is not without its member of etcd.
async fn answers(access: &api_config::Kubeconfig, address: IpAddr) -> Result<bool, Error> {
    let mut own = access.clone();
    for cluster in &mut own.clusters {
        cluster.cluster.server = kubeconfig::url(address);
    }
    let client = Client::from_kubeconfig(&own, "kops-instances/v1.36.2 (windlass)")?;
    let asked = client.call(http::Method::GET, "/readyz", "", Default::default());
    Ok(matches!(timeout(ANSWER, asked).await, Ok(Ok(_))))
}

fn regarding(seen: &Seen, machine: &str) -> ObjectRef {
    let node = seen.node(machine);
    ObjectRef {
        api_version: Resource::NODES.api_version(),
        kind: Resource::NODES.kind.into(),
        name: machine.to_owned(),
        uid: node.map(|node| node.text("metadata.uid")).unwrap_or_default().to_owned(),
        ..ObjectRef::default()
    }
}

/// Ends a machine that is ill. Whoever else changes the cluster goes first.
fn replace(
    registry: &Registry,
    fleet: &Fleet,
    seen: &Seen,
    name: &str,
    ill: Duration,
    recorder: &EventRecorder,
) -> Result<(), Error> {
    let Some(machine) = seen.machines.get(name) else { return Ok(()) };
    let lock = match registry.hold(&machine.cluster, KEEPER, rt::now()) {
        Ok(lock) => lock,
        Err(error) => {
            tracing::info!(%error, machine = name, "is not replaced now");
            return Ok(());
        }
    };
    let said = format!(
        "Instance {} was not ready for {} s: another takes its place",
        machine.id,
        ill.as_secs()
    );
    tracing::warn!(machine = name, said);
    recorder.warning(regarding(seen, name), "InstanceReplaced", said);
    let done = instances::replace(fleet, name, &machine.id);
    registry.unlock(lock)?;
    Ok(done?)
}
