//! Tests of membership in a real etcd, skipped if none is installed.

use std::{
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use api_config::kubeadm::{ApiEndpoint, ClusterConfiguration};
use bootstrap::etcd::Etcd;
use bootstrap_core::{
    Layout, certs,
    config::{Facts, default_cluster},
    manifests::EtcdMember,
};
use testkit::free_port;

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(
    name: &str,
    ports: (u16, u16),
    layout: &Layout,
    data: &Path,
    members: &[EtcdMember],
) -> Process {
    let pki = |base: &str, extension: &str| layout.pki(base, extension).display().to_string();
    let (client, peer) =
        (format!("https://127.0.0.1:{}", ports.0), format!("https://127.0.0.1:{}", ports.1));
    let own = format!("{name}={peer}");
    let joined =
        members.iter().map(|m| format!("{}={}", m.name, m.peer_url)).collect::<Vec<_>>().join(",");
    let mut command = Command::new("etcd");
    command.args([
        format!("--name={name}"),
        format!("--data-dir={}", data.join(name).display()),
        format!("--listen-client-urls={client}"),
        format!("--advertise-client-urls={client}"),
        format!("--listen-peer-urls={peer}"),
        format!("--initial-advertise-peer-urls={peer}"),
        format!("--initial-cluster={}", if members.is_empty() { own } else { joined }),
        format!("--initial-cluster-state={}", if members.is_empty() { "new" } else { "existing" }),
        format!("--cert-file={}", pki("etcd/server", "crt")),
        format!("--key-file={}", pki("etcd/server", "key")),
        format!("--trusted-ca-file={}", pki("etcd/ca", "crt")),
        format!("--peer-cert-file={}", pki("etcd/peer", "crt")),
        format!("--peer-key-file={}", pki("etcd/peer", "key")),
        format!("--peer-trusted-ca-file={}", pki("etcd/ca", "crt")),
        "--client-cert-auth=true".to_owned(),
        "--peer-client-cert-auth=true".to_owned(),
    ]);
    Process(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
}

#[tokio::test(flavor = "current_thread")]
async fn adds_promotes_and_removes_member() {
    if Command::new("etcd").arg("--version").stdout(Stdio::null()).status().is_err() {
        eprintln!("not run: there is no etcd");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let layout = Layout::under(dir.path());
    let mut cluster =
        ClusterConfiguration { encryption_algorithm: "ECDSA-P256".into(), ..Default::default() };
    default_cluster(&mut cluster, &Facts::default());
    let local = ApiEndpoint { advertise_address: "127.0.0.1".into(), bind_port: 6443 };
    let plan = certs::Plan::new(&cluster, &local, "a").unwrap();
    bootstrap::certs::ensure(&layout.certificates, &plan, std::time::SystemTime::now()).unwrap();
    let (first, second) = ((free_port(), free_port()), (free_port(), free_port()));
    let _a = start("a", first, &layout, dir.path(), &[]);
    let etcd = Etcd::new(&[format!("https://127.0.0.1:{}", first.0)], &layout).unwrap();
    let patience = Duration::from_secs(20);
    let peer = format!("https://127.0.0.1:{}", second.1);
    // etcd takes a moment to start; adding a member is retried.
    let until = std::time::Instant::now() + patience;
    while let Err(e) = etcd.members().await {
        assert!(std::time::Instant::now() < until, "{e}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(etcd.versions().await.unwrap()[0].starts_with("3."));
    let members = etcd.add_learner("b", &peer, patience).await.unwrap();
    let names: Vec<_> = members.iter().map(|m| m.name.as_str()).collect();
    assert!(names.contains(&"a") && names.contains(&"b"), "{names:?}");
    assert_eq!(
        etcd.add_learner("b", &peer, patience).await.unwrap().len(),
        2,
        "a second try adds no second member"
    );
    let b = start("b", second, &layout, dir.path(), &members);
    etcd.promote(&peer, patience).await.unwrap();
    let member =
        etcd.members().await.unwrap().into_iter().find(|m| m.peer_urls.contains(&peer)).unwrap();
    assert!(!member.is_learner);
    etcd.remove(&member.id, patience).await.unwrap();
    assert_eq!(etcd.members().await.unwrap().len(), 1);
    drop(b);
    assert!(
        etcd.promote(&peer, patience).await.unwrap_err().to_string().contains("no member"),
        "gone"
    );
}
