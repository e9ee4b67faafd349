use base64::{Engine, engine::general_purpose::STANDARD};
use pki::{Key, KeyAlgorithm, SigningRequest, Subject, Usage};
use serde_json::json;

use super::{request::*, *};

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
fn considers_only_valid_kubelet_requests() {
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

/// A request that lenient parsers read differently, stored before the API server validated requests.
fn stored(pem: &str) -> Csr {
    let mut csr = csr(KUBELET_CLIENT, node(), &[], CLIENT);
    csr.spec.request = STANDARD.encode(pem);
    csr
}

#[test]
fn rejects_node_request_for_other_identity() {
    let manager = "system:kube-controller-manager";
    let two_names = |names: [&str; 2]| {
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::OrganizationName, "system:nodes");
        let again = rcgen::DnType::CustomDnType(vec![2, 5, 4, 3]);
        for (kind, name) in [rcgen::DnType::CommonName, again].into_iter().zip(names) {
            params.distinguished_name.push(kind, name);
        }
        params.serialize_request(&rcgen::KeyPair::generate().unwrap()).unwrap().pem().unwrap()
    };
    let key = Key::generate(KeyAlgorithm::EcdsaP256).unwrap();
    let one = |subject: Subject| SigningRequest::create(&subject, &[], &key).unwrap().to_pem();
    let (own, other) = (one(node()), one(Subject::new(manager).in_group("system:nodes")));
    assert_eq!(approve::plan(&stored(&own)).len(), 2);
    for (pem, wanted) in [
        (two_names(["system:node:a", manager]), "its subject has 2 common names"),
        (two_names([manager, "system:node:a"]), "its subject has 2 common names"),
        (format!("{own}{other}"), "something after the CERTIFICATE REQUEST block"),
        (format!("{other}{own}"), "something after the CERTIFICATE REQUEST block"),
    ] {
        let csr = stored(&pem);
        assert!(approve::plan(&csr).is_empty(), "{wanted}");
        let refusal = sign::plan(&csr).unwrap_err().to_string();
        assert!(refusal.contains(wanted), "{refusal}");
    }
}

#[test]
fn reports_reason_per_signer() {
    let serving: &[&str] = &["server auth", "digital signature", "key encipherment"];
    let name = |text: &str| vec![pki::AltName::dns(text)];
    let uri = pki::AltName::Uri("spiffe://a/b".into());
    let other = Subject::new("jane").in_group("system:nodes");
    let masters = node().in_group("system:masters");
    for (signer, subject, names, usages, wanted) in [
        (
            KUBELET_CLIENT,
            masters.clone(),
            vec![],
            CLIENT,
            "subject organization is not system:nodes",
        ),
        (
            KUBELET_CLIENT,
            other.clone(),
            vec![],
            CLIENT,
            "subject common name does not begin with system:node:",
        ),
        (KUBELET_CLIENT, node(), name("a"), CLIENT, "DNS subjectAltNames are not allowed"),
        (KUBELET_CLIENT, node(), vec![uri.clone()], CLIENT, "URI subjectAltNames are not allowed"),
        (
            KUBELET_CLIENT,
            node(),
            vec![],
            serving,
            "usages did not match [client auth digital signature key encipherment]",
        ),
        (KUBELET_SERVING, masters, name("a"), serving, "subject organization is not system:nodes"),
        (
            KUBELET_SERVING,
            other,
            name("a"),
            serving,
            "subject common name does not begin with system:node:",
        ),
        (KUBELET_SERVING, node(), vec![], serving, "DNS or IP subjectAltName is required"),
        (
            KUBELET_SERVING,
            node(),
            [name("a"), vec![uri]].concat(),
            serving,
            "URI subjectAltNames are not allowed",
        ),
        (
            KUBELET_SERVING,
            node(),
            name("a"),
            CLIENT,
            "usages did not match [digital signature key encipherment server auth]",
        ),
        (API_CLIENT, node(), vec![], serving, "invalid usage for client certificate: server auth"),
        (
            API_CLIENT,
            node(),
            vec![],
            &["digital signature"],
            "missing required usage for client certificate: client auth",
        ),
    ] {
        let refusal = sign::plan(&csr(signer, subject, &names, usages)).unwrap_err();
        assert_eq!(refusal.to_string(), wanted);
    }
}

#[test]
fn sets_usage_per_signer() {
    let usage =
        |csr: &Csr| sign::plan(csr).map(|(_, usage)| usage).map_err(|error| error.to_string());
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
fn deletes_old_requests() {
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
