//! ResourceClaims for devices of a DRA driver that the test implements. The test also does the scheduler's work: it
//! allocates and reserves the claim and binds the Pod to the node.

use std::{fs, sync::Arc};

use e2e::{Session, shared_alone, until};
use serde_json::json;
use testkit::{
    Code, DraDriver, Fault,
    dra_driver::{HealthStatus, health},
};

const DRIVER: &str = "fpga.e2e.example.com";

const SLICE: &str = r#"
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: NAME}
spec:
  driver: fpga.e2e.example.com
  nodeName: NODE
  pool: {name: NODE, generation: 1, resourceSliceCount: 1}
  devices: [{name: a}]
"#;

const CLAIM: &str = r#"
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: NAME}
spec: {devices: {requests: [{name: r, exactly: {deviceClassName: fpga.e2e.example.com}}]}}
"#;

const POD_SPEC: &str = r#"
  nodeName: NODE
  terminationGracePeriodSeconds: 1
  resourceClaims: [{name: fpga, resourceClaimName: CLAIM}]
  containers:
  - name: c
    image: box:1
    command: [sh, -c, "exec sleep 100000"]
    resources: {claims: [{name: fpga}]}
"#;

fn pod(s: &Session<'_>, name: &str, node: &str, claim: &str) {
    let spec = POD_SPEC.replace("NODE", node).replace("CLAIM", claim);
    s.apply(&e2e::pod(name, &spec));
}

/// Allocates a claim and reserves it for Pods, as the scheduler does.
fn allocate(s: &Session<'_>, claim: &str, pods: &[&str]) {
    let user = |pod: &&str| {
        let uid = s.kubectl(&format!("get pod {pod} -o jsonpath={{.metadata.uid}}")).ok();
        json!({"resource": "pods", "name": pod, "uid": uid})
    };
    let users: Vec<_> = pods.iter().map(user).collect();
    let result = json!({"request": "r", "driver": DRIVER, "pool": "node", "device": claim});
    let allocation = json!({"devices": {"results": [result]}});
    let patch = json!({"status": {"allocation": allocation, "reservedFor": users}}).to_string();
    let patch =
        ["patch", "resourceclaim", claim, "--subresource=status", "--type=merge", "-p", &patch];
    s.kubectl_with(&patch, "").ok();
}

fn running(s: &Session<'_>, pod: &str) {
    s.until(&format!("get pod {pod} -o jsonpath={{.status.phase}}"), |phase| phase == "Running");
}

/// Waits for the Event with the reason why a Pod does not start.
fn wait_for_event(s: &Session<'_>, pod: &str, why: &str) {
    let events = format!(
        "get events --field-selector involvedObject.name={pod},reason=FailedPrepareDynamicResources -o jsonpath={{.items[*].message}}"
    );
    s.until(&events, |messages| messages.contains(why));
}

#[test]
#[expect(clippy::too_many_lines, reason = "one scenario")]
fn kubelet_prepares_claimed_devices_and_unprepares_them() {
    let s = shared_alone("claims");
    let kubelet = s.cluster.root().join("var/lib/kubelet");
    let place = kubelet.join("plugins").join(DRIVER);
    fs::create_dir_all(&place).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _inside = runtime.enter();
    let tasks = rt::Tasks::new(rt::Shutdown::new());
    let mut driver = DraDriver::new(DRIVER, &place);
    // The test does not cover CDI, which Debian's container runtime does not support.
    driver.kind = None;
    let driver = Arc::new(driver);
    driver.serve(&tasks).unwrap();
    let socket = kubelet.join("plugins_registry/fpga.sock");
    driver.announce(&socket, &tasks).unwrap();
    let registered = |count: usize| {
        until("the driver is registered", || {
            let all = driver.registered();
            (all.len() >= count && all.last() == Some(&Ok(())))
                .then_some(())
                .ok_or(format!("{all:?}"))
        });
    };
    registered(1);
    let node = s.kubectl("get node -o jsonpath={.items[0].metadata.name}").ok();

    // The kubelet does not call the driver for a Pod for which the claim is not reserved.
    s.apply(&CLAIM.replace("NAME", "shared"));
    pod(&s, "one", &node, "shared");
    pod(&s, "stranger", &node, "shared");
    wait_for_event(&s, "one", "is not allowed to use ResourceClaim shared");
    assert!(driver.calls().is_empty(), "{:?}", driver.calls());
    driver.set_answer(Some(Default::default()));
    allocate(&s, "shared", &["one"]);
    wait_for_event(&s, "one", "NodePrepareResources skipped 1 ResourceClaims");
    driver.set_answer(None);
    driver
        .set_fault("NodePrepareResources", Some(Fault::Refuse(Code::Internal, "no power".into())));
    wait_for_event(&s, "one", "NodePrepareResources: rpc error: code = Internal desc = no power");
    driver.set_fault("NodePrepareResources", None);
    running(&s, "one");
    let health_of_one = "get pod one -o jsonpath={.status.containerStatuses[0].allocatedResourcesStatus[0]['name','resources']}";
    s.until(health_of_one, |text| {
        text.starts_with("claim:fpga") && text.contains("fpga.e2e.example.com/node/shared")
    });
    driver.set_healths(vec![health("shared", HealthStatus::Unhealthy, "too hot")]);
    s.until(health_of_one, |text| text.contains("Unhealthy") && text.contains("too hot"));

    // A restarted kubelet remembers prepared claims, and deletes its node's ResourceSlices before the drivers register.
    s.apply(&SLICE.replace("NAME", "own").replace("NODE", &node));
    s.apply(&SLICE.replace("NAME", "others").replace("NODE", "elsewhere"));
    let calls = driver.calls().len();
    let status =
        "get pod one -o jsonpath={.status.containerStatuses[0]['containerID','restartCount']}";
    let before = s.kubectl(status).ok();
    s.cluster.kill("agent");
    registered(2);
    s.until("get resourceslices -o name", |all| all.contains("/others") && !all.contains("/own"));
    s.kubectl("delete resourceslice others").ok();
    assert_eq!(s.kubectl(status).ok(), before, "the Pod was restarted");
    assert_eq!(driver.calls().len(), calls, "{:?}", driver.calls());
    let phase = s.kubectl("get pod stranger -o jsonpath={.status.phase}").ok();
    assert_eq!(phase, "Pending", "the claim is not reserved for it");

    s.kubectl("delete pod stranger").ok();
    pod(&s, "two", &node, "shared");
    allocate(&s, "shared", &["one", "two"]);
    running(&s, "two");
    // The kubelet releases the reservation of a Pod that was force-deleted. The other Pod keeps the claim.
    s.kubectl("delete pod one --force --grace-period=0").ok();
    let state = kubelet.join("dra_manager_state");
    until("one Pod uses the claim", || {
        let state = fs::read_to_string(&state).map_err(|error| error.to_string())?;
        let uid = s.kubectl("get pod two -o jsonpath={.metadata.uid}").ok();
        let alone = state.contains(&uid) && state.matches("{}").count() == 1;
        alone.then_some(()).ok_or(state)
    });
    assert_eq!(driver.ready().len(), 1);
    let stuck = Fault::Refuse(Code::Internal, "stuck".into());
    driver.set_fault("NodeUnprepareResources", Some(stuck));
    s.kubectl("delete pod two --wait=false").ok();
    let events = "get events --field-selector involvedObject.name=two,reason=FailedUnprepareDynamicResources -o jsonpath={.items[*].message}";
    s.until(events, |text| text.contains("desc = stuck"));
    assert_eq!(driver.ready().len(), 1);
    s.kubectl("get pod two").ok();
    driver.set_fault("NodeUnprepareResources", None);
    s.kubectl("wait --for=delete pod/two --timeout=60s").ok();
    assert!(driver.ready().is_empty(), "{:?}", driver.calls());
    until("no Pod uses the claim", || {
        let state = fs::read_to_string(&state).map_err(|error| error.to_string())?;
        state.contains(r#"ClaimInfoStateList\":null"#).then_some(()).ok_or(state)
    });
    tasks.shutdown().stop();
    fs::remove_file(socket).unwrap();
}
