//! Validates the certificate chain that a signer writes into a PodCertificateRequest's status.

use std::{fmt, time::Duration};

use api_meta::{ErrorList, FieldError, Path, Timestamp, Tree as _};
use pki::{AltName, Cert, Validity};
use serde_json::Value;

use crate::signers::MIN_LIFETIME;

/// The maximum size of a chain, in bytes.
const MAX_CHAIN_SIZE: usize = 100 << 10;
/// The limit on the difference between a certificate's first moment and the time of the update.
const SKEW: Duration = Duration::from_secs(5 * 60);
/// The shortest time from a certificate's first moment to its refresh, and from there to its last moment.
const MARGIN: Duration = Duration::from_secs(10 * 60);

/// The error of a chain, in upstream's words.
#[derive(Debug, thiserror::Error)]
enum ChainError {
    #[error("issued certificate chain must contain at least one certificate")]
    Empty,
    #[error("issued certificate chain must consist entirely of CERTIFICATE PEM blocks")]
    Block,
    #[error("leaf certificate does not parse as valid X.509")]
    Leaf,
    #[error("intermediate certificate does not parse as valid X.509")]
    Intermediate,
    #[error("leaf certificate was not issued to the requested public key")]
    Key,
    #[error(transparent)]
    Pem(pki::Error),
}

/// Validates a status that issues a certificate for the request with this spec and public key.
pub(super) fn check(status: &Value, spec: &Value, key: &[u8], now: &str, errors: &mut ErrorList) {
    let path = Path::new("status");
    let chain = path.child("certificateChain");
    if status.text("certificateChain").len() > MAX_CHAIN_SIZE {
        return errors.push(FieldError::too_long(&chain, MAX_CHAIN_SIZE));
    }
    let (leaf, validity) = match leaf(status.text("certificateChain"), key) {
        Ok(leaf) => leaf,
        Err(error) => return errors.push(omitted(&chain, error)),
    };
    check_names(&leaf, &chain, errors);
    check_times(status, &validity, now, errors);
    let lifetime = validity.not_after.duration_since(validity.not_before).unwrap_or_default();
    let longest = spec.int("maxExpirationSeconds");
    let seconds = i64::try_from(lifetime.as_secs()).unwrap_or(i64::MAX);
    if seconds < MIN_LIFETIME {
        errors.push(omitted(&chain, "leaf certificate lifetime must be >= 1 hour"));
    } else if seconds > longest {
        let detail =
            format!("leaf certificate lifetime must be <= spec.maxExpirationSeconds ({longest})");
        errors.push(omitted(&chain, detail));
    }
}

/// Returns an error without the value, which may be large.
fn omitted(path: &Path, detail: impl fmt::Display) -> FieldError {
    FieldError::invalid(path, "<value omitted>", detail.to_string())
}

/// Returns the chain's first certificate and its validity. All certificates must parse.
fn leaf(chain: &str, key: &[u8]) -> Result<(Cert, Validity), ChainError> {
    let blocks = pki::decode_all(chain).map_err(ChainError::Pem)?;
    let mut first = None;
    for (label, der) in blocks {
        if label != "CERTIFICATE" {
            return Err(ChainError::Block);
        }
        let cert = Cert::from_der(der);
        if first.is_some() {
            cert.map_err(|_| ChainError::Intermediate)?;
        } else {
            first = Some(cert.map_err(|_| ChainError::Leaf)?);
        }
    }
    let leaf = first.ok_or(ChainError::Empty)?;
    let holder = leaf.public_der().map_err(|_| ChainError::Leaf)?;
    if key.is_empty() || holder != key {
        return Err(ChainError::Key);
    }
    let validity = leaf.validity().map_err(|_| ChainError::Leaf)?;
    Ok((leaf, validity))
}

/// Rejects names with which Go's TLS clients reject a certificate.
fn check_names(leaf: &Cert, path: &Path, errors: &mut ErrorList) {
    for name in leaf.alt_names().unwrap_or_default() {
        let detail = match &name {
            AltName::Dns(name) if name.is_empty() => {
                "leaf certificate should not contain empty DNSName"
            }
            AltName::Dns(name) if name.contains("..") => {
                "leaf certificate's DNSName should not contain '..'"
            }
            AltName::Dns(name) if name.starts_with('.') || name.ends_with('.') => {
                "leaf certificate's DNSName should not start or end with '.'"
            }
            AltName::Email(name) if !is_email(name) => {
                "leaf certificate should not contain invalid EmailAddress"
            }
            _ => continue,
        };
        errors.push(FieldError::invalid(path, name.to_string(), detail));
    }
}

/// Reports whether a text is an address of RFC 5322 without comments and quotes.
fn is_email(text: &str) -> bool {
    let is_word = |part: &str| {
        !part.is_empty()
            && part.bytes().all(|b| b.is_ascii_graphic() && !b"@<>()[]\\,;:\"".contains(&b))
    };
    text.split_once('@').is_some_and(|(user, domain)| is_word(user) && is_word(domain))
}

fn check_times(status: &Value, validity: &Validity, now: &str, errors: &mut ErrorList) {
    let path = Path::new("status");
    let time = |field: &str| status.text(field).parse::<Timestamp>().ok();
    let consistent = "must be present and consistent with the issued certificate";
    let within = "must be present and in the range [notbefore+10min, notafter-10min]";
    let fields = [("notBefore", consistent), ("notAfter", consistent), ("beginRefreshAt", within)];
    for (field, detail) in fields.into_iter().filter(|(field, _)| time(field).is_none()) {
        errors.push(FieldError::required(&path.child(field), detail));
    }
    let (Some(not_before), Some(not_after), Some(refresh)) =
        (time("notBefore"), time("notAfter"), time("beginRefreshAt"))
    else {
        return;
    };
    let now = now.parse::<Timestamp>().unwrap_or_default();
    let mut reject = |field: &str, value: Timestamp, detail: &str| {
        errors.push(FieldError::invalid(&path.child(field), value.to_string(), detail));
    };
    if not_before != Timestamp::from(validity.not_before) {
        reject(
            "notBefore",
            not_before,
            "must be set to the NotBefore time encoded in the leaf certificate",
        );
    } else if not_before.since(now).max(now.since(not_before)) >= SKEW {
        let detail = "must be set to within 5 minutes of kube-apiserver's current time";
        reject("notBefore", not_before, detail);
    }
    if not_after != Timestamp::from(validity.not_after) {
        reject(
            "notAfter",
            not_after,
            "must be set to the NotAfter time encoded in the leaf certificate",
        );
    }
    if refresh < not_before.plus(MARGIN) {
        reject("beginRefreshAt", refresh, "must be at least 10 minutes after status.notBefore");
    } else if refresh.plus(MARGIN) > not_after {
        reject("beginRefreshAt", refresh, "must be at least 10 minutes before status.notAfter");
    }
}
