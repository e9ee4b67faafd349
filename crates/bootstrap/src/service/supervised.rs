//! The kubelet where no systemd runs: a supervisor of ours starts it, and starts it again when it ends.

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
    kept::{self, Kept},
    liveness,
    process::{self, PidFile},
};
use tokio::time::sleep;

use crate::{Error, certs, cluster::ask_kubelet, containers::telling, error::io, host::Host};

const RUN: &str = "/run/windlass";
const LOG: &str = "/var/log/windlass/kubelet.log";
/// What systemd's drop-in reads too: the first is written by `init` and `join`, the second is the administrator's.
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

/// Starts the supervisor, which outlives this command.
pub(super) async fn start(host: &Host) -> Result<(), Error> {
    stop(host).await?;
    let failed = |cause: String| Error::Service { operation: "start", cause };
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
    supervisor(host).record(child.id().cast_signed()).map_err(|e| failed(e.to_string()))?;
    // One that cannot even start is told now.
    sleep(LOOK).await;
    match child.try_wait() {
        Ok(Some(status)) => {
            Err(failed(format!("its supervisor ended with {status}; {}", last_words(host))))
        }
        _ => Ok(()),
    }
}

/// Stops the supervisor, which stops the kubelet; then a kubelet that is left.
pub(super) async fn stop(host: &Host) -> Result<(), Error> {
    for (file, what) in [(supervisor(host), "the supervisor"), (kubelet(host), "the kubelet")] {
        let Some(pid) = file.running() else { continue };
        if !kept::stop(pid, GRACE).await {
            let cause = format!("{what} (pid {pid}) does not end; end it by hand (kill -9 {pid})");
            return Err(Error::Service { operation: "stop", cause });
        }
        file.remove().map_err(|e| Error::Service { operation: "stop", cause: e.to_string() })?;
    }
    Ok(())
}

/// Removes pid files and the log; returns what could not be removed.
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
    // They go where nothing of somebody else's is in them.
    let _ = std::fs::remove_dir(host.path(RUN));
    let _ = log.parent().map(std::fs::remove_dir);
    left
}

pub(super) fn last_words(host: &Host) -> String {
    let log = host.path(LOG);
    match process::tail(&log, 100) {
        Ok(text) if !text.is_empty() => {
            let said = telling(&text.lines().collect::<Vec<_>>());
            format!("its log {} ends:\n{said}", log.display())
        }
        _ => format!("its log {} is empty", log.display()),
    }
}

/// The supervisor: keeps the kubelet running until it is asked to stop, and then stops it.
pub async fn keep_kubelet(host: &Host, tasks: &Tasks) -> Result<(), Error> {
    // A control plane's certificates are looked after too, which is a timer's work where systemd runs.
    let layout = Layout::under(&host.path("/"));
    tasks.keep("certificates", move || {
        certs::keep_renewed(layout.clone(), Arc::new(rt::SystemClock))
    });
    let mut kubelet_kept = Kept::new("kubelet", kubelet(host));
    let keep = async {
        loop {
            let hung = liveness::unresponsive("kubelet", ask_kubelet);
            kubelet_kept.live(|| start_kubelet(host), async |_| (), hung).await;
        }
    };
    let _: Option<()> = tasks.shutdown().unless_stopping(keep).await;
    match kubelet(host).running() {
        Some(pid) if !kept::stop(pid, GRACE).await => {
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

/// The flags that the drop-in of kubeadm's packages gives.
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

/// What a file of `NAME=value` lines says of a variable, without the quotes around it.
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
    fn flags_are_those_of_the_drop_in() {
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
    async fn what_runs_is_stopped_and_its_files_go() {
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
