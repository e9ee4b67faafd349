//! The bitmap of allocated node ports in upstream's `RangeAllocation` format, so that upstream's API servers and this
//! one can share a store.

use api_codec::protobuf;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::Deserialize;

/// Upstream's key for the bitmap.
pub(crate) const KEY: &str = "/registry/ranges/servicenodeports";
const KIND: &str = "RangeAllocation";
/// The field numbers of the protobuf message.
const RANGE: u32 = 2;
const DATA: u32 = 3;

/// The error of allocating a port, in upstream's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PortError {
    #[error("range is full")]
    Full,
    #[error("provided port is already allocated")]
    Allocated,
    #[error("provided port is not in the valid range. The range of valid ports is {0}-{1}")]
    NotInRange(u16, u16),
}

/// The error of decoding the stored bitmap, or of a different range.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FormError {
    #[error("{KEY} is neither JSON nor protobuf")]
    Unknown,
    #[error("{KEY}: {0}")]
    Protobuf(#[from] protobuf::ProtobufError),
    #[error("{KEY}: {0}")]
    Json(#[from] serde_json::Error),
    #[error("{KEY}: its data is not base64: {0}")]
    Base64(#[from] base64::DecodeError),
    #[error("{KEY} has the range {found:?}, which is not a range of ports")]
    Range { found: String },
    /// The stored range differs; upstream's words.
    #[error("the provided range does not match the current range")]
    Mismatch,
}

/// A range of ports and its allocated ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bitmap {
    low: u16,
    high: u16,
    /// The bits, starting with port `low` at the lowest bit of the first byte.
    bits: Vec<u8>,
}

impl Bitmap {
    pub(crate) fn new((low, high): (u16, u16)) -> Self {
        let size = usize::from(high.saturating_sub(low)) + 1;
        Self { low, high, bits: vec![0; size.div_ceil(8)] }
    }

    /// Decodes the stored value, of any range.
    pub(crate) fn decode(stored: &[u8]) -> Result<Self, FormError> {
        if stored.first() == Some(&b'{') {
            let Json { range, data } = serde_json::from_slice(stored)?;
            return Self::of(&range, &STANDARD.decode(data)?);
        }
        if !stored.starts_with(protobuf::MAGIC) {
            return Err(FormError::Unknown);
        }
        let raw = protobuf::open(stored)?.raw;
        let range = protobuf::field(raw, RANGE)?.unwrap_or_default();
        Self::of(&String::from_utf8_lossy(range), protobuf::field(raw, DATA)?.unwrap_or_default())
    }

    /// `data` is the bitmap as a big-endian number without leading zeros.
    fn of(range: &str, data: &[u8]) -> Result<Self, FormError> {
        let unknown = || FormError::Range { found: range.to_owned() };
        let (low, high) = range.split_once('-').ok_or_else(unknown)?;
        let (low, high) = low.parse().ok().zip(high.parse().ok()).ok_or_else(unknown)?;
        if low > high {
            return Err(unknown());
        }
        let mut map = Self::new((low, high));
        map.bits.iter_mut().zip(data.iter().rev()).for_each(|(bits, stored)| *bits = *stored);
        Ok(map)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let used = self.bits.iter().rposition(|bits| *bits != 0).map_or(0, |last| last + 1);
        let data: Vec<u8> = self.bits.iter().take(used).rev().copied().collect();
        let range = format!("{}-{}", self.low, self.high);
        let raw = protobuf::message(&[(RANGE, range.as_bytes()), (DATA, &data)]);
        protobuf::envelope("v1", KIND, &raw)
    }

    /// Returns the bitmap if its range is the given one.
    pub(crate) fn within(self, (low, high): (u16, u16)) -> Result<Self, FormError> {
        if (self.low, self.high) == (low, high) { Ok(self) } else { Err(FormError::Mismatch) }
    }

    fn at(&self, port: u16) -> Option<(usize, u8)> {
        let offset = port.checked_sub(self.low).filter(|_| port <= self.high)?;
        Some((usize::from(offset / 8), 1 << (offset % 8)))
    }

    pub(crate) fn has(&self, port: u16) -> bool {
        self.at(port).is_some_and(|(byte, bit)| self.bits.get(byte).is_some_and(|b| b & bit != 0))
    }

    /// Returns the allocated ports.
    pub(crate) fn allocated(&self) -> impl Iterator<Item = u16> {
        (self.low..=self.high).filter(|port| self.has(*port))
    }

    /// Allocates a requested port.
    pub(crate) fn take(&mut self, port: u16) -> Result<(), PortError> {
        let Some((byte, bit)) = self.at(port) else {
            return Err(PortError::NotInRange(self.low, self.high));
        };
        match self.bits.get_mut(byte) {
            Some(bits) if *bits & bit == 0 => *bits |= bit,
            _ => return Err(PortError::Allocated),
        }
        Ok(())
    }

    /// Allocates any port: a random one. As upstream, the lower part of the range, reserved for requested ports, is
    /// used last.
    pub(crate) fn take_any(&mut self) -> Result<u16, PortError> {
        let size = u32::from(self.high - self.low) + 1;
        let reserved = if size <= 16 { 0 } else { (size / 32).clamp(16, 128) };
        let start = reserved + rt::random_in(0..size - reserved);
        let order = (start..size).chain(reserved..start).chain(0..reserved);
        let mut ports = order.filter_map(|n| self.low.checked_add(u16::try_from(n).ok()?));
        let free = ports.find(|port| !self.has(*port)).ok_or(PortError::Full)?;
        self.take(free).map(|()| free)
    }

    /// Releases a port. Ports outside the range are ignored.
    pub(crate) fn release(&mut self, port: u16) {
        if let Some((byte, bit)) = self.at(port)
            && let Some(bits) = self.bits.get_mut(byte)
        {
            *bits &= !bit;
        }
    }
}

#[derive(Deserialize)]
struct Json {
    #[serde(default)]
    range: String,
    #[serde(default)]
    data: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodes_ports_like_upstream() {
        let mut map = Bitmap::new((30_000, 32_767));
        assert_eq!(Bitmap::decode(&map.encode()).unwrap(), map);
        map.take(30_000).unwrap();
        map.take(30_009).unwrap();
        // The number 2^9 + 2^0 in the envelope of a v1 RangeAllocation.
        let wanted = b"k8s\0\x0a\x15\x0a\x02v1\x12\x0fRangeAllocation\x12\x11\x12\x0b30000-32767\x1a\x02\x02\x01\x1a\0\"\0";
        assert_eq!(map.encode(), wanted);
        assert_eq!(Bitmap::decode(wanted).unwrap(), map);
        // Upstream also writes metadata.
        let raw = protobuf::message(&[(1, b"\x0a\0"), (RANGE, b"30000-32767"), (DATA, &[2, 1])]);
        let stored = protobuf::envelope("v1", KIND, &raw);
        assert_eq!(Bitmap::decode(&stored).unwrap(), map);
        let json = br#"{"kind":"RangeAllocation","apiVersion":"v1","metadata":{},"range":"30000-32767","data":"AgE="}"#;
        assert_eq!(Bitmap::decode(json).unwrap(), map);
        assert_eq!(map.allocated().collect::<Vec<_>>(), [30_000, 30_009]);
    }

    #[test]
    fn rejects_invalid_ranges() {
        for (range, data) in [("", "AQ=="), ("9-1", ""), ("10.0.0.0/24", ""), ("1-70000", "")] {
            let json = format!(r#"{{"range":"{range}","data":"{data}"}}"#);
            assert!(Bitmap::decode(json.as_bytes()).is_err(), "{range}");
        }
        for damaged in [&b""[..], b"k8s\0\x0a\xff", b"{", b"k8s\0"] {
            assert!(Bitmap::decode(damaged).is_err());
        }
        // Bits beyond the range are ignored.
        let long = Bitmap::of("30000-30007", &[0xff; 64]).unwrap();
        assert_eq!(long.allocated().count(), 8);
        assert!(matches!(long.within((30_000, 30_008)), Err(FormError::Mismatch)));
    }

    #[test]
    fn allocates_every_port_once() {
        for (low, high) in [(1, 1), (30_000, 30_015), (30_000, 30_100), (65_000, 65_535)] {
            let mut map = Bitmap::new((low, high));
            let mut given: Vec<u16> = (low..=high).map(|_| map.take_any().unwrap()).collect();
            given.sort_unstable();
            assert_eq!(given, (low..=high).collect::<Vec<_>>());
            assert_eq!(map.take_any(), Err(PortError::Full));
            assert_eq!(map.take(low), Err(PortError::Allocated));
            map.release(low);
            map.release(low.wrapping_sub(1));
            assert_eq!(map.take_any(), Ok(low));
        }
        let mut map = Bitmap::new((30_000, 30_009));
        assert_eq!(map.take(80), Err(PortError::NotInRange(30_000, 30_009)));
    }
}
