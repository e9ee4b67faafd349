//! The static Pod of etcd.

use api_meta::Tree as _;
use serde_json::{Value, json};

use super::{
    args,
    component::Component,
    machine::Machine,
    pod::{self, PodParts, Probe},
    volumes::Volumes,
};
use crate::{
    Error,
    constants::{ETCD_CLIENT_PORT, ETCD_METRICS_PORT, ETCD_PEER_PORT},
    images, net,
};

/// The etcd minor version, which determines flags and health endpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EtcdRelease {
    /// 3.4: experimental flags, and `/health` instead of `/livez` and `/readyz`.
    V3_4,
    /// 3.5: experimental flags. The newer endpoints exist since 3.5.11.
    V3_5,
    /// 3.6: feature gates.
    #[default]
    V3_6,
}

impl EtcdRelease {
    /// Parses a version such as `3.5.30`.
    pub fn of(version: &str) -> Option<Self> {
        let mut parts =
            version.trim_start_matches('v').split(['.', '-', '+']).map(str::parse::<u32>);
        match (parts.next()?.ok()?, parts.next()?.ok()?) {
            (3, 4) => Some(Self::V3_4),
            (3, 5) => Some(Self::V3_5),
            (3, minor) if minor >= 6 => Some(Self::V3_6),
            _ => None,
        }
    }
}

/// Returns the release of the image's tag; an unknown tag counts as the newest.
fn release(machine: &Machine<'_>) -> EtcdRelease {
    let tag = machine.cluster.etcd.local.as_ref().map_or("", |local| local.image_tag.as_str());
    EtcdRelease::of(tag).unwrap_or_default()
}

pub(super) fn pod(machine: &Machine<'_>) -> Result<Value, Error> {
    let Some(local) = &machine.cluster.etcd.local else {
        return Err(Error::NoLocalEtcd);
    };
    let address = machine.local.advertise_address.as_str();
    let metrics = args::value(&local.extra_args, "listen-metrics-urls").map(metrics_endpoint);
    let (host, port, scheme) = metrics
        .flatten()
        .unwrap_or_else(|| (loopback(address).to_owned(), ETCD_METRICS_PORT, "HTTP"));
    let certificates = machine.layout.certificates.join("etcd").to_string_lossy().into_owned();
    let mut volumes = Volumes::default();
    volumes.add("etcd-data", &local.data_dir, "DirectoryOrCreate", false).add(
        "etcd-certs",
        &certificates,
        "DirectoryOrCreate",
        false,
    );
    let (live, ready, startup) = match release(machine) {
        // `/health` of 3.4 is that of the cluster. Restarting a member because of a lost quorum would only delay the
        // next one.
        EtcdRelease::V3_4 => ("/metrics", "/health", "/metrics"),
        _ => ("/livez", "/readyz", "/readyz"),
    };
    let parts = PodParts {
        component: Component::Etcd,
        command: args::command("etcd", defaults(machine, &local.data_dir), &local.extra_args),
        image: images::etcd(machine.cluster),
        port,
        probe: Probe { host: pod::probe_host(&host), scheme, live, ready: Some(ready), startup },
        requests: json!({"cpu": "100m", "memory": "100Mi"}),
        volumes,
        annotations: vec![(
            "kubeadm.kubernetes.io/etcd.advertise-client-urls",
            format!("https://{}", net::join_host_port(address, ETCD_CLIENT_PORT)),
        )],
        extra_envs: &local.extra_envs,
    };
    let mut manifest = pod::pod(machine, parts);
    data_first(&mut manifest);
    Ok(manifest)
}

fn defaults(machine: &Machine<'_>, data_dir: &str) -> Vec<(&'static str, String)> {
    let address = machine.local.advertise_address.as_str();
    let pki = |base: &str, extension: &str| {
        machine.layout.pki(base, extension).to_string_lossy().into_owned()
    };
    let url = |host: &str, port| format!("https://{}", net::join_host_port(host, port));
    let (client, peer) = (url(address, ETCD_CLIENT_PORT), url(address, ETCD_PEER_PORT));
    let text = str::to_owned;
    let mut flags = vec![
        ("advertise-client-urls", client.clone()),
        ("cert-file", pki("etcd/server", "crt")),
        ("client-cert-auth", text("true")),
        ("data-dir", text(data_dir)),
        ("initial-advertise-peer-urls", peer.clone()),
        ("key-file", pki("etcd/server", "key")),
        ("listen-client-urls", format!("{},{client}", url(loopback(address), ETCD_CLIENT_PORT))),
        (
            "listen-metrics-urls",
            format!("http://{}", net::join_host_port(loopback(address), ETCD_METRICS_PORT)),
        ),
        ("listen-peer-urls", peer.clone()),
        ("name", text(machine.node_name)),
        ("peer-cert-file", pki("etcd/peer", "crt")),
        ("peer-client-cert-auth", text("true")),
        ("peer-key-file", pki("etcd/peer", "key")),
        ("peer-trusted-ca-file", pki("etcd/ca", "crt")),
        ("snapshot-count", text("10000")),
        ("trusted-ca-file", pki("etcd/ca", "crt")),
    ];
    match release(machine) {
        EtcdRelease::V3_6 => {
            flags.push(("feature-gates", text("InitialCorruptCheck=true")));
            flags.push(("watch-progress-notify-interval", text("5s")));
        }
        EtcdRelease::V3_5 => {
            flags.push(("experimental-initial-corrupt-check", text("true")));
            flags.push(("experimental-watch-progress-notify-interval", text("5s")));
        }
        EtcdRelease::V3_4 => flags.push(("experimental-initial-corrupt-check", text("true"))),
    }
    if machine.etcd_members.is_empty() {
        flags.push(("initial-cluster", format!("{}={peer}", machine.node_name)));
    } else {
        let members: Vec<_> =
            machine.etcd_members.iter().map(|m| format!("{}={}", m.name, m.peer_url)).collect();
        flags.push(("initial-cluster", members.join(",")));
        flags.push(("initial-cluster-state", text("existing")));
    }
    flags
}

fn loopback(address: &str) -> &'static str {
    if address.contains(':') { "::1" } else { "127.0.0.1" }
}

/// Returns the endpoint of metrics and health from the first of a list of URLs.
fn metrics_endpoint(urls: &str) -> Option<(String, u16, &'static str)> {
    let (scheme, rest) = urls.split(',').next()?.split_once("://")?;
    let (host, port) = net::split_host_port(rest.trim_end_matches('/'))?;
    let scheme = if scheme == "https" { "HTTPS" } else { "HTTP" };
    Some((host, port.unwrap_or(ETCD_METRICS_PORT), scheme))
}

/// Moves the data mount first, kubeadm's order for etcd only.
fn data_first(manifest: &mut Value) {
    let mounts =
        manifest.items_mut("spec.containers").next().and_then(|c| c.at_mut("volumeMounts"));
    if let Some(Value::Array(mounts)) = mounts {
        mounts.sort_by_key(|mount| mount["name"] != "etcd-data");
    }
}
