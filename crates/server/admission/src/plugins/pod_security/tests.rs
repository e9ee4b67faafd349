use api_meta::Tree as _;
use serde_json::json;

use super::*;
use crate::testing::{Cluster, Try, pod};

fn plain() -> PodSecurity {
    PodSecurity::configured(&Value::Null).unwrap()
}

fn labelled(labels: Value) -> Value {
    json!({"metadata": {"name": "ns", "labels": labels}})
}

fn enforce(level: &str) -> Cluster {
    let namespace = labelled(json!({"pod-security.kubernetes.io/enforce": level}));
    Cluster::default().with(&GroupResource::NAMESPACES, namespace)
}

/// Returns the violations of a level for a Pod with this spec: the part after the level's name.
fn judge(level: &str, spec: Value) -> String {
    let cluster = enforce(level);
    let refusal = Try::create(&cluster, &GroupResource::PODS).refusal(&plain(), pod(spec));
    let prefix = format!("pods \"p\" is forbidden: violates PodSecurity \"{level}:latest\": ");
    match refusal.strip_prefix(&prefix) {
        Some(found) => found.to_owned(),
        None if refusal.starts_with("admitted") => String::new(),
        None => refusal,
    }
}

fn one(container: Value) -> Value {
    let mut container = container;
    container["name"] = "a".into();
    json!({"containers": [container]})
}

fn secured() -> Value {
    json!({"securityContext": {
        "allowPrivilegeEscalation": false, "runAsNonRoot": true,
        "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"}
    }})
}

#[test]
fn baseline_controls() {
    let context = |field: &str, value: Value| one(json!({"securityContext": {field: value}}));
    let cases = [
        (one(json!({})), ""),
        (
            json!({"hostNetwork": true, "hostPID": true, "containers": []}),
            "host namespaces (hostNetwork=true, hostPID=true)",
        ),
        (
            context("privileged", json!(true)),
            "privileged (container \"a\" must not set securityContext.privileged=true)",
        ),
        (
            context("capabilities", json!({"add": ["NET_ADMIN", "CHOWN"]})),
            "non-default capabilities (container \"a\" must not include \"NET_ADMIN\" in securityContext.capabilities.add)",
        ),
        (
            json!({"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}),
            "hostPath volumes (volume \"v\")",
        ),
        (
            one(json!({"ports": [{"hostPort": 80}, {"hostPort": 443}]})),
            "hostPorts (container \"a\" uses hostPorts 443, 80)",
        ),
        (
            one(json!({"livenessProbe": {"httpGet": {"host": "10.0.0.1"}}})),
            "probe or lifecycle host (container \"a\" uses probe or lifecycle host \"10.0.0.1\")",
        ),
        (
            context("procMount", json!("Unmasked")),
            "procMount (container \"a\" must not set securityContext.procMount to \"Unmasked\")",
        ),
        (
            context("seLinuxOptions", json!({"type": "spc_t", "user": "u"})),
            "seLinuxOptions (container \"a\" set forbidden securityContext.seLinuxOptions: type \"spc_t\"; user may not be set)",
        ),
        (
            json!({"securityContext": {"seccompProfile": {"type": "Unconfined"}}}),
            "seccompProfile (pod must not set securityContext.seccompProfile.type to \"Unconfined\")",
        ),
        (
            json!({"securityContext": {"sysctls": [{"name": "net.ipv4.tcp_rmem"}, {"name": "kernel.msgmax"}]}}),
            "forbidden sysctls (kernel.msgmax)",
        ),
        (
            json!({"securityContext": {"windowsOptions": {"hostProcess": true}}}),
            "hostProcess (pod must not set securityContext.windowsOptions.hostProcess=true)",
        ),
        (
            context("appArmorProfile", json!({"type": "Unconfined"})),
            "forbidden AppArmor profile (container \"a\" must not set AppArmor profile type to \"Unconfined\")",
        ),
    ];
    for (spec, want) in cases {
        assert_eq!(judge("baseline", spec.clone()), want, "{spec}");
        assert_eq!(judge("privileged", spec), "");
    }
}

#[test]
fn restricted_controls() {
    assert_eq!(judge("restricted", one(secured())), "");
    assert_eq!(
        judge("restricted", one(json!({}))),
        "allowPrivilegeEscalation != false (container \"a\" must set securityContext.allowPrivilegeEscalation=false), unrestricted capabilities (container \"a\" must set securityContext.capabilities.drop=[\"ALL\"]), runAsNonRoot != true (pod or container \"a\" must set securityContext.runAsNonRoot=true), seccompProfile (pod or container \"a\" must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\")"
    );
    let with = |pointer: &str, value: Value| {
        let mut spec = one(secured());
        spec.put(pointer.split('/').collect::<Vec<_>>().as_slice(), value);
        judge("restricted", spec)
    };
    assert_eq!(with("hostNetwork", json!(true)), "host namespaces (hostNetwork=true)");
    assert_eq!(
        with(
            "volumes",
            json!([{"name": "v", "hostPath": {"path": "/"}}, {"name": "w", "nfs": {}}, {"name": "ok", "emptyDir": {}}])
        ),
        "restricted volume types (volumes \"v\", \"w\" use restricted volume types \"hostPath\", \"nfs\")"
    );
    assert_eq!(
        with("securityContext", json!({"runAsUser": 0})),
        "runAsUser=0 (pod must not set runAsUser=0)"
    );
    assert_eq!(
        with("securityContext", json!({"runAsNonRoot": false})),
        "",
        "no container relies on the Pod"
    );
    // A check of the restricted level replaces the baseline check of the same control.
    let mut spec = one(secured());
    spec["containers"][0]["securityContext"]["capabilities"]["add"] = json!(["SYS_ADMIN"]);
    assert_eq!(
        judge("restricted", spec),
        "unrestricted capabilities (container \"a\" must not include \"SYS_ADMIN\" in securityContext.capabilities.add)"
    );
}

#[test]
fn warns_and_audits_without_refusing() {
    let labels = json!({"pod-security.kubernetes.io/warn": "baseline", "pod-security.kubernetes.io/audit": "baseline", "pod-security.kubernetes.io/warn-version": "v1.30"});
    let cluster = Cluster::default().with(&GroupResource::NAMESPACES, labelled(labels));
    let bad = json!({"hostPID": true, "containers": []});
    let outcome =
        Try::create(&cluster, &GroupResource::PODS).admit(&plain(), &mut pod(bad.clone())).unwrap();
    assert_eq!(
        outcome.warnings,
        ["would violate PodSecurity \"baseline:v1.30\": host namespaces (hostPID=true)"]
    );
    assert_eq!(
        outcome.audit["pod-security.kubernetes.io/audit-violations"],
        "would violate PodSecurity \"baseline:latest\": host namespaces (hostPID=true)"
    );
    assert_eq!(outcome.audit["pod-security.kubernetes.io/enforce-policy"], "privileged:latest");

    let mut deployment =
        json!({"metadata": {"name": "d", "namespace": "ns"}, "spec": {"template": {"spec": bad}}});
    let deployments = GroupResource::new("apps", "deployments");
    let outcome = Try::create(&cluster, &deployments).admit(&plain(), &mut deployment).unwrap();
    assert_eq!(outcome.warnings.len(), 1);
}

#[test]
fn validates_labels_of_namespaces() {
    let cluster =
        Cluster::default().with(&GroupResource::PODS, pod(json!({"hostPID": true}))).with(
            &GroupResource::PODS,
            json!({"metadata": {"name": "q", "namespace": "ns"}, "spec": {"hostIPC": true}}),
        );
    let create = |labels: Value| {
        Try::create(&cluster, &GroupResource::NAMESPACES).refusal(&plain(), labelled(labels))
    };
    assert_eq!(
        create(json!({"pod-security.kubernetes.io/enforce": "strict"})),
        "Namespace \"ns\" is invalid: metadata.labels[pod-security.kubernetes.io/enforce]: Invalid value: \"strict\": must be one of privileged, baseline, restricted"
    );
    assert!(
        create(json!({"pod-security.kubernetes.io/warn-version": "1.2"}))
            .contains("must be \"latest\" or \"v1.x\"")
    );
    let update = Try::update(&cluster, &GroupResource::NAMESPACES, labelled(json!({})));
    let outcome = update
        .admit(&plain(), &mut labelled(json!({"pod-security.kubernetes.io/enforce": "baseline"})))
        .unwrap();
    assert_eq!(
        outcome.warnings,
        [
            "existing pods in namespace \"ns\" violate the new PodSecurity enforce level \"baseline:latest\"",
            "p (and 1 other pod): host namespaces"
        ]
    );
    // An invalid level is enforced as the strictest one.
    assert!(judge("strict", one(json!({}))).contains("violates PodSecurity \"restricted:latest\""));
}

#[test]
fn reads_defaults_and_exemptions_from_configuration() {
    let head = json!({"apiVersion": "pod-security.admission.config.k8s.io/v1", "kind": "PodSecurityConfiguration"});
    let with = |more: Value| {
        let mut whole = head.clone();
        whole.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        whole
    };
    let configuration = with(json!({
        "defaults": {"enforce": "baseline", "audit": "", "enforce-version": "v1.30"},
        "exemptions": {"usernames": ["root"], "namespaces": ["kube-system"], "runtimeClasses": ["vm"]}
    }));
    let plugin = PodSecurity::configured(&configuration).unwrap();
    let cluster = Cluster::default();
    let create = || Try::create(&cluster, &GroupResource::PODS);
    let bad = |spec: Value| {
        let mut spec = spec;
        spec["hostPID"] = true.into();
        pod(spec)
    };
    assert!(
        create()
            .refusal(&plugin, bad(json!({})))
            .contains("violates PodSecurity \"baseline:v1.30\"")
    );
    let exempt = |by: &str, outcome: Outcome| {
        assert_eq!(outcome.audit["pod-security.kubernetes.io/exempt"], by)
    };
    exempt(
        "runtimeClass",
        create().admit(&plugin, &mut bad(json!({"runtimeClassName": "vm"}))).unwrap(),
    );
    let root = create().by(api_meta::UserInfo::new("root", &[]));
    exempt("user", root.admit(&plugin, &mut bad(json!({}))).unwrap());
    let mut system = bad(json!({}));
    system["metadata"]["namespace"] = "kube-system".into();
    exempt("namespace", create().admit(&plugin, &mut system).unwrap());
    let told = |more: Value| PodSecurity::configured(&with(more)).err().unwrap().to_string();
    assert_eq!(
        told(json!({"defaults": {"warn": "strict", "audit-version": "1.2"}})),
        "[defaults.audit-version: Invalid value: \"1.2\": must be \"latest\" or \"v1.x\", defaults.warn: Invalid value: \"strict\": must be one of privileged, baseline, restricted]"
    );
    let wrong = json!({"exemptions": {"usernames": ["", "a", "a"], "namespaces": ["A"]}});
    let told = told(wrong);
    for part in ["usernames[0]: Invalid", "usernames[2]: Duplicate", "namespaces[0]: Invalid"] {
        assert!(told.contains(part), "{told}");
    }
    assert!(PodSecurity::configured(&json!({"defaults": {}})).is_err(), "of no kind");
    assert!(PodSecurity::configured(&with(json!({"default": {}}))).is_err(), "unknown");
}
