//! Rules of CertificateSigningRequests. The API server sets the requesting user (`spec.username` and others).

use std::collections::{HashMap, HashSet};

use api_meta::{ErrorList, FieldError, Path, Tree as _, go_quote};
use base64::{Engine, engine::general_purpose::STANDARD};
use pki::SigningRequest;
use serde_json::{Value, json};

use crate::{
    fields::validate_signer_name,
    meta::NameRule,
    strategy::{Strategy, Subresource},
};

pub(crate) static REQUEST: Strategy = Strategy {
    signed: true,
    name: NameRule::PathSegment,
    status: Some(|| json!({})),
    own_update: |new, old, _| new.keep(old, "spec"),
    own_status: |new, old, now| {
        // Only the approval subresource may approve or deny.
        let decided = |c: &Value| matches!(c.text("type"), "Approved" | "Denied");
        let mut list: Vec<Value> =
            old.items("status.conditions").iter().filter(|c| decided(c)).cloned().collect();
        list.extend(new.items("status.conditions").iter().filter(|c| !decided(c)).cloned());
        if !list.is_empty() {
            new.set("status.conditions", list);
        }
        stamp(new, old, now);
    },
    check,
    check_status: |new, old, _, errors| check_certificate(new, old, errors),
    subresources: &[Subresource {
        name: "approval",
        prepare: |new, old, now| {
            // An approval may also change labels and annotations.
            let conditions = new.at("status.conditions").clone();
            new.keep(old, "spec");
            new.keep(old, "status");
            new.set("status.conditions", conditions);
            stamp(new, old, now);
        },
        validate: check_decisions,
    }],
    selectable: &[("spec.signerName", |csr| csr.text("spec.signerName").to_owned())],
    ..Strategy::PLAIN
};

/// Sets the times of conditions that are new or whose status changed.
fn stamp(new: &mut Value, old: &Value, now: &str) {
    let mut first: HashMap<&Value, &Value> = HashMap::new();
    for condition in old.items("status.conditions") {
        first.entry(condition.at("type")).or_insert(condition);
    }
    for condition in new.items_mut("status.conditions") {
        let before = first.get(condition.at("type")).copied();
        if condition.blank("status") {
            condition.set("status", "True");
        }
        if before.is_none_or(|b| b.at("status") != condition.at("status"))
            && condition.blank("lastTransitionTime")
        {
            condition.set("lastTransitionTime", now);
        }
        if before != Some(condition) && condition.blank("lastUpdateTime") {
            condition.set("lastUpdateTime", now);
        }
    }
}

/// The key usages of RFC 5280 and Go's x509, by the API's names.
const USAGES: [&str; 23] = [
    "any",
    "cert sign",
    "client auth",
    "code signing",
    "content commitment",
    "crl sign",
    "data encipherment",
    "decipher only",
    "digital signature",
    "email protection",
    "encipher only",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "key agreement",
    "key encipherment",
    "microsoft sgc",
    "netscape sgc",
    "ocsp signing",
    "s/mime",
    "server auth",
    "signing",
    "timestamping",
];

fn check(csr: &Value, errors: &mut ErrorList) {
    let (spec, path) = (csr.at("spec"), Path::new("spec"));
    if let Err(error) = check_request(spec) {
        let (path, value) = (path.child("request"), spec.at("request").clone());
        errors.push(FieldError::invalid(&path, value, error.to_string()));
    }
    let mut seen = HashSet::new();
    for (i, usage) in spec.items("usages").iter().enumerate() {
        let (path, text) = (path.child("usages").index(i), usage.as_str().unwrap_or_default());
        if !USAGES.contains(&text) {
            errors.push(FieldError::not_supported(&path, text, &USAGES));
        }
        if !seen.insert(usage) {
            errors.push(FieldError::duplicate(&path, text));
        }
    }
    if spec.blank("usages") {
        errors.push(FieldError::required(&path.child("usages"), ""));
    }
    let signer = spec.text("signerName");
    if signer.is_empty() {
        errors.push(FieldError::required(&path.child("signerName"), ""));
    } else if signer == "kubernetes.io/legacy-unknown" {
        let detail = "the legacy signerName is not allowed via this API version";
        errors.push(FieldError::invalid(&path.child("signerName"), signer, detail));
    } else {
        validate_signer_name(signer, &path.child("signerName"), errors);
    }
    if let Some(seconds) = spec.opt_int("expirationSeconds")
        && seconds < 600
    {
        let detail = "may not specify a duration less than 600 seconds (10 minutes)";
        errors.push(FieldError::invalid(&path.child("expirationSeconds"), seconds, detail));
    }
}

/// Validates the encoded request: it must parse and be signed by its own key. For the built-in signers, its subject and
/// extensions must also be unambiguous. Other signers may accept requests without a common name and with other
/// extensions.
fn check_request(spec: &Value) -> Result<(), pki::Error> {
    let request = SigningRequest::from_base64(spec.text("request"))?;
    if spec.text("signerName").starts_with("kubernetes.io/") {
        request.info().map(drop)
    } else {
        Ok(())
    }
}

/// The error for an issued certificate that is not a PEM chain, in upstream's words.
#[derive(Debug, thiserror::Error)]
enum CertificateDataError {
    #[error("must contain at least one CERTIFICATE PEM block")]
    NoBlock,
    #[error("only CERTIFICATE PEM blocks are allowed, found {}", go_quote(.0))]
    Block(String),
    #[error(transparent)]
    Unreadable(#[from] pki::Error),
}

fn check_certificate(new: &Value, old: &Value, errors: &mut ErrorList) {
    const FIELD: &str = "status.certificate";
    let path = Path::new("status").child("certificate");
    if new.at(FIELD) == old.at(FIELD) {
        return;
    }
    if !old.blank(FIELD) {
        let detail = "updates may not modify existing certificate content";
        errors.push(FieldError::forbidden(&path, detail));
    }
    if !new.blank(FIELD)
        && let Err(error) = check_certificate_data(new.text(FIELD))
    {
        let detail = error.to_string();
        errors.push(FieldError::invalid(&path, "<certificate data>", detail));
    }
}

fn check_certificate_data(encoded: &str) -> Result<(), CertificateDataError> {
    // The schema has decoded the field, so it is base64.
    let text = STANDARD.decode(encoded).unwrap_or_default();
    let blocks = pki::decode_all(&String::from_utf8_lossy(&text))?;
    if blocks.is_empty() {
        return Err(CertificateDataError::NoBlock);
    }
    for (label, der) in blocks {
        if label != "CERTIFICATE" {
            return Err(CertificateDataError::Block(label));
        }
        pki::Cert::from_der(der)?;
    }
    Ok(())
}

fn check_decisions(new: &Value, old: &Value, errors: &mut ErrorList) {
    let path = Path::new("status").child("conditions");
    let has = |csr: &Value, kind: &str| {
        csr.items("status.conditions").iter().any(|c| c.text("type") == kind)
    };
    for kind in ["Approved", "Denied"] {
        if has(old, kind) && !has(new, kind) {
            let detail = format!("updates may not remove a condition of type {kind:?}");
            errors.push(FieldError::forbidden(&path, detail));
        }
    }
    if has(new, "Approved") && has(new, "Denied") {
        errors.push(FieldError::invalid(
            &path,
            new.at("status.conditions").clone(),
            "Approved and Denied conditions are mutually exclusive",
        ));
    }
}

#[cfg(test)]
mod tests {
    use api_meta::field::aggregate;
    use pki::{AltName, Key, KeyAlgorithm, Subject};

    use super::*;
    use crate::kinds::{
        strategy,
        tests::{NOW, made},
    };

    #[test]
    fn rejects_ambiguous_requests_to_built_in_signers() {
        let key = Key::generate(KeyAlgorithm::EcdsaP256).unwrap();
        let of = |subject: &Subject, names: &[AltName]| {
            SigningRequest::create(subject, names, &key).unwrap().to_pem()
        };
        let errors = |signer: &str, pem: &str| {
            let mut errors = ErrorList::new();
            let request = STANDARD.encode(pem);
            let spec = json!({"request": request, "signerName": signer, "usages": ["client auth"]});
            check(&json!({ "spec": spec }), &mut errors);
            let text = if errors.is_empty() { String::new() } else { aggregate(&errors) };
            text.replace(&format!("\"{request}\""), "\"...\"")
        };
        let (ours, theirs) = ("kubernetes.io/kube-apiserver-client", "example.com/workloads");
        let jane = of(&Subject::new("jane").in_group("dev"), &[]);
        // SPIFFE identifies workloads only by URI.
        let workload = of(&Subject::default(), &[AltName::Uri("spiffe://a/b".into())]);
        let refused = "spec.request: Invalid value: \"...\": ";
        for (signer, pem, wanted) in [
            (ours, jane.clone(), String::new()),
            (theirs, jane.clone(), String::new()),
            (theirs, workload.clone(), String::new()),
            (
                ours,
                workload,
                format!("{refused}the certificate request is refused: its subject has no common name, and a user has one"),
            ),
            (ours, String::new(), format!("{refused}PEM block type must be CERTIFICATE REQUEST")),
            (theirs, jane.replace("REQUEST", "LIST"), format!("{refused}PEM block type must be CERTIFICATE REQUEST")),
            (
                theirs,
                format!("{jane}{jane}"),
                format!("{refused}there is something after the CERTIFICATE REQUEST block; the request must be exactly one PEM block, with no other before it and nothing after it"),
            ),
            (
                "kubernetes.io/legacy-unknown",
                jane,
                "spec.signerName: Invalid value: \"kubernetes.io/legacy-unknown\": the legacy signerName is not allowed via this API version".into(),
            ),
        ] {
            assert_eq!(errors(signer, &pem), wanted);
        }
    }

    #[test]
    fn approval_changes_conditions_and_annotations_only() {
        let group = "certificates.k8s.io";
        let old = made(
            group,
            "certificatesigningrequests",
            json!({"spec": {"signerName": "a.b/c", "request": "", "usages": ["any"]}}),
        );
        let mut new = old.clone();
        new["metadata"]["annotations"] = json!({"a": "b"});
        new["spec"]["signerName"] = json!("x.y/z");
        new["status"] =
            json!({"certificate": "eA==", "conditions": [{"type": "Approved", "status": "True"}]});
        let strategy = strategy(group, "certificatesigningrequests");
        strategy.prepare_subresource("approval", &mut new, &old, NOW).unwrap();
        assert_eq!(new["metadata"]["annotations"], json!({"a": "b"}));
        assert_eq!(new["spec"], old["spec"]);
        let status = new["status"].as_object().unwrap();
        assert_eq!(status.keys().collect::<Vec<_>>(), ["conditions"]);
        assert_eq!(new["status"]["conditions"][0]["lastUpdateTime"], NOW);
    }

    #[test]
    fn rejects_issued_certificate_that_is_none() {
        let of = |old: &str, new: &str| {
            let csr = |text: &str| json!({"status": {"certificate": STANDARD.encode(text)}});
            let mut errors = ErrorList::new();
            let old = if old.is_empty() { json!({}) } else { csr(old) };
            check_certificate(&csr(new), &old, &mut errors);
            if errors.is_empty() { String::new() } else { aggregate(&errors) }
        };
        let validity = pki::Validity::starting(
            std::time::SystemTime::UNIX_EPOCH,
            std::time::Duration::from_secs(60),
        );
        let authority = pki::Authority::create("ca", KeyAlgorithm::EcdsaP256, validity).unwrap();
        let pem = authority.cert().to_pem();
        let wrong = "status.certificate: Invalid value: \"<certificate data>\": ";
        assert_eq!(of("", &format!("{pem}{pem}")), "");
        assert_eq!(of(&pem, &pem), "");
        assert_eq!(
            of(&pem, &format!("{pem}{pem}")),
            "status.certificate: Forbidden: updates may not modify existing certificate content"
        );
        assert_eq!(
            of("", "none"),
            format!("{wrong}must contain at least one CERTIFICATE PEM block")
        );
        assert_eq!(
            of("", &pem.replace("CERTIFICATE", "X")),
            format!("{wrong}only CERTIFICATE PEM blocks are allowed, found \"X\"")
        );
        let empty = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert!(of("", empty).starts_with(wrong));
    }
}
