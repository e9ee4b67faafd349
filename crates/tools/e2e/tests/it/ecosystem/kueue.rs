//! Kueue admits the jobs for which its queue has quota.

use e2e::{Cluster, Programs, Session, share_machine};

use super::metrics::rolled_out;

const QUEUES: &str = "
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: default}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: all}
spec:
  namespaceSelector: {}
  resourceGroups:
  - coveredResources: [cpu]
    flavors: [{name: default, resources: [{name: cpu, nominalQuota: 100m}]}]
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: queue}
spec: {clusterQueue: all}
";

const JOB: &str = "
apiVersion: batch/v1
kind: Job
metadata: {name: NAME, labels: {kueue.x-k8s.io/queue-name: queue}}
spec:
  template:
    spec:
      restartPolicy: Never
      terminationGracePeriodSeconds: 0
      containers:
      - {name: c, image: 'box:1', command: [sh, -c, COMMAND], resources: {requests: {cpu: 60m}}}
";

fn job(s: &Session<'_>, name: &str, command: &str) {
    s.apply(&JOB.replace("NAME", name).replace("COMMAND", command));
}

#[test]
fn kueue_admits_jobs_within_their_quota() {
    let Some(programs) = Programs::of("kueue") else { return };
    let _turn = share_machine();
    let cluster = Cluster::new("kueue");
    cluster.up().ok();
    cluster.build_images();
    let s = Session::in_default_namespace(&cluster);
    let manifest = programs.manifest(&cluster, "manifests/kueue/manifests.yaml");
    cluster.apply(&manifest, &["--server-side"]);
    rolled_out(&s, "kueue-system", "kueue-controller-manager");
    e2e::until("the queues", || s.kubectl_with(&["apply", "-f", "-"], QUEUES).ok_if(|_| true));

    job(&s, "first", "sleep 100000");
    s.until("get job first -o jsonpath={.spec.suspend}/{.status.ready}", |state| {
        state == "false/1"
    });
    job(&s, "second", "'true'");
    s.until("get workloads -o jsonpath={.items[*].status.conditions[?(@.type=='QuotaReserved')].status}", |all| {
        all.contains("True") && all.contains("False")
    });
    assert_eq!(s.field("job second", "{.spec.suspend}"), "true");
    let pending =
        "get --raw /apis/visibility.kueue.x-k8s.io/v1beta2/clusterqueues/all/pendingworkloads";
    s.until(pending, |text| text.contains("job-second-"));
    s.kubectl("delete job first").ok();
    s.kubectl("wait job/second --for=condition=Complete --timeout=60s").ok();
    cluster.down(&[]).ok();
}
