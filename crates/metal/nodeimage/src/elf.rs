//! Reads the libraries of a program from its ELF file, which may be for another processor.

/// Returns the loader and the names of the libraries of a 64-bit little-endian ELF file; nothing for other files.
pub(crate) fn libraries(bytes: &[u8]) -> Vec<String> {
    dynamic(bytes).unwrap_or_default()
}

const LOAD: u32 = 1;
const DYNAMIC: u32 = 2;
const INTERPRETER: u32 = 3;
const NEEDED: u64 = 1;
const STRING_TABLE: u64 = 5;

struct Segment {
    kind: u32,
    offset: usize,
    address: u64,
    size: usize,
}

fn dynamic(bytes: &[u8]) -> Option<Vec<String>> {
    if !bytes.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let start = number(bytes, 32)? as usize;
    let size = usize::from(half(bytes, 54)?);
    let count = usize::from(half(bytes, 56)?);
    let segments: Vec<Segment> =
        (0..count).filter_map(|i| segment(bytes, start.checked_add(i * size)?)).collect();
    let mut out = Vec::new();
    if let Some(loader) = segments.iter().find(|segment| segment.kind == INTERPRETER) {
        let name = bytes.get(loader.offset..loader.offset.checked_add(loader.size)?)?;
        out.push(String::from_utf8_lossy(name).trim_end_matches('\0').to_owned());
    }
    let Some(dynamic) = segments.iter().find(|segment| segment.kind == DYNAMIC) else {
        return Some(out);
    };
    let table = bytes.get(dynamic.offset..dynamic.offset.checked_add(dynamic.size)?)?;
    let tags: Vec<(u64, u64)> =
        table.chunks_exact(16).filter_map(|tag| Some((number(tag, 0)?, number(tag, 8)?))).collect();
    let (_, strings) = tags.iter().find(|(tag, _)| *tag == STRING_TABLE)?;
    let loaded = segments.iter().filter(|segment| segment.kind == LOAD);
    let within =
        |s: &&Segment| (s.address..s.address.saturating_add(s.size as u64)).contains(strings);
    let at = loaded.clone().find(within).map(|s| s.offset as u64 + (strings - s.address))?;
    for (_, name) in tags.iter().filter(|(tag, _)| *tag == NEEDED) {
        let name = bytes.get(at.checked_add(*name)? as usize..)?;
        let end = name.iter().position(|byte| *byte == 0)?;
        out.push(String::from_utf8_lossy(&name[..end]).into_owned());
    }
    Some(out)
}

fn segment(bytes: &[u8], at: usize) -> Option<Segment> {
    Some(Segment {
        kind: number(bytes, at)? as u32,
        offset: number(bytes, at + 8)? as usize,
        address: number(bytes, at + 16)?,
        size: number(bytes, at + 32)? as usize,
    })
}

fn number(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_loader_and_libraries_of_program() {
        // The shell is linked with the C library wherever tests run.
        let found = libraries(&std::fs::read("/bin/sh").unwrap());
        assert!(found[0].starts_with("/lib") && found[0].contains("ld-"), "{found:?}");
        assert!(found.contains(&"libc.so.6".to_owned()), "{found:?}");
        assert!(libraries(b"#!/bin/sh\n").is_empty());
        let cut = std::fs::read("/bin/sh").unwrap();
        (0..2000).step_by(7).for_each(|end| drop(libraries(&cut[..end])));
    }
}
