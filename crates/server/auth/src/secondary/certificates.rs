//! The check on PodCertificateRequests: permission to sign for the request's signer.

use api_meta::{Attributes, ErrorList, FieldError, Path, Tree as _, go_quote};
use serde_json::Value;

use super::request::AuthorizedRequest;

/// Validates that the caller of a status update may sign for the signer. A status that is invalid anyway reveals
/// nothing about permissions.
pub(super) fn validate_signing(authorized: &AuthorizedRequest<'_>, errors: &mut ErrorList) {
    let old = authorized.old.unwrap_or(&Value::Null);
    if !errors.is_empty() || old["status"] == authorized.new["status"] {
        return;
    }
    let (user, signer) = (authorized.request.user, old.text("spec.signerName"));
    let may_sign = |name: &str| {
        let question = Attributes::resource(user, "sign", "certificates.k8s.io", "signers");
        authorized.allows(&question.named(name))
    };
    let domain = signer.split_once('/').map(|(domain, _)| format!("{domain}/*"));
    if may_sign(signer) || domain.is_some_and(|all| may_sign(&all)) {
        return;
    }
    let detail = format!(
        "User {} is not permitted to \"sign\" for signer {}",
        go_quote(&user.name),
        go_quote(signer)
    );
    errors.push(FieldError::forbidden(&Path::new("spec").child("signerName"), detail));
}
