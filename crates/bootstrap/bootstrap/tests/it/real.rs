//! `init` and `join` against our API server, with RBAC, bootstrap tokens and anonymous requests.

use std::{net::SocketAddr, path::Path, sync::Arc, time::Duration};

use bootstrap::{init, join, phase};
use client::Resource;
use serde_json::{Value, json};

use super::live::{complete, joining, machine, owned, quiet, sign_with, try_join};

async fn start(root: &Path, bind: SocketAddr, tasks: &rt::Tasks) {
    let pki = root.join("etc/kubernetes/pki");
    let config = apiserver::Config {
        // Used only in the endpoints of the `kubernetes` Service, which reject loopback addresses.
        advertise: [10, 0, 0, 5].into(),
        kubelet_client: Some((
            pki.join("apiserver-kubelet-client.crt"),
            pki.join("apiserver-kubelet-client.key"),
        )),
        bootstrap_tokens: true,
        enable_admission: vec!["NodeRestriction".to_owned()],
        ..testkit::config(bind, &pki)
    };
    let options = store::embedded::Options::default();
    let store = store::embedded::Embedded::open(&root.join("store"), options).unwrap();
    let store: Arc<dyn store::Store> = Arc::new(store);
    apiserver::start(config, store, tasks).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn initialises_first_machine_and_joins_second() {
    let root = tempfile::tempdir().unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let bind = listener.local_addr().unwrap();
    drop(listener);
    let mut ctx = init::Ctx::new(machine(root.path(), "first"));
    ctx.upload_certs = true;
    ctx.skip_certificate_key_print = true;
    ctx.node.config.init.local_api_endpoint.bind_port = bind.port().into();
    ctx.node.config.cluster.control_plane_endpoint = bind.to_string();
    phase::run(&init::phases(), &owned(&["certs", "kubeconfig"]), &[], &quiet(), &mut ctx)
        .await
        .unwrap();
    let tasks = rt::Tasks::new(rt::Shutdown::new());
    start(root.path(), bind, &tasks).await;
    let live = owned(&["upload-config", "upload-certs", "bootstrap-token", "addon"]);
    phase::run(&init::phases(), &live, &[], &quiet(), &mut ctx).await.unwrap();
    phase::run(
        &init::phases(),
        &owned(&["upload-config", "bootstrap-token", "addon"]),
        &[],
        &quiet(),
        &mut ctx,
    )
    .await
    .unwrap();
    let admin = ctx.node.client().await.unwrap();
    let node = json!({"metadata": {"name": "first"}});
    admin.create::<_, Value>(&Resource::NODES, "", &node).await.unwrap();
    phase::run(&init::phases(), &owned(&["mark-control-plane"]), &[], &quiet(), &mut ctx)
        .await
        .unwrap();
    let node: Value = admin.get(&Resource::NODES, "", "first").await.unwrap();
    let taints: Vec<_> =
        node["spec"]["taints"].as_array().unwrap().iter().map(|t| t["key"].clone()).collect();
    assert_eq!(taints, ["node.kubernetes.io/not-ready", "node-role.kubernetes.io/control-plane"]);
    sign_with(&admin).await;
    let pin = pki::read_cert(&ctx.node.layout.pki("ca", "crt")).unwrap().pin().unwrap();
    let worker = tempfile::tempdir().unwrap();
    let joined =
        try_join(worker.path(), complete(joining(&bind.to_string(), &pin), "second"), "second")
            .await;
    joined.map(|_: join::Ctx| ()).unwrap();
    let drained = tasks.drain(Duration::from_secs(5)).await;
    assert_eq!(drained.unfinished, Vec::<Arc<str>>::new());
}
