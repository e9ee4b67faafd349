//! Encodes and decodes messages of D-Bus in little-endian byte order (D-Bus specification, "Message Protocol").

use std::os::fd::OwnedFd;

/// The largest message that is read. Those of logind have a few hundred bytes.
const MAX_MESSAGE: usize = 128 << 10;
/// The bytes before the header's fields.
const FIXED: usize = 16;

/// The error of a message that is not read.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum MessageError {
    #[error("it is malformed")]
    Malformed,
    #[error("it has more than {MAX_MESSAGE} bytes")]
    TooLarge,
    #[error("its byte order is not little-endian")]
    ByteOrder,
}

/// The kind of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Kind {
    Call,
    Return,
    Error,
    Signal,
    /// A kind that this version of the protocol does not have.
    #[default]
    Other,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Call, Self::Return, Self::Error, Self::Signal];

    fn of(byte: u8) -> Self {
        let index = usize::from(byte).checked_sub(1);
        index.and_then(|index| Self::ALL.get(index)).copied().unwrap_or_default()
    }

    fn byte(self) -> u8 {
        let index = Self::ALL.iter().position(|kind| *kind == self);
        index.map_or(0, |index| index as u8 + 1)
    }
}

/// The header of a message. Empty fields are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) kind: Kind,
    pub(super) path: String,
    pub(super) interface: String,
    pub(super) member: String,
    pub(super) error: String,
    pub(super) reply_to: u32,
    pub(super) destination: String,
    pub(super) sender: String,
    pub(super) signature: String,
    pub(super) serial: u32,
    /// The number of file descriptors.
    pub(super) descriptors: u32,
}

/// The arguments of a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Body {
    signature: String,
    bytes: Vec<u8>,
}

impl Body {
    pub(super) fn texts(texts: &[&str]) -> Self {
        texts.iter().fold(Self::default(), |body, text| body.text(text))
    }

    pub(super) fn text(mut self, text: &str) -> Self {
        self.signature.push('s');
        put_text(&mut self.bytes, text);
        self
    }

    pub(super) fn int(self, value: i32) -> Self {
        self.word('i', value.to_le_bytes())
    }

    /// Adds a value of four bytes: a number, a boolean or the index of a file descriptor.
    pub(super) fn word(mut self, kind: char, value: [u8; 4]) -> Self {
        self.signature.push(kind);
        pad(&mut self.bytes, 4);
        self.bytes.extend(value);
        self
    }
}

#[cfg(test)]
impl Body {
    /// Adds a number of eight bytes in a variant.
    pub(super) fn variant(mut self, value: u64) -> Self {
        self.signature.push('v');
        self.bytes.extend([1, b't', 0]);
        pad(&mut self.bytes, 8);
        self.bytes.extend(value.to_le_bytes());
        self
    }
}

/// A received message.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) header: Header,
    pub(super) body: Vec<u8>,
    pub(super) descriptors: Vec<OwnedFd>,
}

fn pad(bytes: &mut Vec<u8>, to: usize) {
    bytes.resize(bytes.len().next_multiple_of(to), 0);
}

fn put_text(bytes: &mut Vec<u8>, text: &str) {
    pad(bytes, 4);
    bytes.extend((text.len() as u32).to_le_bytes());
    bytes.extend(text.as_bytes());
    bytes.push(0);
}

impl Header {
    pub(super) fn new(kind: Kind) -> Self {
        Self { kind, ..Self::default() }
    }

    /// Encodes a message with this header.
    pub(super) fn encode(&self, serial: u32, body: &Body) -> Vec<u8> {
        let mut bytes = vec![b'l', self.kind.byte(), 0, 1];
        bytes.extend((body.bytes.len() as u32).to_le_bytes());
        bytes.extend(serial.to_le_bytes());
        bytes.extend([0; 4]);
        let texts = [
            (1, 'o', &self.path),
            (2, 's', &self.interface),
            (3, 's', &self.member),
            (4, 's', &self.error),
            (6, 's', &self.destination),
        ];
        for (code, kind, text) in texts.into_iter().filter(|(.., text)| !text.is_empty()) {
            pad(&mut bytes, 8);
            bytes.extend([code, 1, kind as u8, 0]);
            put_text(&mut bytes, text);
        }
        for (code, number) in [(5, self.reply_to), (9, self.descriptors)] {
            if number > 0 {
                pad(&mut bytes, 8);
                bytes.extend([code, 1, b'u', 0]);
                bytes.extend(number.to_le_bytes());
            }
        }
        if !body.signature.is_empty() {
            pad(&mut bytes, 8);
            bytes.extend([8, 1, b'g', 0, body.signature.len() as u8]);
            bytes.extend(body.signature.as_bytes());
            bytes.push(0);
        }
        let fields = (bytes.len() - FIXED) as u32;
        bytes[12..FIXED].copy_from_slice(&fields.to_le_bytes());
        pad(&mut bytes, 8);
        bytes.extend(&body.bytes);
        bytes
    }
}

/// Reads values from a message.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn align(&mut self, to: usize) {
        self.at = self.at.next_multiple_of(to);
    }

    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let end = self.at.checked_add(count)?;
        let taken = self.bytes.get(self.at..end)?;
        self.at = end;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        Some(self.take(1)?[0])
    }

    fn number(&mut self) -> Option<u32> {
        self.align(4);
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    fn text(&mut self) -> Option<&'a str> {
        let length = usize::try_from(self.number()?).ok()?;
        let text = std::str::from_utf8(self.take(length)?).ok()?;
        (self.byte()? == 0).then_some(text)
    }

    fn signature(&mut self) -> Option<&'a str> {
        let length = usize::from(self.byte()?);
        let text = std::str::from_utf8(self.take(length)?).ok()?;
        (self.byte()? == 0).then_some(text)
    }

    fn header(&mut self, header: &mut Header) -> Option<()> {
        while self.at < self.bytes.len() {
            self.align(8);
            let code = self.byte()?;
            match self.signature()? {
                "s" | "o" => {
                    let text = self.text()?.to_owned();
                    match code {
                        1 => header.path = text,
                        2 => header.interface = text,
                        3 => header.member = text,
                        4 => header.error = text,
                        6 => header.destination = text,
                        7 => header.sender = text,
                        _ => {}
                    }
                }
                "u" => match (code, self.number()?) {
                    (5, number) => header.reply_to = number,
                    (9, number) => header.descriptors = number,
                    _ => {}
                },
                "g" => header.signature = self.signature()?.to_owned(),
                // Fields of other types are not known to this version of the protocol.
                _ => return None,
            }
        }
        Some(())
    }
}

impl Message {
    /// Decodes the first message of some bytes, and returns its length. Returns `None` if it is not complete.
    pub(super) fn decode(bytes: &[u8]) -> Result<Option<(Self, usize)>, MessageError> {
        let Some(fixed) = bytes.get(..FIXED) else { return Ok(None) };
        if fixed[0] != b'l' {
            return Err(MessageError::ByteOrder);
        }
        let number = |at: usize| {
            let bytes = [fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]];
            u32::from_le_bytes(bytes)
        };
        let size = |at: usize| usize::try_from(number(at)).unwrap_or(usize::MAX);
        let (body, fields) = (size(4), size(12));
        if body > MAX_MESSAGE || fields > MAX_MESSAGE {
            return Err(MessageError::TooLarge);
        }
        let head = (FIXED + fields).next_multiple_of(8);
        let length = head + body;
        let Some(whole) = bytes.get(..length) else { return Ok(None) };
        let kind = Kind::of(fixed[1]);
        let mut header = Header { serial: number(8), ..Header::new(kind) };
        let mut reader = Reader { bytes: &whole[..FIXED + fields], at: FIXED };
        reader.header(&mut header).ok_or(MessageError::Malformed)?;
        let body = whole[head..].to_vec();
        Ok(Some((Self { header, body, descriptors: Vec::new() }, length)))
    }

    fn reader(&self) -> Reader<'_> {
        Reader { bytes: &self.body, at: 0 }
    }

    /// Returns the texts at the beginning of the body.
    pub(super) fn texts(&self) -> impl Iterator<Item = &str> {
        let mut reader = self.reader();
        let count = self.header.signature.chars().take_while(|kind| *kind == 's').count();
        (0..count).map_while(move |_| reader.text())
    }

    /// Returns the boolean that is the body.
    pub(super) fn boolean(&self) -> Option<bool> {
        let number = self.reader().number().filter(|_| self.header.signature == "b")?;
        Some(number != 0)
    }

    /// Returns the number of eight bytes in the variant that is the body.
    pub(super) fn variant_number(&self) -> Option<u64> {
        let mut reader = self.reader();
        if self.header.signature != "v" || reader.signature()? != "t" {
            return None;
        }
        reader.align(8);
        Some(u64::from_le_bytes(reader.take(8)?.try_into().ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call() -> Vec<u8> {
        let header = Header {
            path: "/org/freedesktop/login1".to_owned(),
            member: "Inhibit".to_owned(),
            destination: "org.freedesktop.login1".to_owned(),
            descriptors: 1,
            ..Header::new(Kind::Call)
        };
        header.encode(7, &Body::texts(&["shutdown", "kubelet"]).int(-3))
    }

    #[test]
    fn decodes_what_it_encodes_once_it_is_complete() {
        let bytes = call();
        for end in 0..bytes.len() {
            assert!(Message::decode(&bytes[..end]).unwrap().is_none(), "{end}");
        }
        let two = [&bytes[..], &bytes[..4]].concat();
        let (message, length) = Message::decode(&two).unwrap().unwrap();
        assert_eq!(length, bytes.len());
        assert_eq!((message.header.member.as_str(), message.header.serial), ("Inhibit", 7));
        assert_eq!((message.header.signature.as_str(), message.header.descriptors), ("ssi", 1));
        assert_eq!(message.texts().collect::<Vec<_>>(), ["shutdown", "kubelet"]);
        assert_eq!((message.boolean(), message.variant_number()), (None, None));
    }

    #[test]
    fn rejects_malformed_and_large_messages() {
        let change = |at: usize, value: u8| {
            let mut bytes = call();
            bytes[at] = value;
            Message::decode(&bytes).map(drop).unwrap_err()
        };
        assert_eq!(change(0, b'B'), MessageError::ByteOrder);
        assert_eq!(change(6, 3), MessageError::TooLarge);
        assert_eq!(change(15, 255), MessageError::TooLarge);
        // The length of the first text, its type, and its end.
        assert_eq!(change(20, 255), MessageError::Malformed);
        assert_eq!(change(18, b'a'), MessageError::Malformed);
        assert_eq!(change(24 + 23, b'x'), MessageError::Malformed);
    }

    /// Any input ends in a message or an error, without a panic.
    #[test]
    fn survives_hostile_input() {
        let seed = call();
        fuzz::fuzz(env!("CARGO_MANIFEST_DIR"), "bus", &[&seed], |input| {
            if let Ok(Some((message, length))) = Message::decode(input) {
                assert!(length <= input.len());
                let _ = (message.texts().count(), message.boolean(), message.variant_number());
            }
        });
    }
}
