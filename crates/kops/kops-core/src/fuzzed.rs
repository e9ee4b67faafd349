//! Fuzzes the readers of tags, by which resources and volumes of a cluster are found.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::{
    direct::{self, Answers},
    member::Tag,
    volumes::{VolumeTags, etcd_of},
};

const CLUSTER: &str = "c.example.com";

#[test]
fn tags_of_volumes() {
    let seed = br#"{"k8s.io/etcd/main": "b/a,b", "k8s.io/role/control-plane": "1", "Name": "b.etcd-main.c.example.com",
        "kubernetes.io/cluster/c.example.com": "owned"}"#;
    let other =
        br#"{"k8s.io/etcd/events": "a/a", "kubernetes.io/cluster/c.example.com": "shared"}"#;
    let seeds: [&[u8]; 2] = [seed, other];
    fuzz::fuzz(env!("CARGO_MANIFEST_DIR"), "volume-tags", &seeds, |input| {
        let Ok(tags) = serde_json::from_slice::<VolumeTags>(input) else { return };
        let Ok(Some(etcd)) = etcd_of(CLUSTER, &tags) else { return };
        assert_eq!(tags["kubernetes.io/cluster/c.example.com"], "owned");
        let etcds: Vec<_> = tags.keys().filter(|key| key.starts_with("k8s.io/etcd/")).collect();
        assert_eq!(etcds, [&format!("k8s.io/etcd/{etcd}")]);
        let (member, all) = tags[etcds[0]].split_once('/').unwrap();
        assert!(!etcd.is_empty() && all.split(',').any(|one| one == member));
    });
}

#[test]
fn marks_on_volumes() {
    let seed = br#"{"cluster": "c", "etcd": "main", "member": "a", "id": "x", "used": true, "generation": "g"}"#;
    fuzz::fuzz(env!("CARGO_MANIFEST_DIR"), "volume-marks", &[seed], |input| {
        let Some(tag) = std::str::from_utf8(input).ok().and_then(Tag::read) else { return };
        assert_eq!(Tag::read(&tag.to_text()), Some(tag));
    });
}

#[test]
fn tags_of_machines() {
    let seed = br#"[{"AutoScalingGroups": [{"AutoScalingGroupName": "g", "MinSize": "1", "Instances": [
        {"InstanceId": "i-1", "LifecycleState": "InService", "LaunchTemplate": {"LaunchTemplateId": "l", "Version": "1"}}
        ], "Tags": [{"Key": "kubernetes.io/cluster/c.example.com", "Value": "owned"}]},
        {"AutoScalingGroupName": "s", "Instances": [{"InstanceId": "i-9"}], "Tags": [
        {"Key": "kubernetes.io/cluster/c.example.com", "Value": "shared"}]}]},
        {"launchTemplates": [{"launchTemplateId": "l", "latestVersionNumber": "2"}]},
        {"reservationSet": [{"instancesSet": [{"instanceId": "i-3", "tagSet": [
        {"key": "kubernetes.io/cluster/c.example.com", "value": "owned"},
        {"key": "kops.k8s.io/detached-from-asg", "value": "g"}]}]}]}]"#;
    fuzz::fuzz(env!("CARGO_MANIFEST_DIR"), "machine-tags", &[seed], |input| {
        let Ok(pages) = serde_json::from_slice::<Vec<Value>>(input) else { return };
        let mut answers = Answers::default();
        for (call, page) in direct::group_queries(CLUSTER).into_iter().zip(pages) {
            answers.add(call, vec![page]);
        }
        let groups = direct::groups(&answers, CLUSTER);
        let text = String::from_utf8_lossy(input);
        assert!(groups.is_empty() || text.contains("owned"), "{text}");
        for (name, group) in &groups {
            assert_eq!(name, &group.name);
            let members = group.machines.iter().filter(|machine| !machine.detached);
            let members: BTreeSet<_> = members.map(|machine| machine.id.as_str()).collect();
            let mut detached = group.machines.iter().filter(|machine| machine.detached);
            assert!(detached.all(|machine| !members.contains(machine.id.as_str())), "{text}");
        }
    });
}
