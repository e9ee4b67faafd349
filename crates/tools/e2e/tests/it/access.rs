//! Authorisation, and cordoned and drained nodes.

use e2e::{shared, shared_alone};

#[test]
fn administrator_has_all_rights() {
    let s = shared("access-admin");
    assert_eq!(s.kubectl("auth can-i delete nodes").ok().trim(), "yes");
    s.kubectl("auth can-i --list").ok();
    let who = s.kubectl("auth whoami").ok();
    assert!(who.contains("kubernetes-admin") && who.contains("system:authenticated"), "{who}");
}

#[test]
fn service_account_has_the_rights_of_its_roles() {
    let s = shared("access-roles");
    s.kubectl("create serviceaccount reader").ok();
    let user = "system:serviceaccount:access-roles:reader";
    let refused = s.kubectl(&format!("auth can-i list pods --as={user}"));
    assert_eq!((refused.code, refused.stdout.trim()), (Some(1), "no"), "{refused}");
    s.kubectl("create role reader --verb=get,list --resource=pods").ok();
    s.kubectl("create rolebinding reader --role=reader --serviceaccount=access-roles:reader").ok();
    s.until(&format!("auth can-i list pods --as={user}"), |answer| answer.trim() == "yes");
    s.kubectl(&format!("get pods --as={user}")).ok();
    let forbidden = s.kubectl(&format!("get secrets --as={user}")).refused();
    let wanted = format!(
        "User \"{user}\" cannot list resource \"secrets\" in API group \"\" in the namespace \"access-roles\""
    );
    assert!(forbidden.contains(&wanted), "{forbidden}");
}

#[test]
fn requested_token_authenticates_its_service_account() {
    let s = shared("access-token");
    s.kubectl("create serviceaccount reader").ok();
    let token = s.kubectl("create token reader").ok();
    let answer = s.with_token(token.trim(), "auth whoami");
    assert!(answer.ok().contains("system:serviceaccount:access-token:reader"));
    let refused = s.with_token("nonsense", "get pods").refused();
    assert!(refused.contains("Unauthorized") || refused.contains("must be logged in"), "{refused}");
}

#[test]
fn rejects_role_with_more_rights_than_its_creator_has() {
    let s = shared("access-escalate");
    s.kubectl("create serviceaccount maker").ok();
    let user = "system:serviceaccount:access-escalate:maker";
    s.kubectl("create role maker --verb=create,get --resource=roles.rbac.authorization.k8s.io")
        .ok();
    s.kubectl("create rolebinding maker --role=maker --serviceaccount=access-escalate:maker").ok();
    s.until(&format!("auth can-i create roles --as={user}"), |answer| answer.trim() == "yes");
    let refused =
        s.kubectl(&format!("create role more --verb=get --resource=secrets --as={user}")).refused();
    assert!(
        refused.contains("attempting to grant RBAC permissions not currently held"),
        "{refused}"
    );
}

#[test]
fn a_cordoned_node_takes_no_pods_and_a_drained_one_has_none() {
    let s = shared_alone("access-cordon");
    let node = s.field("nodes", "{.items[0].metadata.name}");
    s.deploy("web", "app:1", 2);
    s.kubectl(&format!("cordon {node}")).ok();
    let row = s.kubectl("get nodes").ok();
    assert!(row.contains("Ready,SchedulingDisabled"), "{row}");
    s.kubectl("scale deployment web --replicas=3").ok();
    s.until("get events --field-selector reason=FailedScheduling", |text| {
        text.contains("1 node(s) were unschedulable")
    });
    let drained = s.kubectl(&format!("drain {node} --pod-selector=app=web --timeout=60s")).ok();
    assert!(drained.contains("evicted"), "{drained}");
    s.until("get pods -l app=web --field-selector=status.phase=Running -o name", str::is_empty);
    s.kubectl(&format!("uncordon {node}")).ok();
    s.available("web");
}
