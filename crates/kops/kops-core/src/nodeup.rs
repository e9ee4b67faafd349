//! The tasks by which nodeup configures a machine with systemd: files, units, packages, users and certificates.
//!
//! They follow from the boot configuration, the node configuration and facts about the machine ([`MachineInputs`]).
//! Carrying them out is kops-node's task. Read [`machine_tasks`] first, then [`Task`].
//!
//! Names and contents are upstream's, because its goldens are compared and because other programs look for them.

mod api_server;
mod containerd;
mod context;
mod control_plane;
mod flags;
mod hooks;
mod kubelet;
mod pod;
mod proxy;
mod system;
mod task;
mod toml;
mod unit;

use api_meta::Tree as _;

use self::context::Context;
pub use self::{
    context::{Distribution, Keypair, LocalUser, MachineFacts, MachineInputs},
    task::{
        Asset, Certificate, CertificateUse, Content, File, HostRecord, Kubeconfig, Service, Task,
        Tasks, User,
    },
};
use crate::error::Error;

type Builder = fn(&Context<'_>, &mut Tasks) -> Result<(), Error>;

/// The builders of tasks, by name.
const BUILDERS: &[(&str, Builder)] = &[
    ("hosts", system::hosts),
    ("clock", system::clock),
    ("updates", system::updates),
    ("containerd", containerd::build),
    ("tools", system::tools),
    ("cni", system::cni),
    ("channels", control_plane::channels),
    ("files", system::file_assets),
    ("hooks", hooks::build),
    ("kubelet", kubelet::build),
    ("kubectl", system::kubectl),
    ("log rotation", system::log_rotation),
    ("etcd", control_plane::etcd),
    ("packages", system::packages),
    ("secrets", system::secrets),
    ("firewall", system::firewall),
    ("parameters", system::parameters),
    ("kube-apiserver", api_server::build),
    ("kube-controller-manager", control_plane::controller_manager),
    ("kube-scheduler", control_plane::scheduler),
    ("kube-proxy", proxy::build),
    ("kops-controller", control_plane::kops_controller),
    ("warm images", system::warm_images),
    ("protokube", control_plane::protokube),
];

/// Fields of a node configuration that do not act on machines with systemd, with the remedy.
const REFUSED: [(&str, &str); 5] = [
    ("NvidiaGPU", "remove containerd.nvidiaGPU"),
    ("GVisor", "remove containerd.gvisor"),
    ("VolumeMounts", "remove volumeMounts from the instance group"),
    ("discoveryServiceWithUniverse", "remove serviceAccountIssuerDiscovery.discoveryService"),
    ("UseCiliumEtcd", "remove the etcd cluster cilium"),
];

/// Returns the tasks of a machine. A setting that would not act is an error.
pub fn machine_tasks(inputs: &MachineInputs) -> Result<Tasks, Error> {
    for (field, remedy) in REFUSED {
        if !inputs.config.blank(field) && inputs.config.opt_flag(field) != Some(false) {
            let what = format!("{field} on machines with systemd");
            return Err(Error::Unsupported { what, remedy });
        }
    }
    let context = Context::new(inputs)?;
    let mut tasks = Tasks::default();
    for (_, build) in BUILDERS {
        build(&context, &mut tasks)?;
    }
    Ok(tasks)
}

/// Returns the tasks of one builder, which is compared with upstream's.
pub fn builder_tasks(inputs: &MachineInputs, name: &str) -> Result<Tasks, Error> {
    let unknown = || Error::Unknown {
        what: "builder",
        name: name.to_owned(),
        remedy: "use a name of the list of builders",
    };
    let (_, build) = BUILDERS.iter().find(|(known, _)| *known == name).ok_or_else(unknown)?;
    let mut tasks = Tasks::default();
    build(&Context::new(inputs)?, &mut tasks)?;
    Ok(tasks)
}
