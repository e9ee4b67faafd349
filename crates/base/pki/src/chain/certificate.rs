//! Parses the fields of a certificate that chain verification needs, as strictly as Go's parser.

use std::{collections::BTreeSet, time::SystemTime};

use x509_parser::{
    certificate::X509Certificate,
    extensions::{ParsedExtension, X509Extension},
};

use crate::{
    cert::{Cert, validity},
    chain::constraints::{self, Constraints},
    error::Error,
    fault::Fault,
    names::AltName,
    subject::dotted,
    validity::Validity,
};

/// The extensions that Go's verifier accepts as critical without evaluating them: CRL distribution points and
/// certificate policies.
const ACCEPTED_CRITICAL: [&[u8]; 2] = [&[0x55, 0x1d, 0x1f], &[0x55, 0x1d, 0x20]];
/// The extensions that must not be critical: key identifiers and authority information access.
const NEVER_CRITICAL: [&[u8]; 3] =
    [&[0x55, 0x1d, 0x0e], &[0x55, 0x1d, 0x23], &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x01, 0x01]];

/// A certificate of a chain.
#[derive(Clone, Debug)]
pub(crate) struct Certificate {
    pub(super) cert: Cert,
    pub(super) subject: Vec<u8>,
    pub(super) issuer: Vec<u8>,
    /// The X.509 version, 1 to 3.
    pub(super) version: u32,
    pub(super) not_before: SystemTime,
    pub(super) not_after: SystemTime,
    pub(super) public_key: Vec<u8>,
    pub(super) signature: Signature,
    pub(super) basic_constraints: Option<BasicConstraints>,
    /// `false` if a key usage is given and signing certificates is not part of it.
    pub(super) may_sign: bool,
    /// `false` if extended key usages are given and client authentication is not one of them.
    pub(super) client_auth: bool,
    pub(super) names: Vec<AltName>,
    pub(super) constraints: Constraints,
    /// `true` if there is a critical extension that this verifier does not evaluate.
    pub(super) unhandled: bool,
}

/// The signature on a certificate.
#[derive(Clone, Debug)]
pub(super) struct Signature {
    /// The algorithm's object identifier in DER, without tag and length.
    pub(super) algorithm: Vec<u8>,
    pub(super) message: Vec<u8>,
    pub(super) value: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct BasicConstraints {
    pub(super) is_ca: bool,
    pub(super) max_path_len: Option<u32>,
}

impl Certificate {
    pub(crate) fn cert(&self) -> &Cert {
        &self.cert
    }

    pub(crate) fn subject(&self) -> &[u8] {
        &self.subject
    }

    /// Returns the SubjectPublicKeyInfo in DER.
    pub(crate) fn public_key(&self) -> &[u8] {
        &self.public_key
    }

    /// Parses a certificate in DER.
    ///
    /// # Errors
    ///
    /// Rejects everything that Go's `x509.ParseCertificate` rejects, and extensions in a certificate of version 1 or 2,
    /// which Go ignores and other programs obey.
    pub(crate) fn read(der: &[u8]) -> Result<Self, Error> {
        let cert = Cert::from_der(der.to_vec())?;
        let read = Self::of(&cert.parse()?, cert.clone());
        read.map_err(Error::MalformedCertificate)
    }

    fn of(parsed: &X509Certificate<'_>, cert: Cert) -> Result<Self, Fault> {
        let version = version(parsed)?;
        check_serial(parsed.raw_serial())?;
        if parsed.tbs_certificate.signature != parsed.signature_algorithm {
            return Err(Fault::TwoAlgorithms);
        }
        let Validity { not_before, not_after } = validity(parsed);
        let mut read = Self {
            subject: parsed.subject().as_raw().to_vec(),
            issuer: parsed.issuer().as_raw().to_vec(),
            version,
            not_before,
            not_after,
            public_key: parsed.public_key().raw.to_vec(),
            signature: Signature {
                algorithm: parsed.signature_algorithm.algorithm.as_bytes().to_vec(),
                message: parsed.tbs_certificate.as_ref().to_vec(),
                value: parsed.signature_value.data.to_vec(),
            },
            cert,
            basic_constraints: None,
            may_sign: true,
            client_auth: true,
            names: Vec::new(),
            constraints: Constraints::default(),
            unhandled: false,
        };
        let mut seen = BTreeSet::new();
        for extension in parsed.extensions() {
            let id = extension.oid.as_bytes();
            if !seen.insert(id) {
                return Err(Fault::DuplicateExtension(dotted(id)));
            }
            read.take(extension)?;
        }
        Ok(read)
    }

    fn take(&mut self, extension: &X509Extension<'_>) -> Result<(), Fault> {
        let id = extension.oid.as_bytes();
        match extension.parsed_extension() {
            ParsedExtension::BasicConstraints(found) => {
                self.basic_constraints = Some(BasicConstraints {
                    is_ca: found.ca,
                    max_path_len: found.path_len_constraint,
                });
            }
            // Go treats a usage without any bit like a missing one.
            ParsedExtension::KeyUsage(found) => {
                self.may_sign = found.flags == 0 || found.key_cert_sign();
            }
            ParsedExtension::ExtendedKeyUsage(found) => {
                let named = [
                    found.any,
                    found.server_auth,
                    found.client_auth,
                    found.code_signing,
                    found.email_protection,
                    found.time_stamping,
                    found.ocsp_signing,
                    !found.other.is_empty(),
                ];
                self.client_auth = found.any || found.client_auth || !named.contains(&true);
            }
            ParsedExtension::SubjectAlternativeName(found) => {
                self.names = constraints::names(&found.general_names)?;
                self.unhandled |= extension.critical && self.names.is_empty();
            }
            ParsedExtension::NameConstraints(found) => {
                self.constraints = Constraints::read(found)?;
                self.unhandled |= extension.critical && self.constraints.has_others;
            }
            ParsedExtension::ParseError { .. } => {
                return Err(Fault::MalformedExtension(dotted(id)));
            }
            _ if extension.critical && NEVER_CRITICAL.contains(&id) => {
                return Err(Fault::CriticalExtension(dotted(id)));
            }
            _ => self.unhandled |= extension.critical && !ACCEPTED_CRITICAL.contains(&id),
        }
        Ok(())
    }
}

fn version(parsed: &X509Certificate<'_>) -> Result<u32, Fault> {
    match parsed.version().0 {
        number @ 0..2 if !parsed.extensions().is_empty() => {
            Err(Fault::VersionWithExtensions(number + 1))
        }
        number @ 0..=2 => Ok(number + 1),
        _ => Err(Fault::Version),
    }
}

fn check_serial(serial: &[u8]) -> Result<(), Fault> {
    match serial {
        [] | [0, 0..=0x7f, ..] => Err(Fault::MalformedSerial),
        [0x80..=0xff, ..] => Err(Fault::NegativeSerial),
        _ => Ok(()),
    }
}
