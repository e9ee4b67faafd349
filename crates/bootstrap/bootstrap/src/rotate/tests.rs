use std::{
    fs,
    path::Path,
    time::{Duration, SystemTime},
};

use bootstrap_core::{
    Layout,
    certs::{Ca, Plan},
    kubeconfigs,
};
use pki::Cert;

use super::*;
use crate::certs::{
    self, load_authority,
    tests::{cluster as configuration, endpoint},
};

fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_790_000_000)
}

fn plan() -> Plan {
    Plan::new(&configuration(), &endpoint(), "vm").unwrap()
}

fn machine(root: &Path) -> Layout {
    let layout = Layout::under(root);
    certs::ensure(&layout.certificates, &plan(), now()).unwrap();
    let plans = kubeconfigs::plan(&configuration(), &endpoint(), "vm", true);
    crate::kubeconfigs::ensure(&layout.kubernetes, &layout.certificates, &plans, &plan(), now())
        .unwrap();
    layout
}

/// Returns the certificates that a machine presents, each with its authority.
fn presented(layout: &Layout) -> Vec<(String, Ca, Cert)> {
    let leaves = plan().leaves.into_iter().map(|leaf| {
        let cert = pki::read_cert(&layout.pki(leaf.base, "crt")).unwrap();
        cert.check_key(&pki::read_key(&layout.pki(leaf.base, "key")).unwrap()).unwrap();
        (leaf.base.to_owned(), leaf.ca, cert)
    });
    let files = ["admin.conf", "super-admin.conf", "controller-manager.conf", "scheduler.conf"];
    let clients = files.into_iter().map(|file| {
        let config = Kubeconfig::load(&layout.kubeconfig(file)).unwrap();
        let pem = config.current().unwrap().user.cert_pem().unwrap().unwrap();
        (file.to_owned(), Ca::Kubernetes, Cert::from_pem(&pem).unwrap())
    });
    leaves.chain(clients).collect()
}

fn bundle(layout: &Layout, ca: Ca) -> Vec<Cert> {
    pki::read_certs(&layout.pki(ca.base(), "crt")).unwrap()
}

/// Checks that one machine trusts everything that the other presents.
fn believes(other: &Layout, one: &Layout) {
    for (name, ca, cert) in presented(one) {
        let found = bundle(other, ca).iter().any(|ca| cert.check_signed_by(ca).is_ok());
        assert!(found, "{name} of {} is not believed", one.kubernetes.display());
    }
    let key = pki::read_key(&one.pki("sa", "key")).unwrap().public_pem().unwrap();
    assert!(fs::read_to_string(other.pki("sa", "pub")).unwrap().contains(&key));
}

use api_config::Kubeconfig;

/// Checks two control planes in all combinations of states. Each step runs twice, as after an interruption.
#[test]
fn machines_trust_each_other_in_every_rotation_step() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let first = machine(one.path());
    copy_tree(one.path(), two.path());
    let second = Layout::under(two.path());
    let old = bundle(&first, Ca::Kubernetes);

    authorities::prepare(&first.certificates, &plan(), now()).unwrap();
    for base in ["ca-next", "front-proxy-ca-next", "etcd/ca-next"] {
        for extension in ["crt", "key"] {
            fs::copy(first.pki(base, extension), second.pki(base, extension)).unwrap();
        }
    }
    fs::copy(first.pki("sa-next", "key"), second.pki("sa-next", "key")).unwrap();
    type Work = fn(&Layout) -> Result<Vec<FileChange>, Error>;
    let steps: [Work; 3] = [
        |layout| authorities::trust(&layout.certificates),
        |layout| {
            authorities::issue(&layout.certificates)?;
            machine::reissue(layout, now())
        },
        |layout| authorities::finish(&layout.certificates),
    ];
    for step in steps {
        for layout in [&first, &second] {
            for _ in 0..2 {
                step(layout).unwrap();
                machine::trust_authorities(layout, &bundle(layout, Ca::Kubernetes)).unwrap();
                believes(&first, &second);
                believes(&second, &first);
                certs::ensure(&layout.certificates, &plan(), now()).unwrap();
            }
        }
    }
    for ca in [Ca::Kubernetes, Ca::FrontProxy, Ca::Etcd] {
        let [only] = bundle(&first, ca).try_into().unwrap();
        assert_ne!(Some(&only), old.first());
        load_authority(&first.certificates, ca, now()).unwrap().unwrap();
    }
    assert_eq!(bundle(&first, Ca::Kubernetes), bundle(&second, Ca::Kubernetes));
    assert!(!authorities::is_begun(&first.certificates));
    let left = fs::read_dir(&first.certificates).unwrap().map(|e| e.unwrap().file_name());
    assert!(left.into_iter().all(|name| !name.to_string_lossy().contains("-next")));
}

fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_tree(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[test]
fn annotates_every_static_pod_once() {
    let dir = tempfile::tempdir().unwrap();
    let layout = machine(dir.path());
    let pod = serde_json::json!({"kind": "Pod", "metadata": {"name": "etcd"}});
    crate::manifests::write_pod(&pod, &layout.manifests(), "etcd.yaml").unwrap();
    let mark = cluster::mark(&bundle(&layout, Ca::Kubernetes));
    let (touched, names) = machine::mark_pods(&layout, &mark).unwrap();
    assert_eq!((touched[0].written, names), (true, vec!["etcd".to_owned()]));
    let (touched, _) = machine::mark_pods(&layout, &mark).unwrap();
    assert!(!touched[0].written, "a second time nothing is restarted");
    assert_ne!(mark, cluster::mark(&[]));
}
