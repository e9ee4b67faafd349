use x509_parser::{
    certification_request::X509CertificationRequest, extensions::ParsedExtension, prelude::FromDer,
};

use crate::{
    AltName, Error, Key, Subject,
    cert::{alt_names, subject},
    der::{self, Extensions},
    pem,
};

/// A certificate request whose signature has been checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SigningRequest {
    der: Vec<u8>,
}

/// What a request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestInfo {
    pub subject: Subject,
    pub alt_names: Vec<AltName>,
    pub public_key: Vec<u8>,
    pub is_rsa: bool,
    pub(crate) raw_subject: Vec<u8>,
}

impl SigningRequest {
    pub fn create(subject: &Subject, alt_names: &[AltName], key: &Key) -> Result<Self, Error> {
        let extensions = Extensions { alt_names, ..Extensions::default() };
        Ok(Self { der: der::request(subject, &extensions, key)? })
    }

    pub fn from_der(der: Vec<u8>) -> Result<Self, Error> {
        let request = Self { der };
        request.parsed()?.verify_signature().map_err(|_| Error::RequestSignature)?;
        Ok(request)
    }

    pub fn from_pem(text: &str) -> Result<Self, Error> {
        let labels = &["CERTIFICATE REQUEST", "NEW CERTIFICATE REQUEST"];
        let blocks = pem::blocks_of(text, "CERTIFICATE REQUEST", labels)?;
        match blocks.into_iter().next() {
            Some((_, der)) => Self::from_der(der),
            None => Err(Error::MalformedRequest("there is no block".to_owned())),
        }
    }

    pub fn to_pem(&self) -> String {
        pem::encode("CERTIFICATE REQUEST", &self.der)
    }

    pub fn der(&self) -> &[u8] {
        &self.der
    }

    pub fn info(&self) -> Result<RequestInfo, Error> {
        let request = self.parsed()?;
        let info = &request.certification_request_info;
        let names = request.requested_extensions().into_iter().flatten().find_map(|e| match e {
            ParsedExtension::SubjectAlternativeName(names) => Some(alt_names(&names.general_names)),
            _ => None,
        });
        let rsa = x509_parser::oid_registry::OID_PKCS1_RSAENCRYPTION;
        Ok(RequestInfo {
            subject: subject(&info.subject),
            alt_names: names.unwrap_or_default(),
            public_key: info.subject_pki.raw.to_vec(),
            is_rsa: info.subject_pki.algorithm.algorithm == rsa,
            raw_subject: info.subject.as_raw().to_vec(),
        })
    }

    fn parsed(&self) -> Result<X509CertificationRequest<'_>, Error> {
        X509CertificationRequest::from_der(&self.der)
            .map(|(_, request)| request)
            .map_err(|e| Error::MalformedRequest(e.to_string()))
    }
}
