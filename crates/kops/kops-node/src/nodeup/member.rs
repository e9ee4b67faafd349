//! This machine's etcd member: whether it continues with the data on its volume, joins a running cluster or starts a
//! new one. [`kops_core::member`] decides; this module gathers its inputs and carries the decision out.

use std::{path::PathBuf, time::Duration};

use api_config::kubeadm::{Arg, LocalEtcd};
use api_meta::Tree as _;
use bootstrap::etcd::Etcd;
use kops_core::member::{Content, Mark, Start, Tag};
use kops_store::Backups;
use tokio::time::{Instant, sleep};

use super::{
    authority::NodeAuthority,
    context::NodeContext,
    disk::mount_volume,
    etcd_cluster::EtcdCluster,
    volume::{MemberVolume, StoredState},
    writes::Writes,
};
use crate::{error::Error, etcd_client::etcd_client, status, store_access::open};

const PAUSE: Duration = Duration::from_secs(1);
/// The time limit for a change of etcd's members.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(60);
/// The time for a learner to catch up.
const PROMOTION_TIMEOUT: Duration = Duration::from_secs(300);
/// The time for etcd to write its first data.
const START_TIMEOUT: Duration = Duration::from_secs(300);

/// A member, with its initial cluster.
pub(super) struct Member {
    pub(super) name: String,
    pub(super) data: PathBuf,
    /// The members for `--initial-cluster`.
    pub(super) members: Vec<(String, String)>,
    /// `true` to join an existing cluster, `false` to start one.
    pub(super) joins: bool,
    /// The steps after etcd has started.
    pub(super) start: MemberStart,
}

/// The last steps of a member's start, which are carried out once etcd runs.
pub(super) struct MemberStart {
    volume: MemberVolume,
    /// A client of the other members, if the member may be a learner.
    promotion: Option<Etcd>,
    /// `true` if the volume's tag says that etcd has run.
    used: bool,
}

impl MemberStart {
    /// Waits until etcd has written its data, promotes a learner once it has caught up, and records on the volume that
    /// etcd has run.
    pub(super) async fn finish(&self) -> Result<(), Error> {
        if self.used {
            return Ok(());
        }
        let deadline = Instant::now() + START_TIMEOUT;
        while self.volume.content()? != Content::Data {
            if Instant::now() > deadline {
                return Err(Error::EtcdStart { seconds: START_TIMEOUT.as_secs() });
            }
            sleep(PAUSE).await;
        }
        if let Some(etcd) = &self.promotion {
            etcd.promote(&self.volume.peer_url, PROMOTION_TIMEOUT).await?;
        }
        self.volume.record_use().map(drop)
    }
}

impl Member {
    /// Returns the member as `init` runs it. Its address and its data volume stay when the machine is replaced.
    pub(super) fn local_etcd(&self, etcd: &EtcdCluster, address: &str, tag: &str) -> LocalEtcd {
        let all: Vec<_> = self.members.iter().map(|(name, url)| format!("{name}={url}")).collect();
        let state = if self.joins { "existing" } else { "new" };
        let mut extra_args = vec![
            Arg::new("name", self.name.clone()),
            Arg::new("initial-cluster", all.join(",")),
            Arg::new("initial-cluster-state", state),
            Arg::new("initial-cluster-token", format!("etcd-cluster-token-{}", etcd.name)),
        ];
        extra_args.extend(etcd.urls(address));
        LocalEtcd {
            data_dir: self.data.display().to_string(),
            image_tag: tag.to_owned(),
            extra_args,
            ..LocalEtcd::default()
        }
    }
}

/// Waits until the member may start, and adds it to a running cluster if necessary.
pub(super) async fn prepare(
    context: &NodeContext,
    etcd: &EtcdCluster,
    base: &str,
    clients: &NodeAuthority,
) -> Result<Member, Error> {
    let own = context.machine.address.to_string();
    let mut addresses: Vec<_> = context.boot.texts("APIServerIPs").map(str::to_owned).collect();
    if !addresses.contains(&own) {
        addresses.push(own.clone());
    }
    let name = |address: &str| etcd.member_name(address);
    let peer_url = |address: &str| etcd.url(address, etcd.peer_port);
    let volume = MemberVolume {
        backups: Backups::of_cluster(open(base)?, etcd.name),
        volume: mount_volume(&context.machine, etcd.name)?,
        cluster: context.machine.cluster.clone(),
        etcd: etcd.name.to_owned(),
        member: name(&own),
        peer_url: peer_url(&own),
        members: addresses.iter().map(|address| name(address)).collect(),
        founders: addresses.iter().map(|address| (name(address), peer_url(address))).collect(),
        writes: Writes::default(),
    };
    let others: Vec<_> = addresses
        .iter()
        .filter(|address| **address != own)
        .map(|address| etcd.url(address, etcd.client_port))
        .collect();
    let others = if others.is_empty() {
        None
    } else {
        Some(etcd_client(&others, "nodeup", &clients.authority, &clients.trusted)?)
    };
    start(volume, others, &mut status::report_wait).await
}

/// Carries out the decisions for a volume until its member may start. `others` is a client of the other members.
async fn start(
    volume: MemberVolume,
    others: Option<Etcd>,
    report: &mut (dyn FnMut(&str) + Send),
) -> Result<Member, Error> {
    let mut last_reason = String::new();
    loop {
        let tag = volume.tag()?;
        let stored = volume.stored_state()?;
        // A cluster without a quorum does not answer, so it is queried only if the member has no data.
        let has_data = volume.content()? == Content::Data && stored.is_current(&tag);
        let quorum = match &others {
            Some(etcd) if !has_data => etcd.members().await.ok(),
            _ => None,
        };
        match volume.decide(&tag, &stored, quorum.as_deref())? {
            Start::Run => {
                confirm_mark(&volume, &tag, &stored)?;
                // A founder is no learner, and must not wait for the others.
                let is_founder = stored.has_founder(&volume.member, &tag);
                return Ok(member(volume, others.filter(|_| !is_founder), tag.used));
            }
            Start::Begin => {
                volume.set_aside(&tag)?;
                volume.assign(&tag, &stored)?;
                volume.restore(&stored)?;
                return Ok(member(volume, None, false));
            }
            Start::Return => {
                volume.return_data(&tag, &stored)?;
                return Ok(member(volume, None, true));
            }
            Start::Expected => {
                volume.set_aside(&tag)?;
                volume.assign(&tag, &stored)?;
                return Ok(Member { joins: true, ..member(volume, None, false) });
            }
            Start::Join => {
                volume.set_aside(&tag)?;
                volume.assign_new(&tag, &stored)?;
                let etcd = others.ok_or(Error::NoOtherMembers)?;
                return join(volume, etcd, &quorum.unwrap_or_default()).await;
            }
            Start::Mark(mark) => {
                // Unpack first: a damaged backup is then reported while the old data still exists.
                let unpacked =
                    if mark.backup.is_empty() { Ok(()) } else { volume.unpack(&mark).map(drop) };
                match unpacked {
                    Ok(()) => volume.write_mark(&mark, &stored)?,
                    Err(error) => volume.cancel_restore(&mark, error)?,
                }
            }
            Start::Wait(reason) => {
                if last_reason != reason {
                    tracing::info!(reason, "the etcd member cannot start yet");
                    report(&reason);
                }
                last_reason = reason;
                sleep(PAUSE).await;
            }
            Start::Refuse(reason) => {
                let volume = volume.volume.display().to_string();
                return Err(Error::Volume { volume, reason });
            }
        }
    }
}

/// Returns a member that starts with the initial cluster of the spec.
fn member(volume: MemberVolume, promotion: Option<Etcd>, used: bool) -> Member {
    Member {
        name: volume.member.clone(),
        data: volume.data(),
        members: volume.founders.clone(),
        joins: false,
        start: MemberStart { volume, promotion, used },
    }
}

/// Writes the mark of a running cluster, so that the cluster is known to exist even if the volume is lost.
fn confirm_mark(volume: &MemberVolume, tag: &Tag, stored: &StoredState) -> Result<(), Error> {
    if stored.mark.is_some() {
        return Ok(());
    }
    let members = [(volume.member.clone(), tag.id.clone())].into();
    let generation = tag.generation.clone();
    volume.write_mark(&Mark { generation, members, ..Mark::default() }, stored)
}

/// Adds the member to a running cluster as a learner, and removes its predecessor, whose data is lost.
async fn join(
    volume: MemberVolume,
    etcd: Etcd,
    quorum: &[bootstrap::etcd::Member],
) -> Result<Member, Error> {
    let lost = quorum
        .iter()
        .find(|m| m.peer_urls.contains(&volume.peer_url) && !(m.is_learner && m.name.is_empty()));
    if let Some(lost) = lost {
        tracing::info!(member = lost.name, "removing the etcd member whose data is lost");
        etcd.remove(&lost.id, CHANGE_TIMEOUT).await?;
    }
    let members = etcd.add_learner(&volume.member, &volume.peer_url, CHANGE_TIMEOUT).await?;
    let members = members.into_iter().map(|m| (m.name, m.peer_url)).collect();
    Ok(Member { members, joins: true, ..member(volume, Some(etcd), false) })
}

#[cfg(test)]
mod crash_tests;
