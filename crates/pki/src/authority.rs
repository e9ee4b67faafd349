use std::time::{Duration, SystemTime};

use aws_lc_rs::{
    digest,
    rand::{SecureRandom, SystemRandom},
};
use time::OffsetDateTime;

use crate::{
    AltName, Cert, Error, Key, KeyAlgorithm, SigningRequest, Subject, Usage,
    der::{self, CERT_SIGN, DIGITAL_SIGNATURE, Extensions, KEY_ENCIPHERMENT, ToBeSigned},
};

/// From when until when a certificate holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    pub not_before: SystemTime,
    /// The last moment that it holds.
    pub not_after: SystemTime,
}

impl Validity {
    /// How much earlier than now a certificate begins, so that clocks may differ a little.
    pub const SKEW: Duration = Duration::from_secs(5 * 60);

    /// From a little before now until `period` from then; see [`Validity::SKEW`].
    pub fn starting(now: SystemTime, period: Duration) -> Self {
        let not_before = now - Self::SKEW;
        Self { not_before, not_after: not_before + period }
    }

    /// Ends no later than `limit`: nobody trusts a leaf that outlives its CA.
    pub fn until_at_most(self, limit: SystemTime) -> Self {
        Self { not_after: self.not_after.min(limit), ..self }
    }
}

/// What a leaf certificate says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeafSpec {
    pub subject: Subject,
    pub alt_names: Vec<AltName>,
    pub usage: Usage,
}

/// A certificate authority that can sign.
#[derive(Debug)]
pub struct Authority {
    cert: Cert,
    key: Key,
    subject: Vec<u8>,
    key_id: Vec<u8>,
}

impl Authority {
    /// A new self-signed authority, its common name also its DNS name, as kubeadm makes it.
    pub fn create(
        common_name: &str,
        algorithm: KeyAlgorithm,
        validity: Validity,
    ) -> Result<Self, Error> {
        Self::create_with(common_name, Key::generate(algorithm)?, validity)
    }

    /// As [`Authority::create`], for a key that exists.
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

    /// An authority whose certificate and key exist; they must belong together.
    pub fn from_parts(cert: Cert, key: Key) -> Result<Self, Error> {
        let info = cert.info()?;
        if !info.is_ca {
            return Err(Error::NotAnAuthority { subject: info.subject.to_string() });
        }
        cert.check_key(&key)?;
        let key_id = match info.subject_key_id {
            Some(id) => id,
            None => key_id(&key.public_der()?),
        };
        Ok(Self { subject: cert.raw_subject()?, cert, key, key_id })
    }

    /// The authority's own certificate, which others trust.
    pub fn cert(&self) -> &Cert {
        &self.cert
    }

    /// The key that it signs with.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Signs a leaf for the holder of `key`.
    pub fn issue(&self, spec: &LeafSpec, key: &Key, validity: Validity) -> Result<Cert, Error> {
        let key_usage = DIGITAL_SIGNATURE | KEY_ENCIPHERMENT;
        self.sign_leaf(
            &der::name(&spec.subject),
            &key.public_der()?,
            key_usage,
            spec.usage,
            &spec.alt_names,
            validity,
        )
    }

    /// Makes a key and a leaf for it.
    pub fn issue_new(
        &self,
        spec: &LeafSpec,
        algorithm: KeyAlgorithm,
        validity: Validity,
    ) -> Result<(Cert, Key), Error> {
        let key = Key::generate(algorithm)?;
        Ok((self.issue(spec, &key, validity)?, key))
    }

    /// Signs a request: its subject, names and key, as [`SigningRequest::info`] reads them for everybody, and written anew;
    /// the usages are the caller's decision, as the request's own may ask for more than its sender is allowed.
    pub fn sign_request(
        &self,
        request: &SigningRequest,
        usage: Usage,
        validity: Validity,
    ) -> Result<Cert, Error> {
        let info = request.info()?;
        let key_usage = DIGITAL_SIGNATURE | if info.is_rsa { KEY_ENCIPHERMENT } else { 0 };
        self.sign_leaf(
            &der::name_with(&info.subject, &info.further),
            &info.public_key,
            key_usage,
            usage,
            &info.alt_names,
            validity,
        )
    }

    fn sign_leaf(
        &self,
        subject: &[u8],
        public_key: &[u8],
        key_usage: u8,
        usage: Usage,
        alt_names: &[AltName],
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
                extensions: Extensions {
                    key_usage,
                    server: usage.server(),
                    client: usage.client(),
                    is_ca: Some(false),
                    authority_key_id: Some(&self.key_id),
                    alt_names,
                    ..Extensions::default()
                },
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

/// A positive random number of 63 bits; never zero, which some libraries refuse.
fn serial() -> Result<[u8; 8], Error> {
    let mut bytes = [0; 8];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|e| Error::Key { operation: "draw a serial number for", reason: e.to_string() })?;
    bytes[0] &= 0x7f;
    bytes[7] |= 1;
    Ok(bytes)
}

/// RFC 7093, method 1: the first 160 bits of the SHA-256 of the public key's bits, as Go does.
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
