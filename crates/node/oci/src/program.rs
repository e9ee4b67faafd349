//! An installed program with the libraries that it needs in an otherwise empty image.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::Command,
};

use crate::image::Entry;

/// An error in collecting a program's files.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    #[error("read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} is not a 64-bit little-endian ELF program", .0.display())]
    NotElf(PathBuf),
    #[error(
        "{} is linked dynamically: it needs the loader {loader}, which an image of this program alone does not have; \
         use a static build",
        path.display()
    )]
    Dynamic { path: PathBuf, loader: String },
    #[error("list the libraries of {}: {cause}", path.display())]
    Libraries { path: PathBuf, cause: String },
}

/// Returns the program at path `at`, and its loader and libraries at their own paths.
pub fn program(path: &Path, at: &str) -> Result<BTreeMap<String, Entry>, ProgramError> {
    let real = fs::canonicalize(path)
        .map_err(|source| ProgramError::Read { path: path.to_owned(), source })?;
    let mut entries = BTreeMap::new();
    entries.insert(at.to_owned(), Entry::File { source: real.clone(), mode: 0o755 });
    for library in libraries(&real)? {
        let Some(name) = library.to_str() else { continue };
        entries.insert(name.to_owned(), Entry::File { source: library.clone(), mode: 0o755 });
    }
    Ok(entries)
}

/// Returns the shared objects in a directory that a program loads at run time, with their libraries, at their own
/// paths. Objects with missing libraries are left out, because the program cannot load them here either.
pub fn plugins(program: &Path, directory: &Path) -> Result<BTreeMap<String, Entry>, ProgramError> {
    let unread = |path: &Path, source| ProgramError::Read { path: path.to_owned(), source };
    let Some(loader) = loader(program)? else { return Ok(BTreeMap::new()) };
    let mut entries = BTreeMap::new();
    for file in fs::read_dir(directory).map_err(|source| unread(directory, source))? {
        let path = file.map_err(|source| unread(directory, source))?.path();
        if path.extension().is_none_or(|extension| extension != "so") {
            continue;
        }
        let Ok(mut needed) = list_libraries(&loader, &path) else { continue };
        needed.push(path);
        for path in needed {
            let Some(name) = path.to_str() else { continue };
            entries.insert(name.to_owned(), Entry::File { source: path.clone(), mode: 0o755 });
        }
    }
    Ok(entries)
}

/// Returns the loader and shared libraries of a program; none for a static program.
fn libraries(path: &Path) -> Result<Vec<PathBuf>, ProgramError> {
    loader(path)?.map_or_else(|| Ok(Vec::new()), |loader| list_libraries(&loader, path))
}

/// Returns an error unless a program can run as the only file of an image: the kernel then finds no loader for it.
pub fn require_static(path: &Path) -> Result<(), ProgramError> {
    match loader(path)? {
        Some(loader) => Err(ProgramError::Dynamic { path: path.to_owned(), loader }),
        None => Ok(()),
    }
}

/// Returns the files that the loader loads for a program or shared object, including the loader.
fn list_libraries(loader: &str, path: &Path) -> Result<Vec<PathBuf>, ProgramError> {
    let failed = |cause: String| ProgramError::Libraries { path: path.to_owned(), cause };
    let output = Command::new(loader)
        .arg("--list")
        .arg(path)
        .output()
        .map_err(|e| failed(format!("{loader}: {e}")))?;
    if !output.status.success() {
        return Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    let listed = String::from_utf8_lossy(&output.stdout);
    let mut libraries = vec![PathBuf::from(loader)];
    for line in listed.lines() {
        if line.contains("not found") {
            return Err(failed(format!("{}; install the package that has it", line.trim())));
        }
        libraries.extend(library_in(line));
    }
    libraries.sort();
    libraries.dedup();
    Ok(libraries)
}

/// Returns the path in a line such as `libc.so.6 => /lib/libc.so.6 (0x7f…)`. The kernel's vDSO has none.
fn library_in(line: &str) -> Option<PathBuf> {
    let line = line.trim().rsplit_once(" (0x").map_or(line.trim(), |(line, _)| line);
    let path = line.rsplit_once(" => ").map_or(line, |(_, path)| path);
    path.starts_with('/').then(|| path.into())
}

/// Returns the loader that a program's PT_INTERP header names; `None` for a static program.
fn loader(path: &Path) -> Result<Option<String>, ProgramError> {
    let unread = |source: io::Error| match source.kind() {
        io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => {
            ProgramError::NotElf(path.to_owned())
        }
        _ => ProgramError::Read { path: path.to_owned(), source },
    };
    File::open(path).and_then(|file| interpreter(&file)).map_err(unread)
}

/// Reads PT_INTERP. Linux's limits (64 KiB of program headers, `PATH_MAX`) bound the memory for a hostile file.
fn interpreter(elf: &File) -> io::Result<Option<String>> {
    const PT_INTERP: u64 = 3;
    const HEADER: usize = 56;
    let invalid = || io::Error::from(io::ErrorKind::InvalidData);
    let read = |at: u64, length: usize| {
        at.checked_add(length as u64).ok_or_else(invalid)?;
        let mut bytes = vec![0; length];
        elf.read_exact_at(&mut bytes, at).map(|()| bytes)
    };
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte));
    let head = read(0, 64)?;
    let (table, size, count) =
        (number(&head[0x20..0x28]), number(&head[0x36..0x38]), number(&head[0x38..0x3a]));
    if !head.starts_with(b"\x7fELF\x02\x01") || size != HEADER as u64 || count * size > 0x1_0000 {
        return Err(invalid());
    }
    let headers = read(table, count as usize * HEADER)?;
    let header = headers.chunks_exact(HEADER).find(|header| number(&header[..4]) == PT_INTERP);
    let Some(header) = header else { return Ok(None) };
    let (start, length) = (number(&header[8..16]), number(&header[32..40]));
    if length > 4096 {
        return Err(invalid());
    }
    let name = String::from_utf8(read(start, length as usize)?).map_err(|_| invalid())?;
    Ok(Some(name.trim_end_matches('\0').to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_output_of_the_loader() {
        for (line, path) in [
            ("\tlinux-vdso.so.1 (0x00007efc60adf000)", None),
            (
                "\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007efc608eb000)",
                Some("/lib/x86_64-linux-gnu/libc.so.6"),
            ),
            (
                "\t/lib64/ld-linux-x86-64.so.2 (0x00007efc60ae1000)",
                Some("/lib64/ld-linux-x86-64.so.2"),
            ),
            ("\tstatically linked", None),
        ] {
            assert_eq!(library_in(line), path.map(PathBuf::from), "{line}");
        }
    }

    #[test]
    fn program_includes_its_loader() {
        let shell = Path::new("/bin/sh");
        let entries = program(shell, "/bin/app").unwrap();
        assert!(entries.contains_key("/bin/app"));
        if let Some(loader) = loader(shell).unwrap() {
            assert!(entries.contains_key(&loader), "{entries:?}");
        }
    }

    #[test]
    fn names_loader_of_dynamic_program() {
        // Tests are linked dynamically.
        let own = std::env::current_exe().unwrap();
        let error = require_static(&own).unwrap_err().to_string();
        assert!(
            error.contains("needs the loader /lib") && error.contains("static build"),
            "{error}"
        );
    }

    /// Returns an ELF file with one program header of this type, position and length.
    fn elf(kind: u32, start: u64, length: u64) -> Vec<u8> {
        let mut bytes = vec![0; 64 + 56];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        bytes[0x20] = 64;
        bytes[0x36] = 56;
        bytes[0x38] = 1;
        bytes[64..68].copy_from_slice(&kind.to_le_bytes());
        bytes[72..80].copy_from_slice(&start.to_le_bytes());
        bytes[96..104].copy_from_slice(&length.to_le_bytes());
        bytes
    }

    #[test]
    fn rejects_files_that_are_not_programs() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("program");
        fs::write(&path, elf(1, 0, 0)).unwrap();
        require_static(&path).unwrap();
        let (mut huge, mut far) = (elf(1, 0, 0), elf(1, 0, 0));
        huge[0x38..0x3a].fill(0xff);
        far[0x20..0x28].fill(0xff);
        for hostile in [
            b"#!/bin/sh\n".to_vec(),
            b"\x7fELF\x02\x01".to_vec(),
            elf(3, 64, 56)[..100].to_vec(),
            elf(3, 120, 8),
            elf(3, 0, u64::MAX),
            elf(3, u64::MAX, 8),
            huge,
            far,
        ] {
            fs::write(&path, &hostile).unwrap();
            let error = require_static(&path).unwrap_err();
            assert!(matches!(error, ProgramError::NotElf(_)), "{hostile:?}: {error}");
        }
        // The length of the file does not matter.
        let file = File::create(&path).unwrap();
        file.write_all_at(&elf(3, 1 << 40, 8), 0).unwrap();
        file.set_len(1 << 41).unwrap();
        assert_eq!(loader(&path).unwrap(), Some(String::new()));
        assert!(matches!(require_static(&dir.path().join("none")), Err(ProgramError::Read { .. })));
    }
}
