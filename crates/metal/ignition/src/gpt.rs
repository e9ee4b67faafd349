//! Encodes and decodes GUID partition tables (UEFI specification, chapter 5). A disk has two copies, and a protective
//! MBR that keeps other tools from treating it as empty. Read [`Table`] first.

use std::ops::RangeInclusive;

use data_encoding::HEXLOWER_PERMISSIVE;

/// The number of entries, UEFI's minimum.
const ENTRIES: u64 = 128;
const ENTRY_SIZE: u64 = 128;
const HEADER_SIZE: usize = 92;
const MIB: u64 = 1 << 20;

/// A GUID in on-disk byte order: the first three groups are little-endian.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Guid(pub [u8; 16]);

impl Guid {
    /// The partition type for Linux filesystems, the default of configs.
    pub const LINUX: Self =
        Self(*b"\xAF\x3D\xC6\x0F\x83\x84\x72\x47\x8E\x79\x3D\x69\xD8\x47\x7D\xE4");

    /// Parses the 36 characters of a GUID in either case.
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = text.as_bytes();
        let dashes = bytes.len() == 36 && [8, 13, 18, 23].iter().all(|at| bytes[*at] == b'-');
        if !dashes || !text.is_ascii() {
            return None;
        }
        let hex: String = text.chars().filter(|c| *c != '-').collect();
        let bytes = HEXLOWER_PERMISSIVE.decode(hex.as_bytes()).ok()?;
        bytes.try_into().ok().map(|bytes| Self(swapped(bytes)))
    }
}

impl std::fmt::Display for Guid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (i, byte) in swapped(self.0).iter().enumerate() {
            let dash = if matches!(i, 4 | 6 | 8 | 10) { "-" } else { "" };
            write!(f, "{dash}{byte:02X}")?;
        }
        Ok(())
    }
}

impl std::fmt::Debug for Guid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}

/// Converts between text order and byte order.
fn swapped(mut bytes: [u8; 16]) -> [u8; 16] {
    bytes[..4].reverse();
    bytes[4..6].reverse();
    bytes[6..8].reverse();
    bytes
}

/// A partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The partition type.
    pub kind: Guid,
    /// The partition's GUID.
    pub guid: Guid,
    /// The first sector.
    pub first: u64,
    /// The last sector, inclusive.
    pub last: u64,
    /// The attribute bits of UEFI, such as bit 0 for partitions that the firmware needs.
    pub attributes: u64,
    /// The label.
    pub label: String,
}

/// The size of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// The size of a sector in bytes.
    pub sector: u64,
    /// The number of sectors.
    pub sectors: u64,
}

impl Geometry {
    /// Returns the number of sectors of a table.
    fn table(self) -> u64 {
        (ENTRIES * ENTRY_SIZE).div_ceil(self.sector)
    }

    /// Returns the sectors that partitions may use.
    pub fn usable(self) -> RangeInclusive<u64> {
        2 + self.table()..=self.sectors.saturating_sub(self.table() + 2)
    }

    /// Converts MiB to sectors; `None` on overflow.
    pub(crate) fn sectors_in(self, mebibytes: u64) -> Option<u64> {
        mebibytes.checked_mul(MIB / self.sector)
    }

    /// Returns the next sector at a MiB boundary.
    pub(crate) fn aligned(self, sector: u64) -> u64 {
        sector.next_multiple_of(MIB / self.sector)
    }
}

/// A partition table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// The size of the disk.
    pub geometry: Geometry,
    /// The disk's GUID.
    pub guid: Guid,
    /// The partitions, sorted by number.
    pub entries: Vec<(u32, Entry)>,
}

/// The errors of reading or creating a table.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum GptError {
    #[error("a disk of {sectors} sectors of {sector} bytes has no room for a partition table")]
    TooSmall { sectors: u64, sector: u64 },
    #[error("both copies of the partition table are damaged; wipeTable replaces them")]
    Damaged,
    #[error("the table holds {0} entries of {1} bytes each, more than can be kept")]
    Shape(u32, u32),
}

/// Byte ranges to write: offset and data.
pub type Writes = Vec<(u64, Vec<u8>)>;

impl Table {
    /// Creates a table without partitions. `guid` is the disk's.
    pub fn empty(geometry: Geometry, guid: Guid) -> Result<Self, GptError> {
        let Geometry { sector, sectors } = geometry;
        if !sector.is_power_of_two()
            || !(512..=MIB).contains(&sector)
            || sectors < 2 * geometry.table() + 4
        {
            return Err(GptError::TooSmall { sectors, sector });
        }
        Ok(Self { geometry, guid, entries: Vec::new() })
    }

    /// Returns the partition with this number, counted from 1.
    pub fn get(&self, number: u32) -> Option<&Entry> {
        self.entries.iter().find(|(other, _)| *other == number).map(|(_, entry)| entry)
    }

    /// Sets an entry; `None` removes it.
    pub fn set(&mut self, number: u32, entry: Option<Entry>) {
        self.entries.retain(|(other, _)| *other != number);
        self.entries.extend(entry.map(|entry| (number, entry)));
        self.entries.sort_by_key(|(number, _)| *number);
    }

    /// Returns the free ranges, in order.
    pub fn free(&self) -> Vec<RangeInclusive<u64>> {
        let mut used: Vec<(u64, u64)> =
            self.entries.iter().map(|(_, e)| (e.first, e.last)).collect();
        used.sort_unstable();
        let (mut next, end) = self.geometry.usable().into_inner();
        let mut out = Vec::new();
        for (first, last) in used {
            if first > next {
                out.push(next..=(first - 1).min(end));
            }
            next = next.max(last.saturating_add(1));
        }
        if next <= end {
            out.push(next..=end);
        }
        out
    }

    /// Reads a table through `read` (offset and length); `None` if the disk has none.
    pub fn read<E>(
        geometry: Geometry,
        mut read: impl FnMut(u64, usize) -> Result<Vec<u8>, E>,
    ) -> Result<Result<Option<Self>, GptError>, E> {
        let mut has_signature = false;
        for place in [1, geometry.sectors.saturating_sub(1)] {
            let header = read(place * geometry.sector, geometry.sector.min(4096) as usize)?;
            if !header.starts_with(b"EFI PART") {
                continue;
            }
            has_signature = true;
            let Some(header) = Header::parse(&header, place) else { continue };
            if header.entries == 0
                || header.entries > 1024
                || !(128..=4096).contains(&header.entry_size)
            {
                return Ok(Err(GptError::Shape(header.entries, header.entry_size)));
            }
            let length = header.entries as usize * header.entry_size as usize;
            let Some(at) = header.table.checked_mul(geometry.sector) else { continue };
            let bytes = read(at, length)?;
            if bytes.len() != length || crc32(&bytes) != header.entries_crc {
                continue;
            }
            let entries = bytes.chunks(header.entry_size as usize).zip(1..);
            let entries: Vec<_> = entries
                .filter_map(|(bytes, number)| Some((number, Entry::parse(bytes)?)))
                .collect();
            if entries.iter().any(|(number, _)| u64::from(*number) > ENTRIES) {
                return Ok(Err(GptError::Shape(header.entries, header.entry_size)));
            }
            return Ok(Ok(Some(Self { geometry, guid: header.guid, entries })));
        }
        Ok(if has_signature { Err(GptError::Damaged) } else { Ok(None) })
    }

    /// Returns all writes that put this table on the disk. The MBR's boot code is kept.
    pub fn writes(&self) -> Writes {
        let Geometry { sector, sectors } = self.geometry;
        let mut table = vec![0; (self.geometry.table() * sector) as usize];
        for (number, entry) in &self.entries {
            let at = (*number as usize - 1) * ENTRY_SIZE as usize;
            table[at..at + ENTRY_SIZE as usize].copy_from_slice(&entry.bytes());
        }
        let crc = crc32(&table[..(ENTRIES * ENTRY_SIZE) as usize]);
        let backup = sectors - 1 - self.geometry.table();
        vec![
            // The backup is written first, so that an interrupted write leaves the old primary table.
            (backup * sector, table.clone()),
            ((sectors - 1) * sector, self.header(sectors - 1, 1, backup, crc)),
            (2 * sector, table),
            (sector, self.header(1, sectors - 1, 2, crc)),
            (440, self.protective_mbr()),
        ]
    }

    /// Returns the protective MBR after its boot code.
    fn protective_mbr(&self) -> Vec<u8> {
        let mut out = vec![0; 72];
        let size = u32::try_from(self.geometry.sectors - 1).unwrap_or(u32::MAX);
        out[6..14].copy_from_slice(&[0, 0, 2, 0, 0xEE, 0xFF, 0xFF, 0xFF]);
        out[14..18].copy_from_slice(&1u32.to_le_bytes());
        out[18..22].copy_from_slice(&size.to_le_bytes());
        out[70..72].copy_from_slice(&[0x55, 0xAA]);
        out
    }

    fn header(&self, own: u64, other: u64, table: u64, entries_crc: u32) -> Vec<u8> {
        let mut out = b"EFI PART\0\0\x01\0".to_vec();
        out.extend((HEADER_SIZE as u32).to_le_bytes());
        out.extend([0; 8]);
        let (first, last) = self.geometry.usable().into_inner();
        for number in [own, other, first, last] {
            out.extend(number.to_le_bytes());
        }
        out.extend(self.guid.0);
        out.extend(table.to_le_bytes());
        for number in [ENTRIES as u32, ENTRY_SIZE as u32, entries_crc] {
            out.extend(number.to_le_bytes());
        }
        let crc = crc32(&out);
        out[16..20].copy_from_slice(&crc.to_le_bytes());
        out.resize(self.geometry.sector as usize, 0);
        out
    }
}

struct Header {
    guid: Guid,
    table: u64,
    entries: u32,
    entry_size: u32,
    entries_crc: u32,
}

impl Header {
    /// Parses a header with a valid checksum and position.
    fn parse(bytes: &[u8], place: u64) -> Option<Self> {
        let size = u32_at(bytes, 12)? as usize;
        let mut summed = bytes.get(..size).filter(|_| size >= HEADER_SIZE)?.to_vec();
        summed[16..20].fill(0);
        if crc32(&summed) != u32_at(bytes, 16)? || u64_at(bytes, 24)? != place {
            return None;
        }
        Some(Self {
            guid: guid_at(bytes, 56)?,
            table: u64_at(bytes, 72)?,
            entries: u32_at(bytes, 80)?,
            entry_size: u32_at(bytes, 84)?,
            entries_crc: u32_at(bytes, 88)?,
        })
    }
}

impl Entry {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let kind = guid_at(bytes, 0).filter(|kind| *kind != Guid::default())?;
        let units: Vec<u16> =
            bytes.get(56..128)?.chunks(2).map(|u| u16::from_le_bytes([u[0], u[1]])).collect();
        let end = units.iter().position(|unit| *unit == 0).unwrap_or(units.len());
        Some(Self {
            kind,
            guid: guid_at(bytes, 16)?,
            first: u64_at(bytes, 32)?,
            last: u64_at(bytes, 40)?,
            attributes: u64_at(bytes, 48)?,
            label: String::from_utf16_lossy(&units[..end]),
        })
    }

    fn bytes(&self) -> [u8; ENTRY_SIZE as usize] {
        let mut out = [0; ENTRY_SIZE as usize];
        out[..16].copy_from_slice(&self.kind.0);
        out[16..32].copy_from_slice(&self.guid.0);
        out[32..40].copy_from_slice(&self.first.to_le_bytes());
        out[40..48].copy_from_slice(&self.last.to_le_bytes());
        out[48..56].copy_from_slice(&self.attributes.to_le_bytes());
        for (unit, place) in self.label.encode_utf16().zip(out[56..].chunks_mut(2)) {
            place.copy_from_slice(&unit.to_le_bytes());
        }
        out
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

fn guid_at(bytes: &[u8], at: usize) -> Option<Guid> {
    Some(Guid(bytes.get(at..at + 16)?.try_into().ok()?))
}

fn crc32(bytes: &[u8]) -> u32 {
    crc32fast::hash(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GEOMETRY: Geometry = Geometry { sector: 512, sectors: 131_072 };

    fn read_back(disk: &[u8], geometry: Geometry) -> Result<Option<Table>, GptError> {
        Table::read(geometry, |at, length| {
            let at = (at as usize).min(disk.len());
            Ok::<_, std::convert::Infallible>(disk[at..disk.len().min(at + length)].to_vec())
        })
        .unwrap()
    }

    fn written(table: &Table) -> Vec<u8> {
        let mut disk = vec![0; (table.geometry.sector * table.geometry.sectors) as usize];
        for (at, bytes) in table.writes() {
            disk[at as usize..at as usize + bytes.len()].copy_from_slice(&bytes);
        }
        disk
    }

    fn sample(geometry: Geometry) -> Table {
        let mut table = Table::empty(geometry, Guid([7; 16])).unwrap();
        for (number, label) in [(3, "três"), (1, "ROOT")] {
            let first = geometry.sectors_in(u64::from(number)).unwrap();
            table.set(
                number,
                Some(Entry {
                    kind: Guid::LINUX,
                    guid: Guid([number as u8; 16]),
                    first,
                    last: first + 9,
                    attributes: 4,
                    label: label.into(),
                }),
            );
        }
        table
    }

    #[test]
    fn reads_table_from_either_copy() {
        for sector in [512, 4096] {
            let geometry = Geometry { sector, sectors: 65_536 };
            let table = sample(geometry);
            let disk = written(&table);
            assert_eq!(read_back(&disk, geometry), Ok(Some(table.clone())));
            let mut broken = disk.clone();
            broken[sector as usize + 30] ^= 1;
            assert_eq!(read_back(&broken, geometry), Ok(Some(table.clone())));
            let end = broken.len() - 50 * sector as usize;
            broken[end..].fill(0);
            assert_eq!(read_back(&broken, geometry), Err(GptError::Damaged));
        }
        assert_eq!(read_back(&[0; 1 << 20], GEOMETRY), Ok(None));
    }

    #[test]
    fn finds_free_space_between_partitions() {
        let table = sample(GEOMETRY);
        assert_eq!(table.free(), [34..=2047, 2058..=6143, 6154..=131_038]);
    }

    #[test]
    fn parses_and_formats_guids() {
        let text = "0FC63DAF-8483-4772-8E79-3D69D8477DE4";
        assert_eq!(Guid::parse(text), Some(Guid::LINUX));
        assert_eq!(Guid::LINUX.to_string(), text);
        for wrong in
            ["", "0FC63DAF8483-4772-8E79-3D69D8477DE40", "+FC63DAF-8483-4772-8E79-3D69D8477DE4"]
        {
            assert_eq!(Guid::parse(wrong), None, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn reads_arbitrary_disks_without_panic(start in proptest::collection::vec(any::<u8>(), 0..2048), at in 0usize..2000) {
            let mut disk = written(&sample(GEOMETRY));
            let end = (at + start.len()).min(disk.len());
            disk[at..end].copy_from_slice(&start[..end - at]);
            let _ = read_back(&disk, GEOMETRY);
        }
    }
}
