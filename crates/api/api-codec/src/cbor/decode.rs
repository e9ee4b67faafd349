//! Decodes CBOR to trees.

use api_meta::{Budget, BudgetExceeded, Timestamp};
use base64::{Engine as _, prelude::*};
use ciborium_ll::{Decoder, Error, Header, simple};
use data_encoding::HEXLOWER;
use serde_json::{Map, Number, Value};

/// The tags for the later encoding of a string of bytes (RFC 8949 §3.4.5.2), and those of times and large numbers.
mod tag {
    pub(super) const TIME: u64 = 0;
    pub(super) const EPOCH: u64 = 1;
    pub(super) const POSITIVE_BIGNUM: u64 = 2;
    pub(super) const NEGATIVE_BIGNUM: u64 = 3;
    pub(super) const BASE64URL: u64 = 21;
    pub(super) const BASE64: u64 = 22;
    pub(super) const BASE16: u64 = 23;
}

/// The seconds of the years 0 to 9999, which RFC 3339 can write.
const YEARS: std::ops::Range<i64> = -62_167_219_200..253_402_300_800;

/// The error of CBOR that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CborError {
    #[error("unexpected EOF")]
    Truncated,
    #[error("cbor: the item at byte {0} is not well-formed")]
    Malformed(usize),
    #[error("cbor: {count} bytes of extraneous data starting at index {at}")]
    Extraneous { count: usize, at: usize },
    #[error("cbor: found duplicate map key {0:?}")]
    DuplicateKey(String),
    #[error("cbor: the map key at byte {0} is not a string")]
    Key(usize),
    #[error("cbor: invalid UTF-8 string at byte {0}")]
    Utf8(usize),
    #[error("cbor: the number at byte {0} overflows a 64-bit integer")]
    Overflow(usize),
    #[error("cbor: the number at byte {0} is not finite")]
    NotFinite(usize),
    #[error("cbor: the simple value {0} has no JSON form")]
    Simple(u8),
    #[error("cbor: the tagged time at byte {0} is not valid")]
    Time(usize),
    #[error(transparent)]
    Exceeded(#[from] BudgetExceeded),
}

struct Reader<'a> {
    input: &'a [u8],
    decoder: Decoder<&'a [u8]>,
    budget: Budget,
}

/// Decodes one item, which is the whole input.
pub fn from_cbor(input: &[u8]) -> Result<Value, CborError> {
    let mut reader = Reader { input, decoder: Decoder::from(input), budget: Budget::object() };
    let tree = reader.item()?;
    let at = reader.decoder.offset();
    match input.len() - at {
        0 => Ok(tree),
        count => Err(CborError::Extraneous { count, at }),
    }
}

/// The major types of strings.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StringKind {
    Bytes,
    Text,
}

impl Reader<'_> {
    fn head(&mut self) -> Result<Header, CborError> {
        self.decoder.pull().map_err(|error| match error {
            Error::Io(_) => CborError::Truncated,
            Error::Syntax(at) => CborError::Malformed(at),
        })
    }

    fn item(&mut self) -> Result<Value, CborError> {
        let at = self.decoder.offset();
        let head = self.head()?;
        self.value(at, head)
    }

    /// Reads the value whose head was read at a byte.
    fn value(&mut self, at: usize, head: Header) -> Result<Value, CborError> {
        match head {
            Header::Positive(number) => match i64::try_from(number) {
                Ok(number) => Ok(number.into()),
                Err(_) => Err(CborError::Overflow(at)),
            },
            Header::Negative(number) => match i64::try_from(number) {
                Ok(number) => Ok((!number).into()),
                Err(_) => Err(CborError::Overflow(at)),
            },
            Header::Float(number) => {
                Number::from_f64(number).map(Value::Number).ok_or(CborError::NotFinite(at))
            }
            Header::Simple(simple::FALSE) => Ok(false.into()),
            Header::Simple(simple::TRUE) => Ok(true.into()),
            Header::Simple(simple::NULL | simple::UNDEFINED) => Ok(Value::Null),
            Header::Simple(other) => Err(CborError::Simple(other)),
            Header::Bytes(length) => self.text(at, StringKind::Bytes, length).map(Value::String),
            Header::Text(length) => self.text(at, StringKind::Text, length).map(Value::String),
            Header::Array(length) => self.array(length),
            Header::Map(length) => self.map(length),
            Header::Tag(tag) => self.tagged(tag),
            Header::Break => Err(CborError::Malformed(at)),
        }
    }

    /// Returns the bytes of a string. One of indefinite length consists of strings of the same kind.
    fn bytes(&mut self, kind: StringKind, length: Option<usize>) -> Result<Vec<u8>, CborError> {
        if let Some(length) = length {
            return self.take(length).map(<[u8]>::to_vec);
        }
        let mut whole = Vec::new();
        loop {
            let at = self.decoder.offset();
            let (found, length) = match self.head()? {
                Header::Bytes(Some(length)) => (StringKind::Bytes, length),
                Header::Text(Some(length)) => (StringKind::Text, length),
                Header::Break => return Ok(whole),
                _ => return Err(CborError::Malformed(at)),
            };
            if found != kind {
                return Err(CborError::Malformed(at));
            }
            let piece = self.take(length)?;
            // RFC 8949 §3.2.3: a character does not extend over pieces.
            if kind == StringKind::Text && std::str::from_utf8(piece).is_err() {
                return Err(CborError::Utf8(at));
            }
            whole.extend_from_slice(piece);
        }
    }

    fn take(&mut self, length: usize) -> Result<&[u8], CborError> {
        let at = self.decoder.offset();
        let rest = self.input.get(at..).unwrap_or_default();
        let piece = rest.get(..length).ok_or(CborError::Truncated)?;
        self.budget.spend(length)?;
        // The decoder has no other way to skip bytes, and a new decoder does not have its offset.
        let mut skipped = [0; 256];
        let mut left = length;
        while left > 0 {
            let count = left.min(skipped.len());
            ciborium_io::Read::read_exact(&mut self.decoder, &mut skipped[..count])
                .map_err(|_| CborError::Truncated)?;
            left -= count;
        }
        Ok(piece)
    }

    fn text(
        &mut self,
        at: usize,
        kind: StringKind,
        length: Option<usize>,
    ) -> Result<String, CborError> {
        let bytes = self.bytes(kind, length)?;
        let text = String::from_utf8(bytes).map_err(|_| CborError::Utf8(at))?;
        self.budget.text("")?;
        Ok(text)
    }

    /// Reads the head of the next item of a container, or `None` at its end.
    fn next(
        &mut self,
        count: usize,
        length: Option<usize>,
    ) -> Result<Option<(usize, Header)>, CborError> {
        if length == Some(count) {
            return Ok(None);
        }
        let at = self.decoder.offset();
        match self.head()? {
            Header::Break if length.is_none() => Ok(None),
            head => Ok(Some((at, head))),
        }
    }

    fn array(&mut self, length: Option<usize>) -> Result<Value, CborError> {
        self.budget.enter()?;
        let mut items = Vec::new();
        while let Some((at, head)) = self.next(items.len(), length)? {
            self.budget.item()?;
            items.push(self.value(at, head)?);
        }
        self.budget.leave();
        Ok(Value::Array(items))
    }

    fn map(&mut self, length: Option<usize>) -> Result<Value, CborError> {
        self.budget.enter()?;
        let mut members = Map::new();
        while let Some((at, head)) = self.next(members.len(), length)? {
            let key = match head {
                Header::Bytes(length) => self.text(at, StringKind::Bytes, length)?,
                Header::Text(length) => self.text(at, StringKind::Text, length)?,
                _ => return Err(CborError::Key(at)),
            };
            self.budget.member(&key, members.is_empty())?;
            if members.contains_key(&key) {
                return Err(CborError::DuplicateKey(key));
            }
            let value = self.item()?;
            members.insert(key, value);
        }
        self.budget.leave();
        Ok(Value::Object(members))
    }

    /// Reads the item of a tag. Every tag is a level, because tags can be nested.
    fn tagged(&mut self, tag: u64) -> Result<Value, CborError> {
        self.budget.enter()?;
        let at = self.decoder.offset();
        let head = self.head()?;
        let value = match (tag, head) {
            (tag::BASE64URL | tag::BASE64 | tag::BASE16, Header::Bytes(length)) => {
                let bytes = self.bytes(StringKind::Bytes, length)?;
                // The text is at most twice as long.
                self.budget.spend(2 * bytes.len())?;
                Value::String(match tag {
                    tag::BASE64URL => BASE64_URL_SAFE_NO_PAD.encode(bytes),
                    tag::BASE64 => BASE64_STANDARD.encode(bytes),
                    _ => HEXLOWER.encode(&bytes),
                })
            }
            (tag::TIME, head) => {
                let time = self.value(at, head)?;
                let is_valid = time.as_str().is_some_and(|time| time.parse::<Timestamp>().is_ok());
                if !is_valid {
                    return Err(CborError::Time(at));
                }
                time
            }
            (tag::EPOCH, head) => {
                let time = self.value(at, head)?;
                Value::String(epoch(&time).ok_or(CborError::Time(at))?)
            }
            (tag::POSITIVE_BIGNUM | tag::NEGATIVE_BIGNUM, _) => {
                return Err(CborError::Overflow(at));
            }
            // Other tags, and the one of self-described CBOR, change nothing.
            (_, head) => self.value(at, head)?,
        };
        self.budget.leave();
        Ok(value)
    }
}

/// Writes seconds since 1970 as an RFC 3339 time.
fn epoch(time: &Value) -> Option<String> {
    if let Some(seconds) = time.as_i64() {
        return YEARS.contains(&seconds).then(|| Timestamp::from_unix(seconds, 0).exact());
    }
    let seconds = time.as_f64()?;
    let (whole, part) = (seconds.floor(), seconds - seconds.floor());
    let within = (YEARS.start as f64..YEARS.end as f64).contains(&whole);
    within.then(|| Timestamp::from_unix(whole as i64, (part * 1e9) as u32).exact())
}
