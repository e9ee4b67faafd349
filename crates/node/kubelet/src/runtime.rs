//! Converts the runtime's answers (CRI) to the types of `pod-core`.

use std::{collections::BTreeMap, path::Path, time::Duration};

use cri::{labels, v1};
use pod_core::{Container, Observed, Run, Sandbox, Timestamp, from_nanos};

use crate::context::Context;

/// The limits of a termination message, as upstream.
const MESSAGE_BYTES: u64 = 4096;
const LOG_MESSAGE_BYTES: usize = 2048;
const LOG_MESSAGE_LINES: usize = 80;

/// The exit code of a process ended by SIGKILL, which the kernel's out-of-memory killer sends.
const SIGKILL_EXIT_CODE: i32 = 137;
/// The reason of a container that was killed because it ran out of memory.
const OUT_OF_MEMORY: &str = "OOMKilled";
/// The time after the end of a container within which a runtime reports that it ran out of memory.
const SETTLED_AFTER: Duration = Duration::from_secs(2);
/// The delay before the status of an end whose reason is not settled is read again.
const REREAD_DELAY: Duration = Duration::from_millis(50);

/// Returns the sandboxes and containers of one Pod. Ended containers do not change, so they are copied from `known`.
/// Unless the Pod is `ending`, this waits until the reason of an end is settled.
pub(crate) async fn observe(
    ctx: &Context,
    uid: &str,
    earlier: &Observed,
    ending: bool,
) -> Result<Observed, cri::Error> {
    let selector = BTreeMap::from([(labels::POD_UID.to_owned(), uid.to_owned())]);
    let label_selector = selector.into_iter().collect::<std::collections::HashMap<_, _>>();
    let filter =
        v1::PodSandboxFilter { label_selector: label_selector.clone(), ..Default::default() };
    let listed = ctx.cri.list_pod_sandboxes(Some(filter)).await?;
    let filter = v1::ContainerFilter { label_selector, ..Default::default() };
    let containers = ctx.cri.list_containers(Some(filter)).await?;
    let mut sandboxes = Vec::new();
    for sandbox in listed {
        let before = earlier.sandboxes.iter().find(|s| s.id == sandbox.id);
        sandboxes.extend(observe_sandbox(ctx, sandbox, before).await?);
    }
    let mut observed = Vec::new();
    for container in containers {
        let before = earlier.containers.iter().find(|c| c.id == container.id);
        let ended = container.state() == v1::ContainerState::ContainerExited;
        match before.filter(|c| ended && c.exit_code().is_some()) {
            Some(before) => observed.push(before.clone()),
            None => match status(ctx, &container.id, ending).await {
                Ok(status) => {
                    observed.push(observe_container(container, status, &ctx.settings.logs));
                }
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error),
            },
        }
    }
    Ok(Observed::new(sandboxes, observed))
}

async fn status(ctx: &Context, id: &str, ending: bool) -> Result<v1::ContainerStatus, cri::Error> {
    let read = || ctx.cri.container_status(id);
    if ending {
        return read().await;
    }
    settled_status(read, || was_oom_killed(id.to_owned()), || ctx.now()).await
}

/// Reads a container's status until the reason of its end is settled.
///
/// containerd receives the end of a container and its lack of memory as two events, in either order, and may lose the
/// second one. The first status after an end may therefore have the reason `Error` although the container ran out of
/// memory. So this also checks the kernel's log, which records a kill before the process ends.
async fn settled_status<R, K>(
    read: impl Fn() -> R,
    was_killed: impl FnOnce() -> K,
    now: impl Fn() -> Timestamp,
) -> Result<v1::ContainerStatus, cri::Error>
where
    R: Future<Output = Result<v1::ContainerStatus, cri::Error>>,
    K: Future<Output = bool>,
{
    let mut was_killed = Some(was_killed);
    loop {
        let mut status = read().await?;
        if !may_be_for_memory(&status) {
            return Ok(status);
        }
        if let Some(was_killed) = was_killed.take()
            && was_killed().await
        {
            status.reason = OUT_OF_MEMORY.to_owned();
            return Ok(status);
        }
        if now() >= pod_core::after(from_nanos(status.finished_at), SETTLED_AFTER) {
            return Ok(status);
        }
        tokio::time::sleep(REREAD_DELAY).await;
    }
}

/// Reports whether the kernel logged an out-of-memory kill of a process of the container.
async fn was_oom_killed(id: String) -> bool {
    let look = move || sys::was_killed_for_memory(&id);
    match tokio::task::spawn_blocking(look).await {
        Ok(Ok(killed)) => killed,
        Ok(Err(error)) => {
            tracing::debug!(%error, "read out-of-memory kills from the kernel's log");
            false
        }
        Err(_) => false,
    }
}

/// Reports whether the runtime may still change the reason of an end to out of memory.
fn may_be_for_memory(status: &v1::ContainerStatus) -> bool {
    status.state() == v1::ContainerState::ContainerExited
        && status.exit_code == SIGKILL_EXIT_CODE
        && status.reason != OUT_OF_MEMORY
}

async fn observe_sandbox(
    ctx: &Context,
    sandbox: v1::PodSandbox,
    before: Option<&Sandbox>,
) -> Result<Option<Sandbox>, cri::Error> {
    let ready = sandbox.state() == v1::PodSandboxState::SandboxReady;
    let stable = before.map(|b| b.ips.clone()).filter(|ips| !ready || !ips.is_empty());
    let ips = match stable {
        Some(ips) => ips,
        None => match ctx.cri.pod_sandbox_status(&sandbox.id, false).await {
            Ok(response) => ips(response.status.and_then(|s| s.network)),
            Err(error) if error.is_not_found() => return Ok(None),
            Err(error) => return Err(error),
        },
    };
    let attempt = sandbox.metadata.as_ref().map_or(0, |m| m.attempt);
    Ok(Some(Sandbox {
        attempt,
        ready,
        created: from_nanos(sandbox.created_at),
        ips,
        id: sandbox.id,
    }))
}

fn ips(network: Option<v1::PodSandboxNetworkStatus>) -> Vec<String> {
    let Some(network) = network else { return Vec::new() };
    let more = network.additional_ips.into_iter().map(|ip| ip.ip);
    std::iter::once(network.ip).chain(more).filter(|ip| !ip.is_empty()).collect()
}

fn observe_container(
    container: v1::Container,
    status: v1::ContainerStatus,
    logs: &Path,
) -> Container {
    let run = match status.state() {
        v1::ContainerState::ContainerCreated => Run::Created,
        v1::ContainerState::ContainerRunning => {
            Run::Running { started: from_nanos(status.started_at) }
        }
        v1::ContainerState::ContainerExited => Run::Exited {
            started: (status.started_at > 0).then(|| from_nanos(status.started_at)),
            finished: from_nanos(if status.finished_at > 0 {
                status.finished_at
            } else {
                status.created_at
            }),
            code: status.exit_code,
            reason: status.reason.clone(),
        },
        v1::ContainerState::ContainerUnknown => Run::Unknown,
    };
    let message = match run {
        Run::Exited { .. } => termination_message(&status, logs),
        _ => String::new(),
    };
    let image = status.image.as_ref().map(|i| i.image.clone()).unwrap_or_default();
    let metadata = container.metadata.unwrap_or_default();
    let annotated = |name| {
        container.annotations.get(name).and_then(|text: &String| serde_json::from_str(text).ok())
    };
    let recursive = status.mounts.iter().filter(|mount| mount.recursive_read_only);
    Container {
        recursive_read_only: recursive.map(|mount| mount.container_path.clone()).collect(),
        name: metadata.name,
        attempt: metadata.attempt,
        sandbox: container.pod_sandbox_id,
        created: from_nanos(container.created_at),
        run,
        image,
        image_id: if status.image_ref.is_empty() { status.image_id } else { status.image_ref },
        resources: annotated(labels::RESOURCES),
        shared: annotated(labels::SHARED_RESOURCES),
        hash: container.annotations.get(labels::HASH).cloned().unwrap_or_default(),
        message,
        id: container.id,
    }
}

/// Returns the termination message: the container's message file, else the end of its log if the policy says so, else
/// the runtime's message. Logs must be below the directory `logs`.
fn termination_message(status: &v1::ContainerStatus, logs: &Path) -> String {
    let inside = status.annotations.get(labels::MESSAGE_PATH);
    let file = inside.and_then(|path| status.mounts.iter().find(|m| m.container_path == *path));
    let words = file.map(|mount| read_start(Path::new(&mount.host_path))).unwrap_or_default();
    if !words.is_empty() {
        return words;
    }
    let fall_back = status
        .annotations
        .get(labels::MESSAGE_POLICY)
        .is_some_and(|p| p == "FallbackToLogsOnError");
    if fall_back && status.exit_code != 0 {
        return cri::log::tail(
            logs,
            Path::new(&status.log_path),
            LOG_MESSAGE_LINES,
            LOG_MESSAGE_BYTES,
        );
    }
    status.message.clone()
}

/// Reads the start of a file that a container controls. Does not follow a symbolic link to files of the host, and does
/// not block on a named pipe.
fn read_start(path: &Path) -> String {
    use std::{io::Read, os::unix::fs::OpenOptionsExt};
    let flags = nix::fcntl::OFlag::O_NOFOLLOW | nix::fcntl::OFlag::O_NONBLOCK;
    let mut bytes = Vec::new();
    if let Ok(file) = std::fs::OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)
        && file.metadata().is_ok_and(|meta| meta.is_file())
    {
        let _ = file.take(MESSAGE_BYTES).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;

    #[test]
    fn reads_message_from_a_regular_file_only() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "bye".repeat(2000)).unwrap();
        assert_eq!(read_start(&file).len(), 4096);
        let (link, pipe) = (dir.path().join("link"), dir.path().join("pipe"));
        std::os::unix::fs::symlink(&file, &link).unwrap();
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        for other in [link, pipe, dir.path().to_owned()] {
            assert_eq!(read_start(&other), "", "{}", other.display());
        }
    }

    fn ended(reason: &str, exit_code: i32) -> v1::ContainerStatus {
        v1::ContainerStatus {
            state: v1::ContainerState::ContainerExited.into(),
            finished_at: 10_000_000_000,
            exit_code,
            reason: reason.to_owned(),
            ..Default::default()
        }
    }

    /// Reads the runtime's statuses in order; the last one repeats. `logged` is the answer of the kernel's log.
    async fn settle(
        answers: &[v1::ContainerStatus],
        logged: bool,
    ) -> (v1::ContainerStatus, Duration) {
        let start = tokio::time::Instant::now();
        let reads = std::cell::Cell::new(0);
        let read = || {
            let at = reads.replace(reads.get() + 1);
            std::future::ready(Ok(answers[at.min(answers.len() - 1)].clone()))
        };
        let ended = Timestamp::from_second(10).unwrap();
        let logged = || std::future::ready(logged);
        let now = || pod_core::after(ended, start.elapsed());
        let status = settled_status(read, logged, now).await.unwrap();
        (status, start.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn reads_end_again_until_memory_is_known_as_its_reason() {
        let late = [ended("Error", 137), ended("Error", 137), ended("OOMKilled", 137)];
        let (status, took) = settle(&late, false).await;
        assert_eq!((status.reason.as_str(), took), ("OOMKilled", REREAD_DELAY * 2));
        // The runtime lost the event.
        let (status, took) = settle(&[ended("Error", 137)], true).await;
        assert_eq!((status.reason.as_str(), took), ("OOMKilled", Duration::ZERO));
        // Another process sent the signal.
        let (status, took) = settle(&[ended("Error", 137)], false).await;
        assert_eq!((status.reason.as_str(), took), ("Error", SETTLED_AFTER));
        let running = v1::ContainerStatus {
            state: v1::ContainerState::ContainerRunning.into(),
            exit_code: 137,
            ..Default::default()
        };
        for at_once in [ended("OOMKilled", 137), ended("Error", 1), ended("Completed", 0), running]
        {
            let settled = settle(std::slice::from_ref(&at_once), false).await;
            assert_eq!(settled, (at_once, Duration::ZERO));
        }
    }

    /// Answers of the runtime come from another process and may be damaged.
    #[test]
    fn damaged_answers() {
        let labels = [(labels::POD_UID.to_owned(), "u".to_owned())];
        let container = v1::Container {
            id: "c".into(),
            pod_sandbox_id: "s".into(),
            metadata: Some(v1::ContainerMetadata { name: "n".into(), attempt: 1 }),
            labels: labels.clone().into(),
            annotations: [(labels::RESOURCES.to_owned(), "{}".to_owned())].into(),
            ..Default::default()
        };
        let status = v1::ContainerStatus {
            id: "c".into(),
            state: v1::ContainerState::ContainerExited.into(),
            finished_at: i64::MAX,
            message: "gone".into(),
            ..Default::default()
        };
        let network = v1::PodSandboxNetworkStatus {
            ip: "10.0.0.1".into(),
            additional_ips: vec![v1::PodIp { ip: "fd00::1".into() }],
        };
        let seeds = [container.encode_to_vec(), status.encode_to_vec(), network.encode_to_vec()];
        let seeds = seeds.each_ref().map(Vec::as_slice);
        fuzz::fuzz(env!("CARGO_MANIFEST_DIR"), "cri", &seeds, |input| {
            let container = v1::Container::decode(input).unwrap_or_default();
            let mut status = v1::ContainerStatus::decode(input).unwrap_or_default();
            // These fields name files of this machine.
            status.mounts.clear();
            status.log_path.clear();
            let seen = observe_container(container, status, Path::new("/none"));
            let _ = Observed::new(Vec::new(), vec![seen]);
            let _ = ips(v1::PodSandboxNetworkStatus::decode(input).ok());
            let _ = v1::StatusResponse::decode(input);
            let _ = v1::ListContainerStatsResponse::decode(input);
        });
    }
}
