//! Tests of the errors of new Pods.

use super::*;

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
            "spec.containers[0].env[0].valueFrom: Invalid value: \"\": must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`",
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
fn checks_fields_against_other_fields_of_the_pod() {
    let spread = |more: Value| {
        let mut constraint =
            json!({"maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule"});
        more.as_object().unwrap().iter().for_each(|(k, v)| constraint[k] = v.clone());
        json!({"topologySpreadConstraints": [constraint]})
    };
    let pause = |seconds: i64| {
        container(json!({"lifecycle": {"preStop": {"sleep": {"seconds": seconds}}}}))
    };
    let mut level =
        container(json!({"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "4"}}}));
    level["resources"] = json!({"requests": {"cpu": "1"}, "limits": {"cpu": "3"}});
    let preferred = |value: &str| {
        let term = json!({"matchExpressions": [{"key": "k", "operator": "In", "values": [value]}]});
        json!({"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 1, "preference": term}]}}})
    };
    for (spec, expected) in [
        (json!({"imagePullSecrets": [{}]}), "[]"),
        (preferred("Bad Value!"), "[]"),
        (spread(json!({"minDomains": 1, "matchLabelKeys": ["a"], "labelSelector": {}})), "[]"),
        (
            spread(json!({"minDomains": 0, "matchLabelKeys": ["a"]})),
            "[spec.topologySpreadConstraints[0].minDomains: Invalid value: 0: must be greater than zero, \
            spec.topologySpreadConstraints[0].matchLabelKeys: Forbidden: must not be specified when labelSelector is not set]",
        ),
        (pause(30), "[]"),
        (
            pause(31),
            "spec.containers[0].lifecycle.preStop.sleep: Invalid value: 31: must be non-negative and less than \
            terminationGracePeriodSeconds (30)",
        ),
        (
            level,
            "[spec.resources.requests[cpu]: Invalid value: \"1\": must be greater than or equal to aggregate container \
            requests of 2, spec.resources.containers[0][cpu].limits: Invalid value: \"4\": must be less than or equal to \
            pod limits of 3]",
        ),
        (
            json!({"resourceClaims": [{"name": "a"}, {"name": "a", "resourceClaimName": "c"}]}),
            "[spec.resourceClaims[0]: Invalid value: {\"name\":\"a\"}: must specify one of: `resourceClaimName`, \
            `resourceClaimTemplateName`, spec.resourceClaims[1].name: Duplicate value: \"a\"]",
        ),
        (
            container(
                json!({"env": [{"name": "A", "valueFrom": {"fileKeyRef": {"volumeName": "v", "path": "p", "key": "k"}}}]}),
            ),
            "spec.containers[0].env[0].valueFrom.fileKeyRef.volumeName: Not found: \"v\"",
        ),
        (
            json!({"volumes": [{"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "t", "expirationSeconds": 3600}}]}}]}),
            "spec.volumes[0].projected.sources[0].serviceAccountToken: Forbidden: must not be specified when \
            serviceAccountName is not set",
        ),
        (
            container(json!({"securityContext": {"windowsOptions": {"runAsUserName": "d\\a*"}}})),
            "spec.containers[0].securityContext.windowsOptions.runAsUserName: Invalid value: \"d\\\\a*\": \
            runAsUserName's User cannot contain the following characters: \"/\\:;|=,+*?<>@[]",
        ),
    ] {
        let pod = made(spec.clone());
        assert_eq!(words(POD.create_errors(&pod, true)), expected, "{spec}");
    }
}
