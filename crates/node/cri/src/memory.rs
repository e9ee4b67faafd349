//! A container runtime in memory, for simulated nodes. It holds sandboxes, containers and images, and starts no
//! process.
//!
//! A container runs until it is stopped, and then has exit code 0. Commands in containers succeed without output. Pods
//! get addresses that nothing serves. Start with [`MemoryRuntime`]; [`services`] implements the protocol.

mod services;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::Ipv4Addr,
    path::Path,
    sync::Arc,
    time::UNIX_EPOCH,
};

use parking_lot::Mutex;
use tokio::sync::broadcast;
use tonic::Status;

use crate::v1::{
    self, ContainerEventType, ContainerState, NamespaceMode, PodSandboxState,
    image_service_server::ImageServiceServer, runtime_service_server::RuntimeServiceServer,
};

/// The number of events that a slow reader may lag behind. Its stream ends then, and it lists all containers again.
const EVENTS: usize = 1024;
/// The number of Pod addresses of a node.
const ADDRESSES: u32 = 254;

/// A container runtime in memory; clones share it.
#[derive(Clone)]
pub struct MemoryRuntime(Arc<Inner>);

struct Inner {
    objects: Mutex<Objects>,
    events: broadcast::Sender<v1::ContainerEventResponse>,
    clock: Arc<dyn rt::Clock>,
    /// The address before the first Pod address.
    network: Ipv4Addr,
}

#[derive(Default)]
struct Objects {
    sandboxes: BTreeMap<String, Sandbox>,
    containers: BTreeMap<String, Container>,
    images: BTreeSet<String>,
    /// The number of IDs that were given out.
    ids: u64,
}

struct Sandbox {
    status: v1::PodSandboxStatus,
    handler: String,
}

struct Container {
    sandbox: String,
    status: v1::ContainerStatus,
}

impl MemoryRuntime {
    /// Creates an empty runtime. Its Pods get the 254 addresses after `network`.
    pub fn new(network: Ipv4Addr, clock: Arc<dyn rt::Clock>) -> Self {
        let (objects, events) = (Mutex::default(), broadcast::Sender::new(EVENTS));
        Self(Arc::new(Inner { objects, events, clock, network }))
    }

    /// Serves the protocol until shutdown: the calls about containers at `runtime`, and those about images at `images`.
    pub fn serve(&self, runtime: &Path, images: &Path, tasks: &rt::Tasks) -> std::io::Result<()> {
        let services = RuntimeServiceServer::new(self.clone());
        grpc::serve("simulated runtime", runtime, services, tasks)?;
        grpc::serve("simulated images", images, ImageServiceServer::new(self.clone()), tasks)
    }

    fn now(&self) -> i64 {
        let since = self.0.clock.now().duration_since(UNIX_EPOCH).unwrap_or_default();
        i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
    }

    /// Runs a sandbox that is ready at once.
    fn run_sandbox(&self, config: v1::PodSandboxConfig, handler: String) -> Result<String, Status> {
        let mut objects = self.0.objects.lock();
        let ip = if uses_host_network(&config) { String::new() } else { self.address(&objects)? };
        let id = objects.new_id();
        let status = v1::PodSandboxStatus {
            id: id.clone(),
            metadata: config.metadata,
            state: PodSandboxState::SandboxReady.into(),
            created_at: self.now(),
            network: Some(v1::PodSandboxNetworkStatus { ip, ..Default::default() }),
            labels: config.labels,
            annotations: config.annotations,
        };
        objects.sandboxes.insert(id.clone(), Sandbox { status, handler });
        self.report(&objects, &id, &id, ContainerEventType::ContainerStartedEvent);
        Ok(id)
    }

    /// Returns a free Pod address.
    fn address(&self, objects: &Objects) -> Result<String, Status> {
        let used: BTreeSet<&str> =
            objects.sandboxes.values().map(|sandbox| sandbox.status.ip()).collect();
        let base = self.0.network.to_bits();
        let mut all = (1..=ADDRESSES).map(|n| Ipv4Addr::from_bits(base + n).to_string());
        let free = all.find(|address| !used.contains(address.as_str()));
        free.ok_or_else(|| Status::resource_exhausted("the node has no free Pod address"))
    }

    fn stop_sandbox(&self, id: &str) {
        let mut objects = self.0.objects.lock();
        let running = |(_, container): &(&String, &Container)| container.sandbox == id;
        let own: Vec<String> =
            objects.containers.iter().filter(running).map(|(id, _)| id.clone()).collect();
        own.iter().for_each(|container| self.stop(&mut objects, container));
        if let Some(sandbox) = objects.sandboxes.get_mut(id) {
            sandbox.status.state = PodSandboxState::SandboxNotready.into();
            self.report(&objects, id, id, ContainerEventType::ContainerStoppedEvent);
        }
    }

    fn remove_sandbox(&self, id: &str) {
        self.stop_sandbox(id);
        let mut objects = self.0.objects.lock();
        objects.containers.retain(|_, container| container.sandbox != id);
        self.report(&objects, id, id, ContainerEventType::ContainerDeletedEvent);
        objects.sandboxes.remove(id);
    }

    fn add_container(&self, request: v1::CreateContainerRequest) -> Result<String, Status> {
        let mut objects = self.0.objects.lock();
        let (sandbox, config) = (request.pod_sandbox_id, request.config.unwrap_or_default());
        objects.sandbox(&sandbox)?;
        let id = objects.new_id();
        let image = config.image.unwrap_or_default();
        let status = v1::ContainerStatus {
            id: id.clone(),
            metadata: config.metadata,
            state: ContainerState::ContainerCreated.into(),
            created_at: self.now(),
            image_ref: image.image.clone(),
            image_id: image.image.clone(),
            image: Some(image),
            labels: config.labels,
            annotations: config.annotations,
            mounts: config.mounts,
            ..Default::default()
        };
        objects.containers.insert(id.clone(), Container { sandbox: sandbox.clone(), status });
        self.report(&objects, &sandbox, &id, ContainerEventType::ContainerCreatedEvent);
        Ok(id)
    }

    fn start(&self, id: &str) -> Result<(), Status> {
        let mut objects = self.0.objects.lock();
        let container = objects.containers.get_mut(id).ok_or_else(|| not_found("container", id))?;
        container.status.state = ContainerState::ContainerRunning.into();
        container.status.started_at = self.now();
        let sandbox = container.sandbox.clone();
        self.report(&objects, &sandbox, id, ContainerEventType::ContainerStartedEvent);
        Ok(())
    }

    /// Stops a container that has not ended.
    fn stop(&self, objects: &mut Objects, id: &str) {
        let ended = i32::from(ContainerState::ContainerExited);
        let Some(container) = objects.containers.get_mut(id) else { return };
        if container.status.state == ended {
            return;
        }
        container.status.state = ended;
        container.status.finished_at = self.now();
        "Completed".clone_into(&mut container.status.reason);
        let sandbox = container.sandbox.clone();
        self.report(objects, &sandbox, id, ContainerEventType::ContainerStoppedEvent);
    }

    fn delete_container(&self, id: &str) {
        let mut objects = self.0.objects.lock();
        if let Some(container) = objects.containers.remove(id) {
            self.report(
                &objects,
                &container.sandbox,
                id,
                ContainerEventType::ContainerDeletedEvent,
            );
        }
    }

    /// Sends an event to all readers.
    fn report(&self, objects: &Objects, sandbox: &str, id: &str, kind: ContainerEventType) {
        let event = v1::ContainerEventResponse {
            container_id: id.to_owned(),
            container_event_type: kind.into(),
            created_at: self.now(),
            pod_sandbox_status: objects.sandboxes.get(sandbox).map(|s| s.status.clone()),
        };
        // It fails if nobody reads events.
        let _ = self.0.events.send(event);
    }
}

impl Objects {
    fn new_id(&mut self) -> String {
        self.ids += 1;
        format!("{:064x}", self.ids)
    }

    fn sandbox(&self, id: &str) -> Result<&Sandbox, Status> {
        self.sandboxes.get(id).ok_or_else(|| not_found("sandbox", id))
    }

    fn list_sandboxes(&self, filter: &v1::PodSandboxFilter) -> Vec<v1::PodSandbox> {
        let state = filter.state.map(|state| state.state);
        let fits = |sandbox: &&Sandbox| {
            (filter.id.is_empty() || sandbox.status.id == filter.id)
                && state.is_none_or(|state| state == sandbox.status.state)
                && has_labels(&sandbox.status.labels, &filter.label_selector)
        };
        let shown = |Sandbox { status, handler }: &Sandbox| v1::PodSandbox {
            id: status.id.clone(),
            metadata: status.metadata.clone(),
            state: status.state,
            created_at: status.created_at,
            labels: status.labels.clone(),
            annotations: status.annotations.clone(),
            runtime_handler: handler.clone(),
        };
        self.sandboxes.values().filter(fits).map(shown).collect()
    }

    fn list_containers(&self, filter: &v1::ContainerFilter) -> Vec<v1::Container> {
        let state = filter.state.map(|state| state.state);
        let fits = |container: &&Container| {
            (filter.id.is_empty() || container.status.id == filter.id)
                && (filter.pod_sandbox_id.is_empty() || container.sandbox == filter.pod_sandbox_id)
                && state.is_none_or(|state| state == container.status.state)
                && has_labels(&container.status.labels, &filter.label_selector)
        };
        let shown = |Container { sandbox, status }: &Container| v1::Container {
            id: status.id.clone(),
            pod_sandbox_id: sandbox.clone(),
            metadata: status.metadata.clone(),
            image: status.image.clone(),
            image_ref: status.image_ref.clone(),
            image_id: status.image_id.clone(),
            state: status.state,
            created_at: status.created_at,
            labels: status.labels.clone(),
            annotations: status.annotations.clone(),
        };
        self.containers.values().filter(fits).map(shown).collect()
    }
}

impl v1::PodSandboxStatus {
    fn ip(&self) -> &str {
        self.network.as_ref().map_or("", |network| network.ip.as_str())
    }
}

fn not_found(kind: &str, id: &str) -> Status {
    Status::not_found(format!("there is no {kind} {id}"))
}

fn has_labels(labels: &HashMap<String, String>, wanted: &HashMap<String, String>) -> bool {
    wanted.iter().all(|(key, value)| labels.get(key) == Some(value))
}

fn uses_host_network(config: &v1::PodSandboxConfig) -> bool {
    let context = config.linux.as_ref().and_then(|linux| linux.security_context.as_ref());
    let options = context.and_then(|context| context.namespace_options.as_ref());
    options.is_some_and(|options| options.network() == NamespaceMode::Node)
}

#[cfg(test)]
mod tests;
