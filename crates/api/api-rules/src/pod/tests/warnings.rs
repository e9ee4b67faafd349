//! Tests of warnings.

use super::*;

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
