//! What is wanted of a cluster's machines, and where it is kept.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    fs,
    net::IpAddr,
    path::{Path, PathBuf},
};

use data_encoding::HEXLOWER;
use net_core::Cidr;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use sha2::{Digest as _, Sha256};

use crate::{
    Error, Machine,
    link::{self, Link},
    machine::document,
};

const MARK: &str = ".windlass-instances";
/// Keys are in it: the machine's other users have nothing to look for there.
const ROOT_MODE: u32 = 0o750;

/// The machines of one cluster.
#[derive(Clone, Debug)]
pub struct Fleet {
    pub root: PathBuf,
}

/// What is wanted, as it is kept in `fleet.json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Wanted {
    pub cluster: String,
    /// The range of the link between the machines.
    pub link: String,
    pub groups: Vec<Group>,
    /// The addresses of machines by their names. They stay while a group has that many machines.
    pub addresses: BTreeMap<String, IpAddr>,
    /// Directories that are hidden from machines that are not trusted.
    pub secret: Vec<PathBuf>,
    /// What runs beside the machines, on the machine that they are on.
    pub companions: Vec<Companion>,
}

/// A command of the fleet's program that is kept running for as long as there are machines.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Companion {
    pub name: String,
    pub args: Vec<String>,
}

/// Machines of one kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Group {
    pub name: String,
    /// The numbers of its machines.
    pub numbers: BTreeSet<u32>,
    /// The numbers of machines that run on, and do not count any more: each has another in its place, and ends soon.
    pub detached: BTreeSet<u32>,
    /// How many seconds a machine's Node may be without being ready before another takes its place.
    pub repair_after: Option<u64>,
    /// Whether its machines see what is secret, and have volumes.
    pub trusted: bool,
    /// What a machine is started with: the file that its program reads.
    pub user_data: String,
}

impl Group {
    /// The names of its machines, those first that count.
    pub fn names(&self) -> impl Iterator<Item = String> {
        self.numbers.iter().chain(&self.detached).map(|number| self.machine(*number))
    }

    /// The names of the machines that count.
    pub fn members(&self) -> impl Iterator<Item = String> {
        self.numbers.iter().map(|number| self.machine(*number))
    }

    fn machine(&self, number: u32) -> String {
        format!("{}-{number}", self.name)
    }

    /// How many machines it is to have.
    pub fn size(&self) -> u32 {
        self.numbers.len().try_into().unwrap_or(u32::MAX)
    }

    /// Has it be of another size: the lowest free numbers are taken, the highest given up.
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

    /// Takes a machine out of the group, which goes on running, and another in for it. Says whether it was one of those
    /// that count.
    pub fn detach(&mut self, machine: &str) -> bool {
        let number = self.numbers.iter().copied().find(|number| self.machine(*number) == machine);
        let Some(number) = number else { return false };
        let size = self.size();
        self.numbers.remove(&number);
        self.detached.insert(number);
        self.resize(size);
        true
    }

    /// Gives a detached machine up: it ends.
    pub fn release(&mut self, machine: &str) -> bool {
        let number = self.detached.iter().copied().find(|number| self.machine(*number) == machine);
        number.is_some_and(|number| self.detached.remove(&number))
    }

    /// Tells one user data from another.
    pub fn version(&self) -> String {
        version(&self.user_data)
    }
}

/// A short sum of user data.
pub(crate) fn version(user_data: &str) -> String {
    let sum = Sha256::digest(user_data.as_bytes());
    HEXLOWER.encode(sum.get(..8).unwrap_or(&sum))
}

impl Wanted {
    /// The group of a machine, by the machine's name.
    pub fn group_of(&self, machine: &str) -> Option<&Group> {
        self.groups.iter().find(|group| group.names().any(|name| name == machine))
    }

    /// The range that the machines have their addresses of.
    pub fn subnet(&self) -> Result<Cidr, Error> {
        self.link.parse().map_err(|_| {
            Error::Other(format!("the fleet's settings name no range of a link ({:?})", self.link))
        })
    }

    /// The address by which machines know the machine that they are on.
    pub fn gateway(&self) -> Result<IpAddr, Error> {
        link::gateway(self.subnet()?)
    }

    /// The link's bridge has a name of the cluster's own, of which eleven bytes fit before a cable's number.
    pub fn link(&self) -> Result<Link, Error> {
        Ok(Link { bridge: format!("kops-{}", self.short()), subnet: self.subnet()?, first: None })
    }

    /// A cluster's range is its own on this machine, also where two have one name.
    fn short(&self) -> String {
        let sum = Sha256::digest(format!("{} {}", self.cluster, self.link).as_bytes());
        HEXLOWER.encode(sum.get(..3).unwrap_or(&sum))
    }

    /// The cgroup that all Pods of the cluster's machines lie under.
    pub fn cgroup(&self) -> String {
        format!("/windlass-kops-{}", self.short())
    }

    /// Gives every wanted machine an address, and takes back those of machines that are not wanted. `taken` are ranges that
    /// the link's must not meet.
    pub fn assign(&mut self, taken: &[Cidr]) -> Result<(), Error> {
        if self.link.is_empty() {
            let mut all = link::known_ranges()?;
            all.extend_from_slice(taken);
            self.link = link::choose_subnet(&all)?.to_string();
        }
        let subnet = self.subnet()?;
        let names: BTreeSet<String> = self.groups.iter().flat_map(Group::names).collect();
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
    /// The fleet in a directory, which need not be there yet.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The directory of files that trusted machines are told beside their documents (see [`crate::machine::TOLD`]).
    pub fn told(&self) -> PathBuf {
        self.root.join("told")
    }

    /// What was written down last; `None` before the first time.
    pub fn wanted(&self) -> Result<Option<Wanted>, Error> {
        read(&self.root.join("fleet.json"))
    }

    /// Takes the directory for a cluster, and writes down what is wanted.
    pub fn write(&self, wanted: &Wanted) -> Result<(), Error> {
        match self.owner()? {
            Some(owner) if owner == wanted.cluster => {}
            Some(owner) => return Err(self.foreign(format!("it is of cluster {owner}"))),
            None if fs::read_dir(&self.root).is_ok_and(|mut files| files.next().is_some()) => {
                return Err(self.foreign("it holds other files".to_owned()));
            }
            None => {
                sys::make_directories(&self.root, ROOT_MODE)
                    .map_err(Error::file("creating", &self.root))?;
                let mark = format!("{}\n", wanted.cluster);
                pki::write_file(&self.root.join(MARK), mark.as_bytes(), pki::PUBLIC_MODE)?;
            }
        }
        write(&self.root.join("fleet.json"), wanted)
    }

    fn foreign(&self, reason: String) -> Error {
        Error::Foreign { path: self.root.clone(), reason }
    }

    /// The cluster that the directory is marked as the fleet of.
    pub fn owner(&self) -> Result<Option<String>, Error> {
        let path = self.root.join(MARK);
        match fs::read_to_string(&path) {
            Ok(name) => Ok(Some(name.trim().to_owned())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::file("reading", &path)(error)),
        }
    }

    /// The programs that machines run: this binary, and the images.
    pub fn programs(&self) -> PathBuf {
        self.root.join("programs")
    }

    /// The program that machines run, which a later update replaces.
    pub fn binary(&self) -> PathBuf {
        self.programs().join("windlass")
    }

    /// A machine as it was made, if it was.
    pub fn machine(&self, name: &str) -> Result<Option<Machine>, Error> {
        read(&document(&self.machine_root(name)))
    }

    pub(crate) fn machine_root(&self, name: &str) -> PathBuf {
        self.root.join("machines").join(name)
    }

    /// A machine's own disk, which begins empty with each machine of a name.
    pub fn disk(&self, name: &str) -> PathBuf {
        self.machine_root(name).join("disk")
    }

    /// What outlives a machine of a name.
    pub(crate) fn volumes(&self, name: &str) -> PathBuf {
        self.root.join("volumes").join(name)
    }

    /// The authority that signs identities, made when there is none.
    pub fn authority(&self) -> Result<pki::Authority, Error> {
        let (cert, key) = (self.root.join("identity-ca.crt"), self.root.join("identity-ca.key"));
        if cert.exists() && key.exists() {
            return Ok(pki::Authority::from_parts(pki::read_cert(&cert)?, pki::read_key(&key)?)?);
        }
        const TEN_YEARS: std::time::Duration = std::time::Duration::from_secs(3650 * 86_400);
        let validity = pki::Validity::starting(rt::now(), TEN_YEARS);
        let made =
            pki::Authority::create("windlass-instances", pki::KeyAlgorithm::EcdsaP256, validity)?;
        pki::write_key(&key, made.key())?;
        pki::write_cert(&cert, made.cert())?;
        Ok(made)
    }
}

pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, Error> {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::file("reading", path)(error)),
    };
    let value = serde_json::from_slice(&text)
        .map_err(|e| Error::Settings { path: path.to_owned(), detail: e.to_string() })?;
    Ok(Some(value))
}

pub(crate) fn write<T: Serialize>(path: &Path, value: &T) -> Result<(), Error> {
    let text = serde_json::to_vec_pretty(value)
        .map_err(|e| Error::Settings { path: path.to_owned(), detail: e.to_string() })?;
    Ok(pki::write_file(path, &text, pki::KEY_MODE)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(size: u32) -> Wanted {
        let group = |name: &str, size| Group {
            name: name.to_owned(),
            numbers: (1..=size).collect(),
            ..Group::default()
        };
        Wanted {
            cluster: "a.example.com".to_owned(),
            link: "172.29.7.0/24".to_owned(),
            groups: vec![group("cp", 1), group("nodes", size)],
            ..Wanted::default()
        }
    }

    #[test]
    fn addresses_stay_and_are_given_back() {
        let mut fleet = wanted(2);
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
    fn a_machine_that_is_taken_out_has_another_in_its_place_until_it_ends() {
        let mut fleet = wanted(2);
        fleet.assign(&[]).unwrap();
        let nodes = &mut fleet.groups[1];
        assert!(nodes.detach("nodes-1") && !nodes.detach("nodes-1") && !nodes.detach("cp-1"));
        assert_eq!(nodes.names().collect::<Vec<_>>(), ["nodes-2", "nodes-3", "nodes-1"]);
        assert_eq!((nodes.size(), nodes.members().count()), (2, 2));
        fleet.assign(&[]).unwrap();
        assert_eq!(fleet.addresses.len(), 4);
        let nodes = &mut fleet.groups[1];
        assert!(nodes.release("nodes-1") && !nodes.release("nodes-2"));
        // Nobody takes its number while it runs; afterwards anybody may.
        nodes.resize(3);
        assert_eq!(nodes.names().collect::<Vec<_>>(), ["nodes-1", "nodes-2", "nodes-3"]);
        nodes.resize(1);
        assert_eq!(nodes.names().collect::<Vec<_>>(), ["nodes-1"]);
    }

    #[test]
    fn a_directory_of_others_is_not_taken() {
        let dir = tempfile::tempdir().unwrap();
        let fleet = Fleet::at(dir.path().join("a"));
        fleet.write(&wanted(1)).unwrap();
        assert_eq!(fleet.wanted().unwrap(), Some(wanted(1)));
        let other = Wanted { cluster: "b".to_owned(), ..wanted(1) };
        assert!(fleet.write(&other).unwrap_err().to_string().contains("a.example.com"));
        fs::write(dir.path().join("photo.jpg"), "").unwrap();
        assert!(Fleet::at(dir.path()).write(&other).is_err());
    }
}
