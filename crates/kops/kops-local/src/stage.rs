//! The stage at which a machine that has not joined its cluster is, with the reason from the log of that stage.

use std::{fmt, path::Path};

use instances::{Fleet, untrusted::last_line};
use kops_node::nodeup::APPLIED_HASH;

/// The log of the machine's program.
const NODEUP_LOG: &str = "/var/log/nodeup.log";
/// The log of the kubelet.
const KUBELET_LOG: &str = "/var/log/windlass/kubelet.log";

/// The stage of a machine that has not joined its cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The keeper has not created the instance.
    NoInstance(LogLine),
    /// The instance's first process has ended, and the keeper has not created another instance.
    Ended(LogLine),
    /// The instance runs, and its program nodeup has not succeeded.
    Program(LogLine),
    /// The program has succeeded, and the kubelet has not registered the Node.
    Kubelet(LogLine),
}

/// A log with its last line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// The path of the log on this host.
    pub path: String,
    /// The last line; empty if there is none.
    pub last: String,
}

impl Stage {
    /// Returns the stage of a machine. Files on the machine's disk are not trusted: links out of it are not followed.
    pub fn of(fleet: &Fleet, machine: &str) -> Self {
        let own = |path: &str| {
            let below = Path::new(path.trim_start_matches('/'));
            LogLine {
                path: fleet.disk(machine).join(below).display().to_string(),
                last: last_line(&fleet.disk(machine), below).unwrap_or_default(),
            }
        };
        let keeper = || LogLine {
            path: fleet.root.join("keeper.log").display().to_string(),
            last: last_line(&fleet.root, Path::new("keeper.log")).unwrap_or_default(),
        };
        if !matches!(fleet.machine(machine), Ok(Some(_))) {
            return Self::NoInstance(keeper());
        }
        if !fleet.runs(machine) {
            return Self::Ended(keeper());
        }
        if fleet.has_file(machine, APPLIED_HASH) {
            Self::Kubelet(own(KUBELET_LOG))
        } else {
            Self::Program(own(NODEUP_LOG))
        }
    }

    /// Returns `true` if the machine cannot run an API server yet.
    pub fn is_before_kubelet(&self) -> bool {
        !matches!(self, Self::Kubelet(_))
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (text, log) = match self {
            Self::NoInstance(log) => ("its instance does not exist", log),
            Self::Ended(log) => ("its instance has ended and is not replaced yet", log),
            Self::Program(log) => ("its program nodeup has not succeeded", log),
            Self::Kubelet(log) => ("its kubelet has not registered the Node", log),
        };
        match log.last.as_str() {
            "" => write!(f, "{text}; {} is empty", log.path),
            last => write!(f, "{text}; {} ends with: {last}", log.path),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn write(fleet: &Fleet, path: &str, text: &str) {
        let path = fleet.root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn names_the_stage_and_the_last_line_of_its_log() {
        let dir = tempfile::tempdir().unwrap();
        let fleet = Fleet::at(dir.path());
        write(&fleet, "keeper.log", "old\nERROR cannot create the machine: no space\n");
        let stage = |text: &str| {
            let stage = Stage::of(&fleet, "nodes-1").to_string();
            assert!(stage.contains(text), "{text}: {stage}");
            stage
        };
        assert!(stage("its instance does not exist").ends_with("no space"));
        let machine = instances::testing::machine("nodes", "nodes-1");
        let document = serde_json::to_string(&machine).unwrap();
        write(&fleet, "machines/nodes-1/document/machine.json", &document);
        stage("its instance has ended");
        // The test's own process stands for the machine's first one.
        let file = sys::process::PidFile(fleet.root.join("machines/nodes-1/machine.pid"));
        file.record(std::process::id().cast_signed()).unwrap();
        assert!(stage("nodeup has not succeeded").ends_with("nodeup.log is empty"));
        let disk = "machines/nodes-1/disk";
        write(
            &fleet,
            &format!("{disk}/var/log/nodeup.log"),
            "a\nwindlass: \u{1b}[2J no answer\n\n",
        );
        assert!(stage("nodeup has not succeeded").ends_with("windlass:  [2J no answer"));
        // A machine must not have files of the host shown.
        let log = fleet.root.join(format!("{disk}/var/log/nodeup.log"));
        fs::remove_file(&log).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", &log).unwrap();
        assert!(stage("nodeup has not succeeded").ends_with("nodeup.log is empty"));
        write(&fleet, &format!("{disk}/opt/kops/nodeup-done"), "hash");
        assert!(!Stage::of(&fleet, "nodes-1").is_before_kubelet());
        stage("its kubelet has not registered");
    }
}
