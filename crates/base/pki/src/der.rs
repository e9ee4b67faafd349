//! Encodes certificates and requests in ASN.1 DER, with the order and choices of Go's crypto/x509, so that the output
//! looks like upstream's.

use std::net::IpAddr;

use time::OffsetDateTime;
use yasna::{
    DERWriter, DERWriterSeq, Tag,
    models::{GeneralizedTime, ObjectIdentifier, UTCTime},
};

use crate::{
    key::{Curve, Key, KeyKind},
    names::{AltName, Subject},
    subject::{ExtraAttribute, WRITTEN},
};

const COMMON_NAME: &[u64] = &[2, 5, 4, 3];
const ORGANIZATION: &[u64] = &[2, 5, 4, 10];
const SUBJECT_KEY_ID: &[u64] = &[2, 5, 29, 14];
const KEY_USAGE: &[u64] = &[2, 5, 29, 15];
const ALT_NAMES: &[u64] = &[2, 5, 29, 17];
const BASIC_CONSTRAINTS: &[u64] = &[2, 5, 29, 19];
const AUTHORITY_KEY_ID: &[u64] = &[2, 5, 29, 35];
const EXTENDED_USAGE: &[u64] = &[2, 5, 29, 37];
const SERVER_AUTH: &[u64] = &[1, 3, 6, 1, 5, 5, 7, 3, 1];
const CLIENT_AUTH: &[u64] = &[1, 3, 6, 1, 5, 5, 7, 3, 2];
const EXTENSION_REQUEST: &[u64] = &[1, 2, 840, 113549, 1, 9, 14];

/// The extensions of certificates and requests. Empty optional extensions are omitted.
#[derive(Default)]
pub(crate) struct Extensions<'a> {
    /// The bits of keyUsage, the first bit (digitalSignature) highest.
    pub(crate) key_usage: u8,
    pub(crate) server: bool,
    pub(crate) client: bool,
    /// The basicConstraints; `None` omits the extension, as in requests.
    pub(crate) is_ca: Option<bool>,
    pub(crate) subject_key_id: Option<&'a [u8]>,
    pub(crate) authority_key_id: Option<&'a [u8]>,
    pub(crate) alt_names: &'a [AltName],
}

pub(crate) const DIGITAL_SIGNATURE: u8 = 0b1000_0000;
pub(crate) const KEY_ENCIPHERMENT: u8 = 0b0010_0000;
pub(crate) const CERT_SIGN: u8 = 0b0000_0100;

pub(crate) struct ToBeSigned<'a> {
    pub(crate) serial: &'a [u8],
    /// The issuer's name, byte by byte as in its own certificate.
    pub(crate) issuer: &'a [u8],
    pub(crate) subject: &'a [u8],
    pub(crate) not_before: OffsetDateTime,
    pub(crate) not_after: OffsetDateTime,
    pub(crate) public_key: &'a [u8],
    pub(crate) extensions: Extensions<'a>,
}

pub(crate) fn certificate(
    tbs: &ToBeSigned<'_>,
    signer: &Key,
) -> Result<Vec<u8>, crate::error::Error> {
    let body = yasna::construct_der(|w| {
        w.write_sequence(|w| {
            w.next().write_tagged(Tag::context(0), |w| w.write_u8(2));
            w.next().write_bigint_bytes(tbs.serial, true);
            signature_algorithm(w.next(), signer);
            w.next().write_der(tbs.issuer);
            w.next().write_sequence(|w| {
                moment(w.next(), tbs.not_before);
                moment(w.next(), tbs.not_after);
            });
            w.next().write_der(tbs.subject);
            w.next().write_der(tbs.public_key);
            w.next().write_tagged(Tag::context(3), |w| write_extensions(w, &tbs.extensions));
        });
    });
    signed(&body, signer)
}

pub(crate) fn request(
    subject: &Subject,
    extensions: &Extensions<'_>,
    key: &Key,
) -> Result<Vec<u8>, crate::error::Error> {
    let name = name(subject);
    let public_key = key.public_der()?;
    let body = yasna::construct_der(|w| {
        w.write_sequence(|w| {
            w.next().write_u8(0);
            w.next().write_der(&name);
            w.next().write_der(&public_key);
            w.next().write_tagged_implicit(Tag::context(0), |w| {
                w.write_set(|w| {
                    if extensions.is_empty() {
                        return;
                    }
                    w.next().write_sequence(|w| {
                        oid(w.next(), EXTENSION_REQUEST);
                        w.next().write_set(|w| write_extensions(w.next(), extensions));
                    });
                });
            });
        });
    });
    signed(&body, key)
}

pub(crate) fn signed(body: &[u8], signer: &Key) -> Result<Vec<u8>, crate::error::Error> {
    let signature = signer.sign(body)?;
    Ok(yasna::construct_der(|w| {
        w.write_sequence(|w| {
            w.next().write_der(body);
            signature_algorithm(w.next(), signer);
            w.next().write_bitvec_bytes(&signature, signature.len() * 8);
        });
    }))
}

fn signature_algorithm(w: DERWriter<'_>, key: &Key) {
    w.write_sequence(|w| match key.kind() {
        KeyKind::Ecdsa(curve) => {
            let last = match curve {
                Curve::P256 => 2,
                Curve::P384 => 3,
                Curve::P521 => 4,
            };
            oid(w.next(), &[1, 2, 840, 10045, 4, 3, last]);
        }
        KeyKind::Ed25519 => oid(w.next(), &[1, 3, 101, 112]),
        KeyKind::Rsa(_) => {
            oid(w.next(), &[1, 2, 840, 113549, 1, 1, 11]);
            w.next().write_null();
        }
    });
}

/// Encodes a distinguished name: all organizations in one set, then the common name.
pub(crate) fn name(subject: &Subject) -> Vec<u8> {
    name_with(subject, &[])
}

/// Encodes a distinguished name with further attributes. Each kind has a set of its own.
pub(crate) fn name_with(subject: &Subject, further: &[ExtraAttribute]) -> Vec<u8> {
    let values = |kind: u8| -> Vec<&str> {
        match [2, 5, 4, u64::from(kind)].as_slice() {
            COMMON_NAME if subject.common_name.is_empty() => vec![],
            COMMON_NAME => vec![&subject.common_name],
            ORGANIZATION => subject.organizations.iter().map(String::as_str).collect(),
            _ => further.iter().filter(|f| f.kind == kind).map(|f| f.value.as_str()).collect(),
        }
    };
    yasna::construct_der(|w| {
        w.write_sequence(|w| {
            for kind in WRITTEN {
                let values = values(kind);
                if !values.is_empty() {
                    w.next().write_set_of(|w| {
                        let kind = [2, 5, 4, u64::from(kind)];
                        values.iter().for_each(|value| attribute(w.next(), &kind, value));
                    });
                }
            }
        });
    })
}

fn attribute(w: DERWriter<'_>, kind: &[u64], value: &str) {
    let printable = |c: char| c.is_ascii_alphanumeric() || " '()+,-./:=?".contains(c);
    w.write_sequence(|w| {
        oid(w.next(), kind);
        if value.chars().all(printable) {
            w.next().write_printable_string(value);
        } else {
            w.next().write_utf8_string(value);
        }
    });
}

impl Extensions<'_> {
    fn is_empty(&self) -> bool {
        self.key_usage == 0
            && !self.server
            && !self.client
            && self.is_ca.is_none()
            && self.alt_names.is_empty()
    }
}

fn write_extensions(w: DERWriter<'_>, extensions: &Extensions<'_>) {
    w.write_sequence(|w| {
        if extensions.key_usage != 0 {
            let used = 8 - extensions.key_usage.trailing_zeros() as usize;
            extension(w, KEY_USAGE, true, |w| w.write_bitvec_bytes(&[extensions.key_usage], used));
        }
        if extensions.server || extensions.client {
            extension(w, EXTENDED_USAGE, false, |w| {
                w.write_sequence(|w| {
                    if extensions.server {
                        oid(w.next(), SERVER_AUTH);
                    }
                    if extensions.client {
                        oid(w.next(), CLIENT_AUTH);
                    }
                });
            });
        }
        if let Some(is_ca) = extensions.is_ca {
            extension(w, BASIC_CONSTRAINTS, true, |w| {
                w.write_sequence(|w| {
                    if is_ca {
                        w.next().write_bool(true);
                    }
                });
            });
        }
        if let Some(id) = extensions.subject_key_id {
            extension(w, SUBJECT_KEY_ID, false, |w| w.write_bytes(id));
        }
        if let Some(id) = extensions.authority_key_id {
            extension(w, AUTHORITY_KEY_ID, false, |w| {
                w.write_sequence(|w| {
                    w.next().write_tagged_implicit(Tag::context(0), |w| w.write_bytes(id))
                });
            });
        }
        if !extensions.alt_names.is_empty() {
            extension(w, ALT_NAMES, false, |w| {
                w.write_sequence(|w| {
                    extensions.alt_names.iter().for_each(|name| alt_name(w.next(), name))
                });
            });
        }
    });
}

fn extension(
    w: &mut DERWriterSeq<'_>,
    kind: &[u64],
    critical: bool,
    content: impl FnOnce(DERWriter<'_>),
) {
    w.next().write_sequence(|w| {
        oid(w.next(), kind);
        if critical {
            w.next().write_bool(true);
        }
        w.next().write_bytes(&yasna::construct_der(content));
    });
}

fn alt_name(w: DERWriter<'_>, name: &AltName) {
    let (tag, bytes) = match name {
        AltName::Email(text) => (1, text.as_bytes().to_vec()),
        AltName::Dns(text) => (2, text.as_bytes().to_vec()),
        AltName::Uri(text) => (6, text.as_bytes().to_vec()),
        AltName::Ip(IpAddr::V4(ip)) => (7, ip.octets().to_vec()),
        AltName::Ip(IpAddr::V6(ip)) => (7, ip.octets().to_vec()),
    };
    w.write_tagged_implicit(Tag::context(tag), |w| w.write_bytes(&bytes));
}

fn oid(w: DERWriter<'_>, components: &[u64]) {
    w.write_oid(&ObjectIdentifier::from_slice(components));
}

/// Encodes a time by RFC 5280: two-digit years up to 2049, four digits from then on.
fn moment(w: DERWriter<'_>, at: OffsetDateTime) {
    if at.year() < 2050 {
        w.write_utctime(&UTCTime::from_datetime(at));
    } else {
        w.write_generalized_time(&GeneralizedTime::from_datetime(at));
    }
}
