//! Imports archives of images into containerd.

use std::{
    fs::File,
    io::{self, Read as _, Seek as _},
    path::Path,
    process::{Command, Stdio},
};

use flate2::read::MultiGzDecoder;

/// The first bytes of a file of gzip.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// An error in importing an archive.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    #[error("import {archive} into containerd: read it: {source}")]
    Read { archive: String, source: io::Error },
    #[error("import {archive} into containerd: run ctr: {source}; is containerd installed?")]
    Run { archive: String, source: io::Error },
    #[error("import {archive} into containerd at {socket}: {message}")]
    Refused { archive: String, socket: String, message: String },
}

/// Imports an archive, which may be compressed by gzip, into containerd's image store, in the namespace of its CRI
/// plugin. Blocks.
pub fn import(socket: &Path, archive: &Path) -> Result<(), ImportError> {
    let named = archive.display().to_string();
    let unreadable = |source| ImportError::Read { archive: named.clone(), source };
    let mut file = File::open(archive).map_err(unreadable)?;
    let packed = is_packed(&mut file).map_err(unreadable)?;
    let mut command = Command::new("ctr");
    command.arg("--address").arg(socket);
    command.args(["--namespace", "k8s.io", "images", "import", "--all-platforms"]);
    if packed {
        command.arg("-").stdin(Stdio::piped());
    } else {
        command.arg(archive).stdin(Stdio::null());
    }
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let failed = |source| ImportError::Run { archive: named.clone(), source };
    let mut child = command.spawn().map_err(failed)?;
    let copied = match child.stdin.take() {
        Some(mut input) => io::copy(&mut MultiGzDecoder::new(file), &mut input).map(drop),
        None => Ok(()),
    };
    let output = child.wait_with_output().map_err(failed)?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(ImportError::Refused {
            archive: named,
            socket: socket.display().to_string(),
            message,
        });
    }
    // The program may end before it has read padding at the end.
    match copied {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(unreadable(error)),
        _ => Ok(()),
    }
}

/// Returns `true` for a file of gzip, and seeks to the start.
fn is_packed(file: &mut File) -> io::Result<bool> {
    let mut first = Vec::new();
    file.take(2).read_to_end(&mut first)?;
    file.rewind()?;
    Ok(first == GZIP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recognizes_gzip_and_names_unreadable_archives() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.tar");
        for (content, packed) in [(&b""[..], false), (b"\x1f", false), (b"\x1f\x8b\x08", true)] {
            std::fs::write(&path, content).unwrap();
            let mut file = File::open(&path).unwrap();
            assert_eq!(is_packed(&mut file).unwrap(), packed);
            assert_eq!(file.stream_position().unwrap(), 0);
        }
        let error = import(Path::new("/none"), &dir.path().join("none.tar")).unwrap_err();
        assert!(error.to_string().contains("none.tar into containerd: read it"), "{error}");
    }
}
