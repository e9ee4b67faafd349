use std::{collections::BTreeSet, net::IpAddr};

use base64::{Engine, engine::general_purpose::STANDARD};

use crate::{
    AltName, Error, Key, Subject,
    der::{self, Extensions},
    element::{
        BIT_STRING, BOOLEAN, Element, Fault, INTEGER, OBJECT_ID, OCTET_STRING, SEQUENCE, SET,
    },
    pem, signature,
    subject::{Further, Name, dotted},
};

const LABEL: &str = "CERTIFICATE REQUEST";
/// No request comes near it: a key of 8,192 bits takes 3 KB, and a thousand names 30.
const LARGEST: usize = 64 << 10;

/// The key is one of RSA.
const RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01];
/// The attribute of a request that holds the extensions that are asked for.
const EXTENSION_REQUEST: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x09, 0x0e];
/// Attributes that say nothing of the certificate: challengePassword and unstructuredName, which OpenSSL asks for.
const READ_PAST: [&[u8]; 2] = [
    &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x09, 0x07],
    &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x09, 0x02],
];
const ALT_NAMES: &[u8] = &[0x55, 0x1d, 0x11];
/// Extensions that requests ask for and a signer decides itself: the identifiers of keys, key usage, basic constraints,
/// policies, extended key usage, TLS features, and Netscape's type and comment.
const DECIDED: [&[u8]; 9] = [
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

/// A certificate request whose form and signature have been checked: what upstream's API server accepts for any signer.
/// What it asks for is read, and judged, by [`SigningRequest::info`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SigningRequest {
    der: Vec<u8>,
}

/// What a request asks for; a certificate that is signed for it says this and no more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestInfo {
    pub subject: Subject,
    pub alt_names: Vec<AltName>,
    /// SubjectPublicKeyInfo in DER.
    pub public_key: Vec<u8>,
    pub is_rsa: bool,
    pub(crate) further: Vec<Further>,
}

impl SigningRequest {
    /// A request signed by the key that it is for.
    pub fn create(subject: &Subject, alt_names: &[AltName], key: &Key) -> Result<Self, Error> {
        let extensions = Extensions { alt_names, ..Extensions::default() };
        Ok(Self { der: der::request(subject, &extensions, key)? })
    }

    /// Takes a request from outside: an error if it is too large, malformed, or not signed by its own key.
    pub fn from_der(der: Vec<u8>) -> Result<Self, Error> {
        if der.len() > LARGEST {
            return Err(Error::MalformedRequest(format!("it is larger than {LARGEST} bytes")));
        }
        Parts::read(&der).map_err(Error::MalformedRequest)?.check_signature()?;
        Ok(Self { der })
    }

    /// For tests of what is read behind the signature.
    #[cfg(test)]
    pub(crate) fn unverified(der: Vec<u8>) -> Self {
        Self { der }
    }

    /// Exactly one block. OpenSSL may print a request's text before it; nothing there looks like a block's edge, as of
    /// several blocks one reader takes the first and another the last. After it there is white space alone, and in it no
    /// header, which is read past by some and not by others.
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

    /// As `spec.request` of a CertificateSigningRequest holds it: base64 of PEM.
    pub fn from_base64(text: &str) -> Result<Self, Error> {
        let pem = STANDARD
            .decode(text)
            .map_err(|error| Error::MalformedPem(format!("it is not base64: {error}")))?;
        Self::from_pem(std::str::from_utf8(&pem).map_err(|_| Error::NoRequest)?)
    }

    /// The PEM text, with its final line break.
    pub fn to_pem(&self) -> String {
        pem::encode(LABEL, &self.der)
    }

    /// The bytes of the request.
    pub fn der(&self) -> &[u8] {
        &self.der
    }

    /// What the request asks for. Whoever decides about a request reads it here, and so does [`Authority::sign_request`],
    /// which writes what was read and copies nothing: what was approved is what authenticates.
    ///
    /// Refused is all that could be read in two ways, and what this does not know: any number of common names but one,
    /// attributes of several kinds in one set, unknown attributes and extensions, repeated extensions, and names for
    /// which Kubernetes has no field.
    ///
    /// [`Authority::sign_request`]: crate::Authority::sign_request
    pub fn info(&self) -> Result<RequestInfo, Error> {
        self.read().map_err(Error::RefusedRequest)
    }

    fn read(&self) -> Result<RequestInfo, Fault> {
        let parts = Parts::read(&self.der)?;
        let (subject, further) = Name::read(parts.subject.whole)?.asked()?;
        Ok(RequestInfo {
            subject,
            alt_names: requested_names(parts.attributes)?,
            public_key: parts.key.whole.to_vec(),
            is_rsa: parts.key_kind.content == RSA,
            further,
        })
    }
}

/// Where everything stands in a request.
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
        match signature::verify(kind, self.key.whole, self.signed.whole, self.signature) {
            Some(true) => Ok(()),
            Some(false) => Err(Error::RequestSignature),
            None => Err(Error::MalformedRequest(format!(
                "its signature is of the unknown algorithm {}",
                dotted(kind)
            ))),
        }
    }
}

/// The bytes of a bit string that consists of whole ones.
fn whole_bytes(bits: Element<'_>) -> Result<&[u8], Fault> {
    match bits.content.split_first() {
        Some((0, bytes)) => Ok(bytes),
        _ => Err("a bit string of it does not consist of whole bytes".to_owned()),
    }
}

/// The alternative names among the extensions that are asked for.
fn requested_names(attributes: Element<'_>) -> Result<Vec<AltName>, Fault> {
    let what = "an attribute of it";
    let mut names = None;
    let mut seen = BTreeSet::new();
    for attribute in attributes.elements() {
        let mut parts = Element::only(attribute?.whole, SEQUENCE, what)?.elements();
        let kind = parts.expect(OBJECT_ID, what)?.content;
        let values = parts.expect(SET, what)?;
        parts.end(what)?;
        if !seen.insert(kind) {
            return Err(format!("it has the attribute {} twice", dotted(kind)));
        }
        if kind == EXTENSION_REQUEST {
            let list = Element::only(values.content, SEQUENCE, "the list of extensions")?;
            names = names_of(list)?;
        } else if !READ_PAST.contains(&kind) {
            return Err(format!("it has the unknown attribute {}", dotted(kind)));
        }
    }
    Ok(names.unwrap_or_default())
}

fn names_of(extensions: Element<'_>) -> Result<Option<Vec<AltName>>, Fault> {
    let what = "an extension that it asks for";
    let mut names = None;
    let mut seen = BTreeSet::new();
    for extension in extensions.elements() {
        let mut parts = Element::only(extension?.whole, SEQUENCE, what)?.elements();
        let kind = parts.expect(OBJECT_ID, what)?.content;
        if parts.clone().next().is_some_and(|part| part.is_ok_and(|part| part.tag == BOOLEAN)) {
            parts.expect(BOOLEAN, what)?;
        }
        let value = parts.expect(OCTET_STRING, what)?.content;
        parts.end(what)?;
        if !seen.insert(kind) {
            return Err(format!("it asks for the extension {} twice", dotted(kind)));
        }
        if kind == ALT_NAMES {
            let list = Element::only(value, SEQUENCE, "the list of subjectAltNames")?;
            names = Some(list.elements().map(|name| alt_name(name?)).collect::<Result<_, _>>()?);
        } else if !DECIDED.contains(&kind) {
            return Err(format!("it asks for the unknown extension {}", dotted(kind)));
        }
    }
    Ok(names)
}

fn alt_name(name: Element<'_>) -> Result<AltName, Fault> {
    let printed = |byte: &u8| (b' '..=b'~').contains(byte);
    let text = || match std::str::from_utf8(name.content) {
        Ok(text) if !text.is_empty() && text.as_bytes().iter().all(printed) => Ok(text.to_owned()),
        _ => Err("a subjectAltName is empty, or not of printable ASCII".to_owned()),
    };
    match name.tag {
        0x81 => text().map(AltName::Email),
        0x82 => text().map(AltName::Dns),
        0x86 => text().map(AltName::Uri),
        0x87 => <[u8; 4]>::try_from(name.content)
            .map(IpAddr::from)
            .or_else(|_| <[u8; 16]>::try_from(name.content).map(IpAddr::from))
            .map(AltName::Ip)
            .map_err(|_| "a subjectAltName is no IP address".to_owned()),
        _ => Err("a subjectAltName is no DNS name, e-mail address, IP address or URI".to_owned()),
    }
}
