//! The static Pod of the scheduler.

use serde_json::{Value, json};

use super::{
    args,
    component::Component,
    machine::Machine,
    pod::{self, PodParts, Probe, probe_host},
    volumes::Volumes,
};
use crate::{constants::SCHEDULER_PORT, images};

pub(super) fn pod(machine: &Machine<'_>) -> Value {
    let component = &machine.cluster.scheduler;
    let kubeconfig = machine.layout.kubeconfig("scheduler.conf").to_string_lossy().into_owned();
    let mut volumes = Volumes::default();
    volumes
        .add("kubeconfig", &kubeconfig, "FileOrCreate", true)
        .add_extra(&component.extra_volumes);
    let host = args::value(&component.extra_args, "bind-address").unwrap_or("127.0.0.1");
    let defaults = vec![
        ("authentication-kubeconfig", kubeconfig.clone()),
        ("authorization-kubeconfig", kubeconfig.clone()),
        ("bind-address", "127.0.0.1".to_owned()),
        ("kubeconfig", kubeconfig),
        ("leader-elect", "true".to_owned()),
    ];
    let parts = PodParts {
        component: Component::Scheduler,
        command: args::command(Component::Scheduler.name(), defaults, &component.extra_args),
        image: images::kubernetes(machine.cluster, Component::Scheduler.name()),
        port: SCHEDULER_PORT,
        probe: Probe {
            host: probe_host(host),
            scheme: "HTTPS",
            live: "/livez",
            ready: Some("/readyz"),
            startup: "/livez",
        },
        requests: json!({"cpu": "100m"}),
        volumes,
        annotations: Vec::new(),
        extra_envs: &component.extra_envs,
    };
    pod::pod(machine, parts)
}
