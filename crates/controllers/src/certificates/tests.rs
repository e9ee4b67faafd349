use pki::{Key, KeyAlgorithm, Subject, Usage};

use super::*;

fn csr(signer: &str, subject: Subject, names: &[pki::AltName], usages: &[&str]) -> Csr {
    let key = Key::generate(KeyAlgorithm::EcdsaP256).unwrap();
    let request = SigningRequest::create(&subject, names, &key).unwrap();
    Csr {
        spec: Spec {
            request: STANDARD.encode(request.to_pem()),
            signer_name: signer.into(),
            usages: usages.iter().map(|u| (*u).to_owned()).collect(),
            username: "system:node:a".into(),
            ..Spec::default()
        },
        ..Csr::default()
    }
}

fn node() -> Subject {
    Subject::new("system:node:a").in_group("system:nodes")
}

const CLIENT: &[&str] = &["client auth", "digital signature"];

#[test]
fn only_proper_kubelet_requests_are_considered() {
    let good = csr(KUBELET_CLIENT, node(), &[], CLIENT);
    let asked: Vec<_> = approve::plan(&good).iter().map(|p| p.0).collect();
    assert_eq!(asked, ["selfnodeclient", "nodeclient"]);
    let other =
        csr(KUBELET_CLIENT, Subject::new("system:node:b").in_group("system:nodes"), &[], CLIENT);
    assert_eq!(approve::plan(&other).len(), 1);
    for bad in [
        csr(KUBELET_CLIENT, Subject::new("system:node:a").in_group("system:masters"), &[], CLIENT),
        csr(KUBELET_CLIENT, Subject::new("admin").in_group("system:nodes"), &[], CLIENT),
        csr(KUBELET_CLIENT, node(), &[pki::AltName::dns("x")], CLIENT),
        csr(KUBELET_CLIENT, node(), &[], &["server auth", "digital signature"]),
    ] {
        assert!(approve::plan(&bad).is_empty());
        assert!(sign::plan(&bad).is_err());
    }
}

#[test]
fn each_signer_gives_its_own_usage() {
    let usage = |csr: &Csr| sign::plan(csr).map(|(_, usage)| usage);
    assert_eq!(usage(&csr(KUBELET_CLIENT, node(), &[], CLIENT)), Ok(Usage::Client));
    let serving = ["server auth", "digital signature", "key encipherment"];
    assert_eq!(
        usage(&csr(KUBELET_SERVING, node(), &[pki::AltName::dns("a")], &serving)),
        Ok(Usage::Server)
    );
    assert!(usage(&csr(KUBELET_SERVING, node(), &[], &serving)).is_err(), "a server needs a name");
    assert_eq!(usage(&csr(API_CLIENT, Subject::new("someone"), &[], CLIENT)), Ok(Usage::Client));
    assert!(usage(&csr(API_CLIENT, Subject::new("someone"), &[], &serving)).is_err());
}

#[test]
fn old_requests_go() {
    let now: api_meta::Timestamp = "2026-01-03T00:00:00Z".parse().unwrap();
    let with = |created: &str, condition: Option<(&str, &str)>, certificate: bool| -> Csr {
        let conditions = condition
            .map(|(kind, at)| json!([{"type": kind, "status": "True", "lastUpdateTime": at}]));
        let mut value = json!({"metadata": {"name": "x", "creationTimestamp": created},
            "status": {"conditions": conditions.unwrap_or(json!([]))}});
        if certificate {
            value["status"]["certificate"] = json!("");
        }
        serde_json::from_value(value).unwrap()
    };
    let (long_ago, hours_ago, just) =
        ("2026-01-01T00:00:00Z", "2026-01-02T20:00:00Z", "2026-01-02T23:59:00Z");
    assert!(clean::plan(&with(long_ago, None, false), now));
    assert!(!clean::plan(&with(hours_ago, None, false), now));
    assert!(clean::plan(&with(hours_ago, Some(("Denied", hours_ago)), false), now));
    assert!(clean::plan(&with(hours_ago, Some(("Approved", hours_ago)), true), now));
    assert!(!clean::plan(&with(hours_ago, Some(("Approved", hours_ago)), false), now));
    assert!(!clean::plan(&with(hours_ago, Some(("Approved", just)), true), now));
}
