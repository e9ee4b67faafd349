//! Checks and sets the kernel's settings that the kubelet needs, at its start.

use std::{fs, io, path::Path};

use kubelet_config::Settings;
use nix::sys::resource::{Resource, setrlimit};
use sys::cgroup::{Cgroups, Version};

/// The expected values by path below `/proc/sys`, as upstream.
const EXPECTED: [(&str, i64); 6] = [
    ("kernel/keys/root_maxbytes", 25_000_000),
    ("kernel/keys/root_maxkeys", 1_000_000),
    ("kernel/panic", 10),
    ("kernel/panic_on_oops", 1),
    ("vm/overcommit_memory", 1),
    ("vm/panic_on_oom", 0),
];

/// The settings that differ, in upstream's words.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.text())]
pub struct KernelError(Vec<String>);

impl KernelError {
    fn text(&self) -> String {
        match self.0.as_slice() {
            [one] => one.clone(),
            all => format!("[{}]", all.join(", ")),
        }
    }
}

/// Checks the settings. The error lists every difference.
pub(crate) fn check(root: &Path) -> Result<(), KernelError> {
    let difference = |(flag, expected): &(&str, i64)| match fs::read_to_string(root.join(flag)) {
        Err(error) => Some(format!("open {}: {error}", root.join(flag).display())),
        Ok(text) if text.trim().parse() == Ok(*expected) => None,
        Ok(text) => Some(format!(
            "invalid kernel flag: {flag}, expected value: {expected}, actual value: {}",
            text.trim()
        )),
    };
    let differences: Vec<String> = EXPECTED.iter().filter_map(difference).collect();
    if differences.is_empty() { Ok(()) } else { Err(KernelError(differences)) }
}

/// A setting that this machine cannot satisfy.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    #[error(
        "running with swap on is not supported, please disable swap or set --fail-swap-on flag to false: {0}"
    )]
    Swap(String),
    #[error("memorySwap.swapBehavior: LimitedSwap requires cgroup v2; use NoSwap on this machine")]
    LimitedSwap,
    #[error("singleProcessOOMKill must not be explicitly set to false when using cgroup v1")]
    GroupKill,
    #[error("the feature gate MemoryQoS requires cgroup v2; turn it off on this machine")]
    MemoryQos,
    #[error(
        "Failed to enforce reserved limits on {group:?}: the cgroup does not exist; create it first"
    )]
    NoGroup { group: String },
}

/// Checks that the machine satisfies the settings, and sets the limits of this process.
pub(crate) fn prepare(
    settings: &Settings,
    cgroups: &dyn Cgroups,
    proc: &Path,
) -> Result<(), HostError> {
    let kernel = &settings.kernel;
    if kernel.fail_swap_on
        && let Some(swap) = swap_in_use(proc)
    {
        return Err(HostError::Swap(swap));
    }
    if cgroups.version() == Version::V1 {
        if kernel.limited_swap {
            return Err(HostError::LimitedSwap);
        }
        if kernel.single_process_oom_kill == Some(false) {
            return Err(HostError::GroupKill);
        }
        if kernel.memory_qos.is_some() {
            return Err(HostError::MemoryQos);
        }
    }
    for reserved in &settings.enforcement.groups {
        if cgroups.usage(&reserved.group).is_err() {
            return Err(HostError::NoGroup { group: reserved.group.clone() });
        }
    }
    limit_process(settings, proc);
    Ok(())
}

/// Returns the swap areas of the machine, if there are any. The first line of the file is a header.
fn swap_in_use(proc: &Path) -> Option<String> {
    let swaps = fs::read_to_string(proc.join("swaps")).ok()?;
    let areas: Vec<&str> = swaps.lines().skip(1).filter(|line| !line.trim().is_empty()).collect();
    (!areas.is_empty()).then(|| areas.join(", "))
}

/// Sets the open files and the out-of-memory score of this process. As upstream, a failure is only logged: a kubelet
/// without root's rights cannot change them.
fn limit_process(settings: &Settings, proc: &Path) {
    let (files, score) = (settings.kernel.max_open_files, settings.kernel.oom_score_adj);
    if let Err(error) = setrlimit(Resource::RLIMIT_NOFILE, files, files) {
        tracing::warn!(%error, files, "set the limit of open files (maxOpenFiles)");
    }
    let written: io::Result<()> = fs::write(proc.join("self/oom_score_adj"), score.to_string());
    if let Err(error) = written {
        tracing::warn!(%error, score, "set the kubelet's out-of-memory score (oomScoreAdj)");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_every_setting_that_differs() {
        let dir = tempfile::tempdir().unwrap();
        for (flag, value) in EXPECTED {
            let path = dir.path().join(flag);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{value}\n")).unwrap();
        }
        check(dir.path()).unwrap();
        fs::write(dir.path().join("vm/overcommit_memory"), "0\n").unwrap();
        assert_eq!(
            check(dir.path()).unwrap_err().to_string(),
            "invalid kernel flag: vm/overcommit_memory, expected value: 1, actual value: 0"
        );
        fs::remove_file(dir.path().join("kernel/panic")).unwrap();
        assert!(check(dir.path()).unwrap_err().to_string().starts_with("[open "));
    }

    fn settings(text: &str) -> Settings {
        let host = kubelet_config::HostSettings {
            node_name: "node".to_owned(),
            node_ips: Vec::new(),
            root: "/".into(),
            cert_dir: "/pki".into(),
            labels: Default::default(),
        };
        Settings::new(&kubelet_config::parse(text).unwrap(), host).unwrap()
    }

    #[test]
    fn refuses_machine_with_swap_unless_it_is_allowed() {
        let (dir, cgroups) =
            (tempfile::tempdir().unwrap(), sys::cgroup::RecordedCgroups::default());
        fs::create_dir(dir.path().join("self")).unwrap();
        let check = |text: &str| {
            prepare(&settings(text), &cgroups, dir.path()).map_err(|error| error.to_string())
        };
        let swaps = dir.path().join("swaps");
        fs::write(&swaps, "Filename Type Size Used Priority\n").unwrap();
        assert_eq!(check("oomScoreAdj: -5\nmaxOpenFiles: 4096"), Ok(()));
        let score = fs::read_to_string(dir.path().join("self/oom_score_adj")).unwrap();
        assert_eq!(score, "-5");
        assert_eq!(nix::sys::resource::getrlimit(Resource::RLIMIT_NOFILE).unwrap().0, 4096);
        fs::write(&swaps, "Filename Type Size Used Priority\n/swap file 1 0 -2\n").unwrap();
        let error = check("maxOpenFiles: 4096").unwrap_err();
        assert!(error.contains("running with swap on is not supported") && error.contains("/swap"));
        assert_eq!(check("failSwapOn: false\nmaxOpenFiles: 4096"), Ok(()));
        let reserved =
            "enforceNodeAllocatable: [kube-reserved]\nkubeReservedCgroup: /kube\nfailSwapOn: false";
        assert!(check(reserved).is_ok());
    }
}
