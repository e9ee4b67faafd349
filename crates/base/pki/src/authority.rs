use std::time::SystemTime;

use aws_lc_rs::{
    digest,
    rand::{SecureRandom, SystemRandom},
};
use time::OffsetDateTime;

use crate::{
    cert::Cert,
    csr::SigningRequest,
    der::{self, CERT_SIGN, DIGITAL_SIGNATURE, Extensions, KEY_ENCIPHERMENT, ToBeSigned},
    error::Error,
    key::{Key, KeyAlgorithm},
    names::{AltName, Subject, Usage},
    signature,
    validity::Validity,
};

/// The contents of a leaf certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeafSpec {
    /// The subject: user name and groups, or the server's name.
    pub subject: Subject,
    /// The subject alternative names.
    pub alt_names: Vec<AltName>,
    /// The extended key usage.
    pub usage: Usage,
}

/// A certificate authority with its key.
#[derive(Debug)]
pub struct Authority {
    cert: Cert,
    key: Key,
    subject: Vec<u8>,
    key_id: Vec<u8>,
}

impl Authority {
    /// Creates a self-signed authority. Its common name is also its DNS name, like in kubeadm.
    pub fn create(
        common_name: &str,
        algorithm: KeyAlgorithm,
        validity: Validity,
    ) -> Result<Self, Error> {
        Self::create_with(common_name, Key::generate(algorithm)?, validity)
    }

    /// Creates an authority like [`Authority::create`] for an existing key.
    pub fn create_with(common_name: &str, key: Key, validity: Validity) -> Result<Self, Error> {
        let subject = der::name(&Subject::new(common_name));
        let public_key = key.public_der()?;
        let key_id = key_id(&public_key);
        let der = der::certificate(
            &ToBeSigned {
                serial: &serial()?,
                issuer: &subject,
                subject: &subject,
                not_before: date(validity.not_before)?,
                not_after: date(validity.not_after)?,
                public_key: &public_key,
                extensions: Extensions {
                    key_usage: DIGITAL_SIGNATURE | KEY_ENCIPHERMENT | CERT_SIGN,
                    is_ca: Some(true),
                    subject_key_id: Some(&key_id),
                    alt_names: &[AltName::dns(common_name)],
                    ..Extensions::default()
                },
            },
            &key,
        )?;
        Ok(Self { cert: Cert::from_der(der)?, key, subject, key_id })
    }

    /// Creates an authority from an existing certificate and key, which must match.
    pub fn from_parts(cert: Cert, key: Key) -> Result<Self, Error> {
        let info = cert.info()?;
        if !cert.may_be_authority()? {
            return Err(Error::NotAnAuthority { subject: info.subject.to_string() });
        }
        cert.check_key(&key)?;
        let key_id = match info.subject_key_id {
            Some(id) => id,
            None => key_id(&key.public_der()?),
        };
        Ok(Self { subject: cert.raw_subject()?, cert, key, key_id })
    }

    /// Returns the authority's certificate, which clients trust.
    pub fn cert(&self) -> &Cert {
        &self.cert
    }

    /// Returns the signing key.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Signs a leaf certificate for the holder of `key`.
    pub fn issue(&self, spec: &LeafSpec, key: &Key, validity: Validity) -> Result<Cert, Error> {
        self.issue_to(spec, &key.public_der()?, validity)
    }

    /// Signs a leaf certificate for the holder of a public key (SubjectPublicKeyInfo in DER).
    ///
    /// # Errors
    ///
    /// Rejects malformed keys, and keys whose signatures this crate cannot verify.
    pub fn issue_to(
        &self,
        spec: &LeafSpec,
        public_key: &[u8],
        validity: Validity,
    ) -> Result<Cert, Error> {
        signature::check_key(public_key).map_err(Error::RefusedRequest)?;
        let key_usage = DIGITAL_SIGNATURE | KEY_ENCIPHERMENT;
        let extensions = self.extensions(key_usage, spec.usage, &spec.alt_names);
        self.sign_leaf(&der::name(&spec.subject), public_key, extensions, validity)
    }

    /// Generates a key and signs a leaf certificate for it.
    pub fn issue_new(
        &self,
        spec: &LeafSpec,
        algorithm: KeyAlgorithm,
        validity: Validity,
    ) -> Result<(Cert, Key), Error> {
        let key = Key::generate(algorithm)?;
        Ok((self.issue(spec, &key, validity)?, key))
    }

    /// Signs a request. Subject, names and key are those of [`SigningRequest::info`], encoded again. The caller decides
    /// the usages, because the request may ask for more than its sender is allowed.
    pub fn sign_request(
        &self,
        request: &SigningRequest,
        usage: Usage,
        validity: Validity,
    ) -> Result<Cert, Error> {
        let info = request.info()?;
        let key_usage = DIGITAL_SIGNATURE | if info.is_rsa { KEY_ENCIPHERMENT } else { 0 };
        let subject = der::name_with(&info.subject, &info.further);
        let extensions = self.extensions(key_usage, usage, &info.alt_names);
        self.sign_leaf(&subject, &info.public_key, extensions, validity)
    }

    fn extensions<'a>(
        &'a self,
        key_usage: u8,
        usage: Usage,
        alt_names: &'a [AltName],
    ) -> Extensions<'a> {
        Extensions {
            key_usage,
            server: usage.server(),
            client: usage.client(),
            is_ca: Some(false),
            authority_key_id: Some(&self.key_id),
            alt_names,
            ..Extensions::default()
        }
    }

    fn sign_leaf(
        &self,
        subject: &[u8],
        public_key: &[u8],
        extensions: Extensions<'_>,
        validity: Validity,
    ) -> Result<Cert, Error> {
        let der = der::certificate(
            &ToBeSigned {
                serial: &serial()?,
                issuer: &self.subject,
                subject,
                not_before: date(validity.not_before)?,
                not_after: date(validity.not_after)?,
                public_key,
                extensions,
            },
            &self.key,
        )?;
        Cert::from_der(der)
    }
}

fn date(at: SystemTime) -> Result<OffsetDateTime, Error> {
    let date = OffsetDateTime::from(at).replace_nanosecond(0).map_err(|_| Error::TimeRange)?;
    if (1950..=9999).contains(&date.year()) { Ok(date) } else { Err(Error::TimeRange) }
}

/// Returns a positive random number of 63 bits. It is never zero, which some libraries reject.
fn serial() -> Result<[u8; 8], Error> {
    let mut bytes = [0; 8];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|e| Error::Key { operation: "draw a serial number for", reason: e.to_string() })?;
    bytes[0] &= 0x7f;
    bytes[7] |= 1;
    Ok(bytes)
}

/// Returns the key identifier of RFC 7093, method 1, like Go: the first 160 bits of the SHA-256 hash of the public key.
fn key_id(public_key: &[u8]) -> Vec<u8> {
    let bits = yasna::parse_der(public_key, |reader| {
        reader.read_sequence(|fields| {
            fields.next().read_der()?;
            fields.next().read_bitvec_bytes()
        })
    })
    .map(|(bytes, _)| bytes)
    .unwrap_or_else(|_| public_key.to_vec());
    digest::digest(&digest::SHA256, &bits).as_ref()[..20].to_vec()
}
