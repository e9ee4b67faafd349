//! Parses DER elements strictly. Encodings that are not the one form of DER, and bytes after the end, are rejected,
//! because other parsers may read them differently.

use crate::fault::Fault;

pub(crate) const BOOLEAN: u8 = 0x01;
pub(crate) const INTEGER: u8 = 0x02;
pub(crate) const BIT_STRING: u8 = 0x03;
pub(crate) const OCTET_STRING: u8 = 0x04;
pub(crate) const OBJECT_ID: u8 = 0x06;
pub(crate) const SEQUENCE: u8 = 0x30;
pub(crate) const SET: u8 = 0x31;

/// A DER element. Its tag is the first byte: number, class and form.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Element<'a> {
    pub(crate) tag: u8,
    pub(crate) content: &'a [u8],
    /// The tag, length and content.
    pub(crate) encoding: &'a [u8],
}

impl<'a> Element<'a> {
    /// Parses `bytes` as exactly one element.
    pub(crate) fn only(bytes: &'a [u8], tag: u8, what: &'static str) -> Result<Self, Fault> {
        let mut all = Elements(bytes);
        let element = all.expect(tag, what)?;
        all.end(what)?;
        Ok(element)
    }

    pub(crate) fn elements(self) -> Elements<'a> {
        Elements(self.content)
    }
}

/// A sequence of elements. It ends after the first malformed one.
#[derive(Clone, Debug)]
pub(crate) struct Elements<'a>(&'a [u8]);

impl<'a> Elements<'a> {
    pub(crate) fn expect(&mut self, tag: u8, what: &'static str) -> Result<Element<'a>, Fault> {
        match self.next().transpose()? {
            Some(element) if element.tag == tag => Ok(element),
            Some(Element { tag: found, .. }) => {
                Err(Fault::Tag { element: what, found, expected: tag })
            }
            None => Err(Fault::Short(what)),
        }
    }

    pub(crate) fn end(self, what: &'static str) -> Result<(), Fault> {
        if self.0.is_empty() { Ok(()) } else { Err(Fault::Trailing(what)) }
    }
}

impl<'a> Iterator for Elements<'a> {
    type Item = Result<Element<'a>, Fault>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let (element, rest) = match split(self.0) {
            Some((element, rest)) => (Ok(element), rest),
            None => (Err(Fault::NotDer), &[][..]),
        };
        self.0 = rest;
        Some(element)
    }
}

/// Splits off the first element. Tags of several bytes and contents of 16 MB or more are rejected; no request needs
/// them.
fn split(bytes: &[u8]) -> Option<(Element<'_>, &[u8])> {
    let (&tag, rest) = bytes.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81..=0x83 => {
            let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            let length = digits.iter().fold(0, |length, digit| (length << 8) | usize::from(*digit));
            // DER requires the shortest form.
            let least = if digits.len() == 1 { 0x80 } else { 1 << (8 * (digits.len() - 1)) };
            if length < least {
                return None;
            }
            (length, rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    let encoding = bytes.get(..bytes.len() - rest.len())?;
    (tag & 0x1f != 0x1f).then_some((Element { tag, content, encoding }, rest))
}
