//! The format of netlink messages: a header, a fixed part, and nested attributes.

pub(crate) const REQUEST: u16 = 0x1;
pub(crate) const ACK: u16 = 0x4;
pub(crate) const DUMP: u16 = 0x300;
pub(crate) const CREATE: u16 = 0x400;
pub(crate) const EXCLUSIVE: u16 = 0x200;
pub(crate) const REPLACE: u16 = 0x100;
const NESTED: u16 = 0x8000;
const HEADER: usize = 16;

pub(crate) struct Message {
    bytes: Vec<u8>,
}

impl Message {
    /// Starts a request. `fixed` is the family's own header, padded to a multiple of four bytes.
    pub(crate) fn new(kind: u16, flags: u16, fixed: &[u8]) -> Self {
        let mut bytes = vec![0; HEADER];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(REQUEST | flags).to_ne_bytes());
        bytes.extend_from_slice(fixed);
        Self { bytes }
    }

    pub(crate) fn attribute(&mut self, kind: u16, value: &[u8]) -> &mut Self {
        let length = (4 + value.len()) as u16;
        self.bytes.extend_from_slice(&length.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(value);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        self
    }

    pub(crate) fn u32(&mut self, kind: u16, value: u32) -> &mut Self {
        self.attribute(kind, &value.to_ne_bytes())
    }

    pub(crate) fn text(&mut self, kind: u16, value: &str) -> &mut Self {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.attribute(kind, &bytes)
    }

    pub(crate) fn nest(&mut self, kind: u16, inner: impl FnOnce(&mut Self)) -> &mut Self {
        let start = self.bytes.len();
        self.attribute(kind | NESTED, &[]);
        inner(self);
        let length = (self.bytes.len() - start) as u16;
        self.bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        self
    }

    /// Appends bytes that precede the attributes of a nested attribute.
    pub(crate) fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    pub(crate) fn finish(&mut self, sequence: u32) -> &[u8] {
        let length = self.bytes.len() as u32;
        self.bytes[0..4].copy_from_slice(&length.to_ne_bytes());
        self.bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
        &self.bytes
    }
}

/// A received message.
pub(crate) struct ReceivedMessage<'a> {
    pub(crate) kind: u16,
    pub(crate) flags: u16,
    pub(crate) sequence: u32,
    pub(crate) body: &'a [u8],
}

/// Iterates over the messages of a datagram.
pub(crate) fn messages(mut bytes: &[u8]) -> impl Iterator<Item = ReceivedMessage<'_>> {
    std::iter::from_fn(move || {
        let length = u32_at(bytes, 0)? as usize;
        if length < HEADER {
            return None;
        }
        let message = bytes.get(..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(ReceivedMessage {
            kind: u16_at(message, 4)?,
            flags: u16_at(message, 6)?,
            sequence: u32_at(message, 8)?,
            body: &message[HEADER..],
        })
    })
}

/// Returns the result in the final message of a conversation: 0, or the number of an error, which the kernel negates.
pub(crate) fn verdict(body: &[u8]) -> Option<i32> {
    let code = body.first_chunk::<4>()?;
    Some(i32::from_ne_bytes(*code).saturating_neg())
}

/// Iterates over the attributes by kind, without the flags in the kind's upper bits.
pub(crate) fn attributes(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let length = usize::from(u16_at(rest, 0)?);
        let value = rest.get(4..length)?;
        let kind = u16_at(rest, 2)? & 0x3fff;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

pub(crate) fn attribute(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(found, _)| *found == kind).map(|(_, value)| value)
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.strip_suffix(&[0]).unwrap_or(bytes)).into_owned()
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

pub(crate) fn address(bytes: &[u8]) -> Option<std::net::IpAddr> {
    if let Ok(v4) = <[u8; 4]>::try_from(bytes) {
        return Some(v4.into());
    }
    <[u8; 16]>::try_from(bytes).ok().map(Into::into)
}

pub(crate) fn octets(address: std::net::IpAddr) -> Vec<u8> {
    match address {
        std::net::IpAddr::V4(v4) => v4.octets().to_vec(),
        std::net::IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_encoded_message() {
        let mut message = Message::new(16, ACK, &[7; 16]);
        message.text(3, "eth0").nest(18, |info| {
            info.text(1, "veth").nest(2, |data| {
                data.raw(&[1, 2, 3, 4]).u32(4, 1500);
            });
        });
        let bytes = message.finish(9).to_vec();
        let received: Vec<_> = messages(&bytes).collect();
        assert_eq!((received.len(), received[0].kind, received[0].sequence), (1, 16, 9));
        let body = &received[0].body[16..];
        assert_eq!(attribute(body, 3).map(text).as_deref(), Some("eth0"));
        let data = attribute(attribute(body, 18).unwrap(), 2).unwrap();
        assert_eq!(attribute(&data[4..], 4).and_then(|v| u32_at(v, 0)), Some(1500));
    }

    #[test]
    fn stops_at_truncated_message() {
        let bytes = Message::new(16, 0, &[0; 16]).text(3, "eth0").finish(1).to_vec();
        for length in 0..bytes.len() {
            assert_eq!(messages(&bytes[..length]).count(), 0);
            let _ = attributes(&bytes[..length]).count();
        }
    }
}
