//! Compares with files that kubeadm v1.36.2 wrote, field by field. The tests are skipped without the directory
//! `../shared/reference/golden/kubeadm` beside the workspace.

use std::{fs, path::PathBuf};

use api_config::{
    kubeadm::{ApiEndpoint, ClusterConfiguration},
    yaml,
};
use bootstrap_core::{
    Layout, certs,
    config::{self, Documents, Facts, Init, Kinds},
    kubeconfigs, kubelet,
    manifests::{CA_DIRECTORIES, Component, Machine, manifest},
};
use serde_json::Value;

fn golden(name: &str) -> Option<String> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let mut above =
        root.ancestors().map(|dir| dir.join("shared/reference/golden/kubeadm").join(name));
    let text = above.find_map(|file| fs::read_to_string(file).ok());
    if text.is_none() {
        eprintln!("not compared: there is no golden {name}");
    }
    text
}

/// The facts of the machine on which the goldens were written.
fn facts() -> Facts {
    Facts { hostname: "vm".into(), address: Some([10, 77, 0, 1].into()), ..Facts::default() }
}

fn init() -> Init {
    let mut documents = Documents::default();
    let cluster = documents.cluster.get_or_insert_default();
    cluster.networking.service_subnet = "10.96.0.0/16".into();
    cluster.networking.pod_subnet = "10.244.0.0/16".into();
    documents.init.get_or_insert_default().node_registration.cri_socket =
        "unix:///run/containerd/containerd.sock".into();
    Init::complete(documents, &facts())
}

/// The intended differences from kubeadm's manifests:
/// - The API server is not restarted when etcd is down, because a restart would delay its return.
const DIFFERENCES: &[(Component, &str, &str)] = &[(
    Component::ApiServer,
    "/spec/containers/0/livenessProbe/httpGet/path",
    "/livez?exclude=etcd",
)];

#[test]
fn static_pods() {
    let all = init();
    let ca_directories: Vec<String> = CA_DIRECTORIES[2..].iter().map(|d| (*d).to_owned()).collect();
    let layout = Layout::default();
    let machine = Machine {
        ca_directories: &ca_directories,
        ..Machine::new(&all.cluster, &all.init.local_api_endpoint, "vm", &layout)
    };
    for component in
        [Component::ApiServer, Component::ControllerManager, Component::Scheduler, Component::Etcd]
    {
        let Some(text) = golden(&component.file()) else { return };
        let ours = manifest(component, &machine).unwrap();
        let mut theirs = yaml::parse(&text).unwrap();
        for (of, pointer, value) in DIFFERENCES {
            if *of == component {
                *theirs.pointer_mut(pointer).unwrap() = (*value).into();
            }
        }
        assert_eq!(ours, theirs, "{}", component.name());
    }
}

#[test]
fn kubelet_files() {
    let all = init();
    let Some(text) = golden("config.yaml") else { return };
    let node = &all.init.node_registration;
    assert_eq!(
        yaml::parse(&kubelet::config(&all.kubelet, node).unwrap()).unwrap(),
        yaml::parse(&text).unwrap()
    );
    let instance = golden("instance-config.yaml").unwrap();
    assert_eq!(
        yaml::parse(&kubelet::instance_config(node).unwrap()).unwrap(),
        yaml::parse(&instance).unwrap()
    );
    let flags = kubelet::flags_env(&kubelet::flags(node, "vm", false));
    assert_eq!(flags, golden("kubeadm-flags.env").unwrap());
}

#[test]
fn printed_configurations() {
    let repository = bootstrap_core::constants::DEFAULT_REPOSITORY;
    let cases: [(&str, Vec<Value>); 5] = [
        (
            "config-print-init-defaults.yaml",
            config::init_defaults(Kinds::Kubeadm, repository).unwrap(),
        ),
        (
            "config-print-init-defaults-components.yaml",
            config::init_defaults(Kinds::WithComponents, repository).unwrap(),
        ),
        ("config-print-join-defaults.yaml", config::join_defaults("vm").unwrap()),
        ("config-print-reset-defaults.yaml", config::reset_defaults().unwrap()),
        ("config-print-upgrade-defaults.yaml", config::upgrade_defaults().unwrap()),
    ];
    for (name, documents) in cases {
        let Some(text) = golden(name) else { return };
        let ours = yaml::parse_all(&yaml::to_string_all(&documents).unwrap()).unwrap();
        assert_eq!(ours, yaml::parse_all(&text).unwrap(), "{name}");
    }
}

/// A certificate as OpenSSL printed it for the golden.
#[derive(Debug, Default, PartialEq)]
struct DescribedCertificate {
    subject: String,
    issuer: String,
    usage: String,
    extended: String,
    is_ca: bool,
    names: String,
    days: u64,
}

fn described(lines: &[&str]) -> DescribedCertificate {
    let mut d = DescribedCertificate::default();
    for pair in
        lines.windows(2).chain([[*lines.last().unwrap_or(&""), ""]].iter().map(|pair| &pair[..]))
    {
        let (line, next) = (pair[0].trim(), pair[1].trim());
        if let Some(subject) = line.strip_prefix("subject=") {
            d.subject = subject.replace(" = ", "=").replace(", ", ",");
        } else if let Some(issuer) = line.strip_prefix("issuer=") {
            d.issuer = issuer.replace(" = ", "=");
        } else if line.starts_with("X509v3 Key Usage") {
            d.usage = next.to_owned();
        } else if line.starts_with("X509v3 Extended Key Usage") {
            d.extended = next.to_owned();
        } else if line.starts_with("X509v3 Basic Constraints") {
            d.is_ca = next == "CA:TRUE";
        } else if line.starts_with("X509v3 Subject Alternative Name") {
            d.names = next.replace("0:0:0:0:0:0:0:1", "::1");
        } else if let Some(days) = line.strip_prefix("validity-days: ") {
            d.days = days.parse().unwrap();
        }
    }
    d
}

fn ours(cert: &pki::Cert) -> DescribedCertificate {
    let info = cert.info().unwrap();
    let join = |parts: &[(bool, &str)]| {
        parts.iter().filter(|p| p.0).map(|p| p.1).collect::<Vec<_>>().join(", ")
    };
    let names: Vec<String> = info
        .alt_names
        .iter()
        .map(|name| match name {
            pki::AltName::Ip(ip) => format!("IP Address:{ip}"),
            other => format!("DNS:{other}"),
        })
        .collect();
    DescribedCertificate {
        subject: info.subject.to_string(),
        issuer: info.issuer.to_string(),
        usage: join(&[
            (info.digital_signature, "Digital Signature"),
            (info.key_encipherment, "Key Encipherment"),
            (info.cert_sign, "Certificate Sign"),
        ]),
        extended: join(&[
            (info.server_auth, "TLS Web Server Authentication"),
            (info.client_auth, "TLS Web Client Authentication"),
        ]),
        is_ca: info.is_ca,
        names: names.join(", "),
        days: info.not_after.duration_since(info.not_before).unwrap().as_secs() / 86_400,
    }
}

#[test]
fn certificates_and_kubeconfigs() {
    let Some(text) = golden("pki-and-kubeconfigs.txt") else { return };
    let (dir, now, all) = (tempfile::tempdir().unwrap(), std::time::SystemTime::now(), init());
    let layout = Layout {
        certificates: dir.path().join("pki"),
        kubernetes: dir.path().into(),
        ..Layout::default()
    };
    let cluster =
        ClusterConfiguration { encryption_algorithm: "ECDSA-P256".into(), ..all.cluster.clone() };
    let local: &ApiEndpoint = &all.init.local_api_endpoint;
    let plan = certs::Plan::new(&cluster, local, "vm").unwrap();
    bootstrap::certs::ensure(&layout.certificates, &plan, now).unwrap();
    let files = kubeconfigs::plan(&cluster, local, "vm", true);
    bootstrap::kubeconfigs::ensure(dir.path(), &layout.certificates, &files, &plan, now).unwrap();
    let mut compared = 0;
    for section in text.split("== ").skip(1) {
        let lines: Vec<&str> = section.lines().collect();
        let path = dir.path().join(lines[0]);
        let theirs = described(&lines[1..]);
        if lines[0].ends_with(".crt") {
            assert_eq!(ours(&pki::read_cert(&path).unwrap()), theirs, "{}", lines[0]);
        } else {
            let config = api_config::Kubeconfig::load(&path).unwrap();
            let (context, user) = (&config.contexts[0], &config.users[0]);
            let summary = format!(
                "user: {} context: {} server: {}",
                user.name, context.name, config.clusters[0].cluster.server
            );
            assert_eq!(summary, lines[1]);
            let cert = pki::Cert::from_pem(&user.user.cert_pem().unwrap().unwrap()).unwrap();
            let own = ours(&cert);
            assert_eq!(
                (own.subject, own.usage, own.extended),
                (theirs.subject, theirs.usage, theirs.extended),
                "{}",
                lines[0]
            );
        }
        compared += 1;
    }
    assert_eq!(compared, 15);
    let modes = golden("file-modes.txt").unwrap();
    for line in modes.lines() {
        use std::os::unix::fs::PermissionsExt;
        let (mode, name) = line.split_once(' ').unwrap();
        let ours = fs::metadata(dir.path().join(name)).unwrap().permissions().mode() & 0o777;
        assert_eq!(format!("{ours:o}"), mode, "{name}");
    }
}

/// Returns the objects of a golden by kind and name, without fields that only the text has.
fn by_name(objects: Vec<Value>) -> std::collections::BTreeMap<String, Value> {
    objects
        .into_iter()
        .map(|mut o| {
            if let Some(metadata) = o["metadata"].as_object_mut() {
                // Upstream's text has resource version "0" for its own updates, and ConfigMaps get a hash annotation
                // only on upload.
                metadata.remove("resourceVersion");
                if o["kind"] == "ConfigMap" {
                    o["metadata"].as_object_mut().unwrap().remove("annotations");
                    for text in o["data"].as_object_mut().unwrap().values_mut() {
                        if let Ok(parsed @ Value::Object(_)) = yaml::parse(text.as_str().unwrap()) {
                            *text = parsed;
                        }
                    }
                }
            }
            (format!("{} {}", o["kind"], o["metadata"]["name"]), o)
        })
        .collect()
}

#[test]
fn add_ons() {
    let all = init();
    let api = bootstrap_core::endpoint::of_node(&all.cluster, &all.init.local_api_endpoint);
    assert_eq!(api.server, "https://10.77.0.1:6443");
    let proxy = bootstrap_core::addons::kube_proxy(&all.cluster, &all.proxy, false, api, &[]);
    let cases = [
        ("addon-coredns.yaml", bootstrap_core::addons::coredns(&all.cluster, 2).unwrap()),
        ("addon-kube-proxy.yaml", proxy.unwrap()),
    ];
    for (name, ours) in cases {
        let Some(text) = golden(name) else { return };
        let (ours, theirs) = (by_name(ours), by_name(yaml::parse_all(&text).unwrap()));
        assert_eq!(ours.keys().collect::<Vec<_>>(), theirs.keys().collect::<Vec<_>>(), "{name}");
        for (key, object) in &theirs {
            assert_eq!(&ours[key], object, "{name} {key}");
        }
    }
}
