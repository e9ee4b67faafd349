use std::path::Path;

use api_config::{KubeProxyConfiguration, KubeletConfiguration};
use serde_json::json;

use super::*;

const HEAD: &str = "apiVersion: windlass.io/v1alpha1\nkind: Cluster\n";

pub(crate) fn read(body: &str) -> Result<ClusterConfig, ConfigError> {
    let config = ClusterConfig::read("cluster.yaml", &format!("{HEAD}{body}"))?;
    config.check_sections()?;
    Ok(config)
}

const FULL: &str = r#"
networking: {podSubnet: 10.1.0.0/16, dualStack: true}
controlPlanes: 1
nodes:
- labels: {disk: ssd}
- taints: [{key: only, effect: NoSchedule}]
  extraMounts: [{hostPath: /tmp, containerPath: /mnt}]
loadBalancer: {ranges: [192.0.2.240/28]}
publish: ["8080:30080/tcp"]
certificateValidityPeriod: 720h
apiServer:
  certSANs: [api.example.com]
  extraArgs: [{name: audit-policy-file, value: /etc/audit.yaml}, {name: etcd-compaction-interval, value: 1m}]
controllerManager: {extraArgs: [{name: node-monitor-grace-period, value: 20s}]}
featureGates: {}
kubelet: {maxPods: 50, evictionHard: {memory.available: 1Gi}}
kubeProxy: {mode: iptables}
registries: [{host: docker.io, mirrors: ["http://192.0.2.5:5000"]}]
"#;

#[test]
fn reads_every_field_and_writes_it_again() {
    let config = read(FULL).unwrap();
    assert_eq!(config.nodes.len(), 2);
    assert_eq!(config.publish[0].to_string(), "8080:30080/tcp");
    let text = serde_json::to_string(&config).unwrap();
    assert_eq!(serde_json::from_str::<ClusterConfig>(&text).unwrap(), config);
}

#[test]
fn refuses_wrong_documents_with_path() {
    let long = format!("publish: [{}]", vec!["x"; 100_000].join(","));
    let deep = format!("kubelet: {}", "{a: ".repeat(5000));
    for (body, words) in [
        ("nodez: []", "unknown field \"nodez\""),
        ("apiServer: {extraArg: []}", "unknown field \"apiServer.extraArg\""),
        ("nodes: [{label: {}}]", "unknown field \"nodes[0].label\""),
        ("kubelet: {maxPodz: 3}", "kubelet: strict decoding error: unknown field \"maxPodz\""),
        ("kubelet: {maxPods: many}", "kubelet: "),
        ("kubelet: {port: 1}", "kubelet.port is set by `up` itself"),
        ("kubelet: {featureGates: {}}", "kubelet.featureGates is set by `up` itself"),
        ("kubeProxy: {mode2: x}", "kubeProxy: strict decoding error: unknown field \"mode2\""),
        ("kubeProxy: {clusterCIDR: 10.0.0.0/8}", "kubeProxy.clusterCIDR is set by `up` itself"),
        ("controlPlanes: 0", "controlPlanes: \"0\" is not from 1 to 7"),
        ("controlPlanes: 300", "cluster.yaml: "),
        ("certificateValidityPeriod: 4m", "\"4m0s\" is not from 5m to 87600h"),
        ("certificateValidityPeriod: -9h", "\"-9h0m0s\" is not from 5m to 87600h"),
        ("certificateValidityPeriod: 87601h", "\"87601h0m0s\" is not from 5m to 87600h"),
        ("certificateValidityPeriod: long", "cluster.yaml: "),
        ("publish: [80]", "expected a string"),
        ("publish: [\"80:81\"]", "from 30000 to 32767"),
        (
            "apiServer: {extraArgs: [{name: etcd-servers, value: x}]}",
            "apiServer.extraArgs.etcd-servers is set by `up` itself",
        ),
        (
            "apiServer: {extraArgs: [{name: etcd-servers-overrides, value: x}]}",
            "apiServer.extraArgs.etcd-servers-overrides is set by `up` itself",
        ),
        (
            "scheduler: {extraArgs: [{name: leader-elect, value: x}]}",
            "scheduler.extraArgs.leader-elect is set by `up` itself",
        ),
        ("nodes: [{taints: [{key: a, effect: b}]}]", "nodes[0].taints[].effect"),
        ("registries: [{host: \"a b\"}]", "registries[0].host"),
        ("---\nkind: Other", "2 documents"),
        (&long, "--publish x: expected"),
        (&deep, "cluster.yaml"),
    ] {
        let message = read(body).unwrap_err().to_string();
        let short: String = body.chars().take(80).collect();
        assert!(message.contains(words), "{short}: {message}");
    }
    for (text, words) in [
        ("", "0 documents"),
        (
            "apiVersion: windlass.io/v1\nkind: Cluster",
            "no kind \"Cluster\" is registered for version",
        ),
        ("apiVersion: windlass.io/v1alpha1\nkind: Pod", "no kind \"Pod\""),
    ] {
        let message = ClusterConfig::read("cluster.yaml", text).unwrap_err().to_string();
        assert!(message.contains(words), "{text}: {message}");
    }
}

#[test]
fn overlays_settings_of_components() {
    let config = read("kubelet: {maxPods: 50, evictionHard: {memory.available: 1Gi}}\nfeatureGates: {A: true}\nkubeProxy: {mode: iptables}").unwrap();
    let mut base = KubeletConfiguration::new();
    base.fail_swap_on = Some(false);
    base.eviction_hard = Some([("nodefs.available".to_owned(), "0%".to_owned())].into());
    let kubelet = config.kubelet_over(base).unwrap().to_value().unwrap();
    assert_eq!(kubelet["maxPods"], 50);
    assert_eq!(kubelet["failSwapOn"], false);
    assert_eq!(kubelet["evictionHard"], json!({"memory.available": "1Gi"}), "a map is replaced");
    assert_eq!(kubelet["featureGates"], json!({"A": true}));
    let proxy = config.kube_proxy_over(KubeProxyConfiguration::new()).unwrap();
    assert_eq!(proxy.mode, "iptables");
}

/// Asserts that an object has all members of the schema at this place, and no others.
fn compare(schema: &Value, value: &Value, path: &str) {
    assert!(schema["description"].is_string(), "{path} has no description");
    if let Some(items) = value.as_array() {
        items.iter().for_each(|item| compare(&schema["items"], item, &format!("{path}[]")));
    }
    let (Some(members), Some(known)) = (value.as_object(), schema["properties"].as_object()) else {
        return;
    };
    assert_eq!(schema["additionalProperties"], false, "{path} accepts other fields");
    for (name, member) in members {
        let within = format!("{path}.{name}");
        compare(known.get(name).unwrap_or_else(|| panic!("{within} is missing")), member, &within);
    }
    let missing: Vec<_> = known.keys().filter(|name| !members.contains_key(*name)).collect();
    assert!(missing.is_empty(), "{path}: the example lacks {missing:?}");
}

#[test]
fn schema_has_every_field() {
    let schema: Value = serde_json::from_str(SCHEMA).unwrap();
    let node = json!({"labels": {"a": "b"}, "taints": [{"key": "a", "value": "b", "effect": "NoSchedule"}],
        "extraMounts": [{"hostPath": "/tmp", "containerPath": "/mnt"}]});
    let args = json!([{"name": "a", "value": "b"}]);
    let complete = json!({"apiVersion": API_VERSION, "kind": KIND,
        "networking": {"podSubnet": "10.1.0.0/16", "serviceSubnet": "10.2.0.0/16", "dualStack": true, "tunnel": true},
        "controlPlanes": 3, "nodes": [node], "loadBalancer": {"disabled": true, "ranges": ["192.0.2.0/28"]},
        "publish": ["8080:30080/tcp"], "certificateValidityPeriod": "720h0m0s", "apiServer": {"certSANs": ["a"], "extraArgs": args},
        "controllerManager": {"extraArgs": args}, "scheduler": {"extraArgs": args}, "featureGates": {"A": true},
        "kubelet": {"maxPods": 5}, "kubeProxy": {"mode": "iptables"},
        "registries": [{"host": "a", "mirrors": ["http://b"], "server": "https://c", "ca": "/ca", "skipVerify": true,
            "username": "u", "passwordFile": "/p"}]});
    // The example has every field of the types, so that none is missing in the schema.
    let config: ClusterConfig = serde_json::from_value(complete.clone()).unwrap();
    assert_eq!(serde_json::to_value(&config).unwrap(), complete);
    compare(&schema, &complete, "Cluster");
}

#[test]
fn missing_file_is_named() {
    let error = ClusterConfig::load(Path::new("/no/such.yaml")).unwrap_err();
    assert!(error.to_string().starts_with("reading /no/such.yaml"), "{error}");
}
