//! An installed program with the libraries that it needs in an otherwise empty image.

use std::{
    collections::BTreeMap,
    fs, io,
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
    let bytes = fs::read(program).map_err(|source| unread(program, source))?;
    let loader = loader(&bytes).ok_or_else(|| ProgramError::NotElf(program.to_owned()))?;
    let Some(loader) = loader else { return Ok(BTreeMap::new()) };
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
    let bytes =
        fs::read(path).map_err(|source| ProgramError::Read { path: path.to_owned(), source })?;
    let Some(loader) = loader(&bytes).ok_or_else(|| ProgramError::NotElf(path.to_owned()))? else {
        return Ok(Vec::new());
    };
    list_libraries(&loader, path)
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

/// Returns the loader in a program's PT_INTERP header; the inner `None` for a static program, and the outer `None` if
/// this is not a 64-bit little-endian ELF file.
fn loader(elf: &[u8]) -> Option<Option<String>> {
    const PT_INTERP: u64 = 3;
    let number = |at: usize, bytes: usize| {
        let field = elf.get(at..at.checked_add(bytes)?)?;
        Some(field.iter().rev().fold(0u64, |all, byte| all << 8 | u64::from(*byte)))
    };
    let size = |at, bytes| usize::try_from(number(at, bytes)?).ok();
    if elf.get(..6)? != b"\x7fELF\x02\x01" {
        return None;
    }
    let (table, entry, count) = (size(0x20, 8)?, size(0x36, 2)?, size(0x38, 2)?);
    for i in 0..count {
        let header = table.checked_add(i.checked_mul(entry)?)?;
        if number(header, 4)? != PT_INTERP {
            continue;
        }
        let (start, length) = (size(header.checked_add(8)?, 8)?, size(header.checked_add(32)?, 8)?);
        let name = elf.get(start..start.checked_add(length)?)?;
        let name = std::str::from_utf8(name).ok()?.trim_end_matches('\0');
        return Some(Some(name.to_owned()));
    }
    Some(None)
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
        let bytes = fs::read(shell).unwrap();
        let entries = program(shell, "/bin/app").unwrap();
        assert!(entries.contains_key("/bin/app"));
        if let Some(Some(loader)) = loader(&bytes) {
            assert!(entries.contains_key(&loader), "{entries:?}");
        }
    }

    #[test]
    fn rejects_files_that_are_not_programs() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("script");
        fs::write(&path, "#!/bin/sh\n").unwrap();
        let error = program(&path, "/x").unwrap_err().to_string();
        assert!(error.contains("script") && error.contains("ELF"), "{error}");
        let mut torn = b"\x7fELF\x02\x01".to_vec();
        assert_eq!(loader(&torn), None);
        torn.resize(0x40, 0xff);
        assert_eq!(loader(&torn), None);
    }
}
