//! Attacks on authorisation: a user with limited rights tries actions that need other rights.

use e2e::{Output, Session, shared};

/// A service account of the session's namespace that has a ClusterRole with given rules and no other role.
struct Attacker<'s> {
    s: &'s Session<'s>,
    name: String,
    token: String,
}

impl<'s> Attacker<'s> {
    fn new(s: &'s Session<'s>, rules: &str) -> Self {
        let namespace = &s.namespace;
        let name = format!("{namespace}-attacker");
        s.kubectl("create serviceaccount attacker").ok();
        s.apply(&format!(
            r#"{{"apiVersion": "v1", "kind": "List", "items": [
                {{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {{"name": "{name}"}},
                  "rules": {rules}}},
                {{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {{"name": "{name}"}},
                  "roleRef": {{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "{name}"}},
                  "subjects": [{{"kind": "ServiceAccount", "name": "attacker", "namespace": "{namespace}"}}]}}]}}"#
        ));
        let token = s.kubectl("create token attacker").ok().trim().to_owned();
        Self { s, name, token }
    }

    fn user(&self) -> String {
        format!("system:serviceaccount:{}:attacker", self.s.namespace)
    }

    #[track_caller]
    fn kubectl(&self, line: &str) -> Output {
        self.s.with_token(&self.token, line)
    }

    /// Waits until the API server grants the right.
    fn may(&self, what: &str) {
        let user = self.user();
        self.s.until(&format!("auth can-i {what} --as={user}"), |answer| answer.trim() == "yes");
    }

    /// Writes a manifest to a file and returns the path, because [`Attacker::kubectl`] splits its line at white space.
    fn file(&self, name: &str, manifest: &str) -> String {
        let path = self.s.cluster.directory.join(format!("{}-{name}", self.s.namespace));
        std::fs::write(&path, manifest).unwrap();
        path.display().to_string()
    }
}

#[test]
fn patch_permission_creates_nothing_by_apply() {
    let s = shared("attack-apply");
    let attacker = Attacker::new(
        &s,
        r#"[{"apiGroups": [""], "resources": ["configmaps", "limitranges"], "verbs": ["get", "patch", "update"]}]"#,
    );
    attacker.may("patch configmaps");
    let manifest = r#"{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "planted"}, "data": {"a": "b"}}"#;
    let file = attacker.file("planted.json", manifest);
    let apply = format!("apply --server-side --validate=false -f {file}");
    let refused = attacker.kubectl(&apply).refused();
    let wanted = format!(
        "User \"{}\" cannot create resource \"configmaps\" in API group \"\" in the namespace \"attack-apply\"",
        attacker.user()
    );
    assert!(refused.contains(&wanted), "{refused}");
    s.kubectl("get configmap planted").refused();
    // A PUT may create a LimitRange.
    let limits = r#"{"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "planted"}, "spec": {"limits": []}}"#;
    let file = attacker.file("limits.json", limits);
    let raw = "/api/v1/namespaces/attack-apply/limitranges/planted";
    // kubectl sends a PUT by replace --raw.
    let refused = attacker.kubectl(&format!("replace --raw {raw} -f {file}")).refused();
    assert!(refused.contains("cannot create resource \"limitranges\""), "{refused}");
    s.kubectl("get limitrange planted").refused();

    // The attacker may change an existing object, and create one once it has the verb `create`.
    s.kubectl("create configmap planted --from-literal=c=d").ok();
    attacker.kubectl(&apply).ok();
    s.kubectl("delete configmap planted").ok();
    s.kubectl("create role create --verb=create --resource=configmaps").ok();
    s.kubectl("create rolebinding create --role=create --serviceaccount=attack-apply:attacker")
        .ok();
    attacker.may("create configmaps");
    attacker.kubectl(&apply).ok();
}

#[test]
fn get_permission_on_exec_runs_no_command() {
    let s = shared("attack-exec");
    s.toolbox();
    let attacker = Attacker::new(
        &s,
        r#"[{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]},
            {"apiGroups": [""], "resources": ["pods/exec", "pods/attach", "pods/portforward"], "verbs": ["get"]}]"#,
    );
    attacker.may("get pods --subresource=exec");
    for (line, subresource) in [
        ("exec box -- id", "exec"),
        ("attach box", "attach"),
        ("port-forward box 18081:8080", "portforward"),
    ] {
        let refused = attacker.kubectl(line).refused();
        let wanted = format!("cannot create resource \"pods/{subresource}\"");
        assert!(refused.contains(&wanted), "{line}: {refused}");
    }
    s.kubectl("create role exec --verb=create --resource=pods/exec").ok();
    s.kubectl("create rolebinding exec --role=exec --serviceaccount=attack-exec:attacker").ok();
    attacker.may("create pods --subresource=exec");
    assert_eq!(attacker.kubectl("exec box -- echo hello").ok(), "hello\n");
}

#[test]
fn rejects_aggregation_of_all_roles_by_a_role_editor() {
    let s = shared("attack-aggregate");
    let attacker = Attacker::new(
        &s,
        r#"[{"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["clusterroles"],
             "verbs": ["get", "create", "update", "patch"]}]"#,
    );
    attacker.may("update clusterroles");
    let own = &attacker.name;
    // The selector matches every role.
    let everything = r#"{"aggregationRule":{"clusterRoleSelectors":[{"matchExpressions":[{"key":"x","operator":"DoesNotExist"}]}]}}"#;
    let refused = attacker
        .kubectl(&format!("patch clusterrole {own} --type=merge -p {everything}"))
        .refused();
    let wanted = "must have cluster-admin privileges to use the aggregationRule";
    assert!(refused.contains(wanted), "{refused}");
    let manifest = format!(
        r#"{{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {{"name": "{own}"}},
            "aggregationRule": {{"clusterRoleSelectors": [{{"matchLabels": {{}}}}]}}}}"#
    );
    let file = attacker.file("all.json", &manifest);
    let apply = format!("apply --server-side --force-conflicts --validate=false -f {file}");
    let refused = attacker.kubectl(&apply).refused();
    assert!(refused.contains(wanted), "{refused}");
    // The attacker cannot add cluster-admin to an aggregated role with a label either.
    let label = "rbac.authorization.k8s.io/aggregate-to-view=true";
    let refused = attacker.kubectl(&format!("label clusterrole cluster-admin {label}")).refused();
    assert!(
        refused.contains("attempting to grant RBAC permissions not currently held"),
        "{refused}"
    );
    assert_eq!(s.field(&format!("clusterrole {own}"), "{.aggregationRule}"), "");
    attacker.kubectl("get secrets -n kube-system").refused();
}
