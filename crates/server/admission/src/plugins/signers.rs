//! The certificate plugins: permission to approve, sign and attest for a signer, and forbidden subjects.

use api_meta::{Attributes, GroupResource, Tree as _, garbage_collection_only, go_quote};
use pki::SigningRequest;
use serde_json::Value;

use crate::request::{AdmissionResult, Outcome, Plugin, Request};

pub(crate) struct CertificateApproval;
pub(crate) struct CertificateSigning;
pub(crate) struct ClusterTrustBundleAttest;
pub(crate) struct CertificateSubjectRestriction;

/// Reports whether the user may act for the signer, by its name or by its domain.
fn may_act_for_signer(request: &Request<'_>, verb: &str, signer: &str) -> bool {
    let ask = |name: &str| {
        let attributes =
            Attributes::resource(request.user, verb, "certificates.k8s.io", "signers").named(name);
        request.authorizer.authorize(&attributes).is_allowed()
    };
    ask(signer) || signer.split_once('/').is_some_and(|(domain, _)| ask(&format!("{domain}/*")))
}

impl Plugin for CertificateApproval {
    fn validate(&self, request: &Request<'_>, csr: &Value, _: &mut Outcome) -> AdmissionResult {
        if !request.is_sub(&GroupResource::CERTIFICATE_SIGNING_REQUESTS, "approval")
            || !request.updates()
        {
            return Ok(());
        }
        // The signer is read from the stored CSR, because an approval cannot change it.
        let signer = request.old.unwrap_or(csr).text("spec.signerName");
        if may_act_for_signer(request, "approve", signer) {
            return Ok(());
        }
        let cause =
            format!("user not permitted to approve requests with signerName {}", go_quote(signer));
        Err(request.forbidden(csr, cause))
    }
}

impl Plugin for CertificateSigning {
    fn validate(&self, request: &Request<'_>, csr: &Value, _: &mut Outcome) -> AdmissionResult {
        let relevant = request.is_sub(&GroupResource::CERTIFICATE_SIGNING_REQUESTS, "status")
            && request.updates();
        let (true, Some(old)) = (relevant, request.old) else { return Ok(()) };
        let same = |field: &str| old["status"][field] == csr["status"][field];
        let signer = old.text("spec.signerName");
        if same("certificate") && same("conditions") || may_act_for_signer(request, "sign", signer)
        {
            return Ok(());
        }
        let cause =
            format!("user not permitted to sign requests with signerName {}", go_quote(signer));
        Err(request.forbidden(csr, cause))
    }
}

impl Plugin for ClusterTrustBundleAttest {
    fn validate(&self, request: &Request<'_>, bundle: &Value, _: &mut Outcome) -> AdmissionResult {
        if !request.is(&GroupResource::CLUSTER_TRUST_BUNDLES)
            || !(request.creates() || request.updates())
        {
            return Ok(());
        }
        let signer = bundle.text("spec.signerName");
        let unchanged = request.old.is_some_and(|old| garbage_collection_only(old, bundle));
        if signer.is_empty() || unchanged || may_act_for_signer(request, "attest", signer) {
            return Ok(());
        }
        let cause = format!("user not permitted to attest for signerName {}", go_quote(signer));
        Err(request.forbidden(bundle, cause))
    }
}

const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client";

impl Plugin for CertificateSubjectRestriction {
    fn validate(&self, request: &Request<'_>, csr: &Value, _: &mut Outcome) -> AdmissionResult {
        let relevant =
            request.is(&GroupResource::CERTIFICATE_SIGNING_REQUESTS) && request.creates();
        if !relevant || csr.text("spec.signerName") != CLIENT_SIGNER {
            return Ok(());
        }
        let csr_info = SigningRequest::from_base64(csr.text("spec.request"))
            .and_then(|csr_info| csr_info.info())
            .map_err(|cause| request.forbidden(csr, format!("failed to parse CSR: {cause}")))?;
        if csr_info.subject.organizations.iter().any(|o| o == "system:masters") {
            let cause =
                format!("use of {CLIENT_SIGNER} signer with system:masters group is not allowed");
            return Err(request.forbidden(csr, cause));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use base64::{Engine, prelude::BASE64_STANDARD as BASE64};
    use serde_json::json;

    use super::*;
    use crate::testing::{Cluster, Try};

    fn csr(signer: &str, organization: &str) -> Value {
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name.push(rcgen::DnType::OrganizationName, organization);
        let pem =
            params.serialize_request(&rcgen::KeyPair::generate().unwrap()).unwrap().pem().unwrap();
        json!({"metadata": {"name": "c"}, "spec": {"signerName": signer, "request": BASE64.encode(pem)}})
    }

    #[test]
    fn rejects_csr_for_system_masters() {
        let cluster = Cluster::default();
        let create = Try::create(&cluster, &GroupResource::CERTIFICATE_SIGNING_REQUESTS);
        let ask = |signer: &str, organization: &str| {
            create.refusal(&CertificateSubjectRestriction, csr(signer, organization))
        };
        assert!(ask(CLIENT_SIGNER, "dev").starts_with("admitted"));
        assert!(ask("example.com/x", "system:masters").starts_with("admitted"));
        assert!(
            ask(CLIENT_SIGNER, "system:masters")
                .ends_with("signer with system:masters group is not allowed")
        );
        assert!(
            create
                .refusal(
                    &CertificateSubjectRestriction,
                    json!({"spec": {"signerName": CLIENT_SIGNER, "request": "x"}})
                )
                .contains("failed to parse CSR")
        );
    }

    #[test]
    fn checks_csr_with_second_pem_block() {
        let cluster = Cluster::default();
        let create = Try::create(&cluster, &GroupResource::CERTIFICATE_SIGNING_REQUESTS);
        let mut both = csr(CLIENT_SIGNER, "dev");
        let pem_of = |csr: &Value| BASE64.decode(csr.text("spec.request")).unwrap();
        let blocks = [pem_of(&both), pem_of(&csr(CLIENT_SIGNER, "system:masters"))];
        for order in [[0, 1], [1, 0]] {
            let pem = order.map(|i: usize| blocks[i].clone()).concat();
            both["spec"]["request"] = BASE64.encode(pem).into();
            let refusal = create.refusal(&CertificateSubjectRestriction, both.clone());
            assert!(refusal.contains("failed to parse CSR: there is something after"), "{refusal}");
        }
    }

    #[test]
    fn requires_permission_for_signer() {
        let request = json!({"metadata": {"name": "c"}, "spec": {"signerName": "example.com/x"}});
        let mut signed = request.clone();
        signed["status"] = json!({"certificate": "abc"});
        let ask = |allowed: &[&'static str], plugin: &dyn Plugin, sub, new: &Value| {
            let cluster = Cluster { allowed: allowed.to_vec(), ..Cluster::default() };
            Try::update(&cluster, &GroupResource::CERTIFICATE_SIGNING_REQUESTS, request.clone())
                .sub(sub)
                .refusal(plugin, new.clone())
        };
        assert!(
            ask(&["approve signers example.com/x"], &CertificateApproval, "approval", &request)
                .starts_with("admitted")
        );
        assert!(
            ask(&["approve signers example.com/*"], &CertificateApproval, "approval", &request)
                .starts_with("admitted")
        );
        assert!(
            ask(&[], &CertificateApproval, "approval", &request).ends_with(
                "user not permitted to approve requests with signerName \"example.com/x\""
            )
        );
        assert!(ask(&[], &CertificateSigning, "status", &request).starts_with("admitted"));
        assert!(
            ask(&[], &CertificateSigning, "status", &signed)
                .ends_with("user not permitted to sign requests with signerName \"example.com/x\"")
        );
    }
}
