//! One look at all control groups of the node, and whose they are.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use cri::v1;
use pod_core::Timestamp;
use sys::cgroup::Usage;

use super::host::{self, Interface, Processes};
use crate::{
    context::{Context, of_nanos, timestamp},
    runtime::label,
    steps,
};

/// A Pod, as its sandbox names it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PodRef {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) created: Timestamp,
}

/// A container or a sandbox of a Pod.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    pub(super) id: String,
    pub(super) pod: Arc<PodRef>,
    /// `None` for a sandbox.
    pub(super) container: Option<String>,
    pub(super) image: String,
    pub(super) created: Timestamp,
}

/// Whose a group is.
#[derive(Clone, Debug)]
pub(super) enum Owner {
    /// The whole machine's.
    Node,
    /// That of all Pods of a class, or of all classes.
    Class,
    Pod(Arc<PodRef>),
    Piece(Piece),
    /// Nobody's that the runtime knows.
    Unknown,
}

pub(super) struct Group {
    pub(super) path: String,
    pub(super) owner: Owner,
    pub(super) at: Timestamp,
    pub(super) usage: Usage,
    /// What it used a second since the reading before.
    pub(super) nanocores: Option<u64>,
    pub(super) processes: Processes,
    /// The links of the machine or of a sandbox.
    pub(super) interfaces: Vec<Interface>,
}

/// The groups in order of their paths, the machine's first.
pub(super) struct Reading {
    pub(super) groups: Vec<Group>,
    pub(super) disks: BTreeMap<host::Number, host::Disk>,
    pub(super) file_systems: Vec<host::FileSystem>,
}

/// What the runtime has, by id.
#[derive(Default)]
pub(super) struct Names {
    pieces: HashMap<String, Piece>,
    pods: HashMap<String, Arc<PodRef>>,
}

fn labelled(labels: &HashMap<String, String>, name: &str) -> String {
    labels.get(name).cloned().unwrap_or_default()
}

impl Names {
    /// Asks the runtime; `images` remembers those of sandboxes that are there.
    pub(super) async fn ask(
        ctx: &Context,
        images: &mut HashMap<String, String>,
    ) -> Result<Self, cri::Error> {
        let (sandboxes, containers) =
            tokio::try_join!(ctx.cri.list_pod_sandboxes(None), ctx.cri.list_containers(None))?;
        let known = ctx.cri.list_images().await?;
        let mut names = Self::default();
        images.retain(|id, _| sandboxes.iter().any(|sandbox| sandbox.id == *id));
        for sandbox in sandboxes {
            let ready = sandbox.state() == v1::PodSandboxState::SandboxReady;
            if ready && !images.contains_key(&sandbox.id) {
                images.insert(sandbox.id.clone(), sandbox_image(ctx, &sandbox.id).await);
            }
            names.add_sandbox(sandbox, images);
        }
        let by_id: HashMap<&str, &v1::Image> = known.iter().map(|i| (i.id.as_str(), i)).collect();
        for container in containers {
            let given = container.image.as_ref().map(|i| i.image.clone()).unwrap_or_default();
            let known = by_id.get(container.image_ref.as_str()).or(by_id.get(given.as_str()));
            let name = known.and_then(|i| i.repo_tags.first().or(i.repo_digests.first()).cloned());
            names.add_container(container, name.unwrap_or(given));
        }
        Ok(names)
    }

    fn add_sandbox(&mut self, sandbox: v1::PodSandbox, images: &HashMap<String, String>) {
        let of = |name: &str| labelled(&sandbox.labels, name);
        let pod = Arc::new(PodRef {
            namespace: of(label::POD_NAMESPACE),
            name: of(label::POD_NAME),
            uid: of(label::POD_UID),
            created: of_nanos(sandbox.created_at),
        });
        if sandbox.state() == v1::PodSandboxState::SandboxReady {
            self.pods.insert(pod.uid.clone(), pod.clone());
        }
        let piece = Piece {
            id: sandbox.id.clone(),
            created: pod.created,
            container: None,
            image: images.get(&sandbox.id).cloned().unwrap_or_default(),
            pod,
        };
        self.pieces.insert(sandbox.id, piece);
    }

    fn add_container(&mut self, container: v1::Container, image: String) {
        let Some(sandbox) = self.pieces.get(&container.pod_sandbox_id) else { return };
        let piece = Piece {
            id: container.id.clone(),
            pod: sandbox.pod.clone(),
            container: Some(labelled(&container.labels, label::CONTAINER)),
            image,
            created: of_nanos(container.created_at),
        };
        self.pieces.insert(container.id, piece);
    }

    /// The piece whose group has this name: its id, which a systemd unit's name says in its own way.
    fn piece(&self, leaf: &str) -> Option<&Piece> {
        let id = leaf.strip_suffix(".scope").unwrap_or(leaf);
        self.pieces.get(id.rsplit('-').next().unwrap_or(id))
    }
}

/// The image that a sandbox was made of, if the runtime tells; containerd and CRI-O do when asked for all details.
async fn sandbox_image(ctx: &Context, id: &str) -> String {
    let answer = ctx.cri.pod_sandbox_status(id, true).await.unwrap_or_default();
    let info = answer.info.get("info").and_then(|text| serde_json::from_str(text).ok());
    let info: serde_json::Value = info.unwrap_or_default();
    info.get("image").and_then(|image| image.as_str()).unwrap_or_default().to_owned()
}

/// How deep below the group of all Pods those of containers are: below a class and a Pod. What a container makes below
/// its own group is counted there, so that no container decides how long a reading takes.
const DEPTH: usize = 3;

impl Reading {
    pub(super) fn make(ctx: &Context, names: &Names, before: Option<&Self>) -> Self {
        let root = steps::pods_group(ctx);
        let mut found = vec![("/".to_owned(), Owner::Node), (root.clone(), Owner::Class)];
        walk(ctx, names, &root, DEPTH, &mut found);
        found.sort_by(|(a, _), (b, _)| a.cmp(b));
        let known: HashMap<&str, &Group> =
            before.iter().flat_map(|b| &b.groups).map(|g| (g.path.as_str(), g)).collect();
        let groups = found.into_iter().filter_map(|(path, owner)| {
            let before = known.get(path.as_str()).copied();
            Group::read(ctx, path, owner, before)
        });
        Self { groups: groups.collect(), disks: host::disks(), file_systems: host::file_systems() }
    }

    /// The machine's own group.
    pub(super) fn node(&self) -> Option<&Group> {
        self.groups.iter().find(|group| matches!(group.owner, Owner::Node))
    }

    /// The Pods that have a sandbox, each with its own group and those of its sandbox and containers.
    pub(super) fn pods(&self) -> Vec<PodGroups<'_>> {
        let mut pods: BTreeMap<&str, PodGroups<'_>> = BTreeMap::new();
        for group in &self.groups {
            let (Owner::Pod(pod) | Owner::Piece(Piece { pod, .. })) = &group.owner else {
                continue;
            };
            let entry = pods.entry(&pod.uid).or_insert_with(|| PodGroups {
                pod,
                own: None,
                sandbox: None,
                containers: Vec::new(),
            });
            match &group.owner {
                Owner::Piece(Piece { container: Some(name), created, id, .. }) => {
                    entry.containers.push(ContainerGroup { name, created: *created, id, group });
                }
                Owner::Piece(_) => entry.sandbox = Some(group),
                _ => entry.own = Some(group),
            }
        }
        pods.into_values().collect()
    }
}

pub(super) struct PodGroups<'a> {
    pub(super) pod: &'a PodRef,
    pub(super) own: Option<&'a Group>,
    pub(super) sandbox: Option<&'a Group>,
    pub(super) containers: Vec<ContainerGroup<'a>>,
}

pub(super) struct ContainerGroup<'a> {
    pub(super) name: &'a str,
    pub(super) id: &'a str,
    pub(super) created: Timestamp,
    pub(super) group: &'a Group,
}

/// Finds the groups below one, and whose they are.
fn walk(
    ctx: &Context,
    names: &Names,
    parent: &str,
    depth: usize,
    found: &mut Vec<(String, Owner)>,
) {
    for leaf in ctx.cgroups.children(parent).unwrap_or_default() {
        let pod = steps::group_uid(ctx, &leaf).map(|uid| names.pods.get(&uid));
        let owner = match (pod, names.piece(&leaf)) {
            (_, Some(piece)) => Owner::Piece(piece.clone()),
            (Some(Some(pod)), _) => Owner::Pod(pod.clone()),
            (None, None) if depth == DEPTH => Owner::Class,
            _ => Owner::Unknown,
        };
        let path = format!("{}/{leaf}", parent.trim_end_matches('/'));
        if depth > 1 && !matches!(owner, Owner::Piece(_)) {
            walk(ctx, names, &path, depth - 1, found);
        }
        found.push((path, owner));
    }
}

impl Group {
    /// `None` if the group has gone meanwhile.
    fn read(ctx: &Context, path: String, owner: Owner, before: Option<&Self>) -> Option<Self> {
        let usage = ctx.cgroups.usage(&path).ok()?;
        let at = timestamp(ctx.clock.now());
        let pids = ctx.cgroups.processes(&path);
        let interfaces = match &owner {
            Owner::Node => host::interfaces(None),
            Owner::Piece(Piece { container: None, .. }) => {
                pids.first().map(|pid| host::interfaces(Some(*pid))).unwrap_or_default()
            }
            _ => Vec::new(),
        };
        let nanocores = before.and_then(|before| {
            let nanos = u64::try_from(at.duration_since(before.at).as_nanos()).ok()?;
            let used = usage.cpu.total.checked_sub(before.usage.cpu.total)?;
            u64::try_from((u128::from(used) * 1_000_000_000).checked_div(u128::from(nanos))?).ok()
        });
        let processes = host::processes(&pids);
        Some(Self { path, owner, at, usage, nanocores, processes, interfaces })
    }
}
