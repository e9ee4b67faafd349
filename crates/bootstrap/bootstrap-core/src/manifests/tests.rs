use api_config::kubeadm::{
    ApiEndpoint, Arg, ClusterConfiguration, EmbeddedStore, ExternalEtcd, HostPathMount,
};
use serde_json::json;

use super::*;
use crate::{
    Layout,
    config::{Facts, default_cluster},
};

struct Inputs {
    cluster: ClusterConfiguration,
    local: ApiEndpoint,
    layout: Layout,
}

fn given() -> Inputs {
    let mut cluster = ClusterConfiguration::default();
    default_cluster(&mut cluster, &Facts::default());
    let local = ApiEndpoint { advertise_address: "10.0.0.5".into(), bind_port: 6443 };
    Inputs { cluster, local, layout: Layout::default() }
}

impl Inputs {
    fn machine(&self) -> Machine<'_> {
        Machine::new(&self.cluster, &self.local, "alpha", &self.layout)
    }

    fn flags(&self, component: Component) -> Vec<String> {
        flags(&manifest(component, &self.machine()).unwrap())
    }
}

fn flags(pod: &Value) -> Vec<String> {
    serde_json::from_value(pod["spec"]["containers"][0]["command"].clone()).unwrap()
}

#[test]
fn every_pod_is_critical_on_the_host_network_and_probed() {
    let given = given();
    let expected = [
        (Component::ApiServer, "10.0.0.5", 6443, "HTTPS", "250m", true),
        (Component::ControllerManager, "127.0.0.1", 10257, "HTTPS", "200m", false),
        (Component::Scheduler, "127.0.0.1", 10259, "HTTPS", "100m", true),
        (Component::Etcd, "127.0.0.1", 2381, "HTTP", "100m", true),
    ];
    for (component, host, port, scheme, cpu, ready) in expected {
        let pod = manifest(component, &given.machine()).unwrap();
        let (spec, container) = (&pod["spec"], &pod["spec"]["containers"][0]);
        assert_eq!(
            pod["metadata"]["labels"],
            json!({"component": component.name(), "tier": "control-plane"})
        );
        assert_eq!(
            (&spec["hostNetwork"], &spec["priority"]),
            (&json!(true), &json!(2_000_001_000))
        );
        assert_eq!(container["ports"][0]["containerPort"], port);
        assert_eq!(container["resources"]["requests"]["cpu"], cpu);
        let get = &container["livenessProbe"]["httpGet"];
        assert_eq!(
            (&get["host"], &get["scheme"], &get["port"]),
            (&json!(host), &json!(scheme), &json!("probe-port"))
        );
        assert_eq!(container["readinessProbe"].is_object(), ready);
        assert_eq!(container["startupProbe"]["failureThreshold"], 24);
    }
}

#[test]
fn adds_extra_arguments_volumes_and_variables() {
    let mut given = given();
    let api_server = &mut given.cluster.api_server;
    api_server.extra_args =
        vec![Arg::new("authorization-config", "/a.yaml"), Arg::new("secure-port", "7443")];
    api_server.extra_volumes = vec![HostPathMount {
        name: "extra".into(),
        host_path: "/a.yaml".into(),
        mount_path: "/a.yaml".into(),
        read_only: true,
        path_type: "File".into(),
    }];
    api_server.extra_envs = vec![json!({"name": "HTTP_PROXY", "value": "own"})];
    let proxies =
        [("HTTP_PROXY".to_owned(), "p".to_owned()), ("NO_PROXY".to_owned(), "n".to_owned())];
    let pod = manifest(Component::ApiServer, &Machine { proxy_env: &proxies, ..given.machine() })
        .unwrap();
    let flags = flags(&pod);
    assert!(!flags.iter().any(|f| f.starts_with("--authorization-mode")));
    assert_eq!(&flags[flags.len() - 2..], ["--authorization-config=/a.yaml", "--secure-port=7443"]);
    assert_eq!(flags.iter().filter(|f| f.starts_with("--secure-port")).count(), 1);
    let container = &pod["spec"]["containers"][0];
    assert_eq!(
        container["env"],
        json!([{"name": "NO_PROXY", "value": "n"}, {"name": "HTTP_PROXY", "value": "own"}])
    );
    assert_eq!(
        container["volumeMounts"].as_array().unwrap().last().unwrap()["mountPath"],
        "/a.yaml"
    );
    let etcd =
        manifest(Component::Etcd, &Machine { proxy_env: &proxies, ..given.machine() }).unwrap();
    assert!(etcd["spec"]["containers"][0].get("env").is_none());
}

#[test]
fn mounts_certificates_of_external_etcd() {
    let mut given = given();
    given.cluster.etcd.local = None;
    given.cluster.etcd.external = Some(ExternalEtcd {
        endpoints: vec!["https://a:2379".into(), "https://b:2379".into()],
        ca_file: "/etc/etcd/ca/ca.crt".into(),
        cert_file: "/etc/etcd/tls/c.crt".into(),
        key_file: "/etc/etcd/tls/c.key".into(),
        ..Default::default()
    });
    let pod = manifest(Component::ApiServer, &given.machine()).unwrap();
    let flags = flags(&pod);
    for flag in [
        "--etcd-servers=https://a:2379,https://b:2379",
        "--etcd-cafile=/etc/etcd/ca/ca.crt",
        "--etcd-keyfile=/etc/etcd/tls/c.key",
    ] {
        assert!(flags.contains(&flag.to_owned()), "{flag}");
    }
    let volumes: Vec<&Value> = pod["spec"]["volumes"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|v| v["name"].as_str().unwrap().starts_with("etcd-certs"))
        .collect();
    assert_eq!(volumes.len(), 2);
    assert_eq!(volumes[0]["hostPath"]["path"], "/etc/etcd/ca");
    assert!(manifest(Component::Etcd, &given.machine()).is_err());
}

#[test]
fn embedded_store_sets_no_etcd_flags() {
    let mut given = given();
    given.cluster.etcd.local = None;
    given.cluster.etcd.embedded = Some(EmbeddedStore { data_dir: "/data".into() });
    let flags = given.flags(Component::ApiServer);
    assert!(flags.contains(&"--store-dir=/data".to_owned()));
    assert!(!flags.iter().any(|f| f.starts_with("--etcd")));
}

#[test]
fn etcd_flags_match_its_release() {
    let of = |tag: &str| {
        let mut given = given();
        given.cluster.etcd.local.get_or_insert_default().image_tag = tag.into();
        let pod = manifest(Component::Etcd, &given.machine()).unwrap();
        let path = pod["spec"]["containers"][0]["livenessProbe"]["httpGet"]["path"].clone();
        (flags(&pod).join(" "), path)
    };
    let (flags, path) = of("3.4.23");
    assert!(!flags.contains("feature-gates") && !flags.contains("progress-notify"), "{flags}");
    assert_eq!(path, "/metrics");
    let (flags, path) = of("v3.5.30-0");
    assert!(flags.contains("--experimental-watch-progress-notify-interval=5s"), "{flags}");
    assert!(!flags.contains("feature-gates"), "{flags}");
    assert_eq!(path, "/livez");
    for tag in ["", "3.6.8-0", "3.7.0", "latest"] {
        assert!(of(tag).0.contains("--feature-gates=InitialCorruptCheck=true"), "{tag}");
    }
    assert_eq!(EtcdRelease::of("2.3.0"), None);
}

#[test]
fn joining_member_lists_initial_cluster() {
    let given = given();
    let members = [("a", "10.0.0.1"), ("alpha", "10.0.0.5")]
        .map(|(name, ip)| EtcdMember { name: name.into(), peer_url: format!("https://{ip}:2380") });
    let pod =
        manifest(Component::Etcd, &Machine { etcd_members: &members, ..given.machine() }).unwrap();
    let flags = flags(&pod);
    assert!(flags.contains(
        &"--initial-cluster=a=https://10.0.0.1:2380,alpha=https://10.0.0.5:2380".to_owned()
    ));
    assert!(flags.contains(&"--initial-cluster-state=existing".to_owned()));
}

#[test]
fn ipv6_and_external_cas() {
    let mut given = given();
    given.local.advertise_address = "fd00::5".into();
    let etcd = given.flags(Component::Etcd);
    assert!(
        etcd.contains(&"--listen-client-urls=https://[::1]:2379,https://[fd00::5]:2379".to_owned()),
        "{etcd:?}"
    );
    assert!(
        given.flags(Component::ApiServer).contains(&"--etcd-servers=https://[::1]:2379".to_owned())
    );
    let pod =
        manifest(Component::ControllerManager, &Machine { has_ca_key: false, ..given.machine() })
            .unwrap();
    assert!(flags(&pod).contains(&"--cluster-signing-key-file=".to_owned()));
    assert!(!flags(&pod).iter().any(|f| f.starts_with("--cluster-cidr")));
}
