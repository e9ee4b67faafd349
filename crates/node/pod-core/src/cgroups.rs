//! The names of the cgroups of Pods.

use crate::qos::QosClass;

const CLASSES: [QosClass; 3] = [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort];

/// The cgroups of one node, by the settings `cgroupRoot` and `cgroupDriver`.
#[derive(Clone, Debug, Default)]
pub struct CgroupNames {
    /// The cgroup that contains the cgroups of Pods, without a slash at the end; empty for the root.
    pub root: String,
    /// `true` if the cgroup driver is `systemd`.
    pub systemd: bool,
}

impl CgroupNames {
    /// Returns the cgroup that contains all Pods of the node.
    pub fn pods(&self) -> String {
        let leaf = if self.systemd { "kubepods.slice" } else { "kubepods" };
        format!("{}/{leaf}", self.root)
    }

    /// Returns the cgroup that contains the Pods of a QoS class.
    pub fn class(&self, class: QosClass) -> String {
        let root = self.pods();
        match (self.systemd, class_name(class)) {
            (_, "") => root,
            (false, class) => format!("{root}/{class}"),
            (true, class) => format!("{root}/kubepods-{class}.slice"),
        }
    }

    /// Returns a Pod's cgroup, below that of its QoS class.
    pub fn pod(&self, class: QosClass, uid: &str) -> String {
        let parent = self.class(class);
        if !self.systemd {
            return format!("{parent}/pod{uid}");
        }
        // systemd derives the hierarchy from the dashes in a slice's name.
        let uid = uid.replace('-', "_");
        match class_name(class) {
            "" => format!("{parent}/kubepods-pod{uid}.slice"),
            class => format!("{parent}/kubepods-{class}-pod{uid}.slice"),
        }
    }

    /// Returns the cgroups that a Pod of an unknown QoS class may have.
    pub fn pod_of_any_class(&self, uid: &str) -> [String; 3] {
        CLASSES.map(|class| self.pod(class, uid))
    }

    /// Returns the cgroups that contain the cgroups of Pods.
    pub fn parents(&self) -> [String; 3] {
        CLASSES.map(|class| self.class(class))
    }

    /// Returns the UID of the Pod that a cgroup name stands for, if it does.
    pub fn uid(&self, name: &str) -> Option<String> {
        let name = name.strip_suffix(".slice").unwrap_or(name);
        let (_, uid) = name.rsplit_once("pod")?;
        let uid = if self.systemd { uid.replace('_', "-") } else { uid.to_owned() };
        (uid.len() >= 32).then_some(uid)
    }
}

/// Returns the part of a cgroup's name that stands for its QoS class. Guaranteed Pods are directly below the root.
fn class_name(class: QosClass) -> &'static str {
    match class {
        QosClass::Guaranteed => "",
        QosClass::Burstable => "burstable",
        QosClass::BestEffort => "besteffort",
    }
}
