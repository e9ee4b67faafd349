use std::time::Duration;

use super::*;
use crate::{Client, labels};

fn pod(uid: &str) -> v1::PodSandboxConfig {
    let metadata = v1::PodSandboxMetadata { uid: uid.to_owned(), ..Default::default() };
    let labels = [(labels::POD_UID.to_owned(), uid.to_owned())].into();
    v1::PodSandboxConfig { metadata: Some(metadata), labels, ..Default::default() }
}

#[tokio::test]
async fn serves_life_of_pod() {
    let dir = tempfile::tempdir().unwrap();
    let (runtime, images) = (dir.path().join("runtime"), dir.path().join("images"));
    let tasks = rt::Tasks::new(rt::Shutdown::new());
    let network = Ipv4Addr::new(10, 0, 0, 0);
    let memory = MemoryRuntime::new(network, Arc::new(rt::SystemClock));
    memory.serve(&runtime, &images, &tasks).unwrap();
    let client = Client::new(runtime.to_str().unwrap(), Duration::from_secs(10))
        .with_image_service(images.to_str().unwrap());
    let mut events = client.container_events().await.unwrap();
    let sandbox = client.run_pod_sandbox(pod("a"), "").await.unwrap();
    client.run_pod_sandbox(pod("b"), "").await.unwrap();
    let address = async |id: &str| {
        let status = client.pod_sandbox_status(id, false).await.unwrap().status.unwrap();
        status.ip().to_owned()
    };
    assert_eq!(address(&sandbox).await, "10.0.0.1");
    assert_eq!(client.list_pods().await.unwrap().len(), 2);
    assert_eq!(client.image_status("i").await.unwrap(), None);

    let config = v1::ContainerConfig { labels: pod("a").labels, ..Default::default() };
    let container = client.create_container(&sandbox, config, pod("a")).await.unwrap();
    client.start_container(&container).await.unwrap();
    let state = async || client.container_status(&container).await.unwrap().state();
    assert_eq!(state().await, ContainerState::ContainerRunning);
    client.stop_pod_sandbox(&sandbox).await.unwrap();
    assert_eq!(state().await, ContainerState::ContainerExited);
    client.remove_pod_sandbox(&sandbox).await.unwrap();
    assert!(client.container_status(&container).await.unwrap_err().is_not_found());
    assert_eq!(client.list_pods().await.unwrap().len(), 1);
    let mut last = None;
    while last != Some(ContainerEventType::ContainerDeletedEvent) {
        last = events.message().await.unwrap().map(|event| event.container_event_type());
    }
    let again = client.run_pod_sandbox(pod("c"), "").await.unwrap();
    assert_eq!(address(&again).await, "10.0.0.1");
    tasks.drain(Duration::from_secs(5)).await;
}
