//! The static Pod of the API server.

use std::collections::BTreeSet;

use api_config::kubeadm::{Etcd, ExternalEtcd};
use serde_json::{Value, json};

use super::{
    args,
    component::Component,
    machine::Machine,
    pod::{self, PodParts, Probe, probe_host},
    volumes::Volumes,
};
use crate::{Error, certs, constants::ETCD_CLIENT_PORT, images, net};

pub(super) fn pod(machine: &Machine<'_>) -> Result<Value, Error> {
    let (cluster, local) = (machine.cluster, machine.local);
    certs::parse_ip("localAPIEndpoint.advertiseAddress", &local.advertise_address)?;
    let port = u16::try_from(local.bind_port).unwrap_or(crate::constants::API_SERVER_PORT);
    let mut volumes = Volumes::default();
    let pki = machine.layout.certificates.to_string_lossy();
    volumes.add("k8s-certs", &pki, "DirectoryOrCreate", true).add_ca_directories(machine);
    match &cluster.etcd {
        Etcd { external: Some(external), .. } => add_etcd_certs(&mut volumes, external, &pki),
        Etcd { embedded: Some(store), .. } => {
            volumes.add("store", &store.data_dir, "DirectoryOrCreate", false);
        }
        _ => {}
    }
    if let Some(snapshots) = &cluster.snapshots {
        volumes.add("snapshots", &snapshots.directory, "DirectoryOrCreate", false);
    }
    volumes.add_extra(&cluster.api_server.extra_volumes);
    let parts = PodParts {
        component: Component::ApiServer,
        command: args::command(
            Component::ApiServer.name(),
            defaults(machine, port),
            &cluster.api_server.extra_args,
        ),
        image: images::kubernetes(cluster, Component::ApiServer.name()),
        port,
        probe: Probe {
            host: probe_host(&local.advertise_address),
            scheme: "HTTPS",
            // If etcd has lost its quorum, a restarted API server would still be in the kubelet's back-off when etcd
            // recovers.
            live: "/livez?exclude=etcd",
            ready: Some("/readyz"),
            startup: "/livez",
        },
        requests: json!({"cpu": "250m"}),
        volumes,
        annotations: vec![(
            "kubeadm.kubernetes.io/kube-apiserver.advertise-address.endpoint",
            net::join_host_port(&local.advertise_address, port),
        )],
        extra_envs: &cluster.api_server.extra_envs,
    };
    Ok(pod::pod(machine, parts))
}

fn defaults(machine: &Machine<'_>, port: u16) -> Vec<(&'static str, String)> {
    let cluster = machine.cluster;
    let pki = |base: &str, extension: &str| {
        machine.layout.pki(base, extension).to_string_lossy().into_owned()
    };
    let text = str::to_owned;
    let mut flags = vec![
        ("advertise-address", machine.local.advertise_address.clone()),
        ("allow-privileged", text("true")),
        ("client-ca-file", pki("ca", "crt")),
        ("enable-admission-plugins", text("NodeRestriction")),
        ("enable-bootstrap-token-auth", text("true")),
        ("kubelet-client-certificate", pki("apiserver-kubelet-client", "crt")),
        ("kubelet-client-key", pki("apiserver-kubelet-client", "key")),
        ("kubelet-preferred-address-types", text("InternalIP,ExternalIP,Hostname")),
        ("proxy-client-cert-file", pki("front-proxy-client", "crt")),
        ("proxy-client-key-file", pki("front-proxy-client", "key")),
        ("requestheader-allowed-names", text("front-proxy-client")),
        ("requestheader-client-ca-file", pki("front-proxy-ca", "crt")),
        ("requestheader-extra-headers-prefix", text("X-Remote-Extra-")),
        ("requestheader-group-headers", text("X-Remote-Group")),
        ("requestheader-username-headers", text("X-Remote-User")),
        ("secure-port", port.to_string()),
        (
            "service-account-issuer",
            format!("https://kubernetes.default.svc.{}", cluster.networking.dns_domain),
        ),
        ("service-account-key-file", pki("sa", "pub")),
        ("service-account-signing-key-file", pki("sa", "key")),
        ("service-cluster-ip-range", cluster.networking.service_subnet.clone()),
        ("tls-cert-file", pki("apiserver", "crt")),
        ("tls-private-key-file", pki("apiserver", "key")),
    ];
    // A file of authorizers replaces the list of modes. The server rejects both together.
    if args::value(&cluster.api_server.extra_args, "authorization-config").is_none() {
        flags.push(("authorization-mode", text("Node,RBAC")));
    }
    flags.extend(store_flags(machine, pki));
    if let Some(snapshots) = &cluster.snapshots {
        flags.extend([
            ("snapshot-dir", snapshots.directory.clone()),
            ("snapshot-interval", snapshots.interval.unwrap_or_default().to_string()),
            ("snapshot-keep", snapshots.keep.to_string()),
        ]);
    }
    flags
}

fn store_flags(
    machine: &Machine<'_>,
    pki: impl Fn(&str, &str) -> String,
) -> Vec<(&'static str, String)> {
    match &machine.cluster.etcd {
        Etcd { external: Some(external), .. } => {
            let mut flags = vec![("etcd-servers", external.endpoints.join(","))];
            if !external.ca_file.is_empty() {
                flags.push(("etcd-cafile", external.ca_file.clone()));
            }
            if !external.cert_file.is_empty() && !external.key_file.is_empty() {
                flags.push(("etcd-certfile", external.cert_file.clone()));
                flags.push(("etcd-keyfile", external.key_file.clone()));
            }
            flags
        }
        Etcd { embedded: Some(store), .. } => vec![("store-dir", store.data_dir.clone())],
        _ => {
            let loopback =
                if machine.local.advertise_address.contains(':') { "::1" } else { "127.0.0.1" };
            vec![
                ("etcd-cafile", pki("etcd/ca", "crt")),
                ("etcd-certfile", pki("apiserver-etcd-client", "crt")),
                ("etcd-keyfile", pki("apiserver-etcd-client", "key")),
                (
                    "etcd-servers",
                    format!("https://{}", net::join_host_port(loopback, ETCD_CLIENT_PORT)),
                ),
            ]
        }
    }
}

/// Mounts the directories of an external etcd's certificates that no other volume mounts.
fn add_etcd_certs(volumes: &mut Volumes, external: &ExternalEtcd, pki: &str) {
    let mounted = |dir: &str| {
        [pki, "/etc/ssl/certs"]
            .iter()
            .any(|root| dir == *root || dir.starts_with(&format!("{root}/")))
    };
    let directories: BTreeSet<&str> = [&external.ca_file, &external.cert_file, &external.key_file]
        .into_iter()
        .filter_map(|file| file.rsplit_once('/').map(|(dir, _)| dir))
        .filter(|dir| !dir.is_empty() && !mounted(dir))
        .collect();
    for (i, directory) in directories.into_iter().enumerate() {
        volumes.add(&format!("etcd-certs-{i}"), directory, "DirectoryOrCreate", true);
    }
}
