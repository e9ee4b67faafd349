//! The crate's error.

use std::{net::IpAddr, path::PathBuf};

use net_core::Cidr;

/// An error in creating, reaching or ending a machine.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    File(#[from] sys::Error),
    #[error("starting {program}: {source}; is it installed?")]
    Start { program: String, source: std::io::Error },
    #[error("{}: {detail}", path.display())]
    Settings { path: PathBuf, detail: String },
    #[error("{} does not belong to this fleet: {reason}", path.display())]
    Foreign { path: PathBuf, reason: String },
    #[error(transparent)]
    Pki(#[from] pki::Error),
    #[error("{} is missing: this is not a machine of a fleet", path.display())]
    MissingDocument { path: PathBuf },
    #[error("waiting for machine {machine}: {source}")]
    Wait { machine: String, source: std::io::Error },
    #[error("machine {machine} was not connected to the network in time; see keeper.log")]
    Disconnected { machine: String },
    #[error("machine {machine} has no address in the fleet's settings")]
    MissingAddress { machine: String },
    #[error("processes of machine {machine} do not exit after SIGKILL; find them with `ps`")]
    Processes { machine: String },
    #[error("listening for SIGHUP: {0}")]
    Signal(std::io::Error),
    #[error(transparent)]
    Task(#[from] tokio::task::JoinError),
    #[error("{operation} of {machine}: {source}")]
    Namespaces { operation: &'static str, machine: String, source: nix::Error },
    #[error("{machine} has no PID namespace of its own: it must be started by its keeper")]
    PidNamespace { machine: String },
    #[error("creating a PID namespace: {0}")]
    NewPidNamespace(nix::Error),
    #[error("starting a process panicked")]
    Panic,
    #[error("process {pid} did not create the machine's namespaces; see its log")]
    NotReady { pid: i32 },
    #[error("the link range {range:?} in the fleet's settings is invalid, expected: a CIDR")]
    LinkRange { range: String },
    #[error("linking machines: {}", rt::with_causes(.0))]
    Link(netlink::Error),
    #[error("every range in 172.29.0.0/16 is in use on this machine")]
    NoRange,
    #[error("there is no room for another machine in {subnet}")]
    FullRange { subnet: Cidr },
    #[error("{subnet} has no room for machines")]
    SmallRange { subnet: Cidr },
    #[error("the link {link} vanished")]
    Vanished { link: String },
    #[error("volume {volume}: {source}")]
    Volume { volume: String, source: sys::LoopError },
    #[error(
        "loop device {device} of {} is still in use, so no other machine gets the volume; find its user by `lsof` and \
         `grep loop{device} /proc/*/mountinfo`",
        image.display()
    )]
    VolumeInUse { image: PathBuf, device: u32 },
    #[error("the machine at {address} has no link {link}; it does not run")]
    MissingLink { address: IpAddr, link: String },
}
