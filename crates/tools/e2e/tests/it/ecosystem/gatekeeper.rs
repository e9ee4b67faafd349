//! Gatekeeper refuses Pods by its webhook and by a ValidatingAdmissionPolicy that it generates.

use e2e::{Cluster, Programs, Session, share_machine, until};

use super::metrics::rolled_out;

/// A template in Rego, which the webhook evaluates, and one in CEL, which the API server evaluates.
const TEMPLATES: &str = r#"
apiVersion: templates.gatekeeper.sh/v1
kind: ConstraintTemplate
metadata: {name: requiredowner}
spec:
  crd: {spec: {names: {kind: RequiredOwner}}}
  targets:
  - target: admission.k8s.gatekeeper.sh
    rego: |
      package requiredowner
      violation[{"msg": msg}] {
        not input.review.object.metadata.labels.owner
        msg := "the Pod has no owner"
      }
---
apiVersion: templates.gatekeeper.sh/v1
kind: ConstraintTemplate
metadata: {name: nohostnetwork}
spec:
  crd: {spec: {names: {kind: NoHostNetwork}}}
  targets:
  - target: admission.k8s.gatekeeper.sh
    code:
    - engine: K8sNativeValidation
      source:
        generateVAP: true
        validations:
        - expression: "!has(object.spec.hostNetwork) || !object.spec.hostNetwork"
          message: the Pod uses the host's network
"#;

const CONSTRAINTS: &str = "
apiVersion: constraints.gatekeeper.sh/v1beta1
kind: RequiredOwner
metadata: {name: pods}
spec:
  match: {namespaces: [default], kinds: [{apiGroups: [''], kinds: [Pod]}]}
---
apiVersion: constraints.gatekeeper.sh/v1beta1
kind: NoHostNetwork
metadata: {name: pods}
spec:
  enforcementAction: scoped
  scopedEnforcementActions: [{action: deny, enforcementPoints: [{name: vap.k8s.io}]}]
  match: {kinds: [{apiGroups: [''], kinds: [Pod]}]}
";

fn pod(s: &Session<'_>, name: &str, labels: &str, specification: &str) -> e2e::Output {
    let pod = format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, labels: {labels}}},
          spec: {{{specification} containers: [{{name: c, image: 'box:1'}}]}}}}"
    );
    s.kubectl_with(&["create", "-f", "-"], &pod)
}

#[test]
fn gatekeeper_refuses_pods_by_webhook_and_by_policy() {
    let Some(programs) = Programs::of("gatekeeper") else { return };
    let _turn = share_machine();
    let cluster = Cluster::new("gatekeeper");
    cluster.up().ok();
    cluster.build_images();
    let s = Session::in_default_namespace(&cluster);
    let manifest = programs.manifest(&cluster, "manifests/gatekeeper/gatekeeper.yaml");
    cluster.apply(&manifest, &["--server-side"]);
    for deployment in ["gatekeeper-audit", "gatekeeper-controller-manager"] {
        rolled_out(&s, "gatekeeper-system", deployment);
    }
    until("the templates", || s.kubectl_with(&["apply", "-f", "-"], TEMPLATES).ok_if(|_| true));
    // Gatekeeper creates a CustomResourceDefinition for each template.
    until("the constraints", || s.kubectl_with(&["apply", "-f", "-"], CONSTRAINTS).ok_if(|_| true));
    let refused = |name: &str, labels: &str, specification: &str, cause: &str| {
        until(cause, || {
            let ran = pod(&s, name, labels, specification);
            if ran.code == Some(0) {
                s.kubectl(&format!("delete pod {name} --force")).ok();
            }
            if ran.stderr.contains(cause) { Ok(ran.stderr) } else { Err(ran.to_string()) }
        })
    };
    let message = refused("nobodys", "{}", "", "the Pod has no owner");
    assert!(
        message.contains("admission webhook \"validation.gatekeeper.sh\" denied the request"),
        "{message}"
    );
    let message =
        refused("host", "{owner: me}", "hostNetwork: true,", "the Pod uses the host's network");
    assert!(message.contains("ValidatingAdmissionPolicy 'gatekeeper-nohostnetwork'"), "{message}");
    pod(&s, "mine", "{owner: me}", "").ok();
    s.kubectl("wait pod/mine --for=condition=Ready --timeout=60s").ok();
    // The audit finds Pods that exist, and reports them in the constraint's status.
    s.until("get requiredowner pods -o jsonpath={.status.totalViolations}", |total| total == "0");
    cluster.down(&[]).ok();
}
