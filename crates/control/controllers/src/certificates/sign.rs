//! Signs approved requests for the signers that are built into Kubernetes.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD};
use client::Error;
use pki::{Authority, Cert, Key, SigningRequest, Usage, Validity};

use super::{
    reconcile::{StatusChange, change_status, follow},
    request::{API_CLIENT, Csr, KUBELET_CLIENT, KUBELET_SERVING, LEGACY, RequestError},
};
use crate::{config::Config, context::Context};

/// The signers that are built into Kubernetes.
const SIGNERS: [&str; 4] = [KUBELET_CLIENT, KUBELET_SERVING, API_CLIENT, LEGACY];

/// Returns the decoded request and the usage of the certificate. The error is the reason to refuse it.
pub(super) fn plan(csr: &Csr) -> Result<(SigningRequest, Usage), RequestError> {
    let (request, info) = csr.request()?;
    let usage = match csr.spec.signer_name.as_str() {
        KUBELET_CLIENT => csr.validate_kubelet_client(&info).map(|()| Usage::Client),
        KUBELET_SERVING => csr.validate_kubelet_serving(&info).map(|()| Usage::Server),
        API_CLIENT => csr.validate_api_client().map(|()| Usage::Client),
        _ => {
            let has = |usage: &str| csr.spec.usages.iter().any(|u| u == usage);
            Ok(match (has("server auth"), has("client auth")) {
                (true, true) => Usage::ServerAndClient,
                (true, false) => Usage::Server,
                _ => Usage::Client,
            })
        }
    };
    usage.map(|usage| (request, usage))
}

pub(crate) fn start(context: Context) {
    let authorities = Arc::new(authorities(&context.config));
    if authorities.is_empty() {
        return;
    }
    let approved = |csr: &Csr| {
        SIGNERS.contains(&csr.spec.signer_name.as_str())
            && csr.has("Approved")
            && !csr.has("Denied")
            && !csr.has("Failed")
            && csr.status.certificate.is_none()
    };
    follow(&context, approved, move |context, csr| {
        let authorities = authorities.clone();
        async move {
            match authorities.get(csr.spec.signer_name.as_str()) {
                Some(authority) => sign(&context, authority, &csr).await,
                None => Ok(()),
            }
        }
    });
}

/// Returns the authority of each built-in signer. A signer without usable certificate and key signs nothing.
fn authorities(config: &Config) -> BTreeMap<&'static str, Authority> {
    let mut authorities = BTreeMap::new();
    for signer in SIGNERS {
        let Some((certificate, key)) = config.signers.get(signer).or(config.signing.as_ref())
        else {
            continue;
        };
        let authority = Cert::from_pem(certificate)
            .and_then(|certificate| Authority::from_parts(certificate, Key::from_pem(key)?));
        match authority {
            Ok(authority) => drop(authorities.insert(signer, authority)),
            Err(error) => {
                tracing::error!(signer, %error, "cannot sign certificates: certificate and key are unusable");
            }
        }
    }
    authorities
}

async fn sign(context: &Context, authority: &Authority, csr: &Csr) -> Result<(), Error> {
    let signed = plan(csr).and_then(|(request, usage)| {
        let validity = validity(authority, csr, context.config.signing_duration);
        authority.sign_request(&request, usage, validity).map_err(RequestError::from)
    });
    match signed {
        Ok(certificate) => {
            let encoded = STANDARD.encode(certificate.to_pem());
            change_status(context, csr, "status", StatusChange::Certificate(encoded)).await
        }
        Err(error) if csr.spec.signer_name == LEGACY => {
            tracing::warn!(request = %csr.metadata.name, %error, "cannot sign");
            Ok(())
        }
        Err(error) => {
            let failure = StatusChange::Condition {
                kind: "Failed",
                reason: "SignerValidationFailure",
                message: &error.to_string(),
            };
            change_status(context, csr, "status", failure).await
        }
    }
}

/// The requested validity, limited to `longest` and to the CA certificate's expiry.
fn validity(authority: &Authority, csr: &Csr, longest: Duration) -> Validity {
    let shortest = Duration::from_secs(600);
    let requested =
        csr.spec.expiration_seconds.map(|seconds| Duration::from_secs(seconds).max(shortest));
    let validity = Validity::starting(rt::now(), requested.unwrap_or(longest).min(longest));
    match authority.cert().info() {
        Ok(info) => validity.until_at_most(info.not_after),
        Err(_) => validity,
    }
}
