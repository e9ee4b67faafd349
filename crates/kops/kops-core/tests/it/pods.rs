//! Tests of static Pods against upstream's goldens.

use api_meta::Tree as _;
use kops_api::{Kind, Object};
use kops_core::{Machines, channels_pod, complete, etcd_pod, etcd_spec, healthcheck_pod};
use serde_json::json;

use crate::{
    completed::objects,
    golden::{difference, read, source},
    mock::{assert_missed, cases, stored, world},
};

const KOPS: &str = "1.34.0-beta.1";

/// Static Pods that differ from upstream's, with the reason.
const MISSED: &[(&str, &str)] = &[];

/// Returns our content of a stored file, by its name in upstream's goldens.
fn written(cluster: &Object, groups: &[Object], file: &str) -> Option<Result<String, String>> {
    let name = file.strip_prefix("aws_s3_object_")?.strip_suffix("_content")?;
    let servers = groups.iter().any(|group| group.spec.text("role") == "APIServer");
    let etcd = |name: &str| {
        cluster.spec.items("etcdClusters").iter().find(|etcd| etcd.text("name") == name)
    };
    if let Some(rest) = name.strip_prefix("manifests-etcdmanager-") {
        let etcd = etcd(rest.split('-').next()?)?;
        return Some(etcd_pod(cluster, etcd, KOPS, servers).map_err(|e| e.to_string()));
    }
    if let Some(rest) = name.strip_prefix("etcd-cluster-spec-") {
        return Some(Ok(etcd_spec(etcd(rest)?)));
    }
    match name {
        "manifests-static-kube-apiserver-healthcheck" => Some(Ok(healthcheck_pod(cluster, KOPS))),
        "manifests-channels-kops-channels" => Some(Ok(channels_pod(cluster, KOPS))),
        _ => None,
    }
}

#[test]
fn static_pods_match_upstream() {
    let Some(source) = source() else { return };
    let (mut missed, mut count) = (Vec::new(), 0);
    for (name, case) in cases(&source) {
        let mut groups =
            objects(&name, &read(&case.join("in-v1alpha2.yaml"))).unwrap_or_else(|e| panic!("{e}"));
        let Some(at) = groups.iter().position(|o| o.kind == Kind::Cluster) else { continue };
        let cluster = groups.remove(at);
        let world = world(cluster.spec.has("cloudProvider.gce"));
        let cluster = complete(&cluster, &groups, &world, &Machines::default());
        let cluster = cluster.unwrap_or_else(|e| panic!("{name}: {e}"));
        for (golden, theirs) in stored(&case) {
            let Some(ours) = written(&cluster, &groups, &golden) else { continue };
            count += 1;
            let why = match ours {
                Ok(ours) => difference(&ours, &theirs),
                Err(error) => Some(error),
            };
            missed.extend(why.map(|why| (format!("{name}/{golden}"), why)));
        }
    }
    assert_missed("etcd specs and static Pods", count, &missed, MISSED);
}

#[test]
fn pods_mount_their_volumes() {
    let mut cluster = Object::new(Kind::Cluster, "a.example.com");
    cluster.metadata.put("labels", json!({"alpha.kops.k8s.io/cloud": "metal"}));
    let etcd = json!({"name": "main", "version": "3.6.12", "etcdMembers": [{"name": "a", "instanceGroup": "m"}]});
    let pod = etcd_pod(&cluster, &etcd, "1.36.2", false).unwrap_or_else(|e| panic!("{e}"));
    for part in [
        "--volume-provider=external",
        "--volume-tag=a.example.com--main--",
        "file:///mnt/disks/backups",
    ] {
        assert!(pod.contains(part), "{part}:\n{pod}");
    }
    let strange = etcd_pod(&cluster, &json!({"name": "../x"}), "1.36.2", false);
    assert!(
        strange.is_err_and(|e| e
            .to_string()
            .contains("is not one of main, events, leases and cilium"))
    );
}
