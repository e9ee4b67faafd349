//! Allocation of ResourceClaims: each device is allocated to one claim, and to the next one after its release. The test
//! publishes the ResourceSlices. There is no driver that prepares devices, so the Pods are scheduled but do not run.

use e2e::shared;

const DEVICES: &str = r#"
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: claims-NAME}
spec:
  driver: claims.e2e.example.com
  nodeName: NODE
  pool: {name: NAME, generation: 1, resourceSliceCount: 1}
  devices:
  - name: small
    attributes: {memory: {int: 8}}
  - name: large
    attributes: {memory: {int: 80}}
"#;

const CLASS: &str = r#"
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: claims.e2e.example.com}
spec:
  selectors:
  - cel: {expression: "device.driver == 'claims.e2e.example.com'"}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: any}
spec:
  spec:
    devices:
      requests:
      - name: accelerator
        exactly: {deviceClassName: claims.e2e.example.com}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: large}
spec:
  devices:
    requests:
    - name: accelerator
      exactly:
        deviceClassName: claims.e2e.example.com
        selectors:
        - cel: {expression: "device.attributes['claims.e2e.example.com'].memory > 40"}
"#;

const POD_SPEC: &str = r#"
  terminationGracePeriodSeconds: 0
  resourceClaims:
  - {name: own, CLAIM}
  containers:
  - name: c
    image: box:1
    command: [sh, -c, "exec sleep 100000"]
    resources: {claims: [{name: own}]}
"#;

fn pod(name: &str, claim: &str) -> String {
    e2e::pod(name, &POD_SPEC.replace("CLAIM", claim))
}

#[test]
fn device_is_allocated_to_the_next_claim_after_release() {
    let s = shared("claims");
    let node = s.kubectl("get node -o jsonpath={.items[0].metadata.name}").ok();
    // The second slice belongs to a node that does not exist.
    for (name, node) in [("here", node.as_str()), ("elsewhere", "nowhere")] {
        s.apply(&DEVICES.replace("NAME", name).replace("NODE", node));
    }
    s.apply(CLASS);
    let placed = |name: &str| {
        s.until(&format!("get pod {name} -o jsonpath={{.spec.nodeName}}"), |on| on == node);
    };
    let device = |claim: &str| {
        let results = ".status.allocation.devices.results[0]";
        s.kubectl(&format!(
            "get resourceclaim {claim} -o jsonpath={{{results}.pool}}/{{{results}.device}}"
        ))
        .ok()
    };
    let generated_claim = |pod: &str| {
        let path = "{.status.resourceClaimStatuses[0].resourceClaimName}";
        s.until(&format!("get pod {pod} -o jsonpath={path}"), |name| !name.is_empty())
    };
    s.apply(&pod("first", "resourceClaimName: large"));
    placed("first");
    assert_eq!(device("large"), "here/large");
    assert_eq!(s.field("resourceclaim large", "{.status.reservedFor[0].name}"), "first");
    s.apply(&pod("second", "resourceClaimTemplateName: any"));
    placed("second");
    let second = generated_claim("second");
    assert!(second.starts_with("second-own-"), "{second}");
    assert_eq!(device(&second), "here/small");
    // The third Pod stays pending, and its condition names the claims.
    s.apply(&pod("third", "resourceClaimTemplateName: any"));
    let command =
        "get pod third -o jsonpath={.status.conditions[?(@.type=='PodScheduled')].message}";
    s.until(command, |message| message.contains("cannot allocate all claims"));
    assert_eq!(s.kubectl("get pod third -o jsonpath={.spec.nodeName}").ok(), "");
    s.kubectl("delete pod first").ok();
    placed("third");
    assert_eq!(device(&generated_claim("third")), "here/large");
    let left = "get resourceclaim large -o jsonpath={.status.allocation}{.metadata.finalizers}";
    // The first Pod's claim is released, but not deleted.
    s.until(left, str::is_empty);
    s.kubectl("delete pod second third").ok();
    s.until("get resourceclaim -o name", |names| {
        names.trim() == "resourceclaim.resource.k8s.io/large"
    });
    s.kubectl("delete resourceslice claims-here claims-elsewhere").ok();
    s.kubectl("delete deviceclass claims.e2e.example.com").ok();
}

const EXTENDED: &str = r#"
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: extended}
spec:
  driver: extended.e2e.example.com
  nodeName: NODE
  pool: {name: extended, generation: 1, resourceSliceCount: 1}
  devices: [{name: only}]
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: extended.e2e.example.com}
spec:
  extendedResourceName: e2e.example.com/device
  selectors:
  - cel: {expression: "device.driver == 'extended.e2e.example.com'"}
"#;

const REQUESTING: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: box:1
    command: [sh, -c, "exec sleep 100000"]
    resources: {limits: {e2e.example.com/device: 1}}
"#;

#[test]
fn extended_resource_gets_device_of_its_class() {
    let s = shared("extended");
    let node = s.kubectl("get node -o jsonpath={.items[0].metadata.name}").ok();
    s.apply(&EXTENDED.replace("NODE", &node));
    s.apply(&REQUESTING.replace("NAME", "first"));
    s.until("get pod first -o jsonpath={.spec.nodeName}", |on| on == node);
    let status = "{.status.extendedResourceClaimStatus.resourceClaimName}";
    let claim = s.field("pod first", status);
    assert!(claim.starts_with("first-extended-resources-"), "{claim}");
    let device = "{.status.allocation.devices.results[0].device}";
    assert_eq!(s.field(&format!("resourceclaim {claim}"), device), "only");
    // The next Pod gets the device after the first one is gone, and the claim goes with its Pod.
    s.apply(&REQUESTING.replace("NAME", "second"));
    let message =
        "get pod second -o jsonpath={.status.conditions[?(@.type=='PodScheduled')].message}";
    s.until(message, |message| message.contains("cannot allocate all claims"));
    s.kubectl("delete pod first").ok();
    s.until("get pod second -o jsonpath={.spec.nodeName}", |on| on == node);
    s.until("get resourceclaim -o name", |names| !names.contains("first-"));
    s.kubectl("delete pod second").ok();
    s.until("get resourceclaim -o name", |names| !names.contains("extended-resources"));
    s.kubectl("delete resourceslice extended").ok();
    s.kubectl("delete deviceclass extended.e2e.example.com").ok();
}
