//! Stores the addresses of attachments, in one small file for each attachment.
//!
//! A lease is written to a temporary file and renamed, so that it is complete or absent. It contains the boot id:
//! containers do not survive a reboot, so neither do leases.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, Write},
    net::IpAddr,
    path::{Path, PathBuf},
};

use net_core::{Cidr, ipam};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::spec::{Attachment, Failure, PortMapping};

/// A lease of addresses. Unknown fields are those of a later release, and the lease is not read without them.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Lease {
    pub(crate) container: String,
    pub(crate) interface: String,
    pub(crate) addresses: Vec<IpAddr>,
    #[serde(default)]
    pub(crate) ports: Vec<PortMapping>,
    boot: String,
}

/// The leases of one network, locked against other plugin processes.
pub(crate) struct Leases {
    directory: PathBuf,
    boot: String,
    _lock: File,
}

impl Leases {
    pub(crate) fn lock(data_dir: &Path, network: &str) -> Result<Self, Failure> {
        let directory = data_dir.join(network);
        let failed = |error: io::Error| {
            Failure::io(&format!("opening the leases in {}", directory.display()), &error)
        };
        fs::create_dir_all(&directory).map_err(failed)?;
        let lock = File::create(directory.join(".lock")).map_err(failed)?;
        rustix::io::retry_on_intr(|| flock(&lock, FlockOperation::LockExclusive))
            .map_err(|errno| failed(errno.into()))?;
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").map_err(failed)?;
        Ok(Self { boot: boot.trim().to_owned(), directory, _lock: lock })
    }

    /// Returns all leases of this boot. Files with other names are ignored.
    pub(crate) fn all(&self) -> Result<Vec<Lease>, Failure> {
        let failed = |error: io::Error| {
            Failure::io(&format!("reading the leases in {}", self.directory.display()), &error)
        };
        let mut leases = Vec::new();
        for entry in fs::read_dir(&self.directory).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.extension().is_none_or(|extension| extension != "lease") {
                continue;
            }
            let bytes = fs::read(&path).map_err(failed)?;
            if self.is_of_this_boot(&bytes) {
                let lease = serde_json::from_slice(&bytes);
                leases.push(lease.map_err(|error| Failure::lease(&path, &error))?);
            } else {
                fs::remove_file(&path).map_err(failed)?;
            }
        }
        Ok(leases)
    }

    /// Reports whether a file has been written since the machine was booted. A file that is not JSON was damaged by a
    /// power failure, which also ended its boot.
    fn is_of_this_boot(&self, file: &[u8]) -> bool {
        #[derive(Deserialize)]
        struct Boot {
            boot: String,
        }
        serde_json::from_slice::<Boot>(file).is_ok_and(|written| written.boot == self.boot)
    }

    /// Returns the attachment's lease, creating or updating it if needed.
    pub(crate) fn acquire(
        &self,
        subnets: &[Cidr],
        attachment: &Attachment,
        ports: &[PortMapping],
    ) -> Result<Lease, Failure> {
        let all = self.all()?;
        let lease = all.iter().find(|lease| lease.is_of(attachment));
        let addresses = match lease {
            Some(lease) if fits(&lease.addresses, subnets) => lease.addresses.clone(),
            _ => self.allocate(subnets, &all)?,
        };
        let lease = Lease {
            container: attachment.container.clone(),
            interface: attachment.interface.clone(),
            addresses,
            ports: ports.to_vec(),
            boot: self.boot.clone(),
        };
        self.write(&self.path(attachment), &serde_json::to_vec(&lease).unwrap_or_default())?;
        Ok(lease)
    }

    fn allocate(&self, subnets: &[Cidr], all: &[Lease]) -> Result<Vec<IpAddr>, Failure> {
        let leased: BTreeSet<IpAddr> =
            all.iter().flat_map(|lease| lease.addresses.iter().copied()).collect();
        let last_file = self.directory.join(".last");
        let last: Vec<IpAddr> = fs::read_to_string(&last_file)
            .unwrap_or_default()
            .lines()
            .filter_map(|line| line.parse().ok())
            .collect();
        let mut addresses = Vec::new();
        for subnet in subnets {
            let last = last.iter().copied().find(|last| subnet.contains(*last));
            addresses.push(
                ipam::allocate(*subnet, &leased, last)
                    .ok_or_else(|| Failure::exhausted(*subnet))?,
            );
        }
        let lines: Vec<_> = addresses.iter().map(IpAddr::to_string).collect();
        self.write(&last_file, lines.join("\n").as_bytes())?;
        Ok(addresses)
    }

    pub(crate) fn find(&self, attachment: &Attachment) -> Result<Option<Lease>, Failure> {
        Ok(self.all()?.into_iter().find(|lease| lease.is_of(attachment)))
    }

    pub(crate) fn release(&self, attachment: &Attachment) -> Result<(), Failure> {
        let path = self.path(attachment);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Failure::io(&format!("removing the lease {}", path.display()), &error))
            }
            _ => Ok(()),
        }
    }

    fn path(&self, attachment: &Attachment) -> PathBuf {
        self.directory.join(format!("{}.{}.lease", attachment.container, attachment.interface))
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> Result<(), Failure> {
        let beside = self.directory.join(".new");
        let write = || {
            File::create(&beside)?.write_all(bytes)?;
            fs::rename(&beside, path)
        };
        write().map_err(|error| Failure::io(&format!("writing {}", path.display()), &error))
    }
}

impl Lease {
    fn is_of(&self, attachment: &Attachment) -> bool {
        self.container == attachment.container && self.interface == attachment.interface
    }
}

/// Reports whether an existing lease still matches the configuration.
fn fits(addresses: &[IpAddr], subnets: &[Cidr]) -> bool {
    addresses.len() == subnets.len()
        && addresses.iter().zip(subnets).all(|(address, subnet)| subnet.contains(*address))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attachment(n: usize) -> Attachment {
        Attachment { container: format!("c{n}"), interface: "eth0".into(), netns: PathBuf::new() }
    }

    #[test]
    fn leases_last_until_release_or_reboot() {
        let directory = tempfile::tempdir().unwrap();
        let subnets = ["10.1.0.0/29".parse().unwrap(), "fd00::/64".parse().unwrap()];
        let leases = Leases::lock(directory.path(), "n").unwrap();
        let first = leases.acquire(&subnets, &attachment(0), &[]).unwrap();
        assert_eq!(
            first.addresses,
            ["10.1.0.2".parse::<IpAddr>().unwrap(), "fd00::2".parse().unwrap()]
        );
        assert_eq!(
            leases.acquire(&subnets, &attachment(0), &[]).unwrap().addresses,
            first.addresses,
            "asked twice"
        );
        for n in 1..5 {
            leases.acquire(&subnets, &attachment(n), &[]).unwrap();
        }
        let full = leases.acquire(&subnets, &attachment(9), &[]).unwrap_err();
        assert_eq!(full.code, 101);
        leases.release(&attachment(3)).unwrap();
        leases.release(&attachment(3)).unwrap();
        assert_eq!(
            leases.acquire(&subnets, &attachment(9), &[]).unwrap().addresses[0],
            "10.1.0.5".parse::<IpAddr>().unwrap()
        );

        let path = leases.path(&attachment(9));
        let old = fs::read_to_string(&path).unwrap().replace(&leases.boot, "earlier");
        fs::write(&path, old).unwrap();
        fs::write(leases.path(&attachment(0)), "{\"conta").unwrap();
        assert_eq!(leases.all().unwrap().len(), 3);
        assert!(!path.exists());
    }

    #[test]
    fn refuses_lease_of_a_later_release() {
        let directory = tempfile::tempdir().unwrap();
        let subnets = ["10.1.0.0/29".parse().unwrap()];
        let leases = Leases::lock(directory.path(), "n").unwrap();
        leases.acquire(&subnets, &attachment(0), &[]).unwrap();
        let path = leases.path(&attachment(0));
        let newer = fs::read_to_string(&path).unwrap().replacen('{', r#"{"vlan":7,"#, 1);
        fs::write(&path, &newer).unwrap();
        let refused = leases.acquire(&subnets, &attachment(1), &[]).unwrap_err();
        assert!(refused.message.contains("unknown field `vlan`"), "{}", refused.message);
        assert_eq!(fs::read_to_string(&path).unwrap(), newer);
    }

    #[test]
    fn concurrent_processes_get_different_addresses() {
        let directory = tempfile::tempdir().unwrap();
        let subnets = ["10.1.0.0/24".parse().unwrap()];
        let seen: Vec<IpAddr> = std::thread::scope(|scope| {
            let work = |n| {
                let path = directory.path();
                scope.spawn(move || {
                    Leases::lock(path, "n")
                        .unwrap()
                        .acquire(&subnets, &attachment(n), &[])
                        .unwrap()
                        .addresses[0]
                })
            };
            let threads: Vec<_> = (0..32).map(work).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(seen.iter().collect::<BTreeSet<_>>().len(), 32);
    }
}
