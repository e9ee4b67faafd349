//! Reads the usage of all cgroups of the node and finds their owners.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use cri::{labels, v1};
use pod_core::{Timestamp, from_nanos};
use sys::cgroup::Usage;

use crate::{
    host::{self, Interface, Processes},
    sources::StatsSources,
};

/// A Pod as described by the labels of its sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PodRef {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) created: Timestamp,
}

/// A container or a sandbox of a Pod.
#[derive(Clone, Debug)]
pub(crate) struct PodMember {
    pub(crate) id: String,
    pub(crate) pod: Arc<PodRef>,
    /// The container's name, or `None` for a sandbox.
    pub(crate) container: Option<String>,
    pub(crate) image: String,
    pub(crate) created: Timestamp,
}

/// The owner of a cgroup.
#[derive(Clone, Debug)]
pub(crate) enum Owner {
    /// The whole machine.
    Node,
    /// All Pods of a QoS class, or of all classes.
    Class,
    Pod(Arc<PodRef>),
    PodMember(PodMember),
    /// No object that the runtime has.
    Unknown,
}

pub(crate) struct Group {
    pub(crate) path: String,
    pub(crate) owner: Owner,
    pub(crate) at: Timestamp,
    pub(crate) usage: Usage,
    /// The CPU usage since the previous reading, in nanocores.
    pub(crate) nanocores: Option<u64>,
    pub(crate) processes: Processes,
    /// The network interfaces of the machine or of a sandbox.
    pub(crate) interfaces: Vec<Interface>,
}

/// The cgroups in the order of their paths. The machine's cgroup comes first.
pub(crate) struct Reading {
    pub(crate) groups: Vec<Group>,
    pub(crate) disks: BTreeMap<host::Number, host::Disk>,
    pub(crate) file_systems: Vec<host::FileSystem>,
}

/// The runtime's sandboxes and containers by ID, and its Pods by UID.
#[derive(Default)]
pub(crate) struct Names {
    pieces: HashMap<String, PodMember>,
    pods: HashMap<String, Arc<PodRef>>,
}

fn label_of(labels: &HashMap<String, String>, name: &str) -> String {
    labels.get(name).cloned().unwrap_or_default()
}

impl Names {
    /// Lists the runtime's sandboxes and containers. `images` caches the images of sandboxes.
    pub(crate) async fn list(
        cri: &cri::Client,
        images: &mut HashMap<String, String>,
    ) -> Result<Self, cri::Error> {
        let (sandboxes, containers) =
            tokio::try_join!(cri.list_pod_sandboxes(None), cri.list_containers(None))?;
        let listed = cri.list_images().await?;
        let mut names = Self::default();
        images.retain(|id, _| sandboxes.iter().any(|sandbox| sandbox.id == *id));
        for sandbox in sandboxes {
            let ready = sandbox.state() == v1::PodSandboxState::SandboxReady;
            if ready && !images.contains_key(&sandbox.id) {
                images.insert(sandbox.id.clone(), sandbox_image(cri, &sandbox.id).await);
            }
            names.add_sandbox(sandbox, images);
        }
        let by_id: HashMap<&str, &v1::Image> = listed.iter().map(|i| (i.id.as_str(), i)).collect();
        for container in containers {
            let image = container.image.as_ref().map(|i| i.image.clone()).unwrap_or_default();
            let entry = by_id.get(container.image_ref.as_str()).or(by_id.get(image.as_str()));
            let name = entry.and_then(|i| i.repo_tags.first().or(i.repo_digests.first()).cloned());
            names.add_container(container, name.unwrap_or(image));
        }
        Ok(names)
    }

    fn add_sandbox(&mut self, sandbox: v1::PodSandbox, images: &HashMap<String, String>) {
        let of = |name: &str| label_of(&sandbox.labels, name);
        let pod = Arc::new(PodRef {
            namespace: of(labels::POD_NAMESPACE),
            name: of(labels::POD_NAME),
            uid: of(labels::POD_UID),
            created: from_nanos(sandbox.created_at),
        });
        if sandbox.state() == v1::PodSandboxState::SandboxReady {
            self.pods.insert(pod.uid.clone(), pod.clone());
        }
        let piece = PodMember {
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
        let piece = PodMember {
            id: container.id.clone(),
            pod: sandbox.pod.clone(),
            container: Some(label_of(&container.labels, labels::CONTAINER)),
            image,
            created: from_nanos(container.created_at),
        };
        self.pieces.insert(container.id, piece);
    }

    /// Returns the sandbox or container of a cgroup's last path component, which is its ID or a systemd scope with the
    /// ID.
    fn member_of(&self, leaf: &str) -> Option<&PodMember> {
        let id = leaf.strip_suffix(".scope").unwrap_or(leaf);
        self.pieces.get(id.rsplit('-').next().unwrap_or(id))
    }
}

/// Returns a sandbox's image, or an empty string. containerd and CRI-O report it in the verbose status.
async fn sandbox_image(cri: &cri::Client, id: &str) -> String {
    let response = cri.pod_sandbox_status(id, true).await.unwrap_or_default();
    let info = response.info.get("info").and_then(|text| serde_json::from_str(text).ok());
    let info: serde_json::Value = info.unwrap_or_default();
    info.get("image").and_then(|image| image.as_str()).unwrap_or_default().to_owned()
}

/// The depth of container cgroups below the cgroup of all Pods: below a class and a Pod. Cgroups that a container
/// creates below its own are not visited, so that no container determines the duration of a reading.
const DEPTH: usize = 3;

impl Reading {
    /// Reads all cgroups. `before` is the previous reading.
    pub(crate) fn take(sources: &StatsSources, names: &Names, before: Option<&Self>) -> Self {
        let root = sources.cgroup_names.pods();
        let mut cgroups = vec![("/".to_owned(), Owner::Node), (root.clone(), Owner::Class)];
        find_cgroups(sources, names, &root, DEPTH, &mut cgroups);
        cgroups.sort_by(|(a, _), (b, _)| a.cmp(b));
        let earlier: HashMap<&str, &Group> =
            before.iter().flat_map(|b| &b.groups).map(|g| (g.path.as_str(), g)).collect();
        let groups = cgroups.into_iter().filter_map(|(path, owner)| {
            let before = earlier.get(path.as_str()).copied();
            Group::read(sources, path, owner, before)
        });
        Self { groups: groups.collect(), disks: host::disks(), file_systems: host::file_systems() }
    }

    /// Returns the machine's cgroup.
    pub(crate) fn node(&self) -> Option<&Group> {
        self.groups.iter().find(|group| matches!(group.owner, Owner::Node))
    }

    /// Returns the Pods that have a sandbox, each with its own cgroup and those of its sandbox and containers.
    pub(crate) fn pods(&self) -> Vec<PodGroups<'_>> {
        let mut pods: BTreeMap<&str, PodGroups<'_>> = BTreeMap::new();
        for group in &self.groups {
            let (Owner::Pod(pod) | Owner::PodMember(PodMember { pod, .. })) = &group.owner else {
                continue;
            };
            let entry = pods.entry(&pod.uid).or_insert_with(|| PodGroups {
                pod,
                own: None,
                sandbox: None,
                containers: Vec::new(),
            });
            match &group.owner {
                Owner::PodMember(PodMember { container: Some(name), created, id, .. }) => {
                    entry.containers.push(ContainerGroup { name, created: *created, id, group });
                }
                Owner::PodMember(_) => entry.sandbox = Some(group),
                _ => entry.own = Some(group),
            }
        }
        pods.into_values().collect()
    }
}

pub(crate) struct PodGroups<'a> {
    pub(crate) pod: &'a PodRef,
    pub(crate) own: Option<&'a Group>,
    pub(crate) sandbox: Option<&'a Group>,
    pub(crate) containers: Vec<ContainerGroup<'a>>,
}

pub(crate) struct ContainerGroup<'a> {
    pub(crate) name: &'a str,
    pub(crate) id: &'a str,
    pub(crate) created: Timestamp,
    pub(crate) group: &'a Group,
}

/// Finds the cgroups below a parent and their owners.
fn find_cgroups(
    sources: &StatsSources,
    names: &Names,
    parent: &str,
    depth: usize,
    cgroups: &mut Vec<(String, Owner)>,
) {
    for leaf in sources.cgroups.children(parent).unwrap_or_default() {
        let pod = sources.cgroup_names.uid(&leaf).map(|uid| names.pods.get(&uid));
        let owner = match (pod, names.member_of(&leaf)) {
            (_, Some(piece)) => Owner::PodMember(piece.clone()),
            (Some(Some(pod)), _) => Owner::Pod(pod.clone()),
            (None, None) if depth == DEPTH => Owner::Class,
            _ => Owner::Unknown,
        };
        let path = format!("{}/{leaf}", parent.trim_end_matches('/'));
        if depth > 1 && !matches!(owner, Owner::PodMember(_)) {
            find_cgroups(sources, names, &path, depth - 1, cgroups);
        }
        cgroups.push((path, owner));
    }
}

impl Group {
    /// Reads a cgroup. Returns `None` if it has disappeared.
    fn read(
        sources: &StatsSources,
        path: String,
        owner: Owner,
        before: Option<&Self>,
    ) -> Option<Self> {
        let usage = sources.cgroups.usage(&path).ok()?;
        let at = sources.now();
        let pids = sources.cgroups.processes(&path);
        let interfaces = match &owner {
            Owner::Node => host::interfaces(None),
            Owner::PodMember(PodMember { container: None, .. }) => {
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
