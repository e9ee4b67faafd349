use std::{
    fs,
    io::Write,
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::Path,
};

use crate::{cert::Cert, error::Error, key::Key};

/// The mode of private keys, service account keys and kubeconfig files.
pub const KEY_MODE: u32 = 0o600;
/// The mode of certificates and non-secret configuration.
pub const PUBLIC_MODE: u32 = 0o644;

/// Replaces `path` atomically: readers, also after a crash, see the old content or the new. Missing directories are
/// created.
pub fn write_file(path: &Path, content: &[u8], mode: u32) -> Result<(), Error> {
    let dir = path.parent().filter(|d| !d.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(dir).map_err(|source| Error::Io {
        operation: "create the directory",
        path: dir.into(),
        source,
    })?;
    let failed = |source| Error::Io { operation: "write", path: path.into(), source };
    let mut options = fs::OpenOptions::new();
    options.mode(KEY_MODE);
    let mut file = tempfile::Builder::new()
        .prefix(".new-")
        .make_in(dir, |at| options.write(true).create_new(true).open(at))
        .map_err(failed)?;
    file.write_all(content).map_err(failed)?;
    file.as_file().set_permissions(fs::Permissions::from_mode(mode)).map_err(failed)?;
    file.as_file().sync_all().map_err(failed)?;
    file.persist(path).map_err(|e| failed(e.error))?;
    Ok(())
}

/// Replaces `path` atomically unless it has this content. Returns `true` if it was written.
pub fn update_file(path: &Path, content: &[u8], mode: u32) -> Result<bool, Error> {
    let is_new = !fs::read(path).is_ok_and(|current| current == content);
    if is_new {
        write_file(path, content, mode)?;
    }
    Ok(is_new)
}

/// Writes a world-readable certificate in PEM, atomically.
pub fn write_cert(path: &Path, cert: &Cert) -> Result<(), Error> {
    write_file(path, cert.to_pem().as_bytes(), PUBLIC_MODE)
}

/// Writes a private key in PEM that only its owner can read, atomically.
pub fn write_key(path: &Path, key: &Key) -> Result<(), Error> {
    write_file(path, key.to_pem()?.as_bytes(), KEY_MODE)
}

/// Writes `sa.pub`, with the mode of a key like kubeadm.
pub fn write_public_key(path: &Path, key: &Key) -> Result<(), Error> {
    write_file(path, key.public_pem()?.as_bytes(), KEY_MODE)
}

/// Reads the first certificate of a file.
pub fn read_cert(path: &Path) -> Result<Cert, Error> {
    Cert::from_pem(&read(path)?).map_err(|source| within(path, source))
}

/// Reads all certificates of a bundle.
pub fn read_certs(path: &Path) -> Result<Vec<Cert>, Error> {
    Cert::all_from_pem(&read(path)?).map_err(|source| within(path, source))
}

/// Reads the private key of a file, in any PEM form that [`Key::from_pem`] accepts. The file's mode is not checked.
pub fn read_key(path: &Path) -> Result<Key, Error> {
    Key::from_pem(&read(path)?).map_err(|source| within(path, source))
}

fn read(path: &Path) -> Result<String, Error> {
    fs::read_to_string(path).map_err(|source| Error::Io {
        operation: "read",
        path: path.into(),
        source,
    })
}

fn within(path: &Path, source: Error) -> Error {
    Error::In { path: path.into(), source: Box::new(source) }
}
