//! Client certificates: the common name is the user, and the organizations are the groups. `pki` verifies and parses
//! them.

use std::time::SystemTime;

use api_meta::UserInfo;
pub(super) use api_meta::user::CREDENTIAL_ID;
pub use pki::ClientError as CertificateError;
use rustls::pki_types::CertificateDer;

/// The CAs that sign client certificates.
#[derive(Clone)]
pub struct ClientCa(pki::ClientCa);

/// The user of a verified certificate. Keep it per connection, because verification costs far more than a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedCertificate {
    /// The user.
    pub user: UserInfo,
    /// The end of the certificate's validity.
    pub not_after: SystemTime,
}

impl ClientCa {
    /// Parses a PEM bundle with at least one CA.
    pub fn from_pem(pem: &[u8]) -> Result<Self, CertificateError> {
        pki::ClientCa::from_pem(pem).map(Self)
    }

    /// Verifies a chain that starts with the client's own certificate. Returns `None` if the certificate names no user.
    pub fn verify(
        &self,
        chain: &[CertificateDer<'_>],
        now: SystemTime,
    ) -> Result<Option<VerifiedCertificate>, CertificateError> {
        let verified = self.0.verify(chain, now)?;
        Ok(verified.map(|pki::VerifiedClient { identity, not_after }| {
            let pki::Identity { name, groups, uid, credential_id } = identity;
            let user = UserInfo::of_certificate(name, uid, groups, credential_id);
            VerifiedCertificate { user, not_after }
        }))
    }

    /// Returns the CAs' names in DER, which a server sends to clients so that they select a certificate.
    pub fn authorities(&self) -> Vec<Vec<u8>> {
        self.0.authorities()
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

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
        leaf_of(by, usage, &[])
    }

    fn leaf_of(
        by: &Authority,
        usage: ExtendedKeyUsagePurpose,
        more_names: &[&str],
    ) -> CertificateDer<'static> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "alice");
        params.distinguished_name.push(DnType::OrganizationName, "dev");
        params
            .distinguished_name
            .push(DnType::CustomDnType(vec![1, 3, 6, 1, 4, 1, 57683, 2]), "u-1");
        for name in more_names {
            // More common names, by their OID.
            params.distinguished_name.push(DnType::CustomDnType(vec![2, 5, 4, 3]), *name);
        }
        params.extended_key_usages = vec![usage];
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = rcgen::date_time_ymd(2030, 1, 1);
        params.signed_by(&KeyPair::generate().unwrap(), &by.issuer).unwrap().into()
    }

    #[test]
    fn accepts_only_valid_client_certificates() {
        let (ours, theirs) = (authority("ours"), authority("theirs"));
        let ca = ClientCa::from_pem(ours.pem.as_bytes()).unwrap();
        let at = |year: u64| UNIX_EPOCH + Duration::from_secs((year - 1970) * 31_557_600);
        let good = leaf(&ours, ExtendedKeyUsagePurpose::ClientAuth);
        let verified = ca.verify(std::slice::from_ref(&good), at(2025)).unwrap().unwrap();
        assert_eq!((verified.user.name.as_str(), verified.user.uid.as_str()), ("alice", "u-1"));
        assert_eq!(verified.user.groups, ["dev"]);
        assert!(verified.user.extra[CREDENTIAL_ID][0].starts_with("X509SHA256="));
        assert_eq!(ca.verify(&[], at(2025)).unwrap(), None);
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

    #[test]
    fn rejects_certificate_with_two_common_names() {
        use crate::{
            authn::{Anonymous, Authentication, RequestCredentials, Unauthenticated},
            testing::Cluster,
        };
        let ours = authority("ours");
        let ca = ClientCa::from_pem(ours.pem.as_bytes()).unwrap();
        let now = UNIX_EPOCH + Duration::from_secs(55 * 31_557_600);
        let two = leaf_of(
            &ours,
            ExtendedKeyUsagePurpose::ClientAuth,
            &["system:kube-controller-manager"],
        );
        let authentication = Authentication {
            client_ca: Some(ca),
            front_proxy: None,
            tokens: Vec::new(),
            api_audiences: Vec::new(),
            anonymous: Anonymous::On,
        };
        let presented = RequestCredentials {
            peer: &authentication.peer(&[two], now),
            headers: &http::HeaderMap::new(),
            path: "/api",
            now,
        };
        let refused = authentication.authenticate(&presented, &Cluster::default()).unwrap_err();
        assert!(matches!(refused, Unauthenticated::Certificate(_)), "{refused:?}");
        assert!(refused.to_string().contains("its subject has 2 common names"), "{refused}");
    }
}
