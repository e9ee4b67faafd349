use std::time::{Duration, SystemTime};

use api_meta::{Timestamp, aggregate};
use pki::{AltName, Authority, Key, KeyAlgorithm, LeafSpec, Subject, Validity};

use super::*;

/// The certificate authority of a signer, a Pod's key and the time.
struct Scene {
    authority: Authority,
    key: Key,
    now: SystemTime,
}

impl Scene {
    fn new() -> Self {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_790_000_000);
        let validity = Validity::starting(now, Duration::from_secs(1 << 25));
        let authority = Authority::create("ca", KeyAlgorithm::EcdsaP256, validity).unwrap();
        let key = WorkloadKeyType::EcdsaP256.generate().unwrap();
        Self { authority, key, now }
    }

    fn request(&self) -> Value {
        let stub = SigningRequest::create(&Subject::default(), &[], &self.key).unwrap();
        json!({
            "metadata": {"name": "r", "namespace": "n", "labels": {"a": "b"}},
            "spec": {
                "signerName": "example.com/pods", "podName": "p", "podUID": "1",
                "serviceAccountName": "default", "serviceAccountUID": "2",
                "nodeName": "node", "nodeUID": "3", "maxExpirationSeconds": 86_400,
                "stubPKCS10Request": STANDARD.encode(stub.der()),
            },
            "status": {},
        })
    }

    /// Returns a certificate for a key from now on.
    fn certificate(&self, key: &Key, lifetime: u64, names: &[&str]) -> String {
        let not_after = self.now + Duration::from_secs(lifetime);
        let validity = Validity { not_before: self.now, not_after };
        let spec = LeafSpec {
            subject: Subject::new("p"),
            alt_names: names.iter().map(|name| AltName::dns(*name)).collect(),
            usage: pki::Usage::Client,
        };
        self.authority.issue(&spec, key, validity).unwrap().to_pem()
    }

    fn after(&self, seconds: u64) -> String {
        Timestamp::from(self.now + Duration::from_secs(seconds)).to_string()
    }

    fn issued(&self, chain: &str, lifetime: u64) -> Value {
        let mut request = self.request();
        request["status"] = json!({
            "conditions": [condition("Issued")], "certificateChain": chain,
            "notBefore": self.after(0), "notAfter": self.after(lifetime),
            "beginRefreshAt": self.after(lifetime / 2),
        });
        request
    }

    fn status_errors(&self, new: &Value, old: &Value) -> String {
        text(&REQUEST.status_errors(new, old, true, &self.after(0)))
    }
}

fn condition(kind: &str) -> Value {
    json!({"type": kind, "status": "True", "reason": "Because", "message": "m",
        "lastTransitionTime": "2026-01-01T00:00:00Z"})
}

fn text(errors: &ErrorList) -> String {
    if errors.is_empty() { String::new() } else { aggregate(errors) }
}

#[test]
fn rejects_requests_without_proof_and_valid_names() {
    let scene = Scene::new();
    let errors = |change: &dyn Fn(&mut Value)| {
        let mut request = scene.request();
        change(&mut request["spec"]);
        text(&REQUEST.create_errors(&request, true))
    };
    assert_eq!(errors(&|_| {}), "");
    let set = |field: &'static str, value: Value| {
        errors(&move |spec: &mut Value| spec[field] = value.clone())
    };
    for (field, value, words) in [
        ("signerName", json!("plain"), "spec.signerName: Invalid value"),
        ("podName", json!("A/b"), "spec.podName: Invalid value"),
        ("podUID", json!(""), "spec.podUID: Invalid value: \"\": must not be empty"),
        ("nodeUID", json!("x".repeat(129)), "spec.nodeUID: Too long"),
        ("maxExpirationSeconds", json!(3599), "must be in the range [3600, 7862400]"),
        ("maxExpirationSeconds", json!(7_862_401), "must be in the range [3600, 7862400]"),
        ("signerName", json!("kubernetes.io/x"), ""),
        ("unverifiedUserAnnotations", json!({"a.b/c": "d"}), ""),
        ("unverifiedUserAnnotations", json!({"plain": "d"}), "must be a domain-prefixed key"),
        ("unverifiedUserAnnotations", json!({"a.b/c": "d".repeat(300_000)}), "Too long"),
        ("stubPKCS10Request", json!(""), "exactly one of (stubPKCS10Request)"),
        ("stubPKCS10Request", json!(STANDARD.encode("x")), "spec.stubPKCS10Request: Invalid"),
        ("stubPKCS10Request", json!("A".repeat(20_000)), "spec.stubPKCS10Request: Too long"),
        ("pkixPublicKey", json!("AAAA"), "exactly one of (stubPKCS10Request)"),
    ] {
        let found = set(field, value);
        assert!(found.contains(words) && found.is_empty() == words.is_empty(), "{field}: {found}");
    }
    let day = json!(86_401);
    let found = errors(&|spec| {
        spec["signerName"] = json!("kubernetes.io/x");
        spec["maxExpirationSeconds"] = day.clone();
    });
    assert!(found.contains("must be in the range [3600, 86400]"), "{found}");
    let small = Key::generate(KeyAlgorithm::Rsa2048).unwrap();
    let small = SigningRequest::create(&Subject::default(), &[], &small).unwrap();
    let found = set("stubPKCS10Request", json!(STANDARD.encode(small.der())));
    assert!(found.contains("RSA keys must have modulus size 3072 or 4096"), "{found}");
}

#[test]
fn rejects_stub_that_another_key_has_signed() {
    let scene = Scene::new();
    let mut request = scene.request();
    let other = Scene::new().request();
    let [own, foreign] = [&request, &other].map(|r| bytes(&r["spec"], "stubPKCS10Request"));
    // Put the other request's key into this one, whose signature is no longer valid.
    let [key, foreign_key] = [&own, &foreign]
        .map(|der| SigningRequest::from_der(der.clone()).unwrap().public_key().unwrap().to_vec());
    let at = own.windows(key.len()).position(|part| part == key).unwrap();
    let mut forged = own;
    forged[at..at + key.len()].copy_from_slice(&foreign_key);
    request["spec"]["stubPKCS10Request"] = json!(STANDARD.encode(forged));
    let found = text(&REQUEST.create_errors(&request, true));
    assert!(found.contains("not signed by the key that it names"), "{found}");
}

#[test]
fn spec_is_immutable_and_status_leaves_metadata() {
    let scene = Scene::new();
    let old = scene.request();
    let mut new = old.clone();
    new["spec"]["podName"] = json!("other");
    let found = text(&REQUEST.update_errors(&new, &old, true));
    assert!(found.contains("spec: Invalid value") && found.contains("immutable"), "{found}");
    new["metadata"]["labels"] = json!({"c": "d"});
    new["status"] = json!({"conditions": [condition("Denied")]});
    REQUEST.prepare_status(&mut new, &old, &scene.after(0));
    assert_eq!((&new["spec"], &new["metadata"]), (&old["spec"], &old["metadata"]));
    assert_eq!(scene.status_errors(&new, &old), "");
}

#[test]
fn request_ends_once() {
    let scene = Scene::new();
    let fresh = scene.request();
    let issued = scene.issued(&scene.certificate(&scene.key, 7200, &["p.example.com"]), 7200);
    assert_eq!(scene.status_errors(&issued, &fresh), "");
    assert_eq!(scene.status_errors(&issued, &issued), "");
    let with = |status: Value| {
        let mut request = scene.request();
        request["status"] = status;
        request
    };
    let denied = with(json!({"conditions": [condition("Denied")]}));
    assert_eq!(scene.status_errors(&denied, &fresh), "");
    let of = |kind: &str, member: &str, value: Value| {
        let mut condition = condition(kind);
        condition[member] = value;
        with(json!({"conditions": [condition]}))
    };
    let ended = "immutable after PodCertificateRequest is issued, denied, or failed";
    for (new, old, words) in [
        (&issued, &denied, ended),
        (&fresh, &issued, ended),
        (&of("Ready", "status", json!("True")), &fresh, "conditions[0].type: Unsupported value"),
        (
            &of("Denied", "status", json!("False")),
            &fresh,
            "conditions[0].status: Unsupported value",
        ),
        (&of("Denied", "reason", json!("")), &fresh, "conditions[0].reason: Required value"),
        (&of("Denied", "reason", json!("a b")), &fresh, "a condition reason must start with"),
        (&of("Denied", "message", json!("m".repeat(40_000))), &fresh, "message: Too long"),
        (
            &with(json!({"conditions": [condition("Denied"), condition("Failed")]})),
            &fresh,
            "There may be at most one condition",
        ),
        (
            &with(json!({"conditions": [condition("Failed")], "certificateChain": "x"})),
            &fresh,
            "non-condition status fields must be empty",
        ),
        (
            &with(json!({"certificateChain": "x"})),
            &fresh,
            "status is immutable unless transitioning",
        ),
    ] {
        let found = scene.status_errors(new, old);
        assert!(found.contains(words), "{words}: {found}");
    }
}

#[test]
fn rejects_hostile_chains() {
    let scene = Scene::new();
    let fresh = scene.request();
    let good = scene.certificate(&scene.key, 7200, &[]);
    let other = WorkloadKeyType::EcdsaP256.generate().unwrap();
    let garbage = pki::encode("CERTIFICATE", &[7; 64]);
    let key = scene.key.to_pkcs8_pem().unwrap();
    for (chain, words) in [
        (format!("{good}text between{}", scene.authority.cert().to_pem()), ""),
        (String::new(), "must contain at least one certificate"),
        ("garbage".to_owned(), "must contain at least one certificate"),
        (garbage.clone(), "leaf certificate does not parse as valid X.509"),
        (format!("{good}{garbage}"), "intermediate certificate does not parse as valid X.509"),
        (format!("{good}{key}"), "must consist entirely of CERTIFICATE PEM blocks"),
        (scene.certificate(&other, 7200, &[]), "not issued to the requested public key"),
        (good.repeat(1 + (1 << 20) / good.len()), "status.certificateChain: Too long"),
        (scene.certificate(&scene.key, 7200, &["a..b"]), "should not contain '..'"),
        (scene.certificate(&scene.key, 7200, &[".a"]), "should not start or end with '.'"),
    ] {
        let found = scene.status_errors(&scene.issued(&chain, 7200), &fresh);
        assert!(found.contains(words) && found.is_empty() == words.is_empty(), "{words}: {found}");
        assert!(found.len() < 2000, "{}", found.len());
    }
    for (lifetime, words) in [
        (3599, "leaf certificate lifetime must be >= 1 hour"),
        (86_401, "leaf certificate lifetime must be <= spec.maxExpirationSeconds (86400)"),
    ] {
        let chain = scene.certificate(&scene.key, lifetime, &[]);
        let found = scene.status_errors(&scene.issued(&chain, lifetime), &fresh);
        assert!(found.contains(words), "{found}");
    }
}

#[test]
fn times_must_be_those_of_the_certificate() {
    let scene = Scene::new();
    let fresh = scene.request();
    let issued = scene.issued(&scene.certificate(&scene.key, 7200, &[]), 7200);
    let with = |field: &str, value: Value| {
        let mut new = issued.clone();
        new["status"][field] = value;
        scene.status_errors(&new, &fresh)
    };
    for (field, value, words) in [
        ("notBefore", json!(scene.after(1)), "NotBefore time encoded in the leaf certificate"),
        ("notAfter", json!(scene.after(7201)), "NotAfter time encoded in the leaf certificate"),
        ("beginRefreshAt", json!(scene.after(599)), "at least 10 minutes after status.notBefore"),
        ("beginRefreshAt", json!(scene.after(6601)), "at least 10 minutes before status.notAfter"),
        ("beginRefreshAt", Value::Null, "status.beginRefreshAt: Required value"),
        ("notBefore", Value::Null, "status.notBefore: Required value"),
    ] {
        let found = with(field, value);
        assert!(found.contains(words), "{field}: {found}");
    }
    let later = REQUEST.status_errors(&issued, &fresh, true, &scene.after(300));
    assert!(text(&later).contains("within 5 minutes of kube-apiserver's current time"));
}
