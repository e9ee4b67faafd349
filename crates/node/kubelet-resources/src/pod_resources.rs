//! The Pod resources API (podresources, v1): reports allocated devices, CPUs and memory to monitoring agents, at
//! upstream's socket and with upstream's rate limit.

use std::{path::Path, sync::Arc};

use api_meta::TokenBucket;
use deviceplugin::podresources::{
    AllocatableResourcesRequest, AllocatableResourcesResponse, ContainerDevices, ContainerMemory,
    ContainerResources, GetPodResourcesRequest, GetPodResourcesResponse, ListPodResourcesRequest,
    ListPodResourcesResponse, NumaNode, PodResources, TopologyInfo,
    pod_resources_lister_server::{PodResourcesLister, PodResourcesListerServer},
};
use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use pod_core::{
    PodRegistry, Role, cpus::CpuSet, devices::NO_NODE, members, numa_memory::Block,
    paths::DIRECTORY_MODE,
};
use tokio::time::Instant;
use tonic::{Request, Response, Status};

use crate::{claims::Claims, devices::NodeDevice, placement::Placement};

/// The average number of requests per second, and the size of a burst.
const RATE: f64 = 100.0;
const BURST: f64 = 10.0;

/// Serves `pod-resources/kubelet.sock` below the kubelet's directory `root` until shutdown.
pub fn serve_pod_resources(
    root: &Path,
    placement: Arc<Placement>,
    claims: Arc<Claims>,
    pods: Arc<dyn PodRegistry>,
    tasks: &rt::Tasks,
) -> std::io::Result<()> {
    let directory = root.join("pod-resources");
    sys::make_directories(&directory, DIRECTORY_MODE)?;
    let lister = Lister { placement, claims, pods, limit: Mutex::new(Limit::new()) };
    let service = PodResourcesListerServer::new(lister);
    let socket = directory.join("kubelet.sock");
    grpc::serve("kubelet podresources", &socket, service, tasks)
}

/// The rate limit of requests.
struct Limit {
    left: TokenBucket,
    at: Instant,
}

impl Limit {
    fn new() -> Self {
        Self { left: TokenBucket::new(BURST), at: Instant::now() }
    }

    fn take(&mut self, now: Instant) -> bool {
        self.left.refill(now.saturating_duration_since(self.at), RATE);
        self.at = now;
        self.left.take()
    }
}

struct Lister {
    placement: Arc<Placement>,
    claims: Arc<Claims>,
    pods: Arc<dyn PodRegistry>,
    limit: Mutex<Limit>,
}

impl Lister {
    fn check_rate(&self) -> Result<(), Status> {
        let mut limit = self.limit.lock();
        let refused = || Status::resource_exhausted("rejected by rate limit");
        limit.take(Instant::now()).then_some(()).ok_or_else(refused)
    }
}

/// Returns the resources of a Pod's long-running containers: sidecars and app containers.
pub(crate) fn of_pod(pod: &Pod, placement: &Placement, claims: &Claims) -> PodResources {
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let lasting = |role| matches!(role, Role::Sidecar | Role::App);
    let containers = members(pod).into_iter().filter(|member| lasting(member.role));
    let containers = containers.map(|member| ContainerResources {
        name: member.container.name.clone(),
        devices: {
            let devices = placement.devices.devices_of(uid, &member.container.name);
            devices.into_iter().map(container_devices).collect()
        },
        cpu_ids: ids(&placement.exclusive(uid, &member.container.name)),
        memory: container_memory(placement.memory(uid, &member.container.name)),
        dynamic_resources: claims.dynamic_resources(pod, &member.container),
    });
    PodResources {
        name: pod.metadata.name.clone().unwrap_or_default(),
        namespace: pod.metadata.namespace.clone().unwrap_or_default(),
        containers: containers.collect(),
    }
}

fn ids(cpus: &CpuSet) -> Vec<i64> {
    cpus.iter().map(i64::from).collect()
}

fn container_memory(blocks: Vec<Block>) -> Vec<ContainerMemory> {
    let block = |block: Block| ContainerMemory {
        memory_type: block.resource,
        size: block.size,
        topology: Some(TopologyInfo {
            nodes: block.nodes.into_iter().map(|id| NumaNode { id }).collect(),
        }),
    };
    blocks.into_iter().map(block).collect()
}

fn container_devices(device: NodeDevice) -> ContainerDevices {
    let nodes = device.nodes.into_iter().filter(|node| *node != NO_NODE);
    let nodes: Vec<NumaNode> = nodes.map(|id| NumaNode { id }).collect();
    let topology = (!nodes.is_empty()).then_some(TopologyInfo { nodes });
    ContainerDevices { resource_name: device.resource, device_ids: vec![device.id], topology }
}

#[tonic::async_trait]
impl PodResourcesLister for Lister {
    async fn list(
        &self,
        _: Request<ListPodResourcesRequest>,
    ) -> Result<Response<ListPodResourcesResponse>, Status> {
        self.check_rate()?;
        let pods = self.pods.active();
        let pod_resources =
            pods.iter().map(|pod| of_pod(pod, &self.placement, &self.claims)).collect();
        Ok(Response::new(ListPodResourcesResponse { pod_resources }))
    }

    async fn get_allocatable_resources(
        &self,
        _: Request<AllocatableResourcesRequest>,
    ) -> Result<Response<AllocatableResourcesResponse>, Status> {
        self.check_rate()?;
        let devices =
            self.placement.devices.allocatable().into_iter().map(container_devices).collect();
        let cpu_ids = ids(&self.placement.allocatable());
        let memory = container_memory(self.placement.allocatable_memory());
        Ok(Response::new(AllocatableResourcesResponse { devices, cpu_ids, memory }))
    }

    async fn get(
        &self,
        request: Request<GetPodResourcesRequest>,
    ) -> Result<Response<GetPodResourcesResponse>, Status> {
        self.check_rate()?;
        let GetPodResourcesRequest { pod_name, pod_namespace } = request.into_inner();
        let Some(known_pod) = self.pods.find(&pod_namespace, &pod_name, None) else {
            let text = format!("pod {pod_name} in namespace {pod_namespace} not found");
            return Err(Status::unknown(text));
        };
        let pod_resources = Some(of_pod(&known_pod.pod, &self.placement, &self.claims));
        Ok(Response::new(GetPodResourcesResponse { pod_resources }))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use deviceplugin::podresources::pod_resources_lister_client::PodResourcesListerClient;
    use pod_core::{KnownPod, RunningContainer};
    use serde_json::json;
    use testkit::DevicePlugin;

    use super::*;
    use crate::devices::Devices;

    /// A node without Pods.
    struct NoPods;

    impl PodRegistry for NoPods {
        fn list(&self) -> Vec<Pod> {
            Vec::new()
        }

        fn active(&self) -> Vec<Arc<Pod>> {
            Vec::new()
        }

        fn find(&self, _: &str, _: &str, _: Option<&str>) -> Option<KnownPod> {
            None
        }

        fn running(&self) -> Vec<RunningContainer> {
            Vec::new()
        }

        fn has_pod(&self, _: &str) -> bool {
            false
        }

        fn wake(&self, _: &str) {}
    }

    #[tokio::test]
    async fn reports_the_devices_of_a_pod() {
        let dir = tempfile::tempdir().unwrap();
        let tasks = rt::Tasks::new(rt::Shutdown::new());
        let devices = Arc::new(Devices::new(dir.path(), Arc::new(rt::SystemClock), &tasks));
        let placement = Arc::new(Placement::without_policies(dir.path(), devices.clone()));
        let claims = Arc::new(Claims::new(dir.path(), &Default::default(), &tasks).unwrap());
        let pods = Arc::new(NoPods);
        serve_pod_resources(dir.path(), placement.clone(), claims.clone(), pods, &tasks).unwrap();
        let mut changes = devices.changes();
        let plugin = Arc::new(DevicePlugin::new("example.com/fpga", &[]));
        let device = |id, health| testkit::device_plugin::device(id, health, Some(1));
        plugin.set_devices(vec![device("a", "Healthy"), device("b", "Healthy"), device("c", "")]);
        let socket = dir.path().join("fpga.sock");
        plugin.serve(&socket, &tasks).unwrap();
        devices.connect("example.com/fpga", socket).await.unwrap();
        changes.changed().await.unwrap();
        let limits = json!({"limits": {"example.com/fpga": "1"}});
        let pod = json!({"metadata": {"uid": "u", "name": "p", "namespace": "ns"},
            "spec": {"initContainers": [{"name": "init", "resources": limits}],
                "containers": [{"name": "c", "resources": limits}]}});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        placement.admit(&pod).await.unwrap();

        let mut client = PodResourcesListerClient::new(grpc::channel(
            dir.path().join("pod-resources/kubelet.sock"),
        ));
        let near = |id: &str| ContainerDevices {
            resource_name: "example.com/fpga".to_owned(),
            device_ids: vec![id.to_owned()],
            topology: Some(TopologyInfo { nodes: vec![NumaNode { id: 1 }] }),
        };
        let all = client.get_allocatable_resources(AllocatableResourcesRequest {}).await.unwrap();
        assert_eq!(all.into_inner().devices, [near("a"), near("b")]);
        let resources = of_pod(&pod, &placement, &claims);
        assert_eq!(
            (resources.namespace.as_str(), resources.containers.len()),
            ("ns", 1),
            "{resources:?}"
        );
        assert_eq!(resources.containers[0].devices, [near("a")]);
        let nobody = GetPodResourcesRequest { pod_name: "x".into(), pod_namespace: "ns".into() };
        let error = client.get(nobody).await.unwrap_err();
        assert_eq!(error.message(), "pod x in namespace ns not found");
        let listed = client.list(ListPodResourcesRequest {}).await.unwrap().into_inner();
        assert_eq!(listed.pod_resources, [], "the Pod is none of this kubelet's");
    }

    #[test]
    fn limits_requests_as_upstream() {
        let begin = Instant::now();
        let mut limit = Limit { left: TokenBucket::new(BURST), at: begin };
        assert_eq!((0..20).filter(|_| limit.take(begin)).count(), 10);
        let later = begin + Duration::from_millis(50);
        assert_eq!((0..20).filter(|_| limit.take(later)).count(), 5);
        let much_later = begin + Duration::from_secs(60);
        assert_eq!((0..20).filter(|_| limit.take(much_later)).count(), 10);
        // A clock that does not advance adds no tokens.
        assert!(!limit.take(begin));
    }
}
