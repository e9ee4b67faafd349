//! This machine's member of etcd: whose its volume is, whether a cluster lives that it joins, and whether one may begin.
//! [`kops_core::member`] decides; here is looked, and done.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use bootstrap::etcd::Etcd;
use bootstrap_core::{
    constants::{ETCD_CLIENT_PORT, ETCD_PEER_PORT},
    net,
};
use instances::machine::VOLUMES;
use kops_api::Spec as _;
use kops_core::member::{self, Content, Start, Tag, Volume};
use pki::Authority;
use serde_json::json;
use tokio::time::sleep;
use vfs::{Secrecy, Since, Store, Version};

use super::Known;
use crate::{Error, leave::asker};

/// The only etcd cluster of cloud local.
const NAME: &str = "main";
const PAUSE: Duration = Duration::from_secs(1);
/// How long etcd has to change its members.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a learner has to start and to catch up.
const PROMOTED: Duration = Duration::from_secs(300);

/// A member, and all those that it begins with.
pub(super) struct Member {
    pub(super) name: String,
    pub(super) data: PathBuf,
    /// What `--initial-cluster` says.
    pub(super) members: Vec<(String, String)>,
    /// Whether it joins others, and begins no cluster.
    pub(super) joins: bool,
    /// What is left to do once it runs.
    pub(super) promotion: Option<Promotion>,
}

/// A learner that is to vote.
pub(super) struct Promotion {
    etcd: Etcd,
    peer_url: String,
}

impl Promotion {
    /// Lets it vote once it has caught up.
    pub(super) async fn grant(&self) -> Result<(), Error> {
        Ok(self.etcd.promote(&self.peer_url, PROMOTED).await?)
    }
}

pub(super) fn name(address: &str) -> String {
    format!("etcd-{address}")
}

pub(super) fn peer_url(address: &str) -> String {
    format!("https://{}", net::join_host_port(address, ETCD_PEER_PORT))
}

/// Waits until it is known how the member may begin, and has it expected where others live.
pub(super) async fn prepare(
    known: &Known,
    base: &str,
    authority: &Authority,
) -> Result<Member, Error> {
    let own = known.machine.address.to_string();
    let mut addresses: Vec<_> =
        known.boot.texts("APIServerIPs").into_iter().map(str::to_owned).collect();
    if !addresses.contains(&own) {
        addresses.push(own.clone());
    }
    let place = Place {
        store: Store::open(base)?,
        volume: PathBuf::from(format!("{VOLUMES}/{}--{NAME}--0", known.machine.cluster)),
        cluster: known.machine.cluster.clone(),
        member: name(&own),
        peer_url: peer_url(&own),
        members: addresses.iter().map(|address| name(address)).collect(),
    };
    let others: Vec<_> = addresses
        .iter()
        .filter(|address| **address != own)
        .map(|address| format!("https://{}", net::join_host_port(address, ETCD_CLIENT_PORT)))
        .collect();
    let etcd = asker(&others, "nodeup", authority)?;
    let all = |address: &String| (name(address), peer_url(address));
    let founders: Vec<_> = addresses.iter().map(all).collect();
    let member = |members, joins, promotion| Member {
        name: place.member.clone(),
        data: place.volume.join("data"),
        members,
        joins,
        promotion,
    };
    let mut told = String::new();
    loop {
        let tag = place.tag()?;
        // Who asks a cluster without a quorum gets no answer; whose data is there need not ask.
        let asks = !others.is_empty() && place.content()? == Content::Blank;
        let quorum = if asks { etcd.members().await.ok() } else { None };
        match place.decide(&tag, quorum.as_deref())? {
            Start::Run => {
                // From now on nobody takes the cluster for one that never was, whatever becomes of the volume.
                place.mark(&[(place.member.clone(), tag.id.clone())].into())?;
                place.use_volume(tag)?;
                return Ok(member(founders, false, None));
            }
            Start::Begin => {
                place.use_volume(tag)?;
                return Ok(member(founders, false, None));
            }
            Start::Expected => {
                place.use_volume(tag)?;
                return Ok(member(founders, true, None));
            }
            Start::Join => {
                place.use_volume(tag)?;
                let before = quorum.unwrap_or_default();
                let lost = before.iter().find(|m| {
                    m.peer_urls.contains(&place.peer_url) && !(m.is_learner && m.name.is_empty())
                });
                if let Some(lost) = lost {
                    tracing::info!(member = lost.name, "removing the member whose data is gone");
                    etcd.remove(&lost.id, PATIENCE).await?;
                }
                let members = etcd.add_learner(&place.member, &place.peer_url, PATIENCE).await?;
                let members = members.into_iter().map(|m| (m.name, m.peer_url)).collect();
                let promotion = Promotion { etcd, peer_url: place.peer_url.clone() };
                return Ok(member(members, true, Some(promotion)));
            }
            Start::Mark(ids) => place.mark(&ids)?,
            Start::Wait(reason) => {
                if told != reason {
                    tracing::info!(reason, "the member of etcd does not begin yet");
                }
                told = reason;
                sleep(PAUSE).await;
            }
            Start::Refuse(reason) => {
                let volume = place.volume.display();
                return Err(Error::Usage(format!("etcd's volume {volume}: {reason}")));
            }
        }
    }
}

/// A volume, and the store in which members tell each other of theirs.
struct Place {
    store: Store,
    volume: PathBuf,
    cluster: String,
    member: String,
    peer_url: String,
    members: Vec<String>,
}

/// In the store: that the cluster was begun, and with which volumes.
fn created() -> String {
    format!("backups/etcd/{NAME}/control/etcd-cluster-created")
}

fn blank(member: &str) -> String {
    format!("backups/etcd/{NAME}/control/blank/{member}")
}

impl Place {
    /// The volume's tag, which is written if there is none. A volume of etcd's without one is its place's: nobody else has
    /// been given the directory.
    fn tag(&self) -> Result<Tag, Error> {
        let path = self.volume.join("volume.json");
        let shown = path.display().to_string();
        match fs::read_to_string(&path) {
            Ok(text) => Tag::read(&text).ok_or_else(|| {
                Error::Usage(format!("{shown} says not whose volume this is; move the volume away"))
            }),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let tag = Tag {
                    cluster: self.cluster.clone(),
                    etcd: NAME.to_owned(),
                    member: self.member.clone(),
                    id: rt::id(),
                    used: self.content()? == Content::Data,
                };
                self.write_tag(&tag)?;
                Ok(tag)
            }
            Err(error) => Err(Error::file("reading", &shown)(error)),
        }
    }

    fn write_tag(&self, tag: &Tag) -> Result<(), Error> {
        let shown = self.volume.display().to_string();
        fs::create_dir_all(&self.volume).map_err(Error::file("making the directory", &shown))?;
        let path = self.volume.join("volume.json");
        Ok(pki::write_file(&path, tag.to_text().as_bytes(), pki::PUBLIC_MODE)?)
    }

    /// From now on the volume may hold what etcd has promised.
    fn use_volume(&self, tag: Tag) -> Result<(), Error> {
        if tag.used { Ok(()) } else { self.write_tag(&Tag { used: true, ..tag }) }
    }

    fn content(&self) -> Result<Content, Error> {
        let entries = |path: &Path| -> Result<Vec<String>, Error> {
            let shown = path.display().to_string();
            match fs::read_dir(path) {
                Ok(entries) => {
                    let names = entries.filter_map(Result::ok).map(|entry| entry.file_name());
                    Ok(names.map(|name| name.to_string_lossy().into_owned()).collect())
                }
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
                Err(error) => Err(Error::file("reading", &shown)(error)),
            }
        };
        let other = |name: &String| !["volume.json", "data", "lost+found"].contains(&name.as_str());
        if entries(&self.volume)?.iter().any(other) {
            return Ok(Content::Foreign);
        }
        let data = entries(&self.volume.join("data"))?;
        Ok(match data.iter().any(|name| name == "member") {
            true => Content::Data,
            false if data.is_empty() => Content::Blank,
            false => Content::Foreign,
        })
    }

    fn decide(
        &self,
        tag: &Tag,
        quorum: Option<&[bootstrap::etcd::Member]>,
    ) -> Result<Start, Error> {
        let content = self.content()?;
        let quorum: Option<Vec<_>> = quorum.map(|members| {
            let known = members.iter().map(|m| member::Known {
                peer_url: m.peer_urls.first().cloned().unwrap_or_default(),
                name: m.name.clone(),
                learner: m.is_learner,
            });
            known.collect()
        });
        let begun = match self.store.read(&created())? {
            None => None,
            Some((content, _)) => Some(
                serde_json::from_slice(&content)
                    .map_err(|e| Error::Usage(format!("{} of the state store: {e}", created())))?,
            ),
        };
        // Only a cluster that has never been needs to hear of blank volumes.
        if content == Content::Blank && begun.is_none() && quorum.is_none() {
            self.tell_blank(&tag.id)?;
        }
        let mut told = BTreeMap::new();
        for member in &self.members {
            if let Some((id, _)) = self.store.read(&blank(member))? {
                told.insert(member.clone(), String::from_utf8_lossy(&id).into_owned());
            }
        }
        let directory = format!("backups/etcd/{NAME}");
        let backup = self.store.list(&directory)?;
        let backup = backup.iter().any(|name| !name.starts_with(&format!("{directory}/control/")));
        Ok(member::start(&Volume {
            cluster: &self.cluster,
            etcd: NAME,
            member: &self.member,
            peer_url: &self.peer_url,
            tag: Some(tag),
            content,
            members: &self.members,
            quorum: quorum.as_deref(),
            begun: begun.as_ref(),
            blank: &told,
            backup,
        }))
    }

    fn tell_blank(&self, id: &str) -> Result<(), Error> {
        let name = blank(&self.member);
        let since = match self.store.read(&name)? {
            Some((old, _)) if old == id.as_bytes() => return Ok(()),
            Some((old, _)) => Since::Read(Version::of(&old)),
            None => Since::Absent,
        };
        self.store.write(&name, id.as_bytes(), &since, Secrecy::Open)?;
        Ok(())
    }

    /// Marks the store. Of several that do so at once the first is right, and the others look again.
    fn mark(&self, ids: &BTreeMap<String, String>) -> Result<(), Error> {
        let content = json!(ids).to_string();
        match self.store.write(&created(), content.as_bytes(), &Since::Absent, Secrecy::Open) {
            Ok(_) | Err(vfs::Error::Conflict { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(directory: &Path, member: &str) -> Place {
        Place {
            store: Store::open(&format!("file://{}/store", directory.display())).unwrap(),
            volume: directory.join(member),
            cluster: "c".to_owned(),
            member: member.to_owned(),
            peer_url: format!("https://{member}"),
            members: ["a", "b"].map(str::to_owned).into(),
        }
    }

    fn decide(place: &Place) -> Start {
        place.decide(&place.tag().unwrap(), None).unwrap()
    }

    #[test]
    fn a_cluster_begins_once_with_all_blank_volumes() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (place(dir.path(), "a"), place(dir.path(), "b"));
        assert!(matches!(decide(&a), Start::Wait(reason) if reason.contains("not yet of b")));
        let Start::Mark(ids) = decide(&b) else { panic!("all are blank") };
        b.mark(&ids).unwrap();
        a.mark(&BTreeMap::new()).unwrap();
        for place in [&a, &b] {
            assert_eq!(decide(place), Start::Begin);
            place.use_volume(place.tag().unwrap()).unwrap();
            // It was begun, and may have promised something.
            assert!(matches!(decide(place), Start::Wait(_)));
            fs::create_dir_all(place.volume.join("data/member")).unwrap();
            assert_eq!(decide(place), Start::Run);
        }
        // The volume is lost: nothing is begun again.
        fs::remove_dir_all(&a.volume).unwrap();
        assert!(matches!(decide(&a), Start::Wait(reason) if reason.contains("begun before")));
    }

    #[test]
    fn others_volumes_and_what_is_no_volume_are_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (place(dir.path(), "a"), place(dir.path(), "b"));
        a.tag().unwrap();
        fs::rename(&a.volume, &b.volume).unwrap();
        assert!(matches!(decide(&b), Start::Refuse(reason) if reason.contains("member \"a\"")));
        fs::create_dir_all(a.volume.join("photos")).unwrap();
        assert!(matches!(decide(&a), Start::Refuse(_)));
        fs::write(b.volume.join("volume.json"), "{\"cluster\": 5}").unwrap();
        assert!(b.tag().unwrap_err().to_string().contains("says not whose"));
        // A store with a backup and no mark is of a cluster that was.
        let c = place(dir.path(), "c");
        c.store
            .write("backups/etcd/main/2026/etcd.backup.gz", b"x", &Since::Absent, Secrecy::Open)
            .unwrap();
        assert!(matches!(decide(&c), Start::Refuse(reason) if reason.contains("backup")));
    }
}
