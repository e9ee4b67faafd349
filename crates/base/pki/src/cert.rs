use std::{
    net::IpAddr,
    time::{Duration, SystemTime},
};

use aws_lc_rs::digest;
use data_encoding::HEXLOWER;
use x509_parser::{
    certificate::X509Certificate,
    extensions::GeneralName,
    prelude::FromDer,
    x509::{X509Name, X509Version},
};

use crate::{
    error::Error,
    fault::Fault,
    identity::Identity,
    key::Key,
    names::{AltName, Subject, Usage},
    pem,
    subject::Name,
    validity::Validity,
};

/// A certificate that is known to parse.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cert {
    der: Vec<u8>,
}

/// The contents of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertInfo {
    /// The subject.
    pub subject: Subject,
    /// The issuer.
    pub issuer: Subject,
    /// The subject alternative names.
    pub alt_names: Vec<AltName>,
    /// The first moment of the validity period; see [`Cert::check_valid_at`].
    pub not_before: SystemTime,
    /// The last moment of the validity period.
    pub not_after: SystemTime,
    /// `true` for a certificate authority.
    pub is_ca: bool,
    /// `true` if the extended key usage allows TLS servers. `false` without the extension.
    pub server_auth: bool,
    /// `true` if the extended key usage allows TLS clients. `false` without the extension.
    pub client_auth: bool,
    /// `true` if the key usage allows digital signatures.
    pub digital_signature: bool,
    /// `true` if the key usage allows key encipherment.
    pub key_encipherment: bool,
    /// `true` if the key usage allows signing certificates.
    pub cert_sign: bool,
    /// The serial number, big-endian.
    pub serial: Vec<u8>,
    /// The subject key identifier.
    pub subject_key_id: Option<Vec<u8>>,
}

impl Cert {
    /// Parses a certificate in DER.
    pub fn from_der(der: Vec<u8>) -> Result<Self, Error> {
        let cert = Self { der };
        cert.parse()?;
        Ok(cert)
    }

    /// Parses the first certificate of a PEM text.
    pub fn from_pem(text: &str) -> Result<Self, Error> {
        Ok(Self::all_from_pem(text)?.swap_remove(0))
    }

    /// Parses all certificates of a PEM text. There must be at least one.
    pub fn all_from_pem(text: &str) -> Result<Vec<Self>, Error> {
        pem::blocks_of(text, "CERTIFICATE", &["CERTIFICATE"])?
            .into_iter()
            .map(|(_, der)| Self::from_der(der))
            .collect()
    }

    /// Returns the PEM text, with its final line break.
    pub fn to_pem(&self) -> String {
        pem::encode("CERTIFICATE", &self.der)
    }

    /// Returns the DER bytes.
    pub fn der(&self) -> &[u8] {
        &self.der
    }

    /// Converts the certificate for rustls.
    pub fn to_rustls(&self) -> rustls_pki_types::CertificateDer<'static> {
        self.der.clone().into()
    }

    /// Returns the contents of the certificate, without verifying them.
    pub fn info(&self) -> Result<CertInfo, Error> {
        let cert = self.parse()?;
        let usage = cert.key_usage().ok().flatten().map(|u| u.value);
        let extended = cert.extended_key_usage().ok().flatten().map(|u| u.value);
        let Validity { not_before, not_after } = validity(&cert);
        Ok(CertInfo {
            subject: subject(cert.subject())?,
            issuer: subject(cert.issuer())?,
            alt_names: alt_names(&cert),
            not_before,
            not_after,
            is_ca: cert.is_ca(),
            server_auth: extended.is_some_and(|e| e.any || e.server_auth),
            client_auth: extended.is_some_and(|e| e.any || e.client_auth),
            digital_signature: usage.is_some_and(|u| u.digital_signature()),
            key_encipherment: usage.is_some_and(|u| u.key_encipherment()),
            cert_sign: usage.is_some_and(|u| u.key_cert_sign()),
            serial: cert.raw_serial().to_vec(),
            subject_key_id: cert.extensions().iter().find_map(|e| match e.parsed_extension() {
                x509_parser::extensions::ParsedExtension::SubjectKeyIdentifier(id) => {
                    Some(id.0.to_vec())
                }
                _ => None,
            }),
        })
    }

    /// Returns the identity that a client certificate asserts, or `None` if it has no common name. It is unverified;
    /// see [`ClientCa::verify`](crate::ClientCa::verify).
    ///
    /// A certificate with several common names is an error, although upstream takes the last one. No signer of a
    /// cluster issues such a certificate, and another authority may have checked the first name. A common name,
    /// organization or UID that cannot be parsed is also an error, because a dropped group could be one with a denial.
    pub fn identity(&self) -> Result<Option<Identity>, Error> {
        let cert = self.parse()?;
        let name = Name::read(cert.subject().as_raw()).map_err(Error::MalformedCertificate)?;
        let subject = name.subject().map_err(Error::MalformedCertificate)?;
        if subject.common_name.is_empty() {
            return Ok(None);
        }
        let hash = digest::digest(&digest::SHA256, &self.der);
        Ok(Some(Identity {
            name: subject.common_name,
            groups: subject.organizations,
            uid: name.uid().map_err(Error::MalformedCertificate)?,
            credential_id: format!("X509SHA256={}", HEXLOWER.encode(hash.as_ref())),
        }))
    }

    /// Returns the subject for messages. It must not be used for decisions.
    pub(crate) fn subject_text(&self) -> String {
        self.parse().map(|cert| cert.subject().to_string()).unwrap_or_default()
    }

    /// Returns kubeadm's pin of a CA: `sha256:` and the hash of its public key info, in hexadecimal.
    pub fn pin(&self) -> Result<String, Error> {
        let hash = digest::digest(&digest::SHA256, self.parse()?.public_key().raw);
        Ok(format!("sha256:{}", HEXLOWER.encode(hash.as_ref())))
    }

    /// Reports whether verifiers accept the certificate as an authority. Those of version 1 and 2 cannot say that they
    /// are authorities, and are accepted.
    pub(crate) fn may_be_authority(&self) -> Result<bool, Error> {
        let cert = self.parse()?;
        Ok(cert.is_ca() || cert.version() != X509Version::V3)
    }

    /// Returns the validity period.
    pub fn validity(&self) -> Result<Validity, Error> {
        Ok(validity(&self.parse()?))
    }

    /// Returns the subject alternative names of the kinds that Kubernetes knows.
    pub fn alt_names(&self) -> Result<Vec<AltName>, Error> {
        Ok(alt_names(&self.parse()?))
    }

    /// Returns the SubjectPublicKeyInfo of the holder.
    pub fn public_der(&self) -> Result<Vec<u8>, Error> {
        Ok(self.parse()?.public_key().raw.to_vec())
    }

    /// Returns an error unless the certificate belongs to the key.
    pub fn check_key(&self, key: &Key) -> Result<(), Error> {
        if self.public_der()? == key.public_der()? {
            return Ok(());
        }
        Err(Error::KeyMismatch { subject: self.subject_text() })
    }

    /// Returns an error unless the authority is the issuer and made the signature. Chain and validity are not checked.
    pub fn check_signed_by(&self, authority: &Cert) -> Result<(), Error> {
        let (leaf, issuer) = (self.parse()?, authority.parse()?);
        let same_name = leaf.issuer().as_raw() == issuer.subject().as_raw();
        if same_name && leaf.verify_signature(Some(issuer.public_key())).is_ok() {
            return Ok(());
        }
        Err(Error::NotSignedBy { subject: self.subject_text(), issuer: authority.subject_text() })
    }

    /// Returns an error unless every name in `wanted` is covered, directly or by a wildcard.
    pub fn check_names<'a>(
        &self,
        wanted: impl IntoIterator<Item = &'a AltName>,
    ) -> Result<(), Error> {
        let info = self.info()?;
        for name in wanted {
            if !info.alt_names.iter().any(|have| covers(have, name)) {
                return Err(Error::MissingName {
                    subject: info.subject.to_string(),
                    missing: name.to_string(),
                });
            }
        }
        Ok(())
    }

    /// Returns an error unless the extended key usage allows this use in TLS.
    pub fn check_usage(&self, usage: Usage) -> Result<(), Error> {
        let info = self.info()?;
        let missing = if usage.server() && !info.server_auth {
            "server authentication"
        } else if usage.client() && !info.client_auth {
            "client authentication"
        } else {
            return Ok(());
        };
        Err(Error::MissingUsage { subject: info.subject.to_string(), usage: missing })
    }

    /// Reports whether TLS servers may use the certificate: its extended key usage allows that, or it has none.
    pub fn can_serve(&self) -> Result<bool, Error> {
        let cert = self.parse()?;
        let extended = cert.extended_key_usage();
        Ok(extended.is_ok_and(|usage| {
            usage.is_none_or(|usage| usage.value.any || usage.value.server_auth)
        }))
    }

    /// Returns an error outside the validity period.
    pub fn check_valid_at(&self, now: SystemTime) -> Result<(), Error> {
        let info = self.info()?;
        let subject = info.subject.to_string();
        if now > info.not_after {
            return Err(Error::Expired { subject, until: format_time(info.not_after) });
        }
        if now < info.not_before {
            return Err(Error::NotYetValid { subject, from: format_time(info.not_before) });
        }
        Ok(())
    }

    pub(crate) fn raw_subject(&self) -> Result<Vec<u8>, Error> {
        Ok(self.parse()?.subject().as_raw().to_vec())
    }

    pub(crate) fn parse(&self) -> Result<X509Certificate<'_>, Error> {
        let (rest, cert) = X509Certificate::from_der(&self.der)
            .map_err(|e| Error::MalformedCertificate(Fault::Parser(e.to_string())))?;
        if !rest.is_empty() {
            return Err(Error::MalformedCertificate(Fault::AfterEnd));
        }
        Ok(cert)
    }
}

fn subject(name: &X509Name<'_>) -> Result<Subject, Error> {
    Name::read(name.as_raw()).and_then(|name| name.subject()).map_err(Error::MalformedCertificate)
}

/// Returns the validity period of a parsed certificate.
pub(crate) fn validity(cert: &X509Certificate<'_>) -> Validity {
    Validity {
        not_before: moment(cert.validity().not_before.timestamp()),
        not_after: moment(cert.validity().not_after.timestamp()),
    }
}

/// Returns the names of the kinds that Kubernetes knows, and ignores others.
fn alt_names(cert: &X509Certificate<'_>) -> Vec<AltName> {
    let names = cert.subject_alternative_name().ok().flatten();
    let names = names.map(|names| names.value.general_names.as_slice()).unwrap_or_default();
    names
        .iter()
        .filter_map(|name| match name {
            GeneralName::DNSName(n) => Some(AltName::Dns((*n).to_owned())),
            GeneralName::RFC822Name(n) => Some(AltName::Email((*n).to_owned())),
            GeneralName::URI(n) => Some(AltName::Uri((*n).to_owned())),
            GeneralName::IPAddress(bytes) => address(bytes).map(AltName::Ip),
            _ => None,
        })
        .collect()
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    <[u8; 4]>::try_from(bytes)
        .map(IpAddr::from)
        .or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from))
        .ok()
}

fn covers(have: &AltName, wanted: &AltName) -> bool {
    match (have, wanted) {
        (AltName::Dns(have), AltName::Dns(wanted)) => {
            have.eq_ignore_ascii_case(wanted)
                || have.strip_prefix("*.").is_some_and(|domain| {
                    wanted
                        .split_once('.')
                        .is_some_and(|(_, rest)| rest.eq_ignore_ascii_case(domain))
                })
        }
        _ => have == wanted,
    }
}

fn moment(seconds: i64) -> SystemTime {
    let magnitude = Duration::from_secs(seconds.unsigned_abs());
    if seconds < 0 {
        SystemTime::UNIX_EPOCH - magnitude
    } else {
        SystemTime::UNIX_EPOCH + magnitude
    }
}

/// Formats a time for messages.
pub fn format_time(at: SystemTime) -> String {
    let date = time::OffsetDateTime::from(at);
    date.format(&time::format_description::well_known::Rfc3339).unwrap_or_else(|_| date.to_string())
}
