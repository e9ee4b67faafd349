//! From what the runtime says to what the core understands.

use std::{collections::BTreeMap, path::Path, time::Duration};

use cri::v1;
use pod_core::{Container, Observed, Run, Sandbox, Timestamp};

use crate::context::{Context, of_nanos};

/// The labels and annotations by which a kubelet, also another one, finds again what it made.
pub(crate) mod label {
    pub(crate) const POD_NAME: &str = "io.kubernetes.pod.name";
    pub(crate) const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
    pub(crate) const POD_UID: &str = "io.kubernetes.pod.uid";
    pub(crate) const CONTAINER: &str = "io.kubernetes.container.name";
    pub(crate) const HASH: &str = "io.kubernetes.container.hash";
    /// What the container was created to keep to.
    pub(crate) const RESOURCES: &str = "io.windlass.container.resources";
    pub(crate) const RESTARTS: &str = "io.kubernetes.container.restartCount";
    pub(crate) const MESSAGE_PATH: &str = "io.kubernetes.container.terminationMessagePath";
    pub(crate) const MESSAGE_POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";
    pub(crate) const POD_GRACE: &str = "io.kubernetes.pod.terminationGracePeriod";
}

/// The limits on a termination message, as upstream's.
const MESSAGE_BYTES: u64 = 4096;
const LOG_MESSAGE_BYTES: usize = 2048;
const LOG_MESSAGE_LINES: usize = 80;

/// The exit code of a process that SIGKILL ended, as the kernel does where memory is short.
const KILLED: i32 = 137;
/// The reason of a container that was killed for memory.
const OUT_OF_MEMORY: &str = "OOMKilled";
/// The time in which a runtime reports that a container was killed for memory, after it has reported the end.
const SETTLED_AFTER: Duration = Duration::from_secs(2);
/// The pause before an end that is not settled is read again.
const READ_AGAIN: Duration = Duration::from_millis(50);

/// What the runtime has of one Pod. Ended containers do not change, so that `known` spares asking again. Unless the Pod
/// is `ending`, the reason of an end is settled before it is returned.
pub(crate) async fn observe(
    ctx: &Context,
    uid: &str,
    known: &Observed,
    ending: bool,
) -> Result<Observed, cri::Error> {
    let selector = BTreeMap::from([(label::POD_UID.to_owned(), uid.to_owned())]);
    let label_selector = selector.into_iter().collect::<std::collections::HashMap<_, _>>();
    let filter =
        v1::PodSandboxFilter { label_selector: label_selector.clone(), ..Default::default() };
    let listed = ctx.cri.list_pod_sandboxes(Some(filter)).await?;
    let filter = v1::ContainerFilter { label_selector, ..Default::default() };
    let containers = ctx.cri.list_containers(Some(filter)).await?;
    let mut sandboxes = Vec::new();
    for sandbox in listed {
        let before = known.sandboxes.iter().find(|s| s.id == sandbox.id);
        sandboxes.extend(observe_sandbox(ctx, sandbox, before).await?);
    }
    let mut seen = Vec::new();
    for container in containers {
        let before = known.containers.iter().find(|c| c.id == container.id);
        let ended = container.state() == v1::ContainerState::ContainerExited;
        match before.filter(|c| ended && c.exit_code().is_some()) {
            Some(before) => seen.push(before.clone()),
            None => match status(ctx, &container.id, ending).await {
                Ok(status) => {
                    seen.push(observe_container(container, status, &ctx.settings.logs));
                }
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error),
            },
        }
    }
    Ok(Observed::new(sandboxes, seen))
}

async fn status(ctx: &Context, id: &str, ending: bool) -> Result<v1::ContainerStatus, cri::Error> {
    let read = || ctx.cri.container_status(id);
    if ending {
        return read().await;
    }
    settled(read, || killed_for_memory(id.to_owned()), || ctx.now()).await
}

/// Reads a container's status until it is settled why the container ended.
///
/// containerd hears of an end and of a lack of memory by two events, in either order, and may lose the second one. A
/// kubelet that keeps the first status which it reads of an end may report the reason `Error` of a container that was
/// killed for memory. So the kernel is asked, too, which logs a kill before the process ends.
async fn settled<R, K>(
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
        if now() >= pod_core::after(of_nanos(status.finished_at), SETTLED_AFTER) {
            return Ok(status);
        }
        tokio::time::sleep(READ_AGAIN).await;
    }
}

/// Reports whether the kernel logged that it killed a process of a container for memory.
async fn killed_for_memory(id: String) -> bool {
    let look = move || sys::was_killed_for_memory(&id);
    match tokio::task::spawn_blocking(look).await {
        Ok(Ok(killed)) => killed,
        Ok(Err(error)) => {
            tracing::debug!(%error, "look for kills for memory in the kernel's log");
            false
        }
        Err(_) => false,
    }
}

/// Returns `true` for an end of which the runtime may yet report that it was for want of memory.
fn may_be_for_memory(status: &v1::ContainerStatus) -> bool {
    status.state() == v1::ContainerState::ContainerExited
        && status.exit_code == KILLED
        && status.reason != OUT_OF_MEMORY
}

async fn observe_sandbox(
    ctx: &Context,
    sandbox: v1::PodSandbox,
    before: Option<&Sandbox>,
) -> Result<Option<Sandbox>, cri::Error> {
    let ready = sandbox.state() == v1::PodSandboxState::SandboxReady;
    let known = before.map(|b| b.ips.clone()).filter(|ips| !ready || !ips.is_empty());
    let ips = match known {
        Some(ips) => ips,
        None => match ctx.cri.pod_sandbox_status(&sandbox.id, false).await {
            Ok(answer) => ips(answer.status.and_then(|s| s.network)),
            Err(error) if error.is_not_found() => return Ok(None),
            Err(error) => return Err(error),
        },
    };
    let attempt = sandbox.metadata.as_ref().map_or(0, |m| m.attempt);
    Ok(Some(Sandbox { attempt, ready, created: of_nanos(sandbox.created_at), ips, id: sandbox.id }))
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
            Run::Running { started: of_nanos(status.started_at) }
        }
        v1::ContainerState::ContainerExited => Run::Exited {
            started: (status.started_at > 0).then(|| of_nanos(status.started_at)),
            finished: of_nanos(if status.finished_at > 0 {
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
    let recursive = status.mounts.iter().filter(|mount| mount.recursive_read_only);
    Container {
        recursive_read_only: recursive.map(|mount| mount.container_path.clone()).collect(),
        name: metadata.name,
        attempt: metadata.attempt,
        sandbox: container.pod_sandbox_id,
        created: of_nanos(container.created_at),
        run,
        image,
        image_id: if status.image_ref.is_empty() { status.image_id } else { status.image_ref },
        resources: container
            .annotations
            .get(label::RESOURCES)
            .and_then(|text| serde_json::from_str(text).ok()),
        hash: container.annotations.get(label::HASH).cloned().unwrap_or_default(),
        message,
        id: container.id,
    }
}

/// What the container left as its last words, or else the end of its log if its policy says so, or else what the
/// runtime says. Logs are below the directory `logs`.
fn termination_message(status: &v1::ContainerStatus, logs: &Path) -> String {
    let inside = status.annotations.get(label::MESSAGE_PATH);
    let file = inside.and_then(|path| status.mounts.iter().find(|m| m.container_path == *path));
    let words = file.map(|mount| read_start(Path::new(&mount.host_path))).unwrap_or_default();
    if !words.is_empty() {
        return words;
    }
    let fall_back =
        status.annotations.get(label::MESSAGE_POLICY).is_some_and(|p| p == "FallbackToLogsOnError");
    if fall_back && status.exit_code != 0 {
        return crate::logs::tail(
            logs,
            Path::new(&status.log_path),
            LOG_MESSAGE_LINES,
            LOG_MESSAGE_BYTES,
        );
    }
    status.message.clone()
}

/// The beginning of a file that a container may have put there: a link is not followed to the host's files, and a named
/// pipe is not waited for.
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

/// One thing the runtime has, in brief.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Piece {
    pub(crate) id: String,
    pub(crate) state: i32,
}

/// A Pod as the runtime knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) containers: Vec<String>,
    pub(crate) pieces: Vec<Piece>,
}

/// Everything that a kubelet made, by Pod.
pub(crate) async fn everything(ctx: &Context) -> Result<BTreeMap<String, Known>, cri::Error> {
    let mut pods: BTreeMap<String, Known> = BTreeMap::new();
    for sandbox in ctx.cri.list_pod_sandboxes(None).await? {
        let Some(uid) = sandbox.labels.get(label::POD_UID) else { continue };
        let pod = pods.entry(uid.clone()).or_default();
        pod.namespace = sandbox.labels.get(label::POD_NAMESPACE).cloned().unwrap_or_default();
        pod.name = sandbox.labels.get(label::POD_NAME).cloned().unwrap_or_default();
        pod.pieces.push(Piece { id: sandbox.id, state: sandbox.state });
    }
    for container in ctx.cri.list_containers(None).await? {
        let Some(uid) = container.labels.get(label::POD_UID) else { continue };
        let pod = pods.entry(uid.clone()).or_default();
        pod.namespace = container.labels.get(label::POD_NAMESPACE).cloned().unwrap_or_default();
        pod.name = container.labels.get(label::POD_NAME).cloned().unwrap_or_default();
        pod.containers.extend(container.labels.get(label::CONTAINER).cloned());
        pod.pieces.push(Piece { id: container.id, state: container.state + 10 });
    }
    pods.values_mut().for_each(|pod| pod.pieces.sort());
    Ok(pods)
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;

    #[test]
    fn last_words_are_read_from_a_file_and_through_no_link() {
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

    /// Reads the statuses of a runtime one after the other; the last one stays. `logged` is what the kernel says.
    async fn settle(
        answers: &[v1::ContainerStatus],
        logged: bool,
    ) -> (v1::ContainerStatus, Duration) {
        let begun = tokio::time::Instant::now();
        let reads = std::cell::Cell::new(0);
        let read = || {
            let at = reads.replace(reads.get() + 1);
            std::future::ready(Ok(answers[at.min(answers.len() - 1)].clone()))
        };
        let ended = Timestamp::from_second(10).unwrap();
        let logged = || std::future::ready(logged);
        let now = || pod_core::after(ended, begun.elapsed());
        let status = settled(read, logged, now).await.unwrap();
        (status, begun.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn reads_end_again_until_memory_is_known_as_its_reason() {
        let late = [ended("Error", 137), ended("Error", 137), ended("OOMKilled", 137)];
        let (status, took) = settle(&late, false).await;
        assert_eq!((status.reason.as_str(), took), ("OOMKilled", READ_AGAIN * 2));
        // The runtime lost the event.
        let (status, took) = settle(&[ended("Error", 137)], true).await;
        assert_eq!((status.reason.as_str(), took), ("OOMKilled", Duration::ZERO));
        // Somebody else sent the signal.
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

    /// A runtime's answers are a program's on the same machine, and go through the same decoder as a stranger's.
    #[test]
    fn damaged_answers() {
        let labels = [(label::POD_UID.to_owned(), "u".to_owned())];
        let container = v1::Container {
            id: "c".into(),
            pod_sandbox_id: "s".into(),
            metadata: Some(v1::ContainerMetadata { name: "n".into(), attempt: 1 }),
            labels: labels.clone().into(),
            annotations: [(label::RESOURCES.to_owned(), "{}".to_owned())].into(),
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
            // These name files of this machine.
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
