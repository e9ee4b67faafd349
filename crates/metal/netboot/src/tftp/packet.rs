//! The wire format of TFTP packets.

/// A packet that a client may send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Packet {
    Read(ReadRequest),
    Write,
    Ack(u16),
    Error(u16, String),
}

/// The transfer mode of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Octet,
    /// Lines end with CR LF.
    Netascii,
}

/// A read request (RFC 1350) with its options (RFC 2347).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadRequest {
    /// The name of the file.
    pub name: String,
    /// The transfer mode.
    pub mode: Mode,
    /// The options and their values. Option names are in lower case.
    pub options: Vec<(String, String)>,
}

impl Packet {
    /// Parses a packet from a client; `None` if it is malformed or of a kind that only servers send.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (code, rest) = bytes.split_first_chunk::<2>()?;
        let number = || Some(u16::from_be_bytes(*rest.first_chunk::<2>()?));
        match u16::from_be_bytes(*code) {
            1 => request(rest).map(Self::Read),
            2 => Some(Self::Write),
            4 => Some(Self::Ack(number()?)),
            5 => {
                let text = rest.get(2..)?.split(|byte| *byte == 0).next().unwrap_or_default();
                Some(Self::Error(number()?, String::from_utf8_lossy(text).into_owned()))
            }
            _ => None,
        }
    }
}

fn request(bytes: &[u8]) -> Option<ReadRequest> {
    let text = bytes.strip_suffix(&[0])?;
    let mut words = text.split(|byte| *byte == 0).map(|word| std::str::from_utf8(word).ok());
    let name = words.next()??.to_owned();
    let mode = match words.next()??.to_ascii_lowercase().as_str() {
        "octet" => Mode::Octet,
        "netascii" => Mode::Netascii,
        _ => return None,
    };
    let mut options = Vec::new();
    while let (Some(key), Some(value)) = (words.next(), words.next()) {
        options.push((key?.to_ascii_lowercase(), value?.to_owned()));
    }
    Some(ReadRequest { name, mode, options })
}

pub(super) fn data(block: u16, bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![0, 3];
    out.extend(block.to_be_bytes());
    out.extend(bytes);
    out
}

pub(super) fn oack(options: &[(&str, u64)]) -> Vec<u8> {
    let mut out = vec![0, 6];
    for (key, value) in options {
        out.extend(key.bytes());
        out.push(0);
        out.extend(value.to_string().bytes());
        out.push(0);
    }
    out
}

pub(super) fn error(code: u16, text: &str) -> Vec<u8> {
    let mut out = vec![0, 5];
    out.extend(code.to_be_bytes());
    out.extend(text.bytes());
    out.push(0);
    out
}
