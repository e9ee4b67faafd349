//! Rules of ClusterTrustBundles.

use std::collections::BTreeMap;

use api_meta::{ErrorList, FieldError, Path, Tree as _, validation};
use serde_json::Value;

use crate::{
    fields::validate_signer_name,
    meta::{NameRule, check_immutable},
    strategy::Strategy,
};

/// The maximum size of a bundle, in bytes.
const MAX_BUNDLE_SIZE: usize = 1 << 20;

pub(crate) static CLUSTER_TRUST_BUNDLE: Strategy = Strategy {
    name: NameRule::Any,
    check: |bundle, errors| {
        check_name(bundle, errors);
        let signer = bundle.text("spec.signerName");
        if !signer.is_empty() {
            validate_signer_name(signer, &Path::new("spec").child("signerName"), errors);
        }
    },
    check_create: check_bundle,
    check_update: |new, old, errors| {
        check_immutable(new, old, "spec.signerName", errors);
        // A bundle that an earlier version accepted stays valid.
        if new.at("spec.trustBundle") != old.at("spec.trustBundle") {
            check_bundle(new, errors);
        }
    },
    selectable: &[("spec.signerName", |bundle| bundle.text("spec.signerName").to_owned())],
    ..Strategy::PLAIN
};

/// Validates the name. That of a bundle with a signer begins with the signer's name.
fn check_name(bundle: &Value, errors: &mut ErrorList) {
    let (name, signer) = (bundle.text("metadata.name"), bundle.text("spec.signerName"));
    let path = Path::new("metadata").child("name");
    if name.is_empty() {
        return;
    }
    let rest = if signer.is_empty() {
        if name.contains(':') {
            let detail = "ClusterTrustBundle without signer name must not have \":\" in its name";
            errors.push(FieldError::invalid(&path, name, detail));
            return;
        }
        name
    } else {
        let prefix = format!("{}:", signer.replace('/', ":"));
        let Some(rest) = name.strip_prefix(&prefix) else {
            let detail = format!(
                "ClusterTrustBundle for signerName {signer} must be named with prefix {prefix}"
            );
            errors.push(FieldError::invalid(&path, name, detail));
            return;
        };
        rest
    };
    for message in validation::dns1123_subdomain(rest) {
        errors.push(FieldError::invalid(&path, name, message));
    }
}

/// Validates the trust anchors: PEM blocks without headers, each a different CA certificate.
fn check_bundle(bundle: &Value, errors: &mut ErrorList) {
    let path = Path::new("spec").child("trustBundle");
    let text = bundle.text("spec.trustBundle");
    if text.len() > MAX_BUNDLE_SIZE {
        errors.push(FieldError::too_long(&path, MAX_BUNDLE_SIZE));
        return;
    }
    let mut refuse = |detail: String| {
        errors.push(FieldError::invalid(&path, "<value omitted>", detail));
    };
    let blocks = match pki::decode_all(text) {
        Ok(blocks) => blocks,
        Err(error) => return refuse(error.to_string()),
    };
    let mut positions: BTreeMap<Vec<u8>, Vec<usize>> = BTreeMap::new();
    let mut malformed = false;
    for (i, (label, der)) in blocks.into_iter().enumerate() {
        let detail = if label != "CERTIFICATE" {
            format!("entry {i} has bad block type: {label}")
        } else {
            match pki::Cert::from_der(der.clone()).and_then(|cert| cert.info()) {
                Err(_) => format!("entry {i} does not parse as X.509"),
                Ok(info) if !info.is_ca => format!("entry {i} does not have the CA bit set"),
                Ok(_) => {
                    positions.entry(der).or_default().push(i);
                    continue;
                }
            }
        };
        malformed = true;
        refuse(detail);
    }
    if malformed {
        return;
    }
    if positions.is_empty() {
        refuse("at least one trust anchor must be provided".to_owned());
    }
    for repeated in positions.values().filter(|positions| positions.len() > 1) {
        let numbers: Vec<_> = repeated.iter().map(ToString::to_string).collect();
        refuse(format!("duplicate trust anchor (indices [{}])", numbers.join(" ")));
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use api_meta::field::aggregate;
    use pki::{Authority, KeyAlgorithm, Validity};
    use serde_json::json;

    use super::*;

    fn anchor(name: &str) -> String {
        let validity = Validity::starting(SystemTime::UNIX_EPOCH, Duration::from_secs(60));
        Authority::create(name, KeyAlgorithm::EcdsaP256, validity).unwrap().cert().to_pem()
    }

    fn bundle(name: &str, signer: &str, text: &str) -> Value {
        json!({"metadata": {"name": name}, "spec": {"signerName": signer, "trustBundle": text}})
    }

    fn errors(bundle: &Value) -> String {
        let errors = CLUSTER_TRUST_BUNDLE.create_errors(bundle, false);
        if errors.is_empty() { String::new() } else { aggregate(&errors) }
    }

    #[test]
    fn requires_prefix_of_signer_in_name() {
        let text = anchor("a");
        for (name, signer, wanted) in [
            ("foo", "", ""),
            ("example.com:agents:v1", "example.com/agents", ""),
            (
                "a:b",
                "",
                "metadata.name: Invalid value: \"a:b\": ClusterTrustBundle without signer name must not have \":\" in its name",
            ),
            (
                "foo",
                "example.com/agents",
                "metadata.name: Invalid value: \"foo\": ClusterTrustBundle for signerName example.com/agents must be named with prefix example.com:agents:",
            ),
        ] {
            assert_eq!(errors(&bundle(name, signer, &text)), wanted);
        }
        assert!(errors(&bundle("x:y", "x/y/z", &text)).contains("spec.signerName"));
    }

    #[test]
    fn rejects_bundles_that_are_no_trust_anchors() {
        let (one, two) = (anchor("a"), anchor("b"));
        let path = "spec.trustBundle: Invalid value: \"<value omitted>\": ";
        let malformed = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        for (text, wanted) in [
            (format!("{one}text between\n{two}"), ""),
            (String::new(), "at least one trust anchor must be provided"),
            (format!("{one}{one}"), "duplicate trust anchor (indices [0 1])"),
            (format!("{one}{malformed}"), "entry 1 does not parse as X.509"),
            (one.replace("CERTIFICATE", "NONE"), "entry 0 has bad block type: NONE"),
        ] {
            let wanted = if wanted.is_empty() { String::new() } else { format!("{path}{wanted}") };
            assert_eq!(errors(&bundle("foo", "", &text)), wanted);
        }
        let huge = errors(&bundle("foo", "", &"a".repeat(MAX_BUNDLE_SIZE + 1)));
        assert_eq!(huge, "spec.trustBundle: Too long: may not be more than 1048576 bytes");
    }

    #[test]
    fn keeps_old_bundles_and_signers() {
        let (old, other) = (bundle("foo", "", "damaged"), bundle("foo", "", "other"));
        let errors = |new: &Value| {
            let errors = CLUSTER_TRUST_BUNDLE.update_errors(new, &old, false);
            if errors.is_empty() { String::new() } else { aggregate(&errors) }
        };
        assert!(!errors(&old).contains("spec.trustBundle"), "{}", errors(&old));
        assert!(errors(&other).contains("at least one trust anchor must be provided"));
        assert!(errors(&bundle("foo", "a.b/c", "damaged")).contains("field is immutable"));
    }
}
