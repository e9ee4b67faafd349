//! The kubelet on a machine without systemd: our own supervisor starts it, and restarts it when it ends.

use std::{
    fs::OpenOptions,
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use bootstrap_core::Layout;
use rt::Tasks;
use sys::{
    liveness,
    process::{self, PidFile},
    supervision::{self, SupervisedProcess},
};
use tokio::time::sleep;

use crate::{
    Error, certs, containers::relevant_lines, error::io, health::check_kubelet, host::Host,
};

const RUN: &str = "/run/windlass";
const LOG: &str = "/var/log/windlass/kubelet.log";
/// The files with flags that systemd's drop-in also reads: the first is written by `init` and `join`, the second by the
/// administrator.
const FLAG_FILES: [(&str, &str); 2] = [
    ("/var/lib/kubelet/kubeadm-flags.env", "KUBELET_KUBEADM_ARGS"),
    ("/etc/default/kubelet", "KUBELET_EXTRA_ARGS"),
];
const GRACE: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(20);

fn supervisor(host: &Host) -> PidFile {
    PidFile(host.path(RUN).join("kubelet-supervisor.pid"))
}

fn kubelet(host: &Host) -> PidFile {
    PidFile(host.path(RUN).join("kubelet.pid"))
}

/// Starts the supervisor, which outlives this command, in the place of an earlier one. The new supervisor stops the
/// earlier one: if this command is killed meanwhile, a kubelet runs nonetheless.
pub(super) async fn start(host: &Host) -> Result<(), Error> {
    let failed = |cause: String| Error::Service { operation: "start", cause };
    // The supervisor is that of this machine, and would stop its kubelet.
    if *host != Host::default() {
        return Err(failed("without systemd, leave out --rootfs".to_owned()));
    }
    let program =
        std::env::current_exe().map_err(io("find the path of", Path::new("/proc/self/exe")))?;
    let log = host.path(LOG);
    if let Some(directory) = log.parent() {
        std::fs::create_dir_all(directory).map_err(io("create the directory", directory))?;
    }
    let open = || OpenOptions::new().create(true).append(true).open(&log);
    let (out, err) = (open().map_err(io("open", &log))?, open().map_err(io("open", &log))?);
    let mut command = Command::new(program);
    command.args(["internal", "keep-kubelet"]).current_dir("/");
    command.stdin(Stdio::null()).stdout(out).stderr(err).process_group(0);
    let mut child = command.spawn().map_err(|e| failed(e.to_string()))?;
    while supervisor(host).running() != Some(child.id().cast_signed()) {
        if let Ok(Some(status)) = child.try_wait() {
            let words = last_words(host);
            return Err(failed(format!("its supervisor ended with {status}; {words}")));
        }
        sleep(LOOK).await;
    }
    Ok(())
}

/// Stops the supervisor, which stops the kubelet, and then a kubelet that still runs.
pub(super) async fn stop(host: &Host) -> Result<(), Error> {
    for (file, what) in [(supervisor(host), "the supervisor"), (kubelet(host), "the kubelet")] {
        let Some(pid) = file.running() else { continue };
        if !supervision::stop(pid, GRACE).await {
            let cause = format!("{what} (pid {pid}) does not end; kill it (kill -9 {pid})");
            return Err(Error::Service { operation: "stop", cause });
        }
        file.remove().map_err(|e| Error::Service { operation: "stop", cause: e.to_string() })?;
    }
    Ok(())
}

/// Removes pid files and the log, and returns the errors.
pub(super) fn uninstall(host: &Host) -> Vec<String> {
    let mut left: Vec<String> = [supervisor(host), kubelet(host)]
        .iter()
        .filter_map(|file| file.remove().err().map(|e| e.to_string()))
        .collect();
    let log = host.path(LOG);
    match std::fs::remove_file(&log) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            left.push(format!("cannot remove {}: {e}", log.display()));
        }
        _ => {}
    }
    // Directories with other files stay.
    let _ = std::fs::remove_dir(host.path(RUN));
    let _ = log.parent().map(std::fs::remove_dir);
    left
}

pub(super) fn last_words(host: &Host) -> String {
    let log = host.path(LOG);
    match process::tail(&log, 100) {
        Ok(text) if !text.is_empty() => {
            let lines = relevant_lines(&text.lines().collect::<Vec<_>>());
            format!("its log {} ends:\n{lines}", log.display())
        }
        _ => format!("its log {} is empty", log.display()),
    }
}

/// Runs the supervisor, which keeps the kubelet running until shutdown and then stops it. It stops an earlier
/// supervisor first.
pub async fn keep_kubelet(host: &Host, tasks: &Tasks) -> Result<(), Error> {
    stop(host).await?;
    supervisor(host)
        .record(std::process::id().cast_signed())
        .map_err(|e| Error::Service { operation: "start", cause: e.to_string() })?;
    // The supervisor also renews the certificates of a control plane. With systemd, a timer does.
    let layout = Layout::under(&host.path("/"));
    tasks.keep("certificates", move || {
        certs::keep_renewed(layout.clone(), Arc::new(rt::SystemClock))
    });
    let mut process = SupervisedProcess::new("kubelet", kubelet(host));
    let keep = async {
        loop {
            let hung = liveness::unresponsive("kubelet", check_kubelet);
            process.live(|| start_kubelet(host), async |_| (), hung).await;
        }
    };
    let _: Option<()> = tasks.shutdown().unless_stopping(keep).await;
    match kubelet(host).running() {
        Some(pid) if !supervision::stop(pid, GRACE).await => {
            let cause = format!("the kubelet (pid {pid}) does not end");
            Err(Error::Service { operation: "stop", cause })
        }
        _ => Ok(()),
    }
}

fn start_kubelet(host: &Host) -> Result<Child, Error> {
    let failed = |cause: String| Error::Service { operation: "start", cause };
    let program =
        std::env::current_exe().map_err(io("find the path of", Path::new("/proc/self/exe")))?;
    let mut command = Command::new(program);
    command.arg("kubelet").args(flags(host)).stdin(Stdio::null());
    let child = command.spawn().map_err(|e| failed(e.to_string()))?;
    kubelet(host).record(child.id().cast_signed()).map_err(|e| failed(e.to_string()))?;
    Ok(child)
}

/// Returns the flags of the drop-in in kubeadm's packages.
fn flags(host: &Host) -> Vec<String> {
    let mut flags = [
        "--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf",
        "--kubeconfig=/etc/kubernetes/kubelet.conf",
        "--config=/var/lib/kubelet/config.yaml",
    ]
    .map(str::to_owned)
    .to_vec();
    for (path, variable) in FLAG_FILES {
        let text = host.read(path).unwrap_or_default();
        flags.extend(variable_of(&text, variable).split_whitespace().map(str::to_owned));
    }
    flags
}

/// Returns a variable's value from `NAME=value` lines, without quotes.
fn variable_of<'a>(text: &'a str, name: &str) -> &'a str {
    let mut values =
        text.lines().filter_map(|line| line.trim().strip_prefix(name)?.strip_prefix('='));
    let value = values.next_back().unwrap_or_default().trim();
    let unquoted = |quote| value.strip_prefix(quote)?.strip_suffix(quote);
    unquoted('"').or_else(|| unquoted('\'')).unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_flags_like_systemd_drop_in() {
        let dir = tempfile::tempdir().unwrap();
        let host = Host::under(dir.path());
        for (path, text) in [
            (FLAG_FILES[0].0, "KUBELET_KUBEADM_ARGS=\"--node-ip=10.0.0.1 --v=2\"\n"),
            (FLAG_FILES[1].0, "# KUBELET_EXTRA_ARGS=--old\nKUBELET_EXTRA_ARGS=--v=4\n"),
        ] {
            std::fs::create_dir_all(host.path(path).parent().unwrap()).unwrap();
            std::fs::write(host.path(path), text).unwrap();
        }
        assert_eq!(flags(&host)[3..], ["--node-ip=10.0.0.1", "--v=2", "--v=4"]);
        assert_eq!(variable_of("A=''\n", "A"), "");
        assert_eq!(variable_of("AB=1\n", "A"), "");
    }

    #[tokio::test(flavor = "current_thread")]
    async fn stops_kubelet_and_removes_files() {
        let dir = tempfile::tempdir().unwrap();
        let host = Host::under(dir.path());
        stop(&host).await.unwrap();
        let mut child = Command::new("sleep").arg("100").spawn().unwrap();
        kubelet(&host).record(child.id().cast_signed()).unwrap();
        let reap = std::thread::spawn(move || child.wait());
        stop(&host).await.unwrap();
        assert!(!reap.join().unwrap().unwrap().success());
        assert_eq!(uninstall(&host), Vec::<String>::new());
        assert!(!host.path(RUN).exists());
    }
}
