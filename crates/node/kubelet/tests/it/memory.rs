//! Containers that are killed because they run out of memory.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use client::Resource;
use serde_json::{Value, json};
use testkit::FakeApi;

use crate::{
    api::{container, pod, status},
    node::{Node, eventually},
};

/// Keeps all processors busy until it is dropped, so that the runtime's events come late and in any order.
struct Load(Arc<AtomicBool>, Vec<std::thread::JoinHandle<()>>);

impl Load {
    fn start(threads: usize) -> Self {
        let busy = Arc::new(AtomicBool::new(true));
        let spin = |busy: Arc<AtomicBool>| {
            std::thread::spawn(move || {
                while busy.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            })
        };
        let threads = (0..threads).map(|_| spin(busy.clone())).collect();
        Self(busy, threads)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
        self.1.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// Two containers and an init container per Pod: the reason is reported with the end, whatever the order of events.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reports_out_of_memory_with_the_end_under_load() {
    // Ten kills: the kernel logs at most ten in five seconds, and the runtime loses events under load.
    const PODS: usize = 4;
    let mut node = Node::start("memory").await;
    let api = FakeApi::default();
    node.start_kubelet(Some(api.client("kubelet")));
    let _load = Load::start(4);
    let greedy = |name: &str| {
        let mut greedy = container(name, "exec tail /dev/zero");
        greedy["resources"] = json!({ "limits": { "memory": "16Mi" } });
        greedy
    };
    let spec = |init: bool| {
        let mut spec = json!({ "restartPolicy": "Never",
            "containers": [greedy("a"), greedy("b"), greedy("c")] });
        if init {
            spec["initContainers"] = json!([greedy("init")]);
        }
        spec
    };
    let names: Vec<String> = (0..PODS).map(|number| format!("greedy-{number}")).collect();
    for (number, name) in names.iter().enumerate() {
        api.create(&Resource::PODS, pod(name, spec(number % 4 == 0))).await;
    }
    for name in &names {
        eventually(&format!("{name} fails"), async || status(&api, name)["phase"] == "Failed")
            .await;
        let status = status(&api, name);
        let ended = |list: &str| -> Vec<Value> {
            let all = status[list].as_array().cloned().unwrap_or_default();
            all.into_iter().map(|one| one["state"]["terminated"].clone()).collect()
        };
        let init = ended("initContainerStatuses");
        // Containers do not start after an init container that failed.
        let ended = if init.is_empty() { ended("containerStatuses") } else { init };
        assert!(!ended.is_empty());
        for terminated in ended {
            assert_eq!(terminated["exitCode"], 137, "{name}: {terminated}");
            assert_eq!(terminated["reason"], "OOMKilled", "{name}: {terminated}");
        }
    }
    node.close().await;
}
