//! JSON files of a fleet.

use std::{fs, path::Path};

use serde::{Serialize, de::DeserializeOwned};

use crate::error::Error;

/// Reads a JSON file; `None` if it does not exist.
pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, Error> {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(sys::Error::at("reading", path)(error).into()),
    };
    let value = serde_json::from_slice(&text)
        .map_err(|e| Error::Settings { path: path.to_owned(), detail: e.to_string() })?;
    Ok(Some(value))
}

/// Writes a JSON file that its owner alone may read.
pub(crate) fn write<T: Serialize>(path: &Path, value: &T) -> Result<(), Error> {
    let text = serde_json::to_vec_pretty(value)
        .map_err(|e| Error::Settings { path: path.to_owned(), detail: e.to_string() })?;
    Ok(pki::write_file(path, &text, pki::KEY_MODE)?)
}
