//! Tests of a container's environment, files, names and resources.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use proptest::prelude::*;
use serde_json::json;

use super::steps::pod;
use crate::{
    QosClass, dns, env,
    fields::{self, NodeFacts},
    files, hosts, members, qos_class, resources, services,
};

#[test]
fn expands_variables_as_documented() {
    let known = |name: &str| (name == "A").then(|| "1".to_owned());
    for (text, expanded) in [
        ("$(A)", "1"),
        ("x$(A)y$(A)", "x1y1"),
        ("$$(A)", "$(A)"),
        ("$(B)", "$(B)"),
        ("$(A", "$(A"),
        ("$A $", "$A $"),
        ("$$", "$"),
        ("$(B$(A)", "$(B$(A)"),
    ] {
        assert_eq!(env::expand(text, known).as_deref(), Ok(expanded), "{text}");
    }
}

#[test]
fn refuses_expansions_that_no_program_can_receive() {
    let mut pod = pod(json!({ "containers": [{ "name": "c" }] }));
    let refused = |pod: &k8s_openapi::api::core::v1::Pod| {
        let none = BTreeMap::new();
        let facts = NodeFacts::default();
        let sources = env::Sources {
            pod,
            container: &pod.spec.as_ref().unwrap().containers[0],
            config_maps: &BTreeMap::new(),
            secrets: &BTreeMap::new(),
            files: &BTreeMap::new(),
            services: none,
            node: &facts,
        };
        env::environment(&sources).unwrap_err()
    };
    let twice = |i: i32| json!({"name": format!("E{}", i + 1), "value": format!("$(E{i})$(E{i})")});
    let first = json!({"name": "E0", "value": "0123456789"});
    let bomb: Vec<_> = [first].into_iter().chain((0..60).map(twice)).collect();
    pod.spec.as_mut().unwrap().containers[0].env = serde_json::from_value(json!(bomb)).unwrap();
    assert_eq!(refused(&pod), env::EnvError::LongString);
    let large = json!({"name": "E0", "value": "0".repeat(100 << 10)});
    let copy = |i: i32| json!({"name": format!("E{i}"), "value": "$(E0)"});
    let many: Vec<_> = [large].into_iter().chain((1..100).map(copy)).collect();
    pod.spec.as_mut().unwrap().containers[0].env = serde_json::from_value(json!(many)).unwrap();
    assert_eq!(refused(&pod), env::EnvError::LargeTotal);

    let words = vec!["$(A)".to_owned(); 100];
    let long = |word: &String| env::expand(word, |_| Some("0".repeat(100 << 10)));
    assert_eq!(env::expand_all(&words, long), Err(env::EnvError::LargeTotal));
    // Searching for the end of each name would take a minute.
    let open = "$(".repeat(500_000);
    assert_eq!(env::expand(&open, |_| None), Err(env::EnvError::LongString));
}

#[test]
fn formats_durations_like_go() {
    for (millis, text) in [
        (0, "0s"),
        (7, "7ms"),
        (1000, "1s"),
        (1234, "1.234s"),
        (10_500, "10.5s"),
        (80_000, "1m20s"),
        (300_000, "5m0s"),
        (3_600_001, "1h0m0.001s"),
    ] {
        assert_eq!(crate::go_duration(std::time::Duration::from_millis(millis)), text);
    }
}

proptest! {
    #[test]
    fn text_without_dollars_stays_as_it_is(text in "[^$]*") {
        prop_assert_eq!(env::expand(&text, |_| Some("never".to_owned())), Ok(text));
    }

    #[test]
    fn shares_grow_with_cpus_and_stay_in_range(milli in 0i64..1_000_000, more in 0i64..1000) {
        let shares = resources::cpu_shares;
        prop_assert!((2..=262_144).contains(&shares(milli)));
        prop_assert!(shares(milli) <= shares(milli + more));
    }

    #[test]
    fn no_path_leads_out_of_a_volume(path in "[a./]{0,8}") {
        if files::check_path(&path).is_ok() {
            let escapes = std::path::Path::new(&path).components().any(|c| !matches!(c, std::path::Component::Normal(_) | std::path::Component::CurDir));
            prop_assert!(!escapes, "{}", path);
        }
    }
}

fn facts() -> NodeFacts<'static> {
    let allocatable =
        [("cpu", "4"), ("memory", "1Gi")].map(|(k, v)| (k.to_owned(), Quantity(v.to_owned())));
    NodeFacts { name: "n1", host_ips: &[], pod_ips: &[], allocatable: allocatable.into() }
}

#[test]
fn builds_environment_from_all_sources_in_order() {
    let pod = pod(json!({ "containers": [{
        "name": "app", "image": "i",
        "envFrom": [{ "prefix": "P_", "configMapRef": { "name": "m" } }, { "secretRef": { "name": "none", "optional": true } }],
        "env": [
            { "name": "A", "value": "$(P_k)-$(LATER)" },
            { "name": "LATER", "value": "x" },
            { "name": "S", "valueFrom": { "secretKeyRef": { "name": "s", "key": "k" } } },
            { "name": "NODE", "valueFrom": { "fieldRef": { "fieldPath": "spec.nodeName" } } },
            { "name": "CPU", "valueFrom": { "resourceFieldRef": { "resource": "limits.cpu" } } },
            { "name": "HOST", "value": "$(WEB_SERVICE_HOST)" },
            { "name": "FILE", "valueFrom": { "fileKeyRef": { "volumeName": "v", "path": "env", "key": "K" } } },
            { "name": "NOT", "valueFrom": { "fileKeyRef": { "volumeName": "v", "path": "no", "key": "K", "optional": true } } },
        ],
    }] }));
    let maps = BTreeMap::from([(
        "m".to_owned(),
        serde_json::from_value(json!({ "data": { "k": "v" } })).unwrap(),
    )]);
    let secrets = BTreeMap::from([(
        "s".to_owned(),
        serde_json::from_value(json!({ "data": { "k": "c2Vj" } })).unwrap(),
    )]);
    let services = BTreeMap::from([("WEB_SERVICE_HOST".to_owned(), "10.0.0.9".to_owned())]);
    let node = facts();
    let members = members(&pod);
    let files =
        BTreeMap::from([(("v".to_owned(), "env".to_owned()), "K='from a file'".to_owned())]);
    let mut sources = env::Sources {
        files: &files,
        pod: &pod,
        container: &members[0].container,
        config_maps: &maps,
        secrets: &secrets,
        services,
        node: &node,
    };
    let env: BTreeMap<_, _> = env::environment(&sources).unwrap().into_iter().collect();
    for (name, value) in [
        ("P_k", "v"),
        ("A", "v-$(LATER)"),
        ("S", "sec"),
        ("NODE", "n1"),
        ("CPU", "4"),
        ("HOST", "10.0.0.9"),
        ("FILE", "from a file"),
        ("WEB_SERVICE_HOST", "10.0.0.9"),
    ] {
        assert_eq!(env.get(name).map(String::as_str), Some(value), "{name}");
    }
    assert!(!env.contains_key("NOT"));
    let (none, no_files) = (BTreeMap::new(), BTreeMap::new());
    sources.files = &no_files;
    assert_eq!(
        env::environment(&sources).unwrap_err().to_string(),
        "environment variable key \"K\" not found in file \"env\""
    );
    sources.secrets = &none;
    assert_eq!(env::environment(&sources).unwrap_err().to_string(), "secret \"s\" not found");
}

#[test]
fn reads_documented_fields() {
    let mut pod = pod(
        json!({ "containers": [{ "name": "app", "image": "i", "resources": { "requests": { "cpu": "1500m", "memory": "100Mi" } } }] }),
    );
    pod.metadata.labels =
        Some([("a".to_owned(), "x\"y".to_owned()), ("b".to_owned(), "2".to_owned())].into());
    let field = |path: &str| fields::field(&pod, path, &facts());
    assert_eq!(field("metadata.labels").unwrap(), "a=\"x\\\"y\"\nb=\"2\"");
    assert_eq!(field("metadata.labels['b']").unwrap(), "2");
    assert_eq!(field("metadata.annotations['none']").unwrap(), "");
    assert!(field("spec.none").is_err());
    let resource = |resource: &str, divisor: &str| {
        let selector = json!({ "containerName": "app", "resource": resource, "divisor": divisor });
        fields::resource_field(&pod, None, &serde_json::from_value(selector).unwrap(), &facts())
    };
    assert_eq!(resource("requests.cpu", "1").unwrap(), "2");
    assert_eq!(resource("requests.cpu", "1m").unwrap(), "1500");
    assert_eq!(resource("requests.memory", "1Mi").unwrap(), "100");
    assert_eq!(resource("limits.memory", "0").unwrap(), (1i64 << 30).to_string());
}

#[test]
fn selects_files_and_sets_modes() {
    let map = serde_json::from_value(
        json!({ "data": { "a": "1", "b": "2" }, "binaryData": { "c": "AA==" } }),
    )
    .unwrap();
    let all = files::Selection { items: None, default_mode: 0o644, optional: false };
    assert_eq!(
        files::of_config_map(&map, all).unwrap().keys().collect::<Vec<_>>(),
        ["a", "b", "c"]
    );
    let items =
        serde_json::from_value::<Vec<_>>(json!([{ "key": "a", "path": "dir/x", "mode": 256 }]))
            .unwrap();
    let chosen =
        files::of_config_map(&map, files::Selection { items: Some(&items), ..all }).unwrap();
    assert_eq!(chosen["dir/x"].mode, 0o400);
    let missing = serde_json::from_value::<Vec<_>>(json!([{ "key": "z", "path": "z" }])).unwrap();
    let refused = files::of_config_map(&map, files::Selection { items: Some(&missing), ..all });
    assert_eq!(refused.unwrap_err().to_string(), "references non-existent config key: z");
    assert!(
        files::of_config_map(
            &map,
            files::Selection { items: Some(&missing), optional: true, ..all }
        )
        .unwrap()
        .is_empty()
    );
}

#[test]
fn files_share_their_key_and_take_limited_space() {
    let map: k8s_openapi::api::core::v1::ConfigMap =
        serde_json::from_value(json!({ "data": { "large": "x".repeat(200_000) } })).unwrap();
    let select = |items: serde_json::Value| {
        let items: Vec<_> = serde_json::from_value(items).unwrap();
        let selection =
            files::Selection { items: Some(&items), default_mode: 0o644, optional: false };
        files::of_config_map(&map, selection)
    };
    let items = |count: usize| -> serde_json::Value {
        (0..count).map(|n| json!({ "key": "large", "path": format!("f{n}") })).collect()
    };
    let chosen = select(items(300)).unwrap();
    assert_eq!(chosen.space(), 300 * (200_704 + 4096));
    assert!(std::sync::Arc::ptr_eq(&chosen["f0"].content, &chosen["f299"].content));
    let error = select(items(5000)).unwrap_err();
    assert_eq!(error, files::FilesError::TooLarge);
    assert!(error.to_string().contains("64 MiB"), "{error}");
    // Directories take memory, too.
    let deep: serde_json::Value = (0..20)
        .map(|n| json!({ "key": "large", "path": format!("{n}/{}", "a/".repeat(1000) + "f") }))
        .collect();
    assert_eq!(select(deep).unwrap_err(), files::FilesError::TooLarge);
}

#[test]
fn pod_fields_as_files_take_limited_space() {
    let pod = serde_json::from_value(
        json!({ "metadata": { "annotations": { "a": "x".repeat(200_000) } } }),
    )
    .unwrap();
    let items = |count: usize| -> Vec<_> {
        let item = |n| json!({ "path": format!("f{n}"), "fieldRef": { "fieldPath": "metadata.annotations" } });
        serde_json::from_value((0..count).map(item).collect()).unwrap()
    };
    let files = |count| files::of_downward_api(&pod, &items(count), 0o644, &Default::default());
    assert_eq!(files(2).unwrap().len(), 2);
    assert_eq!(files(5000).unwrap_err(), files::FilesError::TooLarge);
}

#[test]
fn classes_and_cgroups_follow_resources() {
    let with = |resources: serde_json::Value| {
        pod(json!({ "containers": [{ "name": "a", "image": "i", "resources": resources }] }))
    };
    let none = with(json!({}));
    let some = with(json!({ "requests": { "cpu": "250m" }, "limits": { "memory": "64Mi" } }));
    let all = with(json!({ "limits": { "cpu": "500m", "memory": "64Mi" } }));
    let classes = [&none, &some, &all].map(qos_class);
    assert_eq!(classes, [QosClass::BestEffort, QosClass::Burstable, QosClass::Guaranteed]);
    assert_eq!(resources::pod_cgroup(&none).cpu_shares, 2);
    let limits = resources::pod_cgroup(&some);
    assert_eq!((limits.cpu_shares, limits.cpu, limits.memory), (256, 0, 64 << 20));
    let limits = resources::pod_cgroup(&all);
    assert_eq!((limits.cpu_shares, limits.cpu, limits.memory), (512, 500, 64 << 20));
    assert_eq!(resources::cpu_quota(limits.cpu, 100_000), 50_000);
    assert_eq!(resources::cpu_quota(limits.cpu, 10_000), 5_000);
    assert_eq!(resources::cpu_quota(1, 10_000), 1_000, "the kernel's minimum");
    let scores = [&none, &some, &all].map(|p| resources::oom_score_adj(p, 512 << 20, 1 << 30));
    assert_eq!(scores, [1000, 500, -997]);
    let init = pod(json!({
        "initContainers": [{ "name": "i", "image": "i", "resources": { "requests": { "cpu": "2" } } }],
        "containers": [{ "name": "a", "image": "i", "resources": { "requests": { "cpu": "1", "memory": "1Mi" } } }],
    }));
    let amounts = resources::pod_amounts(&init);
    assert_eq!((amounts.cpu_request, amounts.memory_request), (2000, 1 << 20));
}

#[test]
fn resolvers_follow_the_policy() {
    let host = dns::parse("# x\nnameserver 192.0.2.53\nsearch example.org\noptions edns0\n");
    let cluster = ["10.96.0.10".to_owned()];
    let of = |spec: serde_json::Value| dns::of_pod(&pod(spec), &host, &cluster, "cluster.local").0;
    let first = of(json!({ "containers": [] }));
    assert_eq!(first.servers, ["10.96.0.10"]);
    assert_eq!(
        first.searches,
        ["default.svc.cluster.local", "svc.cluster.local", "cluster.local", "example.org"]
    );
    assert_eq!(first.options, ["ndots:5"]);
    assert_eq!(of(json!({ "dnsPolicy": "Default", "containers": [] })), host);
    assert_eq!(of(json!({ "hostNetwork": true, "containers": [] })), host);
    assert_eq!(
        of(
            json!({ "hostNetwork": true, "dnsPolicy": "ClusterFirstWithHostNet", "containers": [] })
        ),
        first
    );
    let custom = of(json!({ "dnsPolicy": "None", "containers": [], "dnsConfig": {
        "nameservers": ["1.1.1.1"], "searches": ["a"], "options": [{ "name": "ndots", "value": "2" }, { "name": "edns0" }],
    } }));
    assert_eq!(
        (custom.servers, custom.options),
        (vec!["1.1.1.1".to_owned()], vec!["ndots:2".to_owned(), "edns0".to_owned()])
    );
    assert!(
        dns::of_pod(&pod(json!({ "containers": [] })), &host, &[], "cluster.local").1,
        "there is no cluster DNS"
    );
}

#[test]
fn names_and_hosts_files() {
    let plain = pod(json!({ "containers": [] }));
    assert_eq!(hosts::names(&plain, "cluster.local"), ("web".to_owned(), None));
    let long = pod(
        json!({ "hostname": "h", "subdomain": "sub", "setHostnameAsFQDN": true, "containers": [],
        "hostAliases": [{ "ip": "1.2.3.4", "hostnames": ["a", "b"] }] }),
    );
    assert_eq!(hosts::sandbox_hostname(&long, "cluster.local"), "h.sub.default.svc.cluster.local");
    let file = hosts::file(&long, &["10.0.0.1".to_owned()], "cluster.local", None);
    assert!(file.contains("10.0.0.1\th.sub.default.svc.cluster.local\th\n"), "{file}");
    assert!(file.ends_with("# Entries added by HostAliases.\n1.2.3.4\ta\tb\n"), "{file}");
}

#[test]
fn service_variables_are_those_of_docker_links() {
    let service = |namespace: &str, name: &str, ip: &str| services::Service {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        cluster_ip: ip.to_owned(),
        ports: vec![services::Port {
            name: "http-alt".to_owned(),
            port: 80,
            protocol: "TCP".to_owned(),
        }],
    };
    let all = [
        service("default", "kubernetes", "10.0.0.1"),
        service("a", "my-web", "10.0.0.2"),
        service("a", "headless", "None"),
        service("b", "other", "10.0.0.3"),
    ];
    let variables = services::variables(all.iter(), "a", true);
    for (name, value) in [
        ("KUBERNETES_SERVICE_HOST", "10.0.0.1"),
        ("MY_WEB_SERVICE_HOST", "10.0.0.2"),
        ("MY_WEB_SERVICE_PORT_HTTP_ALT", "80"),
        ("MY_WEB_PORT", "tcp://10.0.0.2:80"),
        ("MY_WEB_PORT_80_TCP_PROTO", "tcp"),
    ] {
        assert_eq!(variables.get(name).map(String::as_str), Some(value), "{name}");
    }
    assert!(!variables.keys().any(|k| k.starts_with("HEADLESS") || k.starts_with("OTHER")));
    let without = services::variables(all.iter(), "a", false);
    assert!(without.keys().all(|k| k.starts_with("KUBERNETES")));
}
