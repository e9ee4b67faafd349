use super::{change::concerned, command::*};
use crate::{
    cluster::example,
    config::{ClusterConfig, tests::read},
    process::Role,
};

#[test]
fn flags_of_document_reach_components() {
    let dir = tempfile::tempdir().unwrap();
    let mut cluster = example(dir.path());
    cluster.settings.config = read(
        "apiServer: {extraArgs: [{name: event-ttl, value: 2h}, {name: enable-admission-plugins, value: NodeRestriction}]}\n\
         controllerManager: {extraArgs: [{name: node-monitor-grace-period, value: 20s}]}\n\
         loadBalancer: {ranges: [192.0.2.240/28]}\n\
         scheduler: {extraArgs: [{name: v, value: \"2\"}]}",
    )
    .unwrap();
    let api = api_server(&cluster).unwrap().config().unwrap();
    assert_eq!(api.event_ttl.as_secs(), 7200);
    assert_eq!(api.enable_admission, ["NodeRestriction"]);
    assert_eq!(api.tls_certificate, cluster.layout().pki("apiserver", "crt"));
    assert_eq!(api.kubelet_ca, Some(cluster.layout().pki("ca", "crt")));
    assert!(!api.shares_store && api.bootstrap_tokens && api.allow_privileged);
    let manager = controller_manager(&cluster).unwrap();
    assert_eq!(manager.node_monitor_grace_period.unwrap().to_string(), "20s");
    assert!(manager.controllers.contains(&"service-lb-controller".to_owned()));
    assert_eq!(manager.load_balancer_ranges.len(), 1);
    let message = scheduler(&cluster).err().unwrap().to_string();
    assert!(message.contains("scheduler.extraArgs") && message.contains("--v"), "{message}");
    cluster.settings.config =
        read("apiServer: {extraArgs: [{name: event-ttl, value: soon}]}").unwrap();
    let message = api_server(&cluster).err().unwrap().to_string();
    assert!(message.contains("event-ttl"), "{message}");
}

#[test]
fn restarts_only_what_a_change_concerns() {
    let none = ClusterConfig::default();
    for (body, roles) in [
        ("", &[][..]),
        ("nodes: [{labels: {a: b}}]", &[]),
        ("apiServer: {certSANs: [a.example.com]}", &[]),
        ("registries: [{host: a, mirrors: [\"http://b\"]}]", &[]),
        ("registries: [{host: a, username: u, passwordFile: /p}]", &[Role::Containerd]),
        ("publish: [\"8080:30080\"]", &[Role::Agent]),
        ("kubelet: {maxPods: 5}", &[Role::Agent]),
        ("scheduler: {extraArgs: [{name: a, value: b}]}", &[Role::ControlPlane]),
        ("loadBalancer: {disabled: true}", &[Role::ControlPlane, Role::Agent]),
        ("featureGates: {A: true}", &[Role::ControlPlane, Role::Agent]),
    ] {
        assert_eq!(concerned(&none, &read(body).unwrap()), roles, "{body}");
    }
}
