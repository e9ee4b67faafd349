//! A bundle: the certificates of the authorities that are trusted during a rotation.

use pki::Cert;

/// Returns the certificates as one PEM text.
pub(super) fn pem(bundle: &[Cert]) -> String {
    bundle.iter().map(Cert::to_pem).collect()
}
