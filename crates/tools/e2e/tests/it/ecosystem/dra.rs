//! The example driver of dynamic resource allocation gives devices to Pods. The devices reach containers by CDI, for
//! which Debian's containerd is too old.

use std::fs;

use e2e::{Cluster, Programs, Session, share_machine};

/// A template whose claims share a device by time slices.
const TEMPLATE: &str = "
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: slice}
spec:
  spec:
    devices:
      requests: [{name: gpu, exactly: {deviceClassName: gpu.example.com}}]
      config:
      - opaque:
          driver: gpu.example.com
          parameters:
            apiVersion: gpu.resource.example.com/v1alpha1
            kind: GpuConfig
            sharing: {strategy: TimeSlicing, timeSlicingConfig: {interval: Long}}
";

const POD_SPEC: &str = "
  terminationGracePeriodSeconds: 0
  resourceClaims: [{name: gpu, resourceClaimTemplateName: slice}]
  containers:
  - {name: a, image: 'box:1', command: [sh, -c, env; exec sleep 100000], resources: {claims: [{name: gpu}]}}
  - {name: b, image: 'box:1', command: [sh, -c, env; exec sleep 100000], resources: {claims: [{name: gpu}]}}
";

fn start(s: &Session<'_>, pod: &str) {
    s.apply(&e2e::pod(pod, POD_SPEC));
}

/// Returns the variables that the driver sets in a container of a running Pod, without the claim's UID.
fn variables(s: &Session<'_>, pod: &str, container: &str) -> Vec<String> {
    s.kubectl(&format!("wait pod {pod} --for=condition=Ready --timeout=60s")).ok();
    let log = s.kubectl(&format!("logs {pod} --container {container}")).ok();
    let own = log.lines().filter(|line| line.starts_with("GPU_DEVICE_") && !line.contains("CLAIM"));
    let mut own: Vec<String> = own.map(str::to_owned).collect();
    own.sort();
    own
}

#[test]
fn example_driver_gives_devices_to_pods() {
    let Some(programs) = Programs::of("dra") else { return };
    let _turn = share_machine();
    let cluster = Cluster::new("dra");
    cluster.up_with_programs(&programs.path("bin")).ok();
    cluster.build_images();
    let s = Session::in_default_namespace(&cluster);
    let chart = programs.path("charts/dra-example-driver").display().to_string();
    let flags = "--namespace dra --create-namespace --set kubeletPlugin.numDevices=2";
    programs.import_images(&cluster, &s.helm(&format!("template dra {chart} {flags}")).ok());
    let ran = s.helm(&format!("install dra {chart} {flags} --wait --timeout 2m"));
    assert!(ran.code == Some(0), "{ran}\n{}", s.kubectl("describe pods --all-namespaces"));
    s.until("get resourceslices -o jsonpath={.items[*].spec.devices[*].name}", |devices| {
        devices == "gpu-0 gpu-1"
    });

    s.apply(TEMPLATE);
    start(&s, "first");
    let first = variables(&s, "first", "a");
    assert_eq!(first, variables(&s, "first", "b"), "both containers have the claim's device");
    let expected = ["0=gpu-0", "0_SHARING_STRATEGY=TimeSlicing", "0_TIMESLICE_INTERVAL=Long"];
    let expected = expected.map(|variable| format!("GPU_DEVICE_{variable}"));
    assert_eq!(first, expected);
    start(&s, "second");
    assert_eq!(variables(&s, "second", "a")[0], "GPU_DEVICE_1=gpu-1");
    start(&s, "third");
    let path = "-o jsonpath={.status.conditions[?(@.type=='PodScheduled')].message}";
    s.until(&format!("get pod third {path}"), |message| {
        message.contains("cannot allocate all claims")
    });
    s.kubectl("delete pod first").ok();
    assert_eq!(variables(&s, "third", "a"), expected, "the device of the first Pod is free");

    s.kubectl("delete pod second third").ok();
    s.until("get resourceclaims -o name", str::is_empty);
    s.helm("uninstall dra --namespace dra --wait").ok();
    // The kubelet removes the slices of a driver that does not return for half a minute.
    s.until("get resourceslices -o name", str::is_empty);
    cluster.down(&[]).ok();
    // The driver leaves the description of its devices on the machine.
    let _ = fs::remove_file("/var/run/cdi/k8s.gpu.example.com-gpu_common.yaml");
}
