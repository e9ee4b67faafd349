//! The desired state of a cluster's machines, and the directory that stores it.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    fs,
    net::IpAddr,
    path::PathBuf,
};

use data_encoding::HEXLOWER;
use net_core::Cidr;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::{
    document::{self, Machine},
    error::Error,
    json,
    link::{self, Link},
    volume::Volume,
};

const MARK: &str = ".windlass-instances";
/// The directory contains private keys, so other users of the host get no access.
const ROOT_MODE: u32 = 0o750;

/// The directory of one cluster's machines.
#[derive(Clone, Debug)]
pub struct Fleet {
    /// The path of the directory.
    pub root: PathBuf,
}

/// The desired state of a fleet, stored in `fleet.json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FleetSpec {
    /// The cluster's name.
    pub cluster: String,
    /// The address range of the link between the machines, as a CIDR. Empty until it is chosen.
    pub link: String,
    /// The groups of machines.
    pub groups: Vec<Group>,
    /// The addresses of machines by name. They stay while the machine is wanted.
    pub addresses: BTreeMap<String, IpAddr>,
    /// Directories of the host that are hidden from machines that are not trusted.
    pub secret: Vec<PathBuf>,
    /// Programs that run on the host, beside the machines.
    pub companions: Vec<Companion>,
    /// The volumes. A trusted machine without any has a directory instead, as in earlier versions.
    #[serde(default)]
    pub volumes: Vec<Volume>,
}

/// A command of the fleet's program that runs on the host as long as the fleet exists.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Companion {
    /// The name, for its PID file and log.
    pub name: String,
    /// The arguments of the command.
    pub args: Vec<String>,
}

/// A group of machines with the same settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Group {
    /// The name, which prefixes the names of its machines.
    pub name: String,
    /// The numbers of its members.
    pub numbers: BTreeSet<u32>,
    /// The numbers of detached machines. Each runs until it is released, and a new member has replaced it.
    pub detached: BTreeSet<u32>,
    /// The seconds for which a machine's Node may be not ready before the machine is replaced; `None` for no repair.
    pub repair_after: Option<u64>,
    /// `true` if its machines see the secret directories and have volumes.
    pub trusted: bool,
    /// The input of its machines' program, which they are created with.
    pub user_data: String,
}

impl Group {
    /// Returns the names of all machines: members first, then detached ones.
    pub fn names(&self) -> impl Iterator<Item = String> {
        self.numbers.iter().chain(&self.detached).map(|number| self.machine(*number))
    }

    /// Returns the names of the members.
    pub fn members(&self) -> impl Iterator<Item = String> {
        self.numbers.iter().map(|number| self.machine(*number))
    }

    fn machine(&self, number: u32) -> String {
        format!("{}-{number}", self.name)
    }

    /// Returns the number of members.
    pub fn size(&self) -> u32 {
        self.numbers.len().try_into().unwrap_or(u32::MAX)
    }

    /// Sets the number of members. Growth takes the lowest free numbers, and shrinking removes the highest ones.
    pub fn resize(&mut self, size: u32) {
        while self.size() > size {
            self.numbers.pop_last();
        }
        let mut free = 1..;
        while self.size() < size {
            let next = free.find(|n| !self.numbers.contains(n) && !self.detached.contains(n));
            self.numbers.extend(next);
        }
    }

    /// Detaches a machine and adds a member in its place. Returns `false` if the machine was not a member.
    pub fn detach(&mut self, machine: &str) -> bool {
        let number = self.numbers.iter().copied().find(|number| self.machine(*number) == machine);
        let Some(number) = number else { return false };
        let size = self.size();
        self.numbers.remove(&number);
        self.detached.insert(number);
        self.resize(size);
        true
    }

    /// Removes a detached machine, which the keeper then ends. Returns `false` if the machine was not detached.
    pub fn release(&mut self, machine: &str) -> bool {
        let number = self.detached.iter().copied().find(|number| self.machine(*number) == machine);
        number.is_some_and(|number| self.detached.remove(&number))
    }

    /// Removes a machine, which the keeper then ends. Returns `false` if the group has no such machine.
    pub fn remove(&mut self, machine: &str) -> bool {
        let all = self.numbers.iter().chain(&self.detached).copied();
        let number = all.into_iter().find(|number| self.machine(*number) == machine);
        number.is_some_and(|number| self.numbers.remove(&number) || self.detached.remove(&number))
    }

    /// Returns the version of the user data.
    pub fn version(&self) -> String {
        document::version(&self.user_data)
    }
}

impl FleetSpec {
    /// Returns the group of a machine.
    pub fn group_of(&self, machine: &str) -> Option<&Group> {
        self.groups.iter().find(|group| group.names().any(|name| name == machine))
    }

    /// Returns the names of all machines.
    pub fn names(&self) -> impl Iterator<Item = String> {
        self.groups.iter().flat_map(Group::names)
    }

    /// Returns this state together with the machines of `old` that it lacks, their addresses, and its volumes.
    pub fn with_machines_of(&self, old: &Self) -> Self {
        let mut all = self.clone();
        for before in &old.groups {
            match all.groups.iter_mut().find(|group| group.name == before.name) {
                Some(group) => {
                    let kept = before.numbers.difference(&group.detached).copied();
                    group.numbers = group.numbers.iter().copied().chain(kept).collect();
                }
                None => all.groups.push(before.clone()),
            }
        }
        let names: BTreeSet<String> = all.names().collect();
        let addresses = old.addresses.iter().filter(|(name, _)| names.contains(*name));
        for (name, address) in addresses {
            all.addresses.entry(name.clone()).or_insert(*address);
        }
        let is_missing = |old: &&Volume| !self.volumes.iter().any(|volume| volume.id == old.id);
        all.volumes.extend(old.volumes.iter().filter(is_missing).cloned());
        all
    }

    /// Returns the range of the machines' addresses.
    pub fn subnet(&self) -> Result<Cidr, Error> {
        self.link.parse().map_err(|_| Error::LinkRange { range: self.link.clone() })
    }

    /// Returns the host's address on the link.
    pub fn gateway(&self) -> Result<IpAddr, Error> {
        link::gateway(self.subnet()?)
    }

    /// Returns the link. Its bridge has a name of 11 bytes, so that the names of cables fit into 15.
    pub fn link(&self) -> Result<Link, Error> {
        Ok(Link { bridge: format!("kops-{}", self.short()), subnet: self.subnet()?, first: None })
    }

    /// Returns a short hash that is unique on this host, also if two clusters have the same name.
    fn short(&self) -> String {
        let sum = Sha256::digest(format!("{} {}", self.cluster, self.link).as_bytes());
        HEXLOWER.encode(sum.get(..3).unwrap_or(&sum))
    }

    /// Returns the parent cgroup of all Pods of the machines.
    pub fn cgroup(&self) -> String {
        format!("/windlass-kops-{}", self.short())
    }

    /// Assigns an address to each machine, and releases those of removed machines. If the link has no range, chooses
    /// one that overlaps none of `taken`.
    pub fn assign(&mut self, taken: &[Cidr]) -> Result<(), Error> {
        if self.link.is_empty() {
            let mut all = link::known_ranges()?;
            all.extend_from_slice(taken);
            self.link = link::choose_subnet(&all)?.to_string();
        }
        let subnet = self.subnet()?;
        let names: BTreeSet<String> = self.names().collect();
        self.addresses.retain(|name, _| names.contains(name));
        for name in names {
            let used = self.addresses.values().copied().collect();
            if let Entry::Vacant(free) = self.addresses.entry(name) {
                free.insert(link::next_address(subnet, &used)?);
            }
        }
        Ok(())
    }
}

impl Fleet {
    /// Returns the fleet in a directory, which need not exist.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Returns the directory of files that trusted machines get at their creation; see
    /// [`crate::machine::TRUSTED_FILES`].
    pub fn trusted_files(&self) -> PathBuf {
        self.root.join("told")
    }

    /// Reads the desired state; `None` if none has been written.
    pub fn spec(&self) -> Result<Option<FleetSpec>, Error> {
        json::read(&self.root.join("fleet.json"))
    }

    /// Writes the desired state. Claims the directory for the cluster if it is new or empty.
    pub fn write(&self, spec: &FleetSpec) -> Result<(), Error> {
        match self.owner()? {
            Some(owner) if owner == spec.cluster => {}
            Some(owner) => return Err(self.foreign(format!("it belongs to cluster {owner}"))),
            None if fs::read_dir(&self.root).is_ok_and(|mut files| files.next().is_some()) => {
                return Err(self.foreign("it holds other files".to_owned()));
            }
            None => {
                sys::make_directories(&self.root, ROOT_MODE)
                    .map_err(sys::Error::at("creating", &self.root))?;
                let mark = format!("{}\n", spec.cluster);
                pki::write_file(&self.root.join(MARK), mark.as_bytes(), pki::PUBLIC_MODE)?;
            }
        }
        json::write(&self.root.join("fleet.json"), spec)
    }

    fn foreign(&self, reason: String) -> Error {
        Error::Foreign { path: self.root.clone(), reason }
    }

    /// Returns the cluster that owns the directory, from its mark file.
    pub fn owner(&self) -> Result<Option<String>, Error> {
        let path = self.root.join(MARK);
        match fs::read_to_string(&path) {
            Ok(name) => Ok(Some(name.trim().to_owned())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(sys::Error::at("reading", &path)(error).into()),
        }
    }

    /// Returns the directory of the programs for machines: this binary, and the images.
    pub fn programs(&self) -> PathBuf {
        self.root.join("programs")
    }

    /// Returns the path of the machines' program, which an update replaces.
    pub fn binary(&self) -> PathBuf {
        self.programs().join("windlass")
    }

    /// Reads a machine's document; `None` if the machine does not exist.
    pub fn machine(&self, name: &str) -> Result<Option<Machine>, Error> {
        json::read(&document::path(&self.machine_root(name)))
    }

    /// Reports whether the first process of a machine runs.
    pub fn runs(&self, name: &str) -> bool {
        self.running(name).is_some()
    }

    /// Returns the PID of the first process of a machine, if it runs.
    pub(crate) fn running(&self, name: &str) -> Option<i32> {
        document::pid_file(&self.machine_root(name)).running()
    }

    pub(crate) fn machine_root(&self, name: &str) -> PathBuf {
        self.root.join("machines").join(name)
    }

    /// Returns the directory of a machine's disk, which starts empty with each new machine.
    pub fn disk(&self, name: &str) -> PathBuf {
        self.machine_root(name).join("disk")
    }

    /// Reports whether a machine's disk has a file at a path of the machine.
    pub fn has_file(&self, name: &str, path: &str) -> bool {
        self.disk(name).join(path.trim_start_matches('/')).exists()
    }

    /// Returns the directory of the volumes of a machine's name, which outlive the machine.
    pub fn volumes(&self, name: &str) -> PathBuf {
        self.root.join("volumes").join(name)
    }

    /// Returns the CA that signs identities. Creates it if it does not exist.
    pub fn authority(&self) -> Result<pki::Authority, Error> {
        let (cert, key) = (self.root.join("identity-ca.crt"), self.root.join("identity-ca.key"));
        if cert.exists() && key.exists() {
            return Ok(pki::Authority::from_parts(pki::read_cert(&cert)?, pki::read_key(&key)?)?);
        }
        const TEN_YEARS: std::time::Duration = std::time::Duration::from_secs(3650 * 86_400);
        let validity = pki::Validity::starting(rt::now(), TEN_YEARS);
        let authority =
            pki::Authority::create("windlass-instances", pki::KeyAlgorithm::EcdsaP256, validity)?;
        pki::write_key(&key, authority.key())?;
        pki::write_cert(&cert, authority.cert())?;
        Ok(authority)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(size: u32) -> FleetSpec {
        let group = |name: &str, size| Group {
            name: name.to_owned(),
            numbers: (1..=size).collect(),
            ..Group::default()
        };
        FleetSpec {
            cluster: "a.example.com".to_owned(),
            link: "172.29.7.0/24".to_owned(),
            groups: vec![group("cp", 1), group("nodes", size)],
            ..FleetSpec::default()
        }
    }

    #[test]
    fn keeps_addresses_until_machines_are_removed() {
        let mut fleet = spec(2);
        fleet.assign(&[]).unwrap();
        let first = fleet.addresses.clone();
        assert_eq!(first.keys().collect::<Vec<_>>(), ["cp-1", "nodes-1", "nodes-2"]);
        fleet.groups[1].resize(3);
        fleet.assign(&[]).unwrap();
        assert!(first.iter().all(|(name, address)| fleet.addresses[name] == *address));
        fleet.groups[1].resize(0);
        fleet.assign(&[]).unwrap();
        assert_eq!(fleet.addresses.len(), 1);
        assert!(fleet.link().unwrap().bridge.len() == 11);
        assert_eq!(fleet.group_of("cp-1").map(|g| g.name.as_str()), Some("cp"));
        assert!(fleet.group_of("cp-2").is_none());
    }

    #[test]
    fn replaces_detached_machine_until_its_release() {
        let mut fleet = spec(2);
        fleet.assign(&[]).unwrap();
        let nodes = &mut fleet.groups[1];
        assert!(nodes.detach("nodes-1") && !nodes.detach("nodes-1") && !nodes.detach("cp-1"));
        assert_eq!(nodes.names().collect::<Vec<_>>(), ["nodes-2", "nodes-3", "nodes-1"]);
        assert_eq!((nodes.size(), nodes.members().count()), (2, 2));
        fleet.assign(&[]).unwrap();
        assert_eq!(fleet.addresses.len(), 4);
        let nodes = &mut fleet.groups[1];
        assert!(nodes.release("nodes-1") && !nodes.release("nodes-2"));
        // The number is free only after the release.
        nodes.resize(3);
        assert_eq!(nodes.names().collect::<Vec<_>>(), ["nodes-1", "nodes-2", "nodes-3"]);
        nodes.resize(1);
        assert_eq!(nodes.names().collect::<Vec<_>>(), ["nodes-1"]);
    }

    #[test]
    fn keeps_removed_machines_with_their_addresses_until_they_end() {
        let mut old = spec(3);
        old.groups.push(Group { name: "gone".to_owned(), numbers: [1].into(), ..Group::default() });
        old.assign(&[]).unwrap();
        let mut new = spec(1);
        new.groups[0].numbers.insert(2);
        let volume = |id: &str, size| Volume { id: id.to_owned(), size, ..Volume::default() };
        old.volumes = vec![volume("kept", 1), volume("gone", 1)];
        new.volumes = vec![volume("kept", 2), volume("added", 1)];
        let mut all = new.with_machines_of(&old);
        all.assign(&[]).unwrap();
        assert_eq!(all.volumes, [volume("kept", 2), volume("added", 1), volume("gone", 1)]);
        let names: Vec<_> = all.names().collect();
        assert_eq!(names, ["cp-1", "cp-2", "nodes-1", "nodes-2", "nodes-3", "gone-1"]);
        assert!(old.addresses.iter().all(|(name, address)| all.addresses[name] == *address));
        // A new machine has no address of one that still runs.
        assert!(old.addresses.values().all(|address| *address != all.addresses["cp-2"]));
        let nodes = &mut all.groups[1];
        assert!(nodes.remove("nodes-3") && !nodes.remove("nodes-3") && !nodes.remove("cp-1"));
        assert!(nodes.detach("nodes-1") && nodes.remove("nodes-1"));
        assert_eq!(nodes.names().collect::<Vec<_>>(), ["nodes-2", "nodes-3"]);
    }

    #[test]
    fn rejects_directory_of_another_owner() {
        let dir = tempfile::tempdir().unwrap();
        let fleet = Fleet::at(dir.path().join("a"));
        fleet.write(&spec(1)).unwrap();
        assert_eq!(fleet.spec().unwrap(), Some(spec(1)));
        let other = FleetSpec { cluster: "b".to_owned(), ..spec(1) };
        assert!(fleet.write(&other).unwrap_err().to_string().contains("a.example.com"));
        fs::write(dir.path().join("photo.jpg"), "").unwrap();
        assert!(Fleet::at(dir.path()).write(&other).is_err());
    }
}
