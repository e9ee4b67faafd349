//! Client certificates: the common name is the user, the organisations are the groups.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use api_meta::UserInfo;
use aws_lc_rs::digest;
use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, UnixTime, pem::PemObject},
    server::{WebPkiClientVerifier, danger::ClientCertVerifier},
};
use x509_parser::prelude::{FromDer, X509Certificate};

/// The attribute of a subject that holds the user's UID.
const UID_OID: &str = "1.3.6.1.4.1.57683.2";
pub(super) const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CertificateError {
    #[error("cannot read the client CA bundle: {0}; it must hold one or more PEM certificates")]
    Bundle(String),
    #[error("cannot read the client's certificate: {0}")]
    Unreadable(String),
    #[error(
        "the client's certificate for {subject} is not acceptable: {cause}; it must be valid now, signed by the client CA and meant for client authentication"
    )]
    Refused { subject: String, cause: String },
    #[error("the client's certificate for {0} has expired; renew it")]
    Expired(String),
}

/// The authorities that sign client certificates.
#[derive(Clone)]
pub struct ClientCa {
    verifier: Arc<dyn ClientCertVerifier>,
}

/// A certificate whose chain was verified. Keep it with the connection: verifying costs far more than a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedCertificate {
    pub user: UserInfo,
    pub not_after: SystemTime,
}

impl ClientCa {
    pub fn from_pem(pem: &[u8]) -> Result<Self, CertificateError> {
        let bundle = |cause: &dyn std::fmt::Display| CertificateError::Bundle(cause.to_string());
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(pem) {
            roots.add(certificate.map_err(|e| bundle(&e))?).map_err(|e| bundle(&e))?;
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
        Ok(Self { verifier: verifier.map_err(|e| bundle(&e))? })
    }

    /// Verifies a chain, the client's own certificate first. `None` when it names no user.
    pub fn verify(
        &self,
        chain: &[CertificateDer<'_>],
        now: SystemTime,
    ) -> Result<Option<VerifiedCertificate>, CertificateError> {
        let Some((leaf, intermediates)) = chain.split_first() else { return Ok(None) };
        let (_, parsed) = X509Certificate::from_der(leaf)
            .map_err(|e| CertificateError::Unreadable(e.to_string()))?;
        let at = UnixTime::since_unix_epoch(now.duration_since(UNIX_EPOCH).unwrap_or_default());
        self.verifier.verify_client_cert(leaf, intermediates, at).map_err(|e| {
            CertificateError::Refused {
                subject: parsed.subject().to_string(),
                cause: e.to_string(),
            }
        })?;
        Ok(user_of(&parsed, leaf).map(|user| VerifiedCertificate {
            user,
            not_after: UNIX_EPOCH
                + Duration::from_secs(
                    u64::try_from(parsed.validity().not_after.timestamp()).unwrap_or(0),
                ),
        }))
    }

    /// The names of the authorities in DER, which a server tells clients so that they choose the right certificate.
    pub fn authorities(&self) -> Vec<Vec<u8>> {
        self.verifier.root_hint_subjects().iter().map(|subject| subject.as_ref().to_vec()).collect()
    }
}

fn user_of(certificate: &X509Certificate<'_>, der: &[u8]) -> Option<UserInfo> {
    let subject = certificate.subject();
    let name = subject.iter_common_name().last()?.as_str().ok().filter(|name| !name.is_empty())?;
    let groups =
        subject.iter_organization().filter_map(|o| o.as_str().ok().map(str::to_owned)).collect();
    let uid = subject
        .iter_attributes()
        .find(|a| a.attr_type().to_id_string() == UID_OID)
        .and_then(|a| a.as_str().ok())
        .unwrap_or("");
    let hash: String = digest::digest(&digest::SHA256, der)
        .as_ref()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    Some(UserInfo {
        name: name.into(),
        uid: uid.into(),
        groups,
        extra: [(CREDENTIAL_ID.to_owned(), vec![format!("X509SHA256={hash}")])].into(),
    })
}

#[cfg(test)]
mod tests {
    use rcgen::{
        BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    };

    use super::*;

    struct Authority {
        pem: String,
        issuer: Issuer<'static, KeyPair>,
    }

    fn authority(name: &str) -> Authority {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Authority { pem, issuer: Issuer::new(params, key) }
    }

    fn leaf(by: &Authority, usage: ExtendedKeyUsagePurpose) -> CertificateDer<'static> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "alice");
        params.distinguished_name.push(DnType::OrganizationName, "dev");
        params
            .distinguished_name
            .push(DnType::CustomDnType(vec![1, 3, 6, 1, 4, 1, 57683, 2]), "u-1");
        params.extended_key_usages = vec![usage];
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = rcgen::date_time_ymd(2030, 1, 1);
        params.signed_by(&KeyPair::generate().unwrap(), &by.issuer).unwrap().into()
    }

    #[test]
    fn reads_the_user_of_a_good_certificate_only() {
        let (ours, theirs) = (authority("ours"), authority("theirs"));
        let ca = ClientCa::from_pem(ours.pem.as_bytes()).unwrap();
        let at = |year: u64| UNIX_EPOCH + Duration::from_secs((year - 1970) * 31_557_600);
        let good = leaf(&ours, ExtendedKeyUsagePurpose::ClientAuth);
        let verified = ca.verify(std::slice::from_ref(&good), at(2025)).unwrap().unwrap();
        assert_eq!((verified.user.name.as_str(), verified.user.uid.as_str()), ("alice", "u-1"));
        assert_eq!(verified.user.groups, ["dev"]);
        assert!(verified.user.extra[CREDENTIAL_ID][0].starts_with("X509SHA256="));
        assert_eq!(ca.verify(&[], at(2025)), Ok(None));
        assert_eq!(ca.authorities().len(), 1);

        let refused = |chain: &[CertificateDer<'_>], year| ca.verify(chain, at(year)).is_err();
        assert!(refused(std::slice::from_ref(&good), 2031), "expired");
        assert!(refused(&[good], 2019), "not yet valid");
        assert!(
            refused(&[leaf(&theirs, ExtendedKeyUsagePurpose::ClientAuth)], 2025),
            "another authority"
        );
        assert!(
            refused(&[leaf(&ours, ExtendedKeyUsagePurpose::ServerAuth)], 2025),
            "a server's certificate"
        );
        assert!(refused(&[CertificateDer::from(vec![1, 2, 3])], 2025), "not a certificate");
        assert!(ClientCa::from_pem(b"nothing").is_err());
    }
}
