//! etcd's versions, and the static Pod of upstream's etcd-manager. It runs etcd on the control planes of clusters that
//! run upstream's programs.

use api_meta::Tree as _;
use kops_api::{Object, yaml};
use serde_json::{Value, json};

use crate::{
    cluster::{CloudName, Cluster},
    error::Error,
    images::remap,
    names, pods,
    version::Version,
};

/// The latest version of the two supported minor versions: up to 1.33, and from 1.34 on.
pub(crate) const LATEST: [&str; 2] = ["3.5.31", "3.6.12"];

const MANAGER: &str = "registry.k8s.io/etcd-manager/etcd-manager-slim:v3.0.20260707";

/// The ports of an etcd cluster's members.
struct Ports {
    client: u16,
    peer: u16,
    /// The port of etcd-manager's gRPC.
    grpc: u16,
    /// The port of clients during quarantine.
    quarantine: u16,
}

/// The ports of each etcd cluster.
const PORTS: [(&str, Ports); 4] = [
    ("main", Ports { client: 4001, peer: 2380, grpc: 3996, quarantine: 3994 }),
    ("events", Ports { client: 4002, peer: 2381, grpc: 3997, quarantine: 3995 }),
    ("cilium", Ports { client: 4003, peer: 2382, grpc: 3991, quarantine: 3992 }),
    ("leases", Ports { client: 4004, peer: 2383, grpc: 4006, quarantine: 4005 }),
];

/// Reports whether a version of etcd is supported: any patch up to the latest of its minor version.
pub(crate) fn is_supported(version: &str) -> bool {
    let Ok(version) = version.parse::<Version>() else { return false };
    LATEST.iter().any(|latest| patches(latest).any(|patch| patch == version.to_string()))
}

/// Returns all versions of a minor version up to its latest.
fn patches(latest: &str) -> impl Iterator<Item = String> {
    let (minor, patch) = latest.rsplit_once('.').unwrap_or((latest, "0"));
    (0..=patch.parse::<u32>().unwrap_or(0)).map(move |patch| format!("{minor}.{patch}"))
}

fn dashed(version: &str) -> String {
    version.replace('.', "-")
}

/// Returns etcd-manager's spec of a new cluster, as it is stored.
pub fn etcd_spec(etcd: &Value) -> String {
    let version = etcd.text("version").trim_start_matches('v');
    let members = etcd.items("etcdMembers").len();
    format!("{{\n  \"memberCount\": {members},\n  \"etcdVersion\": \"{version}\"\n}}\n")
}

/// Returns the Pod that runs the member of one etcd cluster. `api_servers` is `true` if machines without etcd run API
/// servers, which then find etcd by name.
pub fn etcd_pod(
    cluster: &Object,
    etcd: &Value,
    kops: &str,
    api_servers: bool,
) -> Result<String, Error> {
    let spec = &cluster.spec;
    let name = etcd.text("name");
    let ports = PORTS.iter().find(|(cluster, _)| *cluster == name);
    let Some((_, ports)) = ports else {
        return Err(Error::value(
            "spec.etcdClusters.name",
            name,
            "is not one of main, events, leases and cilium",
        ));
    };
    let own = format!("{name}.etcd.internal.{}", cluster.name());
    let host = match (api_servers, name) {
        (true, _) => own.clone(),
        (false, "cilium") => format!("api.internal.{}", cluster.name()),
        _ => "__name__".to_owned(),
    };
    let whole = if name == "main" { "etcd".to_owned() } else { format!("etcd-{name}") };
    let (volumes, mounts) = volumes(spec, name, &whole);
    let inits = if mounts_images(spec) { Vec::new() } else { programs_copied(spec, kops) };
    let mut args = vec![
        "--log-file=/var/log/etcd.log".to_owned(),
        "--also-stdout".into(),
        "/ko-app/etcd-manager".into(),
    ];
    args.extend(flags(cluster, etcd, &whole, &host, ports)?);
    let image = etcd.at("manager.image").as_str().unwrap_or(MANAGER);
    let request = |field: &str, fallback: &str| match etcd.text(field) {
        "" => fallback.to_owned(),
        value => value.to_owned(),
    };
    let container = json!({
        "name": "etcd-manager", "image": remap(spec, image.to_owned()), "command": ["/go-runner"], "args": args,
        "env": environment(cluster, etcd),
        "resources": {"requests": {"cpu": request("cpuRequest", "200m"), "memory": request("memoryRequest", "100Mi")}},
        "securityContext": {"privileged": true}, "volumeMounts": mounts,
    });
    let mut pod = pods::critical(
        &format!("etcd-manager-{name}"),
        "system-cluster-critical",
        container,
        volumes,
    );
    pod.put("spec.hostPID", true);
    pod.put("spec.hostNetwork", true);
    if !inits.is_empty() {
        pod.put("spec.initContainers", inits);
    }
    if api_servers {
        pod.put("metadata.annotations", json!({"dns.alpha.kubernetes.io/internal": own}));
    }
    Ok(yaml::to_string(&pod))
}

/// Returns the Pod's volumes and mounts: the host's root, keys, programs and the log.
fn volumes(spec: &Value, name: &str, whole: &str) -> (Vec<Value>, Vec<Value>) {
    let mut mounts = vec![
        json!({"name": "rootfs", "mountPath": "/rootfs"}),
        json!({"name": "run", "mountPath": "/run"}),
        json!({"name": "pki", "mountPath": "/etc/kubernetes/pki/etcd-manager"}),
        json!({"name": "opt", "mountPath": "/opt"}),
    ];
    let mut volumes = vec![
        json!({"name": "rootfs", "hostPath": {"path": "/", "type": "Directory"}}),
        json!({"name": "run", "hostPath": {"path": "/run", "type": "DirectoryOrCreate"}}),
        json!({"name": "pki", "hostPath": {
            "path": format!("/etc/kubernetes/pki/etcd-manager-{name}"), "type": "DirectoryOrCreate",
        }}),
        json!({"name": "opt", "emptyDir": {}}),
    ];
    if mounts_images(spec) {
        programs_mounted(spec, &mut volumes, &mut mounts);
    }
    mounts.push(json!({"name": "varlogetcd", "mountPath": "/var/log/etcd.log"}));
    let log = json!({"path": format!("/var/log/{whole}.log"), "type": "FileOrCreate"});
    volumes.push(json!({"name": "varlogetcd", "hostPath": log}));
    if spec.flag("useHostCertificates") {
        mounts.push(
            json!({"name": "etc-ssl-certs", "mountPath": "/etc/ssl/certs", "readOnly": true}),
        );
        let certificates = json!({"path": "/etc/ssl/certs", "type": "DirectoryOrCreate"});
        volumes.push(json!({"name": "etc-ssl-certs", "hostPath": certificates}));
    }
    (volumes, mounts)
}

/// Reports whether etcd's programs are mounted as image volumes, which needs containerd 2.1 and Kubernetes 1.33.
pub(crate) fn mounts_images(spec: &Value) -> bool {
    let at_least = |field: &str, bound: (u64, u64)| {
        spec.text(field).parse::<Version>().is_ok_and(|v| (v.major, v.minor) >= bound)
    };
    at_least("kubernetesVersion", (1, 33)) && at_least("containerd.version", (2, 1))
}

fn programs_mounted(spec: &Value, volumes: &mut Vec<Value>, mounts: &mut Vec<Value>) {
    for latest in LATEST {
        let volume = format!("etcd-v{}", dashed(latest));
        let image = remap(spec, format!("registry.k8s.io/etcd:v{latest}"));
        volumes.push(
            json!({"name": volume, "image": {"reference": image, "pullPolicy": "IfNotPresent"}}),
        );
        for version in patches(latest) {
            mounts.push(json!({"name": volume, "mountPath": format!("/opt/etcd-v{version}")}));
        }
    }
}

/// Returns containers that copy etcd's programs to a directory of the Pod, and link older versions to the latest.
fn programs_copied(spec: &Value, kops: &str) -> Vec<Value> {
    let utils = format!("registry.k8s.io/kops/kops-utils-cp:{kops}");
    let container = |name: String, image: String, command: &str, args: Vec<String>| {
        json!({
            "name": name, "image": remap(spec, image), "command": [command], "args": args, "resources": {},
            "volumeMounts": [{"name": "opt", "mountPath": "/opt"}],
        })
    };
    let first =
        vec!["--target-dir=/opt/kops-utils/".to_owned(), "--src=/ko-app/kops-utils-cp".to_owned()];
    let mut all =
        vec![container("kops-utils-cp".into(), utils.clone(), "/ko-app/kops-utils-cp", first)];
    let copier = "/opt/kops-utils/kops-utils-cp";
    for latest in LATEST {
        let mut args = vec![format!("--target-dir=/opt/etcd-v{latest}")];
        args.extend(["etcd", "etcdctl"].map(|program| format!("--src=/usr/local/bin/{program}")));
        let name = format!("init-etcd-{}", dashed(latest));
        all.push(container(name, format!("registry.k8s.io/etcd:v{latest}"), copier, args));
    }
    for latest in LATEST {
        let mut older: Vec<_> = patches(latest).filter(|version| version != latest).collect();
        older.sort();
        let mut args = vec!["--symlink".to_owned()];
        args.extend(older.iter().map(|version| format!("--target-dir=/opt/etcd-v{version}")));
        args.extend(
            ["etcd", "etcdctl"].map(|program| format!("--src=/opt/etcd-v{latest}/{program}")),
        );
        all.push(container(
            format!("init-etcd-symlinks-{}", dashed(latest)),
            utils.clone(),
            copier,
            args,
        ));
    }
    all
}

/// Returns etcd-manager's flags, sorted by name.
fn flags(
    cluster: &Object,
    etcd: &Value,
    whole: &str,
    host: &str,
    ports: &Ports,
) -> Result<Vec<String>, Error> {
    let name = etcd.text("name");
    let mut store = etcd.text("backups.backupStore").to_owned();
    let mut flags = Vec::new();
    let id = cluster.name();
    let (provider, volume, tags) = match cluster.cloud() {
        CloudName::Aws => {
            let own = format!("kubernetes.io/cluster/{id}=owned");
            let volume = format!("k8s.io/etcd/{name}");
            ("aws", volume.clone(), vec![own, volume, "k8s.io/role/control-plane=1".to_owned()])
        }
        CloudName::Gce => {
            let own = format!("k8s-io-cluster-name={}", names::gce(id));
            let volume = format!("k8s-io-etcd-{name}");
            ("gce", volume.clone(), vec![own, volume, "k8s-io-role-master=master".to_owned()])
        }
        CloudName::Metal => {
            let node = format!("{id}--{name}--0");
            let nodes = json!([{"id": node, "ip": [format!("node0.{name}.{id}")]}]);
            let fixed = json!({"etcdVersion": etcd.text("version"), "nodes": nodes});
            flags.push(format!("--static-config={fixed}"));
            store = "file:///mnt/disks/backups".to_owned();
            ("external", String::new(), vec![format!("{id}--{name}--")])
        }
        CloudName::Local | CloudName::Other => {
            let what = "etcd-manager on this cloud".to_owned();
            return Err(Error::Unsupported { what, remedy: "our own protokube runs etcd there" });
        }
    };
    let level = etcd.opt_int("manager.logLevel").unwrap_or(6);
    flags.extend([
        format!("--backup-store={store}"),
        format!("--client-urls=https://{host}:{}", ports.client),
        format!("--cluster-name={whole}"),
        "--containerized=true".to_owned(),
        format!("--dns-suffix=.internal.{id}"),
        format!("--grpc-port={}", ports.grpc),
        format!("--peer-urls=https://__name__:{}", ports.peer),
        format!("--quarantine-client-urls=https://__name__:{}", ports.quarantine),
        format!("--v={level}"),
        format!("--volume-provider={provider}"),
    ]);
    flags.extend(tags.iter().map(|tag| format!("--volume-tag={tag}")));
    for (flag, value) in [
        ("volume-name-tag", volume.as_str()),
        ("backup-interval", etcd.text("manager.backupInterval")),
        ("discovery-poll-interval", etcd.text("manager.discoveryPollInterval")),
    ] {
        if !value.is_empty() {
            flags.push(format!("--{flag}={value}"));
        }
    }
    flags.sort();
    Ok(flags)
}

fn environment(cluster: &Object, etcd: &Value) -> Vec<Value> {
    let mut all = pods::environment(cluster);
    let mut set = |name: &str, value: String| all.push(json!({"name": name, "value": value}));
    if let Some(days) = etcd.opt_int("manager.backupRetentionDays") {
        set("ETCD_MANAGER_DAILY_BACKUPS_RETENTION", format!("{days}d"));
    }
    for (name, field) in [
        ("ETCD_LISTEN_METRICS_URLS", "listenMetricsURLs"),
        ("ETCD_LISTEN_CLIENT_HTTP_URLS", "listenClientHTTPURLs"),
    ] {
        let urls: Vec<&str> = etcd.texts(&format!("manager.{field}")).collect();
        if !urls.is_empty() {
            set(name, urls.join(","));
        }
    }
    all.extend_from_slice(etcd.items("manager.env"));
    all
}
