//! Tests of placement on simulated machines.

use std::{collections::BTreeMap, fs, path::Path};

use deviceplugin::v1beta1;
use futures_util::FutureExt as _;
use serde_json::{Value, json};
use testkit::{DevicePlugin, device_plugin::device};

use super::*;

const R: &str = "example.com/fpga";

impl Placement {
    /// Creates a placement without any policy.
    pub(crate) fn without_policies(root: &Path, devices: Arc<Devices>) -> Self {
        let settings = settings(root, "{}");
        Self::new(&settings, Topology::default(), devices, &Metrics::default()).unwrap()
    }

    pub(crate) fn has_ending_pods(&self) -> bool {
        !self.lock().ending.is_empty()
    }
}

fn settings(root: &Path, text: &str) -> Settings {
    let place = kubelet_config::HostSettings {
        node_name: "node".to_owned(),
        node_ips: vec![],
        root: root.to_owned(),
        cert_dir: root.join("pki"),
        labels: BTreeMap::new(),
    };
    Settings::new(&kubelet_config::parse(text).unwrap(), place).unwrap()
}

/// Writes the topology of two sockets below `sys`. Each socket is a NUMA node with 2 cores of 2 threads and 4 GiB,
/// numbered as on most machines.
fn two_sockets(sys: &Path) {
    let write = |path: &str, text: &str| {
        let path = sys.join("devices/system").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    };
    write("cpu/online", "0-7");
    for cpu in 0..8 {
        let (core, socket) = (cpu % 4, cpu % 4 / 2);
        let of = |name: &str, text: &str| write(&format!("cpu/cpu{cpu}/{name}"), text);
        of("topology/thread_siblings_list", &format!("{core},{}", core + 4));
        of("topology/physical_package_id", &socket.to_string());
        of("cache/index3/shared_cpu_list", ["0-1,4-5", "2-3,6-7"][socket]);
    }
    for (node, (cpus, far)) in [("0-1,4-5", "10 21"), ("2-3,6-7", "21 10")].iter().enumerate() {
        let of = |name: &str, text: &str| write(&format!("node/node{node}/{name}"), text);
        of("cpulist", cpus);
        of("distance", far);
        of(
            "meminfo",
            &format!("Node {node} MemTotal:       4194304 kB\nNode {node} MemFree: 1 kB"),
        );
        of("hugepages/hugepages-2048kB/nr_hugepages", &(node * 8).to_string());
    }
}

struct Scene {
    root: tempfile::TempDir,
    tasks: rt::Tasks,
    devices: Arc<Devices>,
    metrics: Metrics,
    placement: Placement,
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.tasks.shutdown().stop();
    }
}

impl Scene {
    fn new(text: &str) -> Self {
        let root = tempfile::tempdir().unwrap();
        two_sockets(root.path());
        Self::at(root, text).unwrap_or_else(|error| panic!("{error}"))
    }

    fn at(root: tempfile::TempDir, text: &str) -> Result<Self, String> {
        let tasks = rt::Tasks::new(rt::Shutdown::new());
        let devices = Arc::new(Devices::new(root.path(), Arc::new(rt::SystemClock), &tasks));
        let metrics = Metrics::default();
        let topology = Topology::read(root.path(), 1 << 33).map_err(|error| error.to_string())?;
        let settings = settings(root.path(), text);
        let placement = Placement::new(&settings, topology, devices.clone(), &metrics)
            .map_err(|error| error.to_string())?;
        Ok(Self { root, tasks, devices, metrics, placement })
    }

    /// Simulates a kubelet that was killed and restarted.
    fn restart(&mut self, text: &str) -> Result<(), String> {
        let root = std::mem::replace(&mut self.root, tempfile::tempdir().unwrap());
        let path = root.path().to_owned();
        match Self::at(root, text) {
            Ok(scene) => *self = scene,
            // The temporary directory was removed with the failed scene.
            Err(error) => return Err(error.replace(&path.display().to_string(), "ROOT")),
        }
        Ok(())
    }

    /// Admits a Pod and returns the CPUs of its containers.
    async fn admit(&self, pod: &Pod) -> Result<String, String> {
        self.placement.admit(pod).await.map_err(|r| format!("{}: {}", r.reason, r.message))?;
        let uid = pod.metadata.uid.clone().unwrap();
        let members = pod_core::members(pod);
        let cpus = |name: &str| self.placement.cpus(&uid, name).map(|cpus| cpus.to_string());
        let each: Vec<String> =
            members.iter().map(|m| cpus(&m.container.name).unwrap_or_default()).collect();
        Ok(each.join(" "))
    }

    fn shared(&self) -> String {
        self.placement.cpus("nobody", "c").map(|cpus| cpus.to_string()).unwrap_or_default()
    }

    fn file(&self, name: &str) -> String {
        fs::read_to_string(self.root.path().join(name)).unwrap()
    }

    fn metric(&self, line: &str) -> f64 {
        let text = self.metrics.text();
        let value = text.lines().find_map(|l| l.strip_prefix(line)?.strip_prefix(' '));
        value.unwrap_or_else(|| panic!("{line}\n{text}")).parse().unwrap()
    }

    /// Starts a plugin with two devices at the first node and one at the second.
    async fn plugin(&self) -> Arc<DevicePlugin> {
        let near = |id: &str, node| v1beta1::Device { ..device(id, "Healthy", Some(node)) };
        let plugin = Arc::new(DevicePlugin::new(R, &[]));
        plugin.set_devices(vec![near("a", 0), near("b", 0), near("c", 1)]);
        let mut changes = self.devices.changes();
        let socket = self.root.path().join("fpga.sock");
        plugin.serve(&socket, &self.tasks).unwrap();
        self.devices.connect(R, socket).await.unwrap();
        changes.changed().await.unwrap();
        plugin
    }
}

/// Returns a Guaranteed Pod of containers that request these CPUs and devices.
fn pod(uid: &str, containers: &[(&str, usize)]) -> Pod {
    let container = |(at, (cpu, devices)): (usize, &(&str, usize))| -> Value {
        let mut amounts = json!({"cpu": cpu, "memory": "1Gi"});
        if *devices > 0 {
            amounts[R] = json!(devices.to_string());
        }
        json!({"name": format!("c{at}"), "resources": {"limits": amounts, "requests": amounts}})
    };
    let containers: Vec<Value> = containers.iter().enumerate().map(container).collect();
    let pod = json!({"metadata": {"uid": uid, "name": uid, "namespace": "ns"}, "spec": {"containers": containers}});
    serde_json::from_value(pod).unwrap()
}

const STATIC: &str = "cpuManagerPolicy: static\nreservedSystemCPUs: '0'\n";

#[test]
fn reads_topology_from_sysfs() {
    let dir = tempfile::tempdir().unwrap();
    two_sockets(dir.path());
    let topology = Topology::read(dir.path(), 0).unwrap();
    let place = |cpu: u32| {
        let place = topology.cpus[&cpu];
        (place.core, place.socket, place.node, place.cache)
    };
    assert_eq!((place(5), place(7)), ((1, 0, 0, 0), (3, 1, 1, 2)));
    assert_eq!((topology.nodes.len(), topology.nodes[&1].memory), (2, 4 << 30));
    assert_eq!(topology.nodes[&1].huge_pages, [(2 << 20, 8)].into());
    assert_eq!(topology.places(true).distances[&(0, 1)], 21);
    assert!(topology.places(false).distances.is_empty());
    // Offline CPUs are ignored, and a kernel without NUMA support has one node.
    fs::write(dir.path().join("devices/system/cpu/online"), "1-7").unwrap();
    fs::remove_dir_all(dir.path().join("devices/system/node")).unwrap();
    let topology = Topology::read(dir.path(), 1 << 30).unwrap();
    assert_eq!((topology.cpus.len(), topology.cpus[&4].core), (7, 4));
    assert_eq!((topology.cpus[&7].node, topology.nodes[&0].memory), (0, 1 << 30));
    for (text, words) in [("0-99999999", "expected: list of CPUs"), ("x", "expected: list of CPUs")]
    {
        fs::write(dir.path().join("devices/system/cpu/online"), text).unwrap();
        let error = Topology::read(dir.path(), 0).unwrap_err().to_string();
        assert!(error.contains("cpu/online") && error.contains(words), "{error}");
    }
    let nowhere = dir.path().join("none");
    assert!(Topology::read(&nowhere, 0).is_err());
    let topology = |text: &str| {
        Topology::read_if_needed(&nowhere, 0, &settings(dir.path(), text).placement)
            .map_err(|e| e.to_string())
    };
    assert_eq!(topology("{}"), Ok(Topology::default()));
    for text in [
        r#"{"topologyManagerPolicy": "best-effort"}"#,
        r#"{"cpuManagerPolicy": "static", "systemReserved": {"cpu": "1"}}"#,
        r#"{"reservedSystemCPUs": "0"}"#,
    ] {
        assert!(topology(text).unwrap_err().contains("read the machine's topology"), "{text}");
    }
}

#[tokio::test]
async fn keeps_exclusive_cpus_until_the_pod_has_ended() {
    let mut scene = Scene::new(STATIC);
    assert_eq!(
        scene.file(CPUS),
        scene
            .placement
            .lock()
            .allocations
            .cpus
            .as_ref()
            .map(|c| String::from_utf8(c.checkpoint()).unwrap())
            .unwrap()
    );
    assert_eq!(scene.admit(&pod("one", &[("2", 0), ("500m", 0)])).await.unwrap(), "1,5 0,2-4,6-7");
    assert_eq!(scene.metric("kubelet_cpu_manager_shared_pool_size_millicores"), 5000.0);
    assert_eq!(scene.metric("kubelet_cpu_manager_allocation_per_numa{numa_node=\"0\"}"), 2.0);
    assert!(scene.file(CPUS).contains(r#""entries":{"one":{"c0":"1,5"}}"#));
    scene.restart(STATIC).unwrap();
    assert_eq!(scene.admit(&pod("one", &[("2", 0)])).await.unwrap(), "1,5", "it keeps them");
    assert_eq!(scene.placement.exclusive("one", "c0").to_string(), "1,5");
    let error = scene.admit(&pod("many", &[("1", 0), ("5", 0)])).await.unwrap_err();
    assert_eq!(
        error,
        "UnexpectedAdmissionError: Allocate failed due to not enough cpus available to satisfy request: requested=5, available=4, which is unexpected"
    );
    assert_eq!(scene.placement.holders(), ["one".to_owned()].into(), "nothing of it stays");
    assert_eq!(scene.metric("kubelet_cpu_manager_pinning_errors_total"), 1.0);
    scene.placement.release("one").await;
    assert_eq!((scene.shared().as_str(), scene.placement.allocatable().len()), ("0-7", 7));
    assert!(!scene.file(CPUS).contains("entries"));
}

#[tokio::test]
async fn waits_for_cpus_of_an_ending_pod() {
    let scene = Scene::new(STATIC);
    scene.admit(&pod("one", &[("5", 0)])).await.unwrap();
    let two = pod("two", &[("4", 0)]);
    assert!(scene.admit(&two).await.is_err());
    scene.placement.mark_ending("one");
    let admitted = scene.admit(&two);
    tokio::pin!(admitted);
    assert!(admitted.as_mut().now_or_never().is_none(), "they are another's");
    scene.placement.release("one").await;
    assert_eq!(admitted.await.unwrap(), "2-3,6-7");
    assert!(!scene.placement.has_ending_pods());
}

#[tokio::test]
async fn allocates_no_cpus_if_checkpoint_cannot_be_written() {
    let scene = Scene::new(STATIC);
    let path = scene.root.path().join(CPUS);
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    let error = scene.admit(&pod("one", &[("1", 0)])).await.unwrap_err();
    assert!(error.contains("write the checkpoint of CPUs and memory"), "{error}");
    assert_eq!(scene.shared(), "0-7");
}

#[test]
fn refuses_to_start_with_unusable_cpu_settings() {
    let fails = |text: &str, words: &str| {
        let root = tempfile::tempdir().unwrap();
        two_sockets(root.path());
        let error = Scene::at(root, text).err().unwrap_or_else(|| panic!("{text}"));
        assert!(error.contains(words), "{error}");
    };
    fails(
        "cpuManagerPolicy: static",
        "unable to determine reserved CPU resources for static policy",
    );
    fails("reservedSystemCPUs: 0,9", "reserved-cpus: 0,9 is not a subset of online-cpus: 0-7");
    fails(
        "cpuManagerPolicy: static\nsystemReserved: {cpu: '8500m'}",
        "unable to reserve the required amount of CPUs (size of  did not equal 9)",
    );
    let changed = |before: &str, after: &str, words: &str| {
        let error = Scene::new(before).restart(after).unwrap_err();
        assert!(
            error.starts_with("start cpu manager error: could not restore state from checkpoint: "),
            "{error}"
        );
        assert!(error.contains(words), "{error}");
        assert!(error.ends_with("please drain this node and delete the CPU manager checkpoint file \"ROOT/cpu_manager_state\" before restarting Kubelet"), "{error}");
    };
    changed(
        "{}",
        STATIC,
        "configured policy \"static\" differs from state checkpoint policy \"none\"",
    );
    changed(
        STATIC,
        "{}",
        "configured policy \"none\" differs from state checkpoint policy \"static\"",
    );
    let strict = "cpuManagerPolicy: static\nreservedSystemCPUs: '0'\ncpuManagerPolicyOptions: {strict-cpu-reservation: 'true'}";
    changed(
        STATIC,
        strict,
        "some of strictly reserved cpus: \"0\" are present in defaultCpuSet: \"0-7\"",
    );
    let mut damaged = Scene::new(STATIC);
    fs::write(damaged.root.path().join(CPUS), "{\"policyName\":").unwrap();
    assert!(damaged.restart(STATIC).unwrap_err().contains("it cannot be read"));
    // The machine has another number of CPUs than before.
    let mut other = Scene::new(STATIC);
    fs::write(other.root.path().join("devices/system/cpu/online"), "0-6").unwrap();
    let error = other.restart(STATIC).unwrap_err();
    assert!(error.contains("\"0-6\" doesn't match with CPUs in state \"0-7\""), "{error}");
}

#[tokio::test]
async fn aligns_devices_and_cpus_or_refuses_the_pod() {
    let near = |policy: &str| format!("{STATIC}topologyManagerPolicy: {policy}\n");
    for (policy, told) in [("none", "1,5"), ("best-effort", "2,6"), ("restricted", "2,6")] {
        let scene = Scene::new(&near(policy));
        let plugin = scene.plugin().await;
        scene.admit(&pod("both", &[("0", 2)])).await.unwrap();
        assert_eq!(scene.admit(&pod("one", &[("2", 1)])).await.unwrap(), told, "{policy}");
        assert_eq!(plugin.calls().iter().filter(|c| c.starts_with("Allocate")).count(), 2);
    }
    let scene = Scene::new(&near("single-numa-node"));
    let _plugin = scene.plugin().await;
    // There are three devices, but on two nodes.
    let error = scene.admit(&pod("far", &[("1", 3)])).await.unwrap_err();
    assert_eq!(
        error,
        "TopologyAffinityError: Resources cannot be allocated with Topology locality"
    );
    assert_eq!(scene.metric("kubelet_topology_manager_admission_errors_total"), 1.0);
    assert_eq!(scene.metric("kubelet_container_aligned_compute_resources_failure_count{boundary=\"numa_node\",scope=\"container\"}"), 1.0);
    assert_eq!(scene.admit(&pod("near", &[("2", 2)])).await.unwrap(), "1,5");
    let error = scene.admit(&pod("none left", &[("4", 1), ("1", 0)])).await.map(drop);
    assert_eq!(error, Ok(()), "each container is on a node of its own");
    assert!(scene.placement.holders().contains("none left"));
    assert_eq!(scene.metric("kubelet_topology_manager_admission_requests_total"), 3.0);
}

#[tokio::test]
async fn places_pod_as_a_whole_in_pod_scope() {
    let whole =
        format!("{STATIC}topologyManagerPolicy: single-numa-node\ntopologyManagerScope: pod\n");
    let scene = Scene::new(&whole);
    let _plugin = scene.plugin().await;
    let error = scene.admit(&pod("wide", &[("4", 1), ("1", 0)])).await.unwrap_err();
    assert!(error.starts_with("TopologyAffinityError"), "{error}");
    assert_eq!(scene.admit(&pod("narrow", &[("2", 0), ("2", 0)])).await.unwrap(), "2,6 3,7");
    let error = scene.admit(&pod("late", &[("1", 2), ("1", 1)])).await.unwrap_err();
    assert!(error.starts_with("TopologyAffinityError"), "{error}");
    assert_eq!(scene.admit(&pod("first", &[("1", 1), ("2", 1)])).await.unwrap(), "4 1,5");
    assert_eq!(scene.metric("kubelet_container_aligned_compute_resources_count{boundary=\"numa_node\",scope=\"pod\"}"), 2.0);
}

#[tokio::test]
async fn allocates_cpus_to_running_pods_if_possible() {
    let scene = Scene::new(STATIC);
    scene.placement.adopt(&pod("runs", &[("2", 0)])).await;
    assert_eq!(scene.placement.exclusive("runs", "c0").to_string(), "1,5");
    scene.placement.adopt(&pod("large", &[("6", 0)])).await;
    assert!(scene.placement.exclusive("large", "c0").is_empty());
    let (now, before) = (pod("runs", &[("3", 0)]), pod("runs", &[("2", 0)]));
    assert!(scene.placement.forbids_resize(&now, &before).unwrap().contains("CPU Manager policy"));
    assert!(scene.placement.forbids_resize(&before, &before).is_none());
}

const MEMORY_TOO: &str = "memoryManagerPolicy: Static\nevictionHard: {memory.available: 100Mi}\nkubeReserved: {memory: 924Mi}\nreservedMemory: [{numaNode: 0, limits: {memory: 512Mi}}, {numaNode: 1, limits: {memory: 512Mi}}]\n";

#[tokio::test]
async fn aligns_memory_with_cpus_and_devices() {
    let text = format!("{STATIC}{MEMORY_TOO}topologyManagerPolicy: single-numa-node\n");
    let mut scene = Scene::new(&text);
    let own = |id: i64, size: u64| Block { nodes: vec![id], resource: "memory".to_owned(), size };
    let told = scene.placement.allocatable_memory();
    assert!(told.contains(&own(0, 3584 << 20)) && told.contains(&own(1, (3584 - 16) << 20)));
    // The first node has too few CPUs, and later the second has too little memory.
    assert_eq!(scene.admit(&pod("cpus", &[("4", 0)])).await.unwrap(), "2-3,6-7");
    assert_eq!(scene.placement.memory_nodes("cpus", "c0"), "1");
    assert_eq!(scene.admit(&pod("three", &[("1", 0), ("1", 0), ("1", 0)])).await.unwrap(), "4 1 5");
    let error = scene
        .admit(&pod("late", &[("500m", 0)]))
        .await
        .map(|_| scene.placement.memory_nodes("late", "c0"));
    assert_eq!(error.unwrap(), "1", "it asks for no CPU of its own");
    let refused = scene.placement.refusal(&pod("large", &[("2", 0)])).unwrap();
    assert_eq!(refused.reason, "TopologyAffinityError");
    scene.restart(&text).unwrap();
    assert_eq!(scene.placement.memory("cpus", "c0"), [own(1, 1 << 30)]);
    let claims = crate::claims::Claims::new(
        scene.root.path(),
        &Default::default(),
        &rt::Tasks::new(rt::Shutdown::new()),
    );
    let claims = claims.unwrap();
    let told = &crate::pod_resources::of_pod(&pod("cpus", &[("4", 0)]), &scene.placement, &claims)
        .containers[0];
    assert_eq!((told.cpu_ids.as_slice(), told.memory[0].size), ([2, 3, 6, 7].as_slice(), 1 << 30));
    assert_eq!(told.memory[0].topology.as_ref().unwrap().nodes[0].id, 1);
    assert_eq!(scene.metric("kubelet_memory_manager_pinning_requests_total"), 0.0);
    scene.placement.release("cpus").await;
    assert!(!scene.file(MEMORY).contains("cpus") && scene.file(MEMORY).contains("three"));
    let more = pod("three", &[("1", 0)]);
    let mut less = more.clone();
    let container = &mut less.spec.as_mut().unwrap().containers[0];
    let limits = container.resources.as_mut().unwrap().limits.as_mut().unwrap();
    limits.get_mut("memory").unwrap().0 = "2Gi".to_owned();
    let words =
        "Resize is infeasible for Guaranteed Pods alongside Memory Manager policy \"Static\"";
    assert_eq!(scene.placement.forbids_resize(&more, &less).unwrap(), words);
}

#[tokio::test]
async fn reports_missing_memory_as_upstream() {
    let scene = Scene::new(MEMORY_TOO);
    for uid in ["a", "b", "c", "d", "e", "f"] {
        scene.admit(&pod(uid, &[("1", 0)])).await.unwrap();
    }
    assert_eq!(scene.placement.memory_nodes("d", "c0"), "1");
    let error = scene.admit(&pod("g", &[("1", 0)])).await.unwrap_err();
    assert_eq!(
        error,
        "UnexpectedAdmissionError: Allocate failed due to [memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is available, which is unexpected"
    );
    assert_eq!(scene.metric("kubelet_memory_manager_pinning_errors_total"), 1.0);
}

#[test]
fn requires_reserved_memory_to_match_node_allocatable() {
    let fails = |text: &str, words: &str| {
        let root = tempfile::tempdir().unwrap();
        two_sockets(root.path());
        let error = Scene::at(root, text).err().unwrap_or_else(|| panic!("{text}"));
        assert!(error.contains(words), "{error}");
    };
    let less = MEMORY_TOO.replace("924Mi", "900Mi");
    fails(
        &less,
        "the total amount \"1Gi\" of type \"memory\" is not equal to the value \"1000Mi\" determined by Node Allocatable feature",
    );
    fails(
        &MEMORY_TOO.replace("numaNode: 1", "numaNode: 2"),
        "references a NUMA node 2 that does not exist on this machine",
    );
    fails(
        "memoryManagerPolicy: Static",
        "the total amount \"0\" of type \"memory\" is not equal to the value \"100Mi\"",
    );
    let nothing = "memoryManagerPolicy: Static\nevictionHard: {memory.available: '0'}";
    fails(nothing, "[memorymanager] you should specify the system reserved memory");
    let mut scene = Scene::new(MEMORY_TOO);
    let error = scene.restart("{}").unwrap_err();
    assert_eq!(
        error,
        "start memory manager error: could not restore state from checkpoint: [memorymanager] configured policy \"None\" differs from state checkpoint policy \"Static\", please drain this node and delete the memory manager checkpoint file \"ROOT/memory_manager_state\" before restarting Kubelet"
    );
}
