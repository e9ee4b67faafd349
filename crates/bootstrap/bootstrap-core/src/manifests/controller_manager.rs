//! The static Pod of the controller manager.

use serde_json::{Value, json};

use super::{
    args,
    component::Component,
    machine::Machine,
    pod::{self, PodParts, Probe, probe_host},
    volumes::Volumes,
};
use crate::{constants::CONTROLLER_MANAGER_PORT, images};

pub(super) fn pod(machine: &Machine<'_>) -> Value {
    let component = &machine.cluster.controller_manager;
    let kubeconfig =
        machine.layout.kubeconfig("controller-manager.conf").to_string_lossy().into_owned();
    let mut volumes = Volumes::default();
    volumes
        .add("k8s-certs", &machine.layout.certificates.to_string_lossy(), "DirectoryOrCreate", true)
        .add("kubeconfig", &kubeconfig, "FileOrCreate", true)
        .add_ca_directories(machine)
        .add_extra(&component.extra_volumes);
    let host = args::value(&component.extra_args, "bind-address").unwrap_or("127.0.0.1");
    let parts = PodParts {
        component: Component::ControllerManager,
        command: args::command(
            Component::ControllerManager.name(),
            defaults(machine, &kubeconfig),
            &component.extra_args,
        ),
        image: images::kubernetes(machine.cluster, Component::ControllerManager.name()),
        port: CONTROLLER_MANAGER_PORT,
        probe: Probe {
            host: probe_host(host),
            scheme: "HTTPS",
            live: "/healthz",
            ready: None,
            startup: "/healthz",
        },
        requests: json!({"cpu": "200m"}),
        volumes,
        annotations: Vec::new(),
        extra_envs: &component.extra_envs,
    };
    pod::pod(machine, parts)
}

fn defaults(machine: &Machine<'_>, kubeconfig: &str) -> Vec<(&'static str, String)> {
    let cluster = machine.cluster;
    let pki = |base: &str, extension: &str| {
        machine.layout.pki(base, extension).to_string_lossy().into_owned()
    };
    // Empty file names disable the signing controllers if the CA's key is kept elsewhere.
    let signing =
        |extension: &str| if machine.has_ca_key { pki("ca", extension) } else { String::new() };
    let text = str::to_owned;
    let mut flags = vec![
        ("authentication-kubeconfig", text(kubeconfig)),
        ("authorization-kubeconfig", text(kubeconfig)),
        ("bind-address", text("127.0.0.1")),
        ("client-ca-file", pki("ca", "crt")),
        ("cluster-signing-cert-file", signing("crt")),
        ("cluster-signing-key-file", signing("key")),
        ("controllers", text("*,bootstrapsigner,tokencleaner")),
        ("kubeconfig", text(kubeconfig)),
        ("leader-elect", text("true")),
        ("requestheader-client-ca-file", pki("front-proxy-ca", "crt")),
        ("root-ca-file", pki("ca", "crt")),
        ("service-account-private-key-file", pki("sa", "key")),
        ("use-service-account-credentials", text("true")),
    ];
    if !cluster.cluster_name.is_empty() {
        flags.push(("cluster-name", cluster.cluster_name.clone()));
    }
    if !cluster.networking.pod_subnet.is_empty() {
        flags.push(("allocate-node-cidrs", text("true")));
        flags.push(("cluster-cidr", cluster.networking.pod_subnet.clone()));
        flags.push(("service-cluster-ip-range", cluster.networking.service_subnet.clone()));
    }
    flags
}
