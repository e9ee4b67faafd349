//! Parses distinguished names. This is the only place that decides the user and groups of a certificate.
//!
//! Admission, approval, signing, enrollment and authentication all use it, so that each acts on what the others have
//! checked.

use std::collections::BTreeSet;

use x509_parser::asn1_rs::Oid;

use crate::{
    element::{Element, OBJECT_ID, SEQUENCE, SET},
    fault::Fault,
    names::Subject,
};

const COMMON_NAME: u8 = 3;
const ORGANIZATION: u8 = 10;
/// The attributes below 2.5.4 that Go's crypto/x509 writes, in its order. A signed certificate copies only these from
/// its request.
pub(crate) const WRITTEN: [u8; 9] = [6, ORGANIZATION, 11, 7, 8, 9, 17, COMMON_NAME, 5];
/// The other attributes below 2.5.4 that requests may have; they are ignored.
const IGNORED: [u8; 9] = [4, 12, 13, 41, 42, 43, 46, 65, 97];
/// The ignored attributes outside 2.5.4: e-mail address, domain component, and LDAP's user identifier, which is not
/// Kubernetes' UID.
const IGNORED_OUTSIDE: [&[u8]; 3] = [
    &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x09, 0x01],
    &[0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 0x01, 0x19],
    &[0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 0x01, 0x01],
];
/// Kubernetes' own attribute for the UID of a user, 1.3.6.1.4.1.57683.2.
const UID: &[u8] = &[0x2b, 0x06, 0x01, 0x04, 0x01, 0x83, 0xc2, 0x53, 0x02];

/// A distinguished name: its sets of attributes, in their order.
pub(crate) struct Name<'a> {
    sets: Vec<Vec<Attribute<'a>>>,
}

struct Attribute<'a> {
    kind: &'a [u8],
    value: Element<'a>,
}

/// An attribute besides common name and organization that a signed certificate copies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExtraAttribute {
    /// The last number of its identifier, below 2.5.4.
    pub(crate) kind: u8,
    pub(crate) value: String,
}

impl<'a> Name<'a> {
    pub(crate) fn read(der: &'a [u8]) -> Result<Self, Fault> {
        let what = "its subject";
        let set = |set: Result<Element<'a>, Fault>| {
            let set = Element::only(set?.encoding, SET, what)?;
            if set.content.is_empty() {
                return Err(Fault::EmptySet);
            }
            set.elements().map(|attribute| Attribute::read(attribute?)).collect()
        };
        let sets = Element::only(der, SEQUENCE, what)?.elements().map(set);
        Ok(Self { sets: sets.collect::<Result<_, Fault>>()? })
    }

    /// Returns the user and groups of the name. Without a common name, the user name is empty, and the caller decides
    /// about it.
    ///
    /// Several common names are rejected. Upstream takes the last one, others take the first, and an attacker could
    /// exploit a name that two parsers read as two users.
    pub(crate) fn subject(&self) -> Result<Subject, Fault> {
        let common_name = match self.values(&below_2_5_4(COMMON_NAME), "common name")?.as_slice() {
            [] => String::new(),
            [one] => one.clone(),
            several => {
                return Err(Fault::CommonNames(several.to_vec()));
            }
        };
        let organizations = self.values(&below_2_5_4(ORGANIZATION), "organization")?;
        Ok(Subject { common_name, organizations })
    }

    /// Returns the user's UID; empty if there is none.
    pub(crate) fn uid(&self) -> Result<String, Fault> {
        match self.values(UID, "UID")?.as_slice() {
            [] => Ok(String::new()),
            [one] if one.is_empty() => Err(Fault::EmptyUid),
            [one] => Ok(one.clone()),
            several => Err(Fault::Uids(several.to_vec())),
        }
    }

    /// Validates the subject of a request and returns all that a certificate will contain.
    pub(crate) fn requested(&self) -> Result<(Subject, Vec<ExtraAttribute>), Fault> {
        for set in &self.sets {
            if set.iter().map(|attribute| attribute.kind).collect::<BTreeSet<_>>().len() > 1 {
                return Err(Fault::MixedSet);
            }
        }
        let attributes = || self.sets.iter().flatten();
        if let Some(unknown) = attributes().find(|attribute| !attribute.is_known()) {
            return Err(Fault::SubjectAttribute(dotted(unknown.kind)));
        }
        let subject = self.subject()?;
        if subject.common_name.is_empty() {
            return Err(Fault::NoCommonName);
        }
        if subject.organizations.iter().any(String::is_empty) {
            return Err(Fault::EmptyOrganization);
        }
        let mut further = Vec::new();
        for kind in WRITTEN.into_iter().filter(|kind| ![COMMON_NAME, ORGANIZATION].contains(kind)) {
            let values = self.values(&below_2_5_4(kind), "attribute")?;
            further.extend(values.into_iter().map(|value| ExtraAttribute { kind, value }));
        }
        Ok((subject, further))
    }

    fn values(&self, kind: &[u8], attribute: &'static str) -> Result<Vec<String>, Fault> {
        let of_kind = self.sets.iter().flatten().filter(|found| found.kind == kind);
        of_kind.map(|found| text(found.value, attribute)).collect()
    }
}

impl<'a> Attribute<'a> {
    fn read(element: Element<'a>) -> Result<Self, Fault> {
        let what = "its subject's attribute";
        let mut parts = Element::only(element.encoding, SEQUENCE, what)?.elements();
        let kind = parts.expect(OBJECT_ID, what)?.content;
        let value = parts.next().transpose()?.ok_or(Fault::NoValue)?;
        parts.end(what)?;
        Ok(Self { kind, value })
    }

    fn is_known(&self) -> bool {
        let listed = |list: &[u8]| list.iter().any(|last| self.kind == below_2_5_4(*last));
        listed(&WRITTEN) || listed(&IGNORED) || IGNORED_OUTSIDE.contains(&self.kind)
    }
}

fn below_2_5_4(last: u8) -> [u8; 3] {
    [0x55, 0x04, last]
}

/// Decodes a string of any type that Go supports. Control characters are rejected: a NUL ends a name for some parsers,
/// and a line break splits a log line.
fn text(value: Element<'_>, attribute: &'static str) -> Result<String, Fault> {
    let bytes = value.content;
    let utf8 = || std::str::from_utf8(bytes).ok().map(str::to_owned);
    let text = match value.tag {
        0x0c => utf8(),
        // Numeric, printable and IA5 strings.
        0x12 | 0x13 | 0x16 => utf8().filter(|text| text.is_ascii()),
        // T.61 strings contain Latin-1, in Go and in all programs that write them.
        0x14 => Some(bytes.iter().map(|byte| char::from(*byte)).collect()),
        // A BMP string.
        0x1e if bytes.len().is_multiple_of(2) => {
            let units = bytes
                .chunks_exact(2)
                .map(|pair| pair.iter().fold(0, |unit, byte| (unit << 8) | u16::from(*byte)));
            char::decode_utf16(units).collect::<Result<_, _>>().ok()
        }
        _ => None,
    };
    let text = text.ok_or(Fault::NotString { attribute })?;
    if text.chars().any(char::is_control) {
        return Err(Fault::ControlCharacter { attribute, text });
    }
    Ok(text)
}

/// Formats an object identifier in dotted notation.
pub(crate) fn dotted(kind: &[u8]) -> String {
    Oid::new(kind.into()).to_string()
}
