//! Reads and writes OpenPGP packets.

pub(super) const SIGNATURE: u8 = 2;
pub(super) const SECRET_KEY: u8 = 5;
pub(super) const SECRET_SUBKEY: u8 = 7;

/// A reader of untrusted bytes. Each method returns `None` if too few bytes are left.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }

    pub(super) fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    pub(super) fn short(&mut self) -> Option<usize> {
        Some(usize::from(u16::from_be_bytes(self.take(2)?.try_into().ok()?)))
    }

    fn long(&mut self) -> Option<usize> {
        usize::try_from(u32::from_be_bytes(self.take(4)?.try_into().ok()?)).ok()
    }

    /// Reads a multiprecision integer (MPI), which starts with its bit count.
    pub(super) fn number(&mut self) -> Option<&'a [u8]> {
        let bits = self.short()?;
        self.take(bits.div_ceil(8))
    }

    /// Reads the next packet's tag and body. Partial body lengths are rejected, because keys do not use them.
    pub(super) fn packet(&mut self) -> Option<(u8, &'a [u8])> {
        let head = self.byte()?;
        if head & 0x80 == 0 {
            return None;
        }
        if head & 0x40 != 0 {
            let length = self.new_length()?;
            return Some((head & 0x3f, self.take(length)?));
        }
        let length = match head & 3 {
            0 => usize::from(self.byte()?),
            1 => self.short()?,
            2 => self.long()?,
            _ => self.0.len(),
        };
        Some(((head >> 2) & 0x0f, self.take(length)?))
    }

    fn new_length(&mut self) -> Option<usize> {
        match self.byte()? {
            short @ 0..192 => Some(usize::from(short)),
            high @ 192..224 => {
                Some((usize::from(high) - 192) * 256 + usize::from(self.byte()?) + 192)
            }
            255 => self.long(),
            _ => None,
        }
    }

    /// Reads the next subpacket's type and body.
    pub(super) fn subpacket(&mut self) -> Option<(u8, &'a [u8])> {
        let length = self.new_length()?;
        let (kind, body) = self.take(length)?.split_first()?;
        // The highest bit only marks the subpacket as critical.
        Some((kind & 0x7f, body))
    }
}

/// Encodes a packet in the new format.
pub(super) fn packet(tag: u8, body: &[u8]) -> Vec<u8> {
    let mut out = vec![0xc0 | tag, 255];
    out.extend(u32::try_from(body.len()).unwrap_or(u32::MAX).to_be_bytes());
    out.extend(body);
    out
}

/// Appends bytes after their count.
pub(super) fn counted(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend(u16::try_from(bytes.len()).unwrap_or(u16::MAX).to_be_bytes());
    out.extend(bytes);
}

/// Appends a subpacket of fewer than 192 bytes.
pub(super) fn subpacket(out: &mut Vec<u8>, kind: u8, body: &[u8]) {
    out.push(u8::try_from(body.len() + 1).unwrap_or(191));
    out.push(kind);
    out.extend(body);
}

/// Appends an MPI: the bit count, then the bytes without leading zeros.
pub(super) fn number(out: &mut Vec<u8>, bytes: &[u8]) {
    let start = bytes.iter().position(|byte| *byte != 0).unwrap_or(bytes.len());
    let bytes = &bytes[start..];
    let spare = bytes.first().map_or(0, |byte| byte.leading_zeros() as usize);
    let bits = bytes.len() * 8 - spare;
    out.extend(u16::try_from(bits).unwrap_or(u16::MAX).to_be_bytes());
    out.extend(bytes);
}
