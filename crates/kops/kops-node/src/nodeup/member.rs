//! This machine's etcd member: whether it continues with the data on its volume, joins a running cluster or starts a
//! new one. [`kops_core::member`] decides; this module gathers its inputs and carries the decision out.

use std::{path::PathBuf, time::Duration};

use bootstrap::etcd::Etcd;
use bootstrap_core::{
    constants::{ETCD_CLIENT_PORT, ETCD_PEER_PORT},
    net,
};
use instances::machine::VOLUMES;
use kops_api::Spec as _;
use kops_core::member::{Content, Mark, Start, Tag};
use kops_store::{Backups, ETCD};
use pki::Authority;
use tokio::time::sleep;

use super::{
    context::NodeContext,
    volume::{MemberVolume, StoredState},
};
use crate::{error::Error, etcd_client::etcd_client, store_access::open};

const PAUSE: Duration = Duration::from_secs(1);
/// The time limit for a change of etcd's members.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(60);
/// The time for a learner to start and to catch up.
const PROMOTION_TIMEOUT: Duration = Duration::from_secs(300);

/// A member, with its initial cluster.
pub(super) struct Member {
    pub(super) name: String,
    pub(super) data: PathBuf,
    /// The members for `--initial-cluster`.
    pub(super) members: Vec<(String, String)>,
    /// `true` to join an existing cluster, `false` to start one.
    pub(super) joins: bool,
    /// The promotion of a learner, after it has started.
    pub(super) promotion: Option<Promotion>,
}

/// A learner to be promoted.
pub(super) struct Promotion {
    etcd: Etcd,
    peer_url: String,
}

impl Promotion {
    /// Promotes the learner once it has caught up.
    pub(super) async fn grant(&self) -> Result<(), Error> {
        Ok(self.etcd.promote(&self.peer_url, PROMOTION_TIMEOUT).await?)
    }
}

fn name(address: &str) -> String {
    format!("etcd-{address}")
}

fn peer_url(address: &str) -> String {
    format!("https://{}", net::join_host_port(address, ETCD_PEER_PORT))
}

/// Waits until the member may start, and adds it to a running cluster if necessary.
pub(super) async fn prepare(
    context: &NodeContext,
    base: &str,
    authority: &Authority,
) -> Result<Member, Error> {
    let own = context.machine.address.to_string();
    let mut addresses: Vec<_> =
        context.boot.texts("APIServerIPs").into_iter().map(str::to_owned).collect();
    if !addresses.contains(&own) {
        addresses.push(own.clone());
    }
    let volume = MemberVolume {
        backups: Backups::of_cluster(open(base)?),
        volume: PathBuf::from(format!("{VOLUMES}/{}--{ETCD}--0", context.machine.cluster)),
        cluster: context.machine.cluster.clone(),
        member: name(&own),
        peer_url: peer_url(&own),
        members: addresses.iter().map(|address| name(address)).collect(),
        founders: addresses.iter().map(|address| (name(address), peer_url(address))).collect(),
    };
    let others: Vec<_> = addresses
        .iter()
        .filter(|address| **address != own)
        .map(|address| format!("https://{}", net::join_host_port(address, ETCD_CLIENT_PORT)))
        .collect();
    let etcd = etcd_client(&others, "nodeup", authority)?;
    let mut last_reason = String::new();
    loop {
        let tag = volume.tag()?;
        let stored = volume.stored_state()?;
        // A cluster without a quorum does not answer, so it is queried only if the member has no data.
        let has_data = volume.content()? == Content::Data && stored.is_current(&tag);
        let needs_quorum = !has_data && !others.is_empty();
        let quorum = if needs_quorum { etcd.members().await.ok() } else { None };
        match volume.decide(&tag, &stored, quorum.as_deref())? {
            Start::Run => {
                confirm_mark(&volume, &tag, &stored)?;
                volume.use_volume(tag, &stored)?;
                return Ok(founder(volume, false));
            }
            Start::Begin => {
                volume.set_aside(&tag)?;
                volume.restore(&stored)?;
                volume.use_volume(tag, &stored)?;
                return Ok(founder(volume, false));
            }
            Start::Expected => {
                volume.set_aside(&tag)?;
                volume.use_volume(tag, &stored)?;
                return Ok(founder(volume, true));
            }
            Start::Join => {
                volume.set_aside(&tag)?;
                volume.use_volume(tag, &stored)?;
                return join(volume, etcd, &quorum.unwrap_or_default()).await;
            }
            Start::Mark(mark) => {
                // Unpack first: a damaged backup is then reported while the old data still exists.
                if !mark.backup.is_empty() {
                    volume.unpack(&mark)?;
                }
                volume.write_mark(&mark, &stored)?;
            }
            Start::Wait(reason) => {
                if last_reason != reason {
                    tracing::info!(reason, "the etcd member cannot start yet");
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

/// Returns a founding member.
fn founder(volume: MemberVolume, joins: bool) -> Member {
    let data = volume.data();
    Member { name: volume.member, data, members: volume.founders, joins, promotion: None }
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
    Ok(Member {
        data: volume.data(),
        name: volume.member,
        members: members.into_iter().map(|m| (m.name, m.peer_url)).collect(),
        joins: true,
        promotion: Some(Promotion { etcd, peer_url: volume.peer_url }),
    })
}
