//! The kubelet as a systemd service.

use std::{fs, io};

use bootstrap_core::units::{self, Unit};
use tokio::process::Command;

use crate::{Error, FileChange, host::Host};

/// The directories of systemd units.
const UNIT_DIRECTORIES: [&str; 4] = [
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
];

/// Installs the kubelet as a service unless a package has done so. On a control plane, installs the timer for
/// certificate renewal too.
pub(super) async fn install(host: &Host, control_plane: bool) -> Result<Vec<FileChange>, Error> {
    let program = std::env::current_exe().map_err(|source| Error::Io {
        operation: "find the path of",
        path: "/proc/self/exe".into(),
        source,
    })?;
    let program = program.to_string_lossy();
    let mut files: Vec<Unit> = Vec::new();
    let mut enable = vec!["enable"];
    if !UNIT_DIRECTORIES.iter().any(|dir| host.path(dir).join("kubelet.service").exists()) {
        files.extend(units::kubelet(&program));
        enable.push("kubelet.service");
    }
    if control_plane {
        files.extend(units::renewal(&program));
        enable.extend(["--now", "windlass-certs.timer"]);
    }
    let touched = write(host, &files)?;
    if !touched.is_empty() {
        systemctl("install", &["daemon-reload"]).await?;
        systemctl("install", &enable).await?;
    }
    Ok(touched)
}

fn write(host: &Host, files: &[Unit]) -> Result<Vec<FileChange>, Error> {
    let mut touched = Vec::new();
    for unit in files {
        let path = host.path(unit.path);
        pki::write_file(&path, unit.text.as_bytes(), pki::PUBLIC_MODE)?;
        touched.push(FileChange { path, written: true });
    }
    Ok(touched)
}

/// Removes the units that [`install`] wrote; those of packages stay. Returns the errors.
pub(super) async fn uninstall(host: &Host) -> Vec<String> {
    let (removed, mut left) = remove(host);
    if removed && host.has_systemd() {
        let stop = systemctl("stop", &["stop", "windlass-certs.timer"]).await;
        left.extend(
            stop.err().filter(|e| !e.to_string().contains("not loaded")).map(|e| e.to_string()),
        );
        left.extend(systemctl("reload", &["daemon-reload"]).await.err().map(|e| e.to_string()));
    }
    left
}

fn remove(host: &Host) -> (bool, Vec<String>) {
    let (mut removed, mut left) = (false, Vec::new());
    for path in units::PATHS {
        if !host.read(path).is_some_and(|text| text.starts_with(units::MARK)) {
            continue;
        }
        removed = true;
        let mut paths = vec![host.path(path)];
        let name = path.rsplit('/').next().unwrap_or_default();
        for target in ["multi-user.target.wants", "timers.target.wants"] {
            paths.push(host.path("/etc/systemd/system").join(target).join(name));
        }
        for path in paths {
            match fs::remove_file(&path) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => {
                    left.push(format!("cannot remove {}: {e}", path.display()));
                }
                _ => {}
            }
        }
    }
    // The directory stays if it has other drop-ins.
    let _ = fs::remove_dir(host.path("/etc/systemd/system/kubelet.service.d"));
    (removed, left)
}

/// Restarts the kubelet.
pub(super) async fn start() -> Result<(), Error> {
    systemctl("start", &["daemon-reload"]).await?;
    systemctl("start", &["restart", "kubelet"]).await
}

pub(super) async fn stop(host: &Host) -> Result<(), Error> {
    if !kubelet_is_active(host).await {
        return Ok(());
    }
    systemctl("stop", &["stop", "kubelet"]).await
}

async fn kubelet_is_active(host: &Host) -> bool {
    host.has_systemd() && systemctl("ask for", &["is-active", "--quiet", "kubelet"]).await.is_ok()
}

pub(crate) async fn kubelet_is_enabled(host: &Host) -> bool {
    host.has_systemd() && systemctl("ask for", &["is-enabled", "--quiet", "kubelet"]).await.is_ok()
}

async fn systemctl(operation: &'static str, args: &[&str]) -> Result<(), Error> {
    let failed = |cause: String| Error::Service { operation, cause };
    let output = Command::new("systemctl")
        .args(args)
        .output()
        .await
        .map_err(|e| failed(format!("systemctl: {e}")))?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(failed(format!("systemctl {} ended with {}: {stderr}", args.join(" "), output.status)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removes_own_units_and_keeps_packaged_ones() {
        let dir = tempfile::tempdir().unwrap();
        let host = Host::under(dir.path());
        write(&host, &units::renewal("/usr/bin/windlass")).unwrap();
        write(&host, &units::kubelet("/usr/bin/windlass")[..1]).unwrap();
        let drop_in = units::PATHS[0];
        let theirs = Unit { path: drop_in, text: "[Service]\n".to_owned() };
        write(&host, &[theirs]).unwrap();
        assert_eq!(remove(&host), (true, Vec::new()));
        let stays: Vec<_> = units::PATHS.into_iter().filter(|p| host.path(p).exists()).collect();
        assert_eq!(stays, [drop_in]);
        assert_eq!(remove(&host), (false, Vec::new()));
    }
}
