use std::{fs, io::Write as _, os::unix::fs::OpenOptionsExt as _, path::Path};

use crate::error::Error;

/// Writes a file for root only, because a config may contain secrets. Creates its directory.
pub(crate) fn write_private(path: &Path, contents: &[u8]) -> Result<(), Error> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(Error::file("making", parent))?;
    }
    let mut options = fs::OpenOptions::new();
    let file = options.write(true).create(true).truncate(true).mode(0o600).open(path);
    file.and_then(|mut file| file.write_all(contents)).map_err(Error::file("writing", path))
}
