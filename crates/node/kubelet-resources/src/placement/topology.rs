//! Reads CPUs, memory and NUMA nodes of the machine from `/sys`.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use kubelet_config::PlacementSettings;
use pod_core::{
    cpus::{CpuLocation, CpuSet, Machine},
    topology::Nodes,
};

/// The error of reading the machine's topology.
#[derive(Debug, thiserror::Error)]
pub enum TopologyError {
    #[error("read the machine's topology from {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("the kernel's {} has {text:?}, expected: {expected}", path.display())]
    Wrong { path: PathBuf, text: String, expected: &'static str },
    #[error(transparent)]
    Pages(#[from] sys::Error),
}

/// A NUMA node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Node {
    /// The size of memory in bytes, including huge pages.
    pub(crate) memory: u64,
    /// The number of huge pages by their size in bytes.
    pub(crate) huge_pages: BTreeMap<u64, u64>,
    /// The distances to all nodes in their order. Empty if the kernel reports none.
    distances: Vec<u64>,
}

/// The online CPUs and the NUMA nodes of the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// The memory of all nodes in bytes.
    pub(crate) memory: u64,
    pub(crate) cpus: Machine,
    pub(crate) nodes: BTreeMap<i64, Node>,
}

impl Topology {
    /// Reads the topology below `sys`. A kernel without NUMA support has one node with all CPUs and all `memory`.
    pub fn read(sys: &Path, memory: u64) -> Result<Self, TopologyError> {
        let of_cpus = sys.join("devices/system/cpu");
        let online = set(&of_cpus.join("online"))?;
        let (mut nodes, mut node_of) = (BTreeMap::new(), BTreeMap::new());
        let of_nodes = sys.join("devices/system/node");
        for number in numbers_of(&of_nodes, "node") {
            let directory = of_nodes.join(format!("node{number}"));
            for cpu in set(&directory.join("cpulist"))?.iter() {
                node_of.insert(cpu, number);
            }
            nodes.insert(number, Node::read(&directory)?);
        }
        if nodes.is_empty() {
            nodes.insert(0, Node { memory, ..Node::default() });
        }
        let place = |cpu: u32| {
            let directory = of_cpus.join(format!("cpu{cpu}"));
            let place = CpuLocation {
                core: lowest_cpu(&directory.join("topology/thread_siblings_list"), &online, cpu),
                socket: number(&directory.join("topology/physical_package_id"))?.unwrap_or(0),
                node: node_of.get(&cpu).copied().unwrap_or(0),
                cache: lowest_cpu(&directory.join("cache/index3/shared_cpu_list"), &online, cpu),
            };
            Ok::<_, TopologyError>((cpu, place))
        };
        let cpus = online.iter().map(place).collect::<Result<_, _>>()?;
        Ok(Self { memory, cpus, nodes })
    }

    /// Reads the topology like [`Self::read`]. If no manager needs it, an error is only logged.
    pub fn read_if_needed(
        sys: &Path,
        memory: u64,
        placement: &PlacementSettings,
    ) -> Result<Self, TopologyError> {
        Self::read(sys, memory).or_else(|error| {
            if !placement.is_idle() {
                return Err(error);
            }
            tracing::warn!(%error, "read the machine's topology; no setting needs it");
            Ok(Self::default())
        })
    }

    /// Returns the online CPUs.
    pub fn online(&self) -> CpuSet {
        self.cpus.keys().copied().collect()
    }

    /// Returns the NUMA nodes, and their distances if `distances` is set.
    pub fn places(&self, distances: bool) -> Nodes {
        let all: Vec<i64> = self.nodes.keys().copied().collect();
        let pair = |(from, node): (&i64, &Node)| {
            let (from, all) = (*from, all.clone());
            let each: Vec<u64> = node.distances.clone();
            all.into_iter().zip(each).map(move |(to, far)| ((from, to), far)).collect::<Vec<_>>()
        };
        let between = self.nodes.iter().filter(|_| distances).flat_map(pair).collect();
        Nodes { all, distances: between }
    }
}

impl Node {
    fn read(directory: &Path) -> Result<Self, TopologyError> {
        let path = directory.join("meminfo");
        let text = read(&path)?.unwrap_or_default();
        let total = text.lines().find_map(|line| line.split_once("MemTotal:"));
        let kibibytes = total.and_then(|(_, rest)| rest.split_whitespace().next()?.parse().ok());
        let Some(kibibytes) = kibibytes.filter(|kibibytes: &u64| *kibibytes <= u64::MAX / 1024)
        else {
            return Err(TopologyError::Wrong { path, text, expected: "amount of memory" });
        };
        let huge_pages = sys::huge_pages(&directory.join("hugepages"))?;
        let far = read(&directory.join("distance"))?.unwrap_or_default();
        let distances = far.split_whitespace().filter_map(|far| far.parse().ok()).collect();
        Ok(Self { memory: kibibytes * 1024, huge_pages, distances })
    }
}

/// Returns the numbers of the entries of a directory named `word` and a number.
fn numbers_of(directory: &Path, word: &str) -> Vec<i64> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let number = |name: String| name.strip_prefix(word)?.parse::<u8>().ok();
    names.filter_map(number).filter(|number| *number < 64).map(i64::from).collect()
}

/// Returns a file's text, or `None` if the file does not exist.
fn read(path: &Path) -> Result<Option<String>, TopologyError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(TopologyError::Read { path: path.to_owned(), source }),
    }
}

fn number(path: &Path) -> Result<Option<i64>, TopologyError> {
    let Some(text) = read(path)? else { return Ok(None) };
    let wrong =
        |_| TopologyError::Wrong { path: path.to_owned(), text: text.clone(), expected: "number" };
    text.trim().parse().map(Some).map_err(wrong)
}

/// Reads a list of CPUs from a file that must exist.
fn set(path: &Path) -> Result<CpuSet, TopologyError> {
    let source = || io::Error::from(io::ErrorKind::NotFound);
    let missing = || TopologyError::Read { path: path.to_owned(), source: source() };
    let text = read(path)?.ok_or_else(missing)?;
    let wrong = || TopologyError::Wrong {
        path: path.to_owned(),
        text: text.clone(),
        expected: "list of CPUs",
    };
    text.parse().map_err(|_| wrong())
}

/// Returns the lowest online CPU of a list, or the CPU itself if there is no list.
fn lowest_cpu(path: &Path, online: &CpuSet, cpu: u32) -> u32 {
    let cpus = set(path).unwrap_or_default();
    cpus.iter().find(|other| online.has(*other)).unwrap_or(cpu)
}
