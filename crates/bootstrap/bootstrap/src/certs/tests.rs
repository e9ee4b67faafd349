use std::{fs, os::unix::fs::PermissionsExt, time::Duration};

use api_config::kubeadm::{ApiEndpoint, ClusterConfiguration, LocalEtcd};
use bootstrap_core::certs::Ca;

use super::*;

fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_790_000_000)
}

pub(crate) fn cluster() -> ClusterConfiguration {
    let mut cluster =
        ClusterConfiguration { encryption_algorithm: "ECDSA-P256".into(), ..Default::default() };
    cluster.networking.service_subnet = "10.96.0.0/16".into();
    cluster.networking.dns_domain = "cluster.local".into();
    cluster.etcd.local = Some(LocalEtcd::default());
    cluster
}

pub(crate) fn endpoint() -> ApiEndpoint {
    ApiEndpoint { advertise_address: "10.77.0.1".into(), bind_port: 6443 }
}

fn plan() -> Plan {
    Plan::new(&cluster(), &endpoint(), "vm").unwrap()
}

fn snapshot(dir: &Path) -> Vec<(String, u32, Vec<u8>)> {
    let mut files = Vec::new();
    for sub in [dir.to_owned(), dir.join("etcd")] {
        for entry in fs::read_dir(&sub).unwrap().map(Result::unwrap).filter(|e| e.path().is_file())
        {
            let path = entry.path();
            let name = path.strip_prefix(dir).unwrap().display().to_string();
            files.push((
                name,
                entry.metadata().unwrap().permissions().mode() & 0o777,
                fs::read(path).unwrap(),
            ));
        }
    }
    files.sort();
    files
}

#[test]
fn creates_kubeadm_files_once() {
    let dir = tempfile::tempdir().unwrap();
    let touched = ensure(dir.path(), &plan(), now()).unwrap();
    assert!(touched.iter().all(|t| t.written));
    let made = snapshot(dir.path());
    let names: Vec<_> = made.iter().map(|(name, mode, _)| format!("{mode:o} {name}")).collect();
    assert_eq!(
        names,
        [
            "644 apiserver-etcd-client.crt",
            "600 apiserver-etcd-client.key",
            "644 apiserver-kubelet-client.crt",
            "600 apiserver-kubelet-client.key",
            "644 apiserver.crt",
            "600 apiserver.key",
            "644 ca.crt",
            "600 ca.key",
            "644 etcd/ca.crt",
            "600 etcd/ca.key",
            "644 etcd/healthcheck-client.crt",
            "600 etcd/healthcheck-client.key",
            "644 etcd/peer.crt",
            "600 etcd/peer.key",
            "644 etcd/server.crt",
            "600 etcd/server.key",
            "644 front-proxy-ca.crt",
            "600 front-proxy-ca.key",
            "644 front-proxy-client.crt",
            "600 front-proxy-client.key",
            "600 sa.key",
            "600 sa.pub",
        ]
    );
    let again = ensure(dir.path(), &plan(), now() + Duration::from_secs(60)).unwrap();
    assert!(again.iter().all(|t| !t.written));
    assert_eq!(snapshot(dir.path()), made);
}

#[test]
fn rejects_unusable_files_and_keeps_them() {
    let year = Duration::from_secs(366 * 86_400);
    type Damage = fn(&Path);
    let cases: &[(&str, Damage, Duration, &str)] = &[
        (
            "another CA",
            |d| {
                fs::remove_file(d.join("ca.crt")).unwrap();
                fs::remove_file(d.join("ca.key")).unwrap();
                ensure_authority(d, Ca::Kubernetes, &plan(), now()).unwrap();
            },
            Duration::ZERO,
            "apiserver.crt exists but cannot be used: certificate \"CN=kube-apiserver\" is not signed by \"CN=kubernetes\"",
        ),
        (
            "another key",
            |d| {
                fs::copy(d.join("sa.key"), d.join("apiserver.key")).unwrap();
            },
            Duration::ZERO,
            "does not belong to the given private key",
        ),
        (
            "a lost key",
            |d| fs::remove_file(d.join("apiserver.key")).unwrap(),
            Duration::ZERO,
            "apiserver.key does not; provide both",
        ),
        (
            "a lost CA certificate",
            |d| fs::remove_file(d.join("ca.crt")).unwrap(),
            Duration::ZERO,
            "ca.crt does not; provide both",
        ),
        (
            "no certificate",
            |d| fs::write(d.join("apiserver.crt"), "hello").unwrap(),
            Duration::ZERO,
            "no PEM block of type CERTIFICATE",
        ),
        (
            "another service-account key",
            |d| {
                fs::remove_file(d.join("sa.key")).unwrap();
                fs::copy(d.join("apiserver.key"), d.join("sa.key")).unwrap();
            },
            Duration::ZERO,
            "sa.pub exists but cannot be used",
        ),
        ("an expired certificate", |_| (), year, "has expired: it was valid until"),
    ];
    for (name, damage, later, wanted) in cases {
        let dir = tempfile::tempdir().unwrap();
        ensure(dir.path(), &plan(), now()).unwrap();
        damage(dir.path());
        let before = snapshot(dir.path());
        let error = ensure(dir.path(), &plan(), now() + *later).unwrap_err().to_string();
        assert!(error.contains(wanted), "{name}: {error}");
        assert_eq!(snapshot(dir.path()), before, "{name}");
    }
}

#[test]
fn accepts_external_ca_with_all_leaves() {
    let dir = tempfile::tempdir().unwrap();
    ensure(dir.path(), &plan(), now()).unwrap();
    for ca in plan().authorities {
        fs::remove_file(dir.path().join(format!("{}.key", ca.base()))).unwrap();
    }
    assert!(ensure(dir.path(), &plan(), now()).unwrap().iter().all(|t| !t.written));
    fs::remove_file(dir.path().join("front-proxy-client.crt")).unwrap();
    let error = ensure(dir.path(), &plan(), now()).unwrap_err();
    assert!(
        matches!(&error, Error::ExternalCa { missing, .. } if missing.ends_with("front-proxy-client.crt")),
        "{error}"
    );
}

#[test]
fn reports_names_missing_from_certificate() {
    let dir = tempfile::tempdir().unwrap();
    ensure(dir.path(), &plan(), now()).unwrap();
    let mut cluster = cluster();
    cluster.api_server.cert_sans.push("api.example.org".into());
    let wider = Plan::new(&cluster, &endpoint(), "vm").unwrap();
    let error = ensure(dir.path(), &wider, now()).unwrap_err().to_string();
    assert!(error.contains("is not valid for \"api.example.org\""), "{error}");
}

#[test]
fn accepts_bundle_of_two_authorities() {
    let dir = tempfile::tempdir().unwrap();
    ensure(dir.path(), &plan(), now()).unwrap();
    let other = tempfile::tempdir().unwrap();
    ensure_authority(other.path(), Ca::Kubernetes, &plan(), now()).unwrap();
    let [old, new] =
        [dir.path(), other.path()].map(|d| fs::read_to_string(d.join("ca.crt")).unwrap());
    fs::write(dir.path().join("ca.crt"), format!("{new}{old}")).unwrap();
    ensure(dir.path(), &plan(), now()).unwrap();
}

#[test]
fn renewal_keeps_subject_names_and_usages() {
    let dir = tempfile::tempdir().unwrap();
    ensure(dir.path(), &plan(), now()).unwrap();
    let later = now() + Duration::from_secs(300 * 86_400);
    let renewal = Renewal { now: later, period: plan().leaf_validity, algorithm: None };
    let path = dir.path().join("etcd/peer.crt");
    let old = pki::read_cert(&path).unwrap();
    renew_leaf(dir.path(), "etcd/peer", Ca::Etcd, renewal).unwrap();
    let new = pki::read_cert(&path).unwrap();
    let (before, after) = (old.info().unwrap(), new.info().unwrap());
    assert_eq!((&after.subject, &after.alt_names), (&before.subject, &before.alt_names));
    assert!(after.not_after > before.not_after && after.serial != before.serial);
    assert_ne!(new.public_der().unwrap(), old.public_der().unwrap());
    ensure(dir.path(), &plan(), now() + Duration::from_secs(364 * 86_400)).unwrap();
    fs::remove_file(dir.path().join("etcd/ca.key")).unwrap();
    let error = renew_leaf(dir.path(), "etcd/peer", Ca::Etcd, renewal).unwrap_err().to_string();
    assert!(error.contains("where the authority's key is"), "{error}");
}

#[test]
fn limits_leaf_validity_to_authority() {
    let dir = tempfile::tempdir().unwrap();
    ensure(dir.path(), &plan(), now()).unwrap();
    let late = now() + Duration::from_secs(3600 * 86_400);
    renew_leaf(
        dir.path(),
        "apiserver",
        Ca::Kubernetes,
        Renewal { now: late, period: plan().leaf_validity, algorithm: None },
    )
    .unwrap();
    let end =
        |name: &str| pki::read_cert(&dir.path().join(name)).unwrap().info().unwrap().not_after;
    assert_eq!(end("apiserver.crt"), end("ca.crt"));
}
