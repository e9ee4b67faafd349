use std::{collections::BTreeSet, net::IpAddr};

use base64::{Engine, engine::general_purpose::STANDARD};

use crate::{
    der::{self, Extensions},
    element::{BIT_STRING, BOOLEAN, Element, INTEGER, OBJECT_ID, OCTET_STRING, SEQUENCE, SET},
    error::Error,
    fault::Fault,
    key::Key,
    names::{AltName, Subject},
    pem, signature,
    subject::{ExtraAttribute, Name, dotted},
};

const LABEL: &str = "CERTIFICATE REQUEST";
/// The maximum size of a request, in bytes. A key of 8,192 bits takes 3 KB, and a thousand names 30 KB.
const LARGEST: usize = 64 << 10;

/// The object identifier of RSA keys.
const RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01];
/// The attribute of a request that contains the requested extensions.
const EXTENSION_REQUEST: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x09, 0x0e];
/// The attributes that do not affect the certificate: challengePassword and unstructuredName. OpenSSL prompts for both.
const IGNORED: [&[u8]; 2] = [
    &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x09, 0x07],
    &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x09, 0x02],
];
const ALT_NAMES: &[u8] = &[0x55, 0x1d, 0x11];
/// The requested extensions that the signer decides itself: key identifiers, key usage, basic constraints, policies,
/// extended key usage, TLS features, and Netscape's type and comment.
const DECIDED_BY_SIGNER: [&[u8]; 9] = [
    &[0x55, 0x1d, 0x0e],
    &[0x55, 0x1d, 0x0f],
    &[0x55, 0x1d, 0x13],
    &[0x55, 0x1d, 0x20],
    &[0x55, 0x1d, 0x23],
    &[0x55, 0x1d, 0x25],
    &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x01, 0x18],
    &[0x60, 0x86, 0x48, 0x01, 0x86, 0xf8, 0x42, 0x01, 0x01],
    &[0x60, 0x86, 0x48, 0x01, 0x86, 0xf8, 0x42, 0x01, 0x0d],
];

/// A certificate request whose form and signature were checked, which is what upstream's API server checks for every
/// signer. [`SigningRequest::info`] reads and validates its contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SigningRequest {
    der: Vec<u8>,
}

/// The contents of a request. A certificate that is signed for it contains these and no others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestInfo {
    /// The requested subject.
    pub subject: Subject,
    /// The requested subject alternative names.
    pub alt_names: Vec<AltName>,
    /// The SubjectPublicKeyInfo in DER.
    pub public_key: Vec<u8>,
    /// `true` for an RSA key.
    pub is_rsa: bool,
    pub(crate) further: Vec<ExtraAttribute>,
}

impl SigningRequest {
    /// Creates a request that is signed by its own key.
    pub fn create(subject: &Subject, alt_names: &[AltName], key: &Key) -> Result<Self, Error> {
        let extensions = Extensions { alt_names, ..Extensions::default() };
        Ok(Self { der: der::request(subject, &extensions, key)? })
    }

    /// Parses an untrusted request. Returns an error if it is too large, malformed or not signed by its own key.
    pub fn from_der(der: Vec<u8>) -> Result<Self, Error> {
        if der.len() > LARGEST {
            return Err(Error::MalformedRequest(Fault::TooLarge { limit: LARGEST }));
        }
        Parts::read(&der).map_err(Error::MalformedRequest)?.check_signature()?;
        Ok(Self { der })
    }

    /// Creates a request without checks, for tests of [`SigningRequest::info`].
    #[cfg(test)]
    pub(crate) fn unverified(der: Vec<u8>) -> Self {
        Self { der }
    }

    /// Parses a text with exactly one PEM block. OpenSSL may print a request's text before it. That text must not
    /// contain another block's edge, because one reader takes the first block and another the last. Only white space
    /// may follow. A header in the block is an error, because some readers ignore it and others do not.
    pub fn from_pem(text: &str) -> Result<Self, Error> {
        let (begin, end) = (format!("-----BEGIN {LABEL}-----"), format!("-----END {LABEL}-----"));
        let text = text.trim_ascii();
        let (before, block) = text.split_once(&begin).ok_or(Error::NoRequest)?;
        if before.contains("-----") || !(before.is_empty() || before.ends_with('\n')) {
            return Err(Error::BesideRequest("before"));
        }
        let lines = |block: &str| block.starts_with(['\n', '\r']) && block.ends_with('\n');
        let block = match block.split_once(&end) {
            Some((block, "")) if lines(block) => block,
            Some((block, _)) if lines(block) => return Err(Error::BesideRequest("after")),
            _ => return Err(Error::MalformedPem(format!("the {LABEL} block has no end"))),
        };
        let base64: Vec<u8> = block.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
        let der = STANDARD.decode(base64).map_err(|error| {
            Error::MalformedPem(format!("the {LABEL} block is not base64: {error}"))
        })?;
        Self::from_der(der)
    }

    /// Parses a CertificateSigningRequest's `spec.request`: base64 of PEM.
    pub fn from_base64(text: &str) -> Result<Self, Error> {
        let pem = STANDARD
            .decode(text)
            .map_err(|error| Error::MalformedPem(format!("it is not base64: {error}")))?;
        Self::from_pem(std::str::from_utf8(&pem).map_err(|_| Error::NoRequest)?)
    }

    /// Returns the PEM text, with its final line break.
    pub fn to_pem(&self) -> String {
        pem::encode(LABEL, &self.der)
    }

    /// Returns the DER bytes.
    pub fn der(&self) -> &[u8] {
        &self.der
    }

    /// Returns the SubjectPublicKeyInfo in DER.
    pub fn public_key(&self) -> Result<&[u8], Error> {
        let parts = Parts::read(&self.der).map_err(Error::MalformedRequest)?;
        Ok(parts.key.encoding)
    }

    /// Returns the contents of the request. Approvers use this function, and so does [`Authority::sign_request`], which
    /// encodes the returned contents and copies no bytes. The approved contents are therefore the contents that
    /// authenticate.
    ///
    /// Ambiguous and unknown contents are rejected: none or several common names, attributes of several kinds in one
    /// set, unknown attributes, unknown or repeated extensions, and names for which Kubernetes has no field.
    ///
    /// [`Authority::sign_request`]: crate::Authority::sign_request
    pub fn info(&self) -> Result<RequestInfo, Error> {
        self.read().map_err(Error::RefusedRequest)
    }

    fn read(&self) -> Result<RequestInfo, Fault> {
        let parts = Parts::read(&self.der)?;
        let (subject, further) = Name::read(parts.subject.encoding)?.requested()?;
        Ok(RequestInfo {
            subject,
            alt_names: requested_names(parts.attributes)?,
            public_key: parts.key.encoding.to_vec(),
            is_rsa: parts.key_kind.content == RSA,
            further,
        })
    }
}

/// The elements of a request.
struct Parts<'a> {
    signed: Element<'a>,
    subject: Element<'a>,
    key: Element<'a>,
    key_kind: Element<'a>,
    attributes: Element<'a>,
    algorithm: Element<'a>,
    signature: &'a [u8],
}

impl<'a> Parts<'a> {
    fn read(der: &'a [u8]) -> Result<Self, Fault> {
        let what = "the request";
        let mut all = Element::only(der, SEQUENCE, what)?.elements();
        let signed = all.expect(SEQUENCE, what)?;
        let algorithm = all.expect(SEQUENCE, "the signature's algorithm")?;
        let signature = whole_bytes(all.expect(BIT_STRING, "the signature")?)?;
        all.end(what)?;
        let mut all = signed.elements();
        all.expect(INTEGER, "the version")?;
        let subject = all.expect(SEQUENCE, "the subject")?;
        let key = all.expect(SEQUENCE, "the key")?;
        let attributes = all.expect(0xa0, "the list of attributes")?;
        all.end(what)?;
        let mut all = key.elements();
        let key_kind = all.expect(SEQUENCE, "the key")?.elements().expect(OBJECT_ID, "the key")?;
        whole_bytes(all.expect(BIT_STRING, "the key")?)?;
        all.end("the key")?;
        Ok(Self { signed, subject, key, key_kind, attributes, algorithm, signature })
    }

    fn check_signature(&self) -> Result<(), Error> {
        let kind = self.algorithm.elements().expect(OBJECT_ID, "the signature's algorithm");
        let kind = kind.map_err(Error::MalformedRequest)?.content;
        match signature::verify(kind, self.key.encoding, self.signed.encoding, self.signature) {
            Some(true) => Ok(()),
            Some(false) => Err(Error::RequestSignature),
            None => Err(Error::MalformedRequest(Fault::SignatureAlgorithm(dotted(kind)))),
        }
    }
}

/// Returns the bytes of a bit string without unused bits.
fn whole_bytes(bits: Element<'_>) -> Result<&[u8], Fault> {
    match bits.content.split_first() {
        Some((0, bytes)) => Ok(bytes),
        _ => Err(Fault::PartialBytes),
    }
}

/// Returns the alternative names of the requested extensions.
fn requested_names(attributes: Element<'_>) -> Result<Vec<AltName>, Fault> {
    let what = "an attribute of it";
    let mut names = None;
    let mut seen = BTreeSet::new();
    for attribute in attributes.elements() {
        let mut parts = Element::only(attribute?.encoding, SEQUENCE, what)?.elements();
        let kind = parts.expect(OBJECT_ID, what)?.content;
        let values = parts.expect(SET, what)?;
        parts.end(what)?;
        if !seen.insert(kind) {
            return Err(Fault::RepeatedAttribute(dotted(kind)));
        }
        if kind == EXTENSION_REQUEST {
            let list = Element::only(values.content, SEQUENCE, "the list of extensions")?;
            names = names_of(list)?;
        } else if !IGNORED.contains(&kind) {
            return Err(Fault::UnknownAttribute(dotted(kind)));
        }
    }
    Ok(names.unwrap_or_default())
}

fn names_of(extensions: Element<'_>) -> Result<Option<Vec<AltName>>, Fault> {
    let what = "an extension that it asks for";
    let mut names = None;
    let mut seen = BTreeSet::new();
    for extension in extensions.elements() {
        let mut parts = Element::only(extension?.encoding, SEQUENCE, what)?.elements();
        let kind = parts.expect(OBJECT_ID, what)?.content;
        if parts.clone().next().is_some_and(|part| part.is_ok_and(|part| part.tag == BOOLEAN)) {
            parts.expect(BOOLEAN, what)?;
        }
        let value = parts.expect(OCTET_STRING, what)?.content;
        parts.end(what)?;
        if !seen.insert(kind) {
            return Err(Fault::RepeatedRequest(dotted(kind)));
        }
        if kind == ALT_NAMES {
            let list = Element::only(value, SEQUENCE, "the list of subjectAltNames")?;
            names = Some(list.elements().map(|name| alt_name(name?)).collect::<Result<_, _>>()?);
        } else if !DECIDED_BY_SIGNER.contains(&kind) {
            return Err(Fault::UnknownRequest(dotted(kind)));
        }
    }
    Ok(names)
}

fn alt_name(name: Element<'_>) -> Result<AltName, Fault> {
    let printed = |byte: &u8| (b' '..=b'~').contains(byte);
    let text = || match std::str::from_utf8(name.content) {
        Ok(text) if !text.is_empty() && text.as_bytes().iter().all(printed) => Ok(text.to_owned()),
        _ => Err(Fault::AltNameText),
    };
    match name.tag {
        0x81 => text().map(AltName::Email),
        0x82 => text().map(AltName::Dns),
        0x86 => text().map(AltName::Uri),
        0x87 => <[u8; 4]>::try_from(name.content)
            .map(IpAddr::from)
            .or_else(|_| <[u8; 16]>::try_from(name.content).map(IpAddr::from))
            .map(AltName::Ip)
            .map_err(|_| Fault::AltNameAddress),
        _ => Err(Fault::AltNameKind),
    }
}
