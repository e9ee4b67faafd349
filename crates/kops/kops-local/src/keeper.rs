//! The process that maintains a cluster's machines on this host. [`instances`] replaces machines that have ended. This
//! module terminates those whose Nodes stay not Ready, so that they are replaced.

use std::{net::IpAddr, path::PathBuf, time::Duration};

use api_meta::Tree as _;
use client::{Client, Resource};
use events::{EventRecorder, ObjectRef};
use instances::{Fleet, FleetSpec, Group};
use kops_core::{
    heal::{Healing, MachineHealth, heal},
    life,
};
use kops_store::{Keyset, Registry};
use pki::Subject;
use tokio::time::{Instant, sleep, timeout};

use crate::{
    error::Error,
    fleet::open_registry,
    kubeconfig::{self, issue_kubeconfig},
    names::KEEPER,
    restore::RestoreProgress,
    state::{ClusterState, created_at},
};

const POLL: Duration = Duration::from_secs(5);
/// The time for a control plane to report its readiness.
const READY_TIMEOUT: Duration = Duration::from_secs(3);
/// The lifetime of the keeper's client certificate. It is renewed when half of this time has passed.
const PERIOD: Duration = Duration::from_secs(30 * 86_400);

/// Runs `internal fleet`: maintains and heals the machines of a cluster, until shutdown.
pub async fn keep(root: PathBuf, tasks: &rt::Tasks) -> Result<(), Error> {
    let fleet = Fleet::at(root);
    let (healed, own) = (fleet.clone(), tasks.clone());
    tasks.keep("healing", move || {
        let (fleet, tasks) = (healed.clone(), own.clone());
        async move {
            if let Err(error) = heal_machines(&fleet, &tasks).await {
                tracing::warn!(%error, "could not heal machines");
            }
        }
    });
    Ok(instances::keep(fleet, tasks).await?)
}

/// Heals the machines for half the certificate's lifetime, or until its authority is rotated.
async fn heal_machines(fleet: &Fleet, tasks: &rt::Tasks) -> Result<(), Error> {
    let spec = fleet.spec()?.unwrap_or_default();
    let registry = open_registry(fleet, &spec)?;
    let (subject, issuer) = (Subject::new(KEEPER), signer(&registry, &spec.cluster)?);
    let access = issue_kubeconfig(&registry, &spec.cluster, subject, PERIOD, rt::now())?;
    let client = Client::from_kubeconfig(&access, &version::user_agent("kops-instances"))?;
    let recorder = EventRecorder::start(client.clone(), KEEPER, &rt::hostname(), tasks);
    let (until, mut last_reason) = (Instant::now() + PERIOD / 2, String::new());
    let mut restore = RestoreProgress::default();
    while Instant::now() < until {
        sleep(POLL).await;
        let spec = fleet.spec()?.unwrap_or_default();
        restore.advance(&registry, fleet, &spec, is_any_ready(&access, &spec)).await?;
        // Without the API, the health of machines is unknown.
        let Ok(state) = ClusterState::observe(&client, fleet, &spec).await else {
            // After a rotation the API rejects certificates of the old authority.
            if signer(&registry, &spec.cluster)? != issuer {
                return Ok(());
            }
            continue;
        };
        let machines = machine_health(&spec, &state, &access).await?;
        match heal(&machines, rt::now().into()) {
            Healing::Nothing => last_reason.clear(),
            Healing::Wait { machine, reason } => {
                if last_reason != reason {
                    tracing::warn!(
                        machine,
                        reason,
                        "the machine is not ready, but is not replaced"
                    );
                    recorder.warning(
                        node_reference(&state, &machine),
                        "InstanceNotReplaced",
                        &reason,
                    );
                }
                last_reason = reason;
            }
            Healing::Replace { machine, ill } => {
                replace_machine(&registry, fleet, &state, &machine, ill, &recorder)?;
            }
        }
    }
    Ok(())
}

/// Returns the ID of the keypair that signs clients' certificates.
fn signer(registry: &Registry, cluster: &str) -> Result<Option<String>, Error> {
    let keyset = Keyset::read(registry, cluster, "kubernetes-ca")?;
    Ok(keyset.map(|keyset| keyset.primary_id().to_owned()))
}

/// Reports whether a control plane's API server is ready.
async fn is_any_ready(access: &api_config::Kubeconfig, spec: &FleetSpec) -> Result<bool, Error> {
    for name in spec.groups.iter().filter(|group| group.trusted).flat_map(Group::names) {
        if let Some(address) = spec.addresses.get(&name)
            && is_api_ready(access, *address).await?
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the state of each relevant machine.
async fn machine_health(
    spec: &FleetSpec,
    state: &ClusterState,
    access: &api_config::Kubeconfig,
) -> Result<Vec<MachineHealth>, Error> {
    let mut all = Vec::new();
    for group in &spec.groups {
        for name in group.members() {
            let Some(machine) = state.machines.get(&name) else { continue };
            let (ready, since) = state.node(&name).map(life::readiness).unwrap_or_default();
            all.push(MachineHealth {
                control_plane: group.trusted,
                created: created_at(machine),
                last_sign: state.last_sign(&name),
                ready,
                since,
                repair_after: group.repair_after.map(Duration::from_secs),
                member_answers: group.trusted && is_api_ready(access, machine.address).await?,
                name,
            });
        }
    }
    Ok(all)
}

/// Reports whether a control plane's API server is ready, which requires its etcd member.
async fn is_api_ready(access: &api_config::Kubeconfig, address: IpAddr) -> Result<bool, Error> {
    let mut own = access.clone();
    for cluster in &mut own.clusters {
        cluster.cluster.server = kubeconfig::url(address);
    }
    let client = Client::from_kubeconfig(&own, &version::user_agent("kops-instances"))?;
    let request = client.call(http::Method::GET, "/readyz", "", Default::default());
    Ok(matches!(timeout(READY_TIMEOUT, request).await, Ok(Ok(_))))
}

fn node_reference(state: &ClusterState, machine: &str) -> ObjectRef {
    let node = state.node(machine);
    ObjectRef {
        api_version: Resource::NODES.api_version(),
        kind: Resource::NODES.kind.into(),
        name: machine.to_owned(),
        uid: node.map(|node| node.text("metadata.uid")).unwrap_or_default().to_owned(),
        ..ObjectRef::default()
    }
}

/// Terminates an unready machine, unless another command holds the cluster's lock.
fn replace_machine(
    registry: &Registry,
    fleet: &Fleet,
    state: &ClusterState,
    name: &str,
    ill: Duration,
    recorder: &EventRecorder,
) -> Result<(), Error> {
    let Some(machine) = state.machines.get(name) else { return Ok(()) };
    let lock = match registry.lock(&machine.cluster, KEEPER, rt::now()) {
        Ok(lock) => lock,
        Err(error) => {
            tracing::info!(%error, machine = name, "the machine is not replaced now");
            return Ok(());
        }
    };
    let note =
        format!("Instance {} was not ready for {} s: replacing it", machine.id, ill.as_secs());
    tracing::warn!(machine = name, note);
    recorder.warning(node_reference(state, name), "InstanceReplaced", note);
    let replaced = instances::replace(fleet, name, &machine.id);
    registry.unlock(lock)?;
    Ok(replaced?)
}
