//! cert-manager issues and renews certificates, and its webhook refuses invalid ones.

use e2e::{Cluster, Programs, Session, share_machine};

const ISSUERS: &str = "
apiVersion: cert-manager.io/v1
kind: Issuer
metadata: {name: self-signed}
spec: {selfSigned: {}}
---
apiVersion: cert-manager.io/v1
kind: Certificate
metadata: {name: authority}
spec:
  isCA: true
  commonName: authority
  secretName: authority
  privateKey: {algorithm: ECDSA, size: 256}
  issuerRef: {name: self-signed, kind: Issuer}
---
apiVersion: cert-manager.io/v1
kind: Issuer
metadata: {name: authority}
spec: {ca: {secretName: authority}}
";

/// A certificate that is renewed seconds after it was issued.
const CERTIFICATE: &str = "
apiVersion: cert-manager.io/v1
kind: Certificate
metadata: {name: web}
spec:
  dnsNames: [web.default.svc]
  secretName: web
  duration: 1h
  renewBefore: 59m50s
  privateKey: {algorithm: ECDSA, size: 256}
  issuerRef: {name: authority, kind: Issuer}
";

#[test]
fn cert_manager_issues_renews_and_refuses_certificates() {
    let Some(programs) = Programs::of("cert_manager") else { return };
    let _turn = share_machine();
    let cluster = Cluster::new("certmanager");
    cluster.up().ok();
    let s = Session::in_default_namespace(&cluster);
    let chart = programs.path("charts/cert-manager").display().to_string();
    let flags = "--namespace cert-manager --create-namespace --set crds.enabled=true";
    programs
        .import_images(&cluster, &s.helm(&format!("template cert-manager {chart} {flags}")).ok());
    // The installation ends with a hook: a Job that creates a Certificate through the webhook.
    let ran = s.helm(&format!("install cert-manager {chart} {flags} --wait --timeout 3m"));
    assert!(ran.code == Some(0), "{ran}\n{}", s.kubectl("describe pods --all-namespaces"));

    s.apply(ISSUERS);
    s.kubectl("wait certificate authority --for=condition=Ready --timeout=60s").ok();
    s.apply(CERTIFICATE);
    s.kubectl("wait certificate web --for=condition=Ready --timeout=60s").ok();
    let first = s.field("secret web", "{.data.tls\\.crt}");
    s.until("get certificate web -o jsonpath={.status.revision}", |revision| {
        revision.parse::<u32>().is_ok_and(|revision| revision >= 2)
    });
    assert_ne!(s.field("secret web", "{.data.tls\\.crt}"), first);

    let short = CERTIFICATE.replace("duration: 1h", "duration: 10m");
    let refused = s.kubectl_with(&["apply", "-f", "-"], &short).refused();
    assert!(
        refused.contains("admission webhook \"webhook.cert-manager.io\" denied the request"),
        "{refused}"
    );
    s.helm("uninstall cert-manager --namespace cert-manager --wait").ok();
    cluster.down(&[]).ok();
}
