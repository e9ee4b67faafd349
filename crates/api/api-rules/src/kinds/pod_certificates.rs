//! Rules of PodCertificateRequests. A request ends once: it is issued, denied or failed.

mod issued;

use api_meta::{ErrorList, FieldError, Path, Tree as _, is_zero, validation};
use base64::{Engine, engine::general_purpose::STANDARD};
use pki::{SigningRequest, WorkloadKeyType, verify_possession};
use serde_json::{Value, json};

use crate::{
    conditions::{is_true, validate_conditions},
    fields::validate_signer_name,
    meta::{NameRule, check_immutable},
    signers::{MIN_LIFETIME, max_lifetime, validate_user_annotations},
    strategy::Strategy,
};

/// The maximum size of a public key, a proof or a PKCS#10 request, in bytes.
const MAX_KEY_SIZE: usize = 10 << 10;
const MAX_UID_LENGTH: usize = 128;

const OUTCOMES: [&str; 3] = ["Issued", "Denied", "Failed"];

pub(crate) static REQUEST: Strategy = Strategy {
    name: NameRule::Subdomain,
    status: Some(|| json!({})),
    own_status: |new, old, _| {
        for field in ["labels", "annotations", "finalizers", "ownerReferences"] {
            new.keep(old, &format!("metadata.{field}"));
        }
    },
    check_create,
    check_update: |new, old, errors| check_immutable(new, old, "spec", errors),
    check_status,
    unconditional_update: false,
    selectable: &[
        ("spec.signerName", |request| request.text("spec.signerName").to_owned()),
        ("spec.podName", |request| request.text("spec.podName").to_owned()),
        ("spec.nodeName", |request| request.text("spec.nodeName").to_owned()),
    ],
    ..Strategy::PLAIN
};

fn check_create(request: &Value, errors: &mut ErrorList) {
    let (spec, path) = (request.at("spec"), Path::new("spec"));
    let signer = spec.text("signerName");
    validate_signer_name(signer, &path.child("signerName"), errors);
    let annotations = path.child("unverifiedUserAnnotations");
    validate_user_annotations(spec.at("unverifiedUserAnnotations"), &annotations, errors);
    for field in ["podName", "serviceAccountName", "nodeName"] {
        let name = spec.text(field);
        for message in validation::dns1123_subdomain(name) {
            errors.push(FieldError::invalid(&path.child(field), name, message));
        }
    }
    for field in ["podUID", "serviceAccountUID", "nodeUID"] {
        let (uid, path) = (spec.text(field), path.child(field));
        if uid.is_empty() {
            errors.push(FieldError::invalid(&path, uid, "must not be empty"));
        }
        if uid.len() > MAX_UID_LENGTH {
            errors.push(FieldError::too_long(&path, MAX_UID_LENGTH));
        }
    }
    let (seconds, longest) = (spec.int("maxExpirationSeconds"), max_lifetime(signer));
    if !(MIN_LIFETIME..=longest).contains(&seconds) {
        let detail = format!("must be in the range [{MIN_LIFETIME}, {longest}]");
        errors.push(FieldError::invalid(&path.child("maxExpirationSeconds"), seconds, detail));
    }
    check_key(spec, &path, errors);
}

/// Validates the public key and the proof that the sender holds its private key: a PKCS#10 request, or the deprecated
/// pair of key and signature.
fn check_key(spec: &Value, path: &Path, errors: &mut ErrorList) {
    for field in ["stubPKCS10Request", "pkixPublicKey", "proofOfPossession"] {
        if bytes(spec, field).len() > MAX_KEY_SIZE {
            return errors.push(FieldError::too_long(&path.child(field), MAX_KEY_SIZE));
        }
    }
    let (has_stub, has_key) = (!spec.blank("stubPKCS10Request"), !spec.blank("pkixPublicKey"));
    match (has_stub, has_key, !spec.blank("proofOfPossession")) {
        (true, false, false) => check_stub(spec, path, errors),
        (false, true, true) => check_proof(spec, path, errors),
        _ => {
            let detail = "exactly one of (stubPKCS10Request) or (pkixPublicKey, proofOfPossession) must be set";
            errors.push(FieldError::invalid(path, "<value omitted>", detail));
        }
    }
}

fn check_stub(spec: &Value, path: &Path, errors: &mut ErrorList) {
    let checked = match SigningRequest::from_der(bytes(spec, "stubPKCS10Request")) {
        Ok(stub) => match stub.public_key().map(WorkloadKeyType::of_public_key) {
            Ok(Ok(_)) => return,
            Ok(Err(error)) => error.to_string(),
            Err(error) => error.to_string(),
        },
        Err(error) => error.to_string(),
    };
    errors.push(FieldError::invalid(&path.child("stubPKCS10Request"), "<value omitted>", checked));
}

fn check_proof(spec: &Value, path: &Path, errors: &mut ErrorList) {
    let (key, proof) = (bytes(spec, "pkixPublicKey"), bytes(spec, "proofOfPossession"));
    let (field, detail) = match verify_possession(&key, spec.text("podUID").as_bytes(), &proof) {
        Ok(true) => return,
        Ok(false) => {
            let detail = "could not verify proof-of-possession signature";
            ("proofOfPossession", detail.to_owned())
        }
        Err(error) => ("pkixPublicKey", error.to_string()),
    };
    errors.push(FieldError::invalid(&path.child(field), "<value omitted>", detail));
}

/// Returns the content of a base64 field. The schema has validated it.
fn bytes(spec: &Value, field: &str) -> Vec<u8> {
    STANDARD.decode(spec.text(field)).unwrap_or_default()
}

/// Returns the public key of a request's spec (SubjectPublicKeyInfo in DER).
fn public_key(spec: &Value) -> Vec<u8> {
    if spec.blank("stubPKCS10Request") {
        return bytes(spec, "pkixPublicKey");
    }
    let stub = SigningRequest::from_der(bytes(spec, "stubPKCS10Request"));
    let key = stub.and_then(|stub| stub.public_key().map(<[u8]>::to_vec));
    key.unwrap_or_default()
}

/// Validates a signer's status update at the given time. `spec` is that of the old object.
fn check_status(new: &Value, old: &Value, now: &str, errors: &mut ErrorList) {
    let path = Path::new("status");
    check_conditions(new, &path.child("conditions"), errors);
    if !errors.is_empty() {
        return;
    }
    let has_ended = |request: &Value| OUTCOMES.iter().any(|kind| is_true(request, kind));
    let [before, after] = [old, new].map(|request| without_empty(request.at("status")));
    let detail = if has_ended(old) {
        let detail = "immutable after PodCertificateRequest is issued, denied, or failed";
        (before != after).then_some(detail)
    } else if is_true(new, "Issued") {
        let spec = old.at("spec");
        return issued::check(new.at("status"), spec, &public_key(spec), now, errors);
    } else if has_ended(new) {
        let detail = "non-condition status fields must be empty when denying or failing the PodCertificateRequest";
        let others =
            after.as_object().into_iter().flatten().any(|(field, _)| field != "conditions");
        others.then_some(detail)
    } else {
        let detail =
            "status is immutable unless transitioning to \"Issued\", \"Denied\", or \"Failed\"";
        (before != after).then_some(detail)
    };
    if let Some(detail) = detail {
        errors.push(FieldError::invalid(&path, "<value omitted>", detail));
    }
}

/// Validates the conditions: at most one, with a known type and the status `True`.
fn check_conditions(request: &Value, path: &Path, errors: &mut ErrorList) {
    let conditions = request.items("status.conditions");
    let mut known = 0;
    for (i, condition) in conditions.iter().enumerate() {
        let (path, kind) = (path.index(i), condition.text("type"));
        if !OUTCOMES.contains(&kind) {
            errors.push(FieldError::not_supported(&path.child("type"), kind, &OUTCOMES));
            continue;
        }
        known += 1;
        if known > 1 {
            let detail = "There may be at most one condition with type \"Issued\", \"Denied\", or \"Failed\"";
            errors.push(FieldError::invalid(&path.child("type"), kind, detail));
        }
        let status = condition.text("status");
        if status != "True" {
            errors.push(FieldError::not_supported(&path.child("status"), status, &["True"]));
        }
    }
    validate_conditions(conditions, path, errors);
}

/// Returns a status without empty members, so that an absent list equals an empty one.
fn without_empty(status: &Value) -> Value {
    let members = status.as_object().into_iter().flatten();
    let filled = members.filter(|(_, value)| !is_zero(value));
    Value::Object(filled.map(|(name, value)| (name.clone(), value.clone())).collect())
}

#[cfg(test)]
mod tests;
