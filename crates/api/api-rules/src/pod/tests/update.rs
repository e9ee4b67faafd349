//! Tests of updates of Pods and their subresources.

use super::*;

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
    new.set("status.qosClass", Value::Null);
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

#[test]
fn narrows_node_affinity_of_gated_pods() {
    let gates = json!([{"name": "a.b/c"}]);
    let expression = |key: &str| json!({"key": key, "operator": "Exists"});
    let affinity = |terms: &[&[&str]]| {
        let term = |keys: &&[&str]| json!({"matchExpressions": keys.iter().map(|k| expression(k)).collect::<Vec<_>>()});
        json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
            {"nodeSelectorTerms": terms.iter().map(term).collect::<Vec<_>>()}}})
    };
    let preference = json!({"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution":
        [{"weight": 1, "preference": {"matchExpressions": [expression("a")]}}]}});
    let pods = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
        [{"topologyKey": "z", "labelSelector": {}}]}});
    for (before, after, allowed) in [
        (json!({}), affinity(&[&["a"]]), true),
        (json!({}), preference.clone(), true),
        (preference, json!({}), true),
        (affinity(&[&["a"]]), affinity(&[&["a", "b"]]), true),
        (affinity(&[&["a"]]), affinity(&[&["b"]]), false),
        (affinity(&[&["a"]]), affinity(&[&["a"], &["b"]]), false),
        (affinity(&[&["a"]]), json!({}), false),
        (json!({}), pods, false),
    ] {
        let of = |affinity: &Value| {
            let mut spec = json!({ "schedulingGates": gates });
            if affinity != &json!({}) {
                spec["affinity"] = affinity.clone();
            }
            made(spec)
        };
        let (old, new) = (of(&before), of(&after));
        let found = words(POD.update_errors(&new, &old, true));
        assert_eq!(found == "[]", allowed, "{before} to {after}: {found}");
    }
}
