//! Reads and writes protobuf's wire format.

/// The value of one field.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Wire<'a> {
    Varint(u64),
    Fixed64(u64),
    Bytes(&'a [u8]),
    Fixed32,
}

pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Reader(bytes)
    }

    /// Returns the next field, or `None` at the end.
    pub(crate) fn next(&mut self) -> Result<Option<(u32, Wire<'a>)>, &'static str> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let number = u32::try_from(tag >> 3).map_err(|_| "a field number is too large")?;
        let value = match tag & 7 {
            0 => Wire::Varint(self.varint()?),
            1 => {
                let (bytes, rest) = self.0.split_first_chunk().ok_or("it ends within a number")?;
                self.0 = rest;
                Wire::Fixed64(u64::from_le_bytes(*bytes))
            }
            2 => {
                let length =
                    usize::try_from(self.varint()?).map_err(|_| "a length is too large")?;
                let (bytes, rest) =
                    self.0.split_at_checked(length).ok_or("it ends within a field")?;
                self.0 = rest;
                Wire::Bytes(bytes)
            }
            5 => {
                self.0 = self.0.get(4..).ok_or("it ends within a number")?;
                Wire::Fixed32
            }
            _ => return Err("a wire type is unknown"),
        };
        if number == 0 { Err("a field number is zero") } else { Ok(Some((number, value))) }
    }

    pub(crate) fn varint(&mut self) -> Result<u64, &'static str> {
        let mut value = 0_u64;
        for (at, byte) in self.0.iter().enumerate().take(10) {
            value |= u64::from(byte & 0x7f) << (7 * at);
            if byte & 0x80 == 0 {
                self.0 = &self.0[at + 1..];
                return Ok(value);
            }
        }
        Err("it ends within a number")
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn tag(out: &mut Vec<u8>, number: u32, wire_type: u64) {
    put_varint(out, u64::from(number) << 3 | wire_type);
}

pub(crate) fn varint(out: &mut Vec<u8>, number: u32, value: u64) {
    tag(out, number, 0);
    put_varint(out, value);
}

pub(crate) fn double(out: &mut Vec<u8>, number: u32, value: f64) {
    tag(out, number, 1);
    out.extend_from_slice(&value.to_le_bytes());
}

pub(crate) fn bytes(out: &mut Vec<u8>, number: u32, value: &[u8]) {
    tag(out, number, 2);
    put_varint(out, value.len() as u64);
    out.extend_from_slice(value);
}

/// Writes a nested message. The length precedes the message but is known only afterwards. One byte is reserved, which
/// usually suffices; otherwise the message is moved.
pub(crate) fn nested<R>(
    out: &mut Vec<u8>,
    number: u32,
    write: impl FnOnce(&mut Vec<u8>) -> R,
) -> R {
    tag(out, number, 2);
    let start = out.len();
    out.push(0);
    let result = write(out);
    let length = out.len() - start - 1;
    if length < 0x80 {
        out[start] = length as u8;
    } else {
        let mut prefix = Vec::with_capacity(5);
        put_varint(&mut prefix, length as u64);
        out.splice(start..=start, prefix);
    }
    result
}
