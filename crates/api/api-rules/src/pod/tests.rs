use api_meta::{ErrorList, Tree as _, field::aggregate};
use serde_json::{Value, json};

use super::POD;

/// Builds a Pod with the schema's constant defaults.
fn pod(spec: Value) -> Value {
    let mut pod = json!({
        "metadata": {"name": "p", "namespace": "d", "uid": "u"},
        "spec": {
            "restartPolicy": "Always", "dnsPolicy": "ClusterFirst", "securityContext": {}, "terminationGracePeriodSeconds": 30,
            "containers": [{"name": "c", "image": "nginx", "terminationMessagePolicy": "File", "resources": {}}]},
        "status": {}});
    for (name, value) in spec.as_object().unwrap() {
        pod["spec"][name] = value.clone();
    }
    pod
}

fn container(fields: Value) -> Value {
    let mut container =
        json!({"name": "c", "image": "i", "terminationMessagePolicy": "File", "resources": {}});
    for (name, value) in fields.as_object().unwrap() {
        container[name] = value.clone();
    }
    json!({ "containers": [container] })
}

fn made(spec: Value) -> Value {
    let mut pod = pod(spec);
    POD.defaults(&mut pod);
    POD.prepare_create(&mut pod, "2026-01-01T00:00:00Z");
    pod
}

fn words(errors: ErrorList) -> String {
    aggregate(&errors)
}

#[test]
fn sets_conditional_defaults() {
    let policy = |image: &str| {
        made(container(json!({ "image": image })))["spec"]["containers"][0]["imagePullPolicy"]
            .clone()
    };
    assert_eq!(policy("nginx"), "Always");
    assert_eq!(policy("r:5000/nginx"), "Always");
    assert_eq!(policy("r:5000/nginx:latest"), "Always");
    assert_eq!(policy("nginx:1"), "IfNotPresent");
    assert_eq!(policy("nginx@sha256:00"), "IfNotPresent");

    let asks = made(container(
        json!({"resources": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}}}),
    ));
    assert_eq!(
        asks["spec"]["containers"][0]["resources"]["requests"],
        json!({"cpu": "500m", "memory": "1Gi"})
    );
    let mut host = container(json!({"ports": [{"containerPort": 80, "protocol": "TCP"}]}));
    host["hostNetwork"] = json!(true);
    assert_eq!(made(host)["spec"]["containers"][0]["ports"][0]["hostPort"], 80);
    let account = made(json!({"serviceAccountName": "a", "volumes": [{"name": "v"}]}));
    assert_eq!(account["spec"]["serviceAccount"], "a");
    assert_eq!(account["spec"]["volumes"][0]["emptyDir"], json!({}));
    assert_eq!(account["spec"]["enableServiceLinks"], true);
}

#[test]
fn sets_phase_and_qos_class_of_new_pod() {
    let class =
        |resources: Value| made(container(json!({ "resources": resources })))["status"].clone();
    let cases = [
        (json!({}), "BestEffort"),
        (json!({"limits": {"nvidia.com/gpu": "1"}}), "BestEffort"),
        (json!({"requests": {"cpu": "1"}}), "Burstable"),
        (json!({"limits": {"cpu": "1"}}), "Burstable"),
        (json!({"limits": {"cpu": "1", "memory": "1Gi"}}), "Guaranteed"),
        (
            json!({"limits": {"cpu": "1000m", "memory": "1Gi"}, "requests": {"cpu": "1"}}),
            "Guaranteed",
        ),
    ];
    for (resources, want) in cases {
        assert_eq!(class(resources), json!({"phase": "Pending", "qosClass": want}));
    }
    let mut sent = pod(json!({}));
    sent["status"] = json!({"phase": "Running"});
    sent["metadata"]["generation"] = json!(7);
    POD.prepare_create(&mut sent, "");
    assert_eq!(
        (&sent["status"]["phase"], &sent["metadata"]["generation"]),
        (&json!("Pending"), &json!(1))
    );
    let gated = made(json!({"schedulingGates": [{"name": "a/b"}]}));
    assert_eq!(gated["status"]["conditions"][0]["reason"], "SchedulingGated");
}

fn with_sysctls(names: &[&str], host_network: bool) -> Value {
    let sysctls: Vec<Value> = names.iter().map(|n| json!({"name": n, "value": "1"})).collect();
    let mut spec = container(json!({}));
    spec["hostNetwork"] = json!(host_network);
    spec["securityContext"] = json!({"sysctls": sysctls});
    spec
}

#[test]
#[allow(clippy::too_many_lines, reason = "a table of cases")]
fn reports_errors_in_upstream_words() {
    let cases = [
        (json!({}), "[]"),
        (json!({"containers": []}), "spec.containers: Required value"),
        (container(json!({"image": ""})), "spec.containers[0].image: Required value"),
        (
            container(json!({"name": "A"})),
            "spec.containers[0].name: Invalid value: \"A\": a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')",
        ),
        (
            with_sysctls(&["foo-", "kernel.shmmax", "bar..", "kernel.shmmax", ""], false),
            "[spec.securityContext.sysctls[0].name: Invalid value: \"foo-\": must have at most 253 characters and match regex ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$, spec.securityContext.sysctls[2].name: Invalid value: \"bar..\": must have at most 253 characters and match regex ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$, spec.securityContext.sysctls[3].name: Duplicate value: \"kernel.shmmax\", spec.securityContext.sysctls[4].name: Required value]",
        ),
        (
            with_sysctls(&["net/ipv4/conf/eth0.1/forwarding", "kernel.shmmax"], true),
            "spec.securityContext.sysctls[0].name: Invalid value: \"net/ipv4/conf/eth0.1/forwarding\": may not be specified when 'hostNetwork' is true",
        ),
        (
            container(json!({"imagePullPolicy": "No"})),
            "spec.containers[0].imagePullPolicy: Unsupported value: \"No\": supported values: \"Always\", \"IfNotPresent\", \"Never\"",
        ),
        (
            container(json!({"volumeMounts": [{"name": "x", "mountPath": "/x"}]})),
            "spec.containers[0].volumeMounts[0].name: Not found: \"x\"",
        ),
        (
            container(json!({"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}})),
            "spec.containers[0].resources.requests: Invalid value: \"2\": must be less than or equal to cpu limit of 1",
        ),
        (
            container(json!({"resources": {"limits": {"hugepages-2Mi": "2Mi"}}})),
            "spec.containers[0].resources: Forbidden: HugePages require cpu or memory",
        ),
        (
            container(json!({"resources": {"limits": {"hugepages-2Mi": "3Mi", "cpu": "1"}}})),
            "[spec.containers[0].resources.limits[hugepages-2Mi]: Invalid value: \"3Mi\": 3Mi is not positive integer multiple of hugepages-2Mi, spec.containers[0].resources.requests[hugepages-2Mi]: Invalid value: \"3Mi\": 3Mi is not positive integer multiple of hugepages-2Mi]",
        ),
        (
            container(json!({"resources": {"limits": {"foo": "1"}}})),
            "[spec.containers[0].resources.limits[foo]: Invalid value: \"foo\": must be a standard resource type or fully qualified, spec.containers[0].resources.limits[foo]: Invalid value: \"foo\": must be a standard resource for containers, spec.containers[0].resources.requests[foo]: Invalid value: \"foo\": must be a standard resource type or fully qualified, spec.containers[0].resources.requests[foo]: Invalid value: \"foo\": must be a standard resource for containers]",
        ),
        (
            container(json!({"ports": [{"containerPort": 70000, "protocol": "TCP"}]})),
            "spec.containers[0].ports[0].containerPort: Invalid value: 70000: must be between 1 and 65535, inclusive",
        ),
        (
            container(json!({"livenessProbe": {"successThreshold": 1}})),
            "spec.containers[0].livenessProbe: Required value: must specify a handler type",
        ),
        (
            container(json!({"env": [{"name": "A", "valueFrom": {}}]})),
            "spec.containers[0].env[0].valueFrom: Invalid value: \"\": must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef` or `secretKeyRef`",
        ),
        (
            json!({"hostNetwork": true, "containers": [{"name": "c", "image": "i", "terminationMessagePolicy": "File",
                "ports": [{"containerPort": 80, "hostPort": 81, "protocol": "TCP"}]}]}),
            "spec.containers[0].ports[0].hostPort: Invalid value: 81: must match `containerPort` when `hostNetwork` is true",
        ),
        (
            json!({"restartPolicy": "Maybe"}),
            "spec.restartPolicy: Unsupported value: \"Maybe\": supported values: \"Always\", \"OnFailure\", \"Never\"",
        ),
        (
            json!({"volumes": [{"name": "v", "emptyDir": {}, "hostPath": {"path": "/x", "type": ""}}, {"name": "v", "configMap": {}}]}),
            "[spec.volumes[0].hostPath: Forbidden: may not specify more than 1 volume type, spec.volumes[1].name: Duplicate value: \"v\", spec.volumes[1].configMap.name: Required value]",
        ),
        (
            json!({"initContainers": [{"name": "c", "image": "i", "terminationMessagePolicy": "File", "readinessProbe": {}}]}),
            "[spec.initContainers[0].name: Duplicate value: \"c\", spec.initContainers[0].readinessProbe: Forbidden: may not be set for init containers without restartPolicy=Always]",
        ),
        (
            json!({"tolerations": [{"operator": "Equal", "value": "x"}]}),
            "spec.tolerations[0].operator: Invalid value: \"Equal\": operator must be Exists when `key` is empty, which means \"match all values and all keys\"",
        ),
        (
            json!({"ephemeralContainers": [{}]}),
            "spec.ephemeralContainers: Forbidden: cannot be set on create",
        ),
        (
            json!({"activeDeadlineSeconds": 0}),
            "spec.activeDeadlineSeconds: Invalid value: 0: must be between 1 and 2147483647, inclusive",
        ),
    ];
    for (spec, want) in cases {
        let got = words(POD.create_errors(&made(spec), true));
        assert!(
            got == want || (want.contains("cannot be set on create") && got.contains(want)),
            "{got}"
        );
    }
}

#[test]
fn rejects_changes_of_immutable_fields() {
    let old = made(json!({"tolerations": [{"key": "a", "operator": "Exists"}]}));
    let update = |change: fn(&mut Value)| {
        let mut new = old.clone();
        change(&mut new);
        POD.prepare_update(&mut new, &old, "");
        (words(POD.update_errors(&new, &old, true)), new.int("metadata.generation"))
    };
    let ok = |generation| ("[]".to_owned(), generation);
    assert_eq!(update(|_| {}), ok(1));
    assert_eq!(update(|p| p["spec"]["containers"][0]["image"] = json!("x")), ok(2));
    assert_eq!(update(|p| p["spec"]["activeDeadlineSeconds"] = json!(5)), ok(2));
    assert_eq!(update(|p| p["metadata"]["labels"] = json!({"a": "b"})), ok(1));
    assert_eq!(update(|p| p["status"]["phase"] = json!("Failed")), ok(1));
    let added = |p: &mut Value| {
        p["spec"]["tolerations"]
            .as_array_mut()
            .unwrap()
            .push(json!({"key": "b", "operator": "Exists"}));
    };
    assert_eq!(update(added), ok(2));
    let refused = update(|p| p["spec"]["containers"][0]["command"] = json!(["x"])).0;
    assert!(refused.starts_with("spec: Forbidden: pod updates may not change fields other than"));
    let fewer = update(|p| p["spec"]["containers"] = json!([])).0;
    assert!(
        fewer.contains("spec.containers: Forbidden: pod updates may not add or remove containers")
    );
    let toleration = update(|p| p["spec"]["tolerations"] = json!([])).0;
    assert!(
        toleration.contains("existing toleration can not be modified except its tolerationSeconds")
    );
    let renamed = update(|p| p["metadata"]["name"] = json!("q")).0;
    assert_eq!(renamed, "metadata.name: Invalid value: \"q\": field is immutable");
}

#[test]
fn subresources_restore_other_fields() {
    let old = made(json!({}));
    let mut new = old.clone();
    new.set("status.phase", "Running");
    new.set("status.qosClass", "Guaranteed");
    new.set("spec.nodeName", "n");
    POD.prepare_status(&mut new, &old, "");
    assert_eq!(new["status"], json!({"phase": "Running", "qosClass": "BestEffort"}));
    assert_eq!(new["spec"], old["spec"]);

    let mut new = old.clone();
    new["spec"]["containers"][0]["image"] = json!("x");
    new["spec"]["ephemeralContainers"] = json!([{"name": "c", "image": "d", "imagePullPolicy": "Always", "terminationMessagePolicy": "File"}]);
    POD.prepare_subresource("ephemeralcontainers", &mut new, &old, "").unwrap();
    assert_eq!(new["spec"]["containers"], old["spec"]["containers"]);
    assert_eq!(
        words(POD.subresource_errors("ephemeralcontainers", &new, &old, true)),
        "spec.ephemeralContainers[0].name: Duplicate value: \"c\""
    );

    let mut new = old.clone();
    new["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "1"}});
    new["spec"]["containers"][0]["image"] = json!("x");
    POD.prepare_subresource("resize", &mut new, &old, "").unwrap();
    assert_eq!(new["spec"]["containers"][0]["image"], "nginx");
    assert!(
        words(POD.subresource_errors("resize", &new, &old, true))
            .contains("Pod QOS Class may not change")
    );
}

#[test]
fn merges_match_label_keys() {
    let mut pod = pod(json!({
        "topologySpreadConstraints": [{"matchLabelKeys": ["hash", "none"], "labelSelector": {"matchLabels": {"a": "b"}}}],
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
            {"mismatchLabelKeys": ["hash"], "labelSelector": {}}, {"matchLabelKeys": ["hash"]}]}}}));
    pod["metadata"]["labels"] = json!({"hash": "1"});
    POD.prepare_create(&mut pod, "");
    let term = |operator: &str| json!([{"key": "hash", "operator": operator, "values": ["1"]}]);
    let spread = &pod["spec"]["topologySpreadConstraints"][0]["labelSelector"];
    assert_eq!(*spread, json!({"matchLabels": {"a": "b"}, "matchExpressions": term("In")}));
    let anti =
        pod.items("spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution");
    assert_eq!(anti[0]["labelSelector"]["matchExpressions"], term("NotIn"));
    assert_eq!(anti[1].get("labelSelector"), None);
}

#[test]
fn warns_in_upstream_words() {
    let mut pod = pod(container(json!({
        "env": [{"name": "A"}, {"name": "A"}],
        "ports": [{"containerPort": 1}, {"containerPort": 1}],
        "resources": {"limits": {"memory": "500m"}}})));
    pod["spec"]["nodeSelector"] = json!({"beta.kubernetes.io/os": "linux"});
    assert_eq!(
        (POD.warnings)(&pod, None),
        [
            "spec.nodeSelector[beta.kubernetes.io/os]: deprecated since v1.14; use \"kubernetes.io/os\" instead",
            "spec.containers[0].resources.limits[memory]: fractional byte value \"500m\" is invalid, must be an integer",
            "spec.containers[0].env[1]: hides previous definition of \"A\", which may be dropped when using apply",
            "spec.containers[0].ports[1]: duplicate port definition with spec.containers[0].ports[0]",
        ]
    );
    pod["metadata"]["name"] = json!("a.b");
    assert!(
        (POD.warnings)(&pod, None)[0]
            .starts_with("metadata.name: this is used in the Pod's hostname")
    );
    assert_eq!((POD.warnings)(&pod, Some(&pod)), Vec::<String>::new());
}

#[test]
fn warns_of_duplicates_in_upstream_order() {
    let mut pod = pod(container(json!({
    "env": [{"name": "A", "value": "1"}, {"name": "A", "value": "$(A):2"}, {"name": "A", "value": "$(A)"}],
    "ports": [
        {"name": "p", "containerPort": 1, "protocol": "TCP"},
        {"name": "p", "containerPort": 1, "protocol": "UDP"},
        {"containerPort": 1, "protocol": "TCP", "hostPort": 9},
        {"containerPort": 1, "protocol": "UDP", "hostIP": "127.0.0.1"},
    ]})));
    pod["metadata"]["annotations"] = json!({
        "seccomp.security.alpha.kubernetes.io/pod": "x",
        "container.seccomp.security.alpha.kubernetes.io/c": "x",
        "scheduler.alpha.kubernetes.io/critical-pod": "",
    });
    pod["spec"]["volumes"] = json!([
        {"name": "g", "gitRepo": {"repository": "r"}},
        {"name": "m", "configMap": {"name": "n", "items": [{"key": "a", "path": "p"}, {"key": "b", "path": "p/q"}]}},
        {"name": "j", "projected": {"sources": [{}, {"secret": {"name": "s", "items": [{"key": "a", "path": "p"}]}}, {"serviceAccountToken": {"path": "p"}}]}},
    ]);
    pod["spec"]["topologySpreadConstraints"] = json!([{"topologyKey": "beta.kubernetes.io/arch"}]);
    pod["spec"]["affinity"] = json!({"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"podAffinityTerm": {}}]}});
    pod["spec"]["imagePullSecrets"] = json!([{"name": "s"}, {"name": "s"}]);
    let name = pod["spec"]["containers"][0]["name"].as_str().unwrap().to_owned();
    assert_eq!(name, "c");
    assert_eq!(
        (POD.warnings)(&pod, None),
        [
            "spec.topologySpreadConstraints[0].topologyKey: beta.kubernetes.io/arch is deprecated since v1.14; use \"kubernetes.io/arch\" instead",
            "spec.topologySpreadConstraints[0].labelSelector: a null labelSelector results in matching no pod",
            "metadata.annotations[scheduler.alpha.kubernetes.io/critical-pod]: non-functional in v1.16+; use the \"priorityClassName\" field instead",
            "spec.volumes[0].gitRepo: deprecated in v1.11, and disabled by default in v1.33+",
            "volume \"m\" (ConfigMap \"n\"): overlapping paths: \"p/q\" with \"p\"",
            "volume \"j\" (Projected) has no sources provided",
            "volume \"j\" (Projected): overlapping paths: \"p\" (ServiceAccountToken) with \"p\" (Secret \"s\")",
            "spec.imagePullSecrets[1].name: duplicate name \"s\"",
            "metadata.annotations[seccomp.security.alpha.kubernetes.io/pod]: non-functional in v1.27+; use the \"seccompProfile\" field instead",
            "metadata.annotations[container.seccomp.security.alpha.kubernetes.io/c]: non-functional in v1.27+; use the \"seccompProfile\" field instead",
            "spec.containers[0].env[2]: hides previous definition of \"A\", which may be dropped when using apply",
            "spec.containers[0].ports[2]: overlapping port definition with spec.containers[0].ports[0]",
            "spec.containers[0].ports[3]: hostIP set without hostPort: {Name: HostPort:0 ContainerPort:1 Protocol:UDP HostIP:127.0.0.1}",
            "spec.containers[0].ports[3]: overlapping port definition with spec.containers[0].ports[1]",
            "spec.containers[0].ports[1]: duplicate port name \"p\" with spec.containers[0].ports[0], services and probes that select ports by name will use spec.containers[0].ports[0]",
            "spec.affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].podAffinityTerm.labelSelector: a null labelSelector results in matching no pod",
        ]
    );
}

/// Returns a deterministic generator of numbers below `sides`.
fn dice() -> impl FnMut(usize) -> usize {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    move |sides| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as usize % sides
    }
}

#[test]
fn warns_of_all_conflicting_ports() {
    let mut roll = dice();
    for _ in 0..200 {
        let ports: Vec<(i64, &str)> = (0..8)
            .map(|_| ([0, 0, 8, 9][roll(4)], ["", "", "10.0.0.1", "10.0.0.2"][roll(4)]))
            .collect();
        let shown: Vec<Value> = ports
            .iter()
            .map(|(host, address)| json!({"containerPort": 1, "hostPort": host, "hostIP": address}))
            .collect();
        let mut wanted = Vec::new();
        for (at, (host, address)) in ports.iter().enumerate() {
            for (first, (other, other_address)) in ports[..at].iter().enumerate() {
                let word = if (host, address) == (other, other_address) {
                    "duplicate"
                } else if *host == 0 || *other == 0 {
                    "overlapping"
                } else if host == other && address.is_empty() != other_address.is_empty() {
                    "dangerously ambiguous"
                } else {
                    continue;
                };
                let path = |at| format!("spec.containers[0].ports[{at}]");
                wanted.push(format!("{}: {word} port definition with {}", path(at), path(first)));
            }
        }
        let mut found =
            Vec::from_iter((POD.warnings)(&pod(container(json!({ "ports": shown }))), None));
        found.retain(|warning| warning.contains("port definition"));
        assert_eq!(found, wanted, "{ports:?}");
    }
}

#[test]
fn warns_of_all_overlapping_paths() {
    let mut roll = dice();
    for _ in 0..200 {
        let paths: Vec<&str> = (0..7)
            .map(|_| ["", "a", "a/b", "a/b/c", "a-b", "b", "a/b/", "a/bc"][roll(8)])
            .collect();
        let items: Vec<Value> =
            paths.iter().map(|path| json!({"key": "k", "path": path})).collect();
        let mut wanted = Vec::new();
        for (at, path) in paths.iter().enumerate() {
            for other in &paths[..at] {
                let whole = |path: &str| format!("{}/", path.trim_end_matches('/'));
                let meet = whole(path).starts_with(&whole(other))
                    || whole(other).starts_with(&whole(path));
                if meet && !path.is_empty() && !other.is_empty() {
                    let (path, other) = (path.trim_end_matches('/'), other.trim_end_matches('/'));
                    let pair = format!("overlapping paths: {path:?} with {other:?}");
                    wanted.push(format!("volume \"v\" (ConfigMap \"m\"): {pair}"));
                }
            }
        }
        let mut seen = std::collections::HashSet::new();
        wanted.retain(|warning| seen.insert(warning.clone()));
        let volume = json!({"name": "v", "configMap": {"name": "m", "items": items}});
        let found = (POD.warnings)(&pod(json!({ "volumes": [volume] })), None);
        assert_eq!(found, wanted, "{paths:?}");
    }
}

#[test]
fn limits_number_of_warnings() {
    let many = pod(container(json!({"ports": vec![json!({"containerPort": 1}); 1000]})));
    let found = (POD.warnings)(&many, None);
    assert!(found.is_full() && found.len() <= 1000, "{} warnings", found.len());
    assert_eq!(
        found[2],
        "spec.containers[0].ports[2]: duplicate port definition with spec.containers[0].ports[1]"
    );
}

/// Returns the errors of a resize from one Pod to another.
fn resize_errors(from: Value, to: Value) -> String {
    let mut old = made(from);
    old["status"]["qosClass"] = json!("Burstable");
    let mut new = old.clone();
    for (name, value) in to.as_object().unwrap() {
        new["spec"][name] = value.clone();
    }
    POD.prepare_subresource("resize", &mut new, &old, "").unwrap();
    let errors = POD.subresource_errors("resize", &new, &old, true);
    if errors.is_empty() { new["spec"]["resources"].to_string() } else { words(errors) }
}

#[test]
fn validates_restart_rules() {
    let rule = |action: &str, operator: &str, values: usize| {
        let values: Vec<usize> = (0..values).collect();
        json!({"action": action, "exitCodes": {"operator": operator, "values": values}})
    };
    let at = "spec.containers[0].restartPolicyRules";
    let supported = "supported values: \"Restart\", \"RestartAllContainers\"";
    for (rules, want) in [
        (
            json!([rule("Restart", "In", 255), rule("RestartAllContainers", "NotIn", 1)]),
            "[]".to_owned(),
        ),
        (
            json!([rule("Stop", "In", 1)]),
            format!("{at}[0].action: Unsupported value: \"Stop\": {supported}"),
        ),
        (
            json!([rule("Restart", "Equal", 1)]),
            format!(
                "{at}[0].exitCodes.operator: Unsupported value: \"Equal\": supported values: \"In\", \"NotIn\""
            ),
        ),
        (
            json!([rule("Restart", "In", 256)]),
            format!("{at}[0].exitCodes.values: Too many: 256: must have at most 255 items"),
        ),
        (
            json!([{"action": "Restart"}]),
            format!("{at}[0].exitCodes: Required value: must be specified"),
        ),
        (
            json!(vec![rule("Restart", "In", 1); 21]),
            format!("{at}: Too many: 21: must have at most 20 items"),
        ),
    ] {
        let spec = container(json!({"restartPolicy": "Never", "restartPolicyRules": rules}));
        assert_eq!(words(POD.create_errors(&made(spec), true)), want);
    }
    let without = container(json!({"restartPolicyRules": [rule("Restart", "In", 1)]}));
    assert_eq!(
        words(POD.create_errors(&made(without), true)),
        "spec.containers[0].restartPolicy: Required value: must specify restartPolicy when restart rules are used"
    );
}

#[test]
fn resizes_pod_level_resources() {
    let shared = |resources: Value| json!({ "resources": resources });
    let from = || shared(json!({"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}));
    for (to, outcome) in [
        (
            json!({"requests": {"cpu": "2"}, "limits": {"cpu": "4", "memory": "1Gi"}}),
            "{\"limits\":{\"cpu\":\"4\",\"memory\":\"1Gi\"},\"requests\":{\"cpu\":\"2\"}}",
        ),
        (json!(null), "spec.resources: Forbidden: pod-level resources cannot be removed"),
        (
            json!({"limits": {"cpu": "2"}}),
            "spec.resources.requests: Forbidden: pod-level resource requests cannot be removed",
        ),
        (
            json!({"requests": {"cpu": "1"}}),
            "spec.resources.limits: Forbidden: pod-level resource limits cannot be removed",
        ),
        (
            json!({"requests": {"cpu": "1", "hugepages-2Mi": "2Mi"}, "limits": {"cpu": "2", "hugepages-2Mi": "2Mi"}}),
            "spec: Forbidden: only cpu and memory resources are mutable at pod-level",
        ),
        (
            json!({"requests": {"cpu": "3"}, "limits": {"cpu": "2"}}),
            "spec.resources.requests: Invalid value: \"3\": must be less than or equal to cpu limit of 2",
        ),
    ] {
        let found = resize_errors(from(), shared(to));
        assert!(found.contains(outcome), "{found} lacks {outcome}");
    }
}

#[test]
fn rejects_container_resize_of_other_fields() {
    let one = |fields: Value| {
        let mut container = json!({"name": "c", "image": "i", "terminationMessagePolicy": "File"});
        for (name, value) in fields.as_object().unwrap() {
            container[name] = value.clone();
        }
        container
    };
    let sized = |cpu: &str| json!({"requests": {"cpu": cpu}});
    let policy = json!([{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]);
    let from = json!({
        "containers": [one(json!({"resources": sized("1")}))],
        "initContainers": [one(json!({"name": "i", "resources": sized("1"), "resizePolicy": policy}))]});
    let with = |at: (&str, Value)| {
        let mut to =
            json!({ "containers": from["containers"], "initContainers": from["initContainers"] });
        to[at.0] = json!([at.1]);
        resize_errors(from.clone(), to)
    };
    assert_eq!(with(("containers", one(json!({"resources": sized("2")})))), "null");
    assert_eq!(
        with(("containers", one(json!({"resources": {}})))),
        "spec.containers[0].resources.requests: Forbidden: resource requests cannot be removed"
    );
    assert_eq!(
        with((
            "containers",
            one(json!({"resources": {"requests": {"cpu": "1", "ephemeral-storage": "1"}}}))
        )),
        "spec: Forbidden: only cpu and memory resources are mutable"
    );
    assert_eq!(
        with(("containers", one(json!({"resources": sized("1"), "resizePolicy": policy})))),
        "spec: Forbidden: only cpu and memory resources are mutable"
    );
    assert_eq!(
        with((
            "initContainers",
            one(json!({"name": "i", "resources": sized("2"), "resizePolicy": policy}))
        )),
        "spec.initContainers[0]: Forbidden: non-sidecar init containers with a resize policy of RestartContainer cannot be resized"
    );
}

#[test]
fn rejects_resize_of_static_and_windows_pods() {
    let errors = |change: fn(&mut Value)| {
        let mut old = made(json!({}));
        change(&mut old);
        words(POD.subresource_errors("resize", &old.clone(), &old, true))
    };
    assert_eq!(
        errors(|pod| pod["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"})),
        "[]: Forbidden: static pods cannot be resized"
    );
    assert_eq!(
        errors(|pod| pod["spec"]["os"] = json!({"name": "windows"})),
        "[]: Forbidden: windows pods cannot be resized"
    );
    assert_eq!(
        errors(|pod| pod["status"]["containerStatuses"] =
            json!([{"name": "c", "state": {"running": {}}}])),
        "spec: Forbidden: Pod running on node without support for resize"
    );
}

#[test]
fn drops_stop_signal_unless_in_use() {
    let with = |lifecycle: Value| made(container(json!({ "lifecycle": lifecycle })));
    let of = |pod: &Value| pod["spec"]["containers"][0].get("lifecycle").cloned();
    let hook = json!({"exec": {"command": ["a"]}});
    assert_eq!(of(&with(json!({"stopSignal": "SIGUSR1"}))), None);
    let kept = of(&with(json!({"stopSignal": "SIGUSR1", "preStop": hook})));
    assert_eq!(kept, Some(json!({ "preStop": hook })));
    // An object of a server with the gate on keeps the field.
    let mut old = with(json!({}));
    old["spec"]["containers"][0]["lifecycle"] = json!({"stopSignal": "SIGUSR1"});
    let mut new = old.clone();
    POD.prepare_update(&mut new, &old, "");
    assert_eq!(of(&new), Some(json!({"stopSignal": "SIGUSR1"})));
}
