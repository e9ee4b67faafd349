//! The machines' access to the state store. Control planes have a settings file with a key that reaches only their
//! cluster; other machines have none.

use std::path::Path;

use api_meta::Tree as _;
use instances::machine::TRUSTED_FILES;
use kops_store::parse_secret;
use serde_json::Value;
use vfs::Store;

use crate::error::Error;

/// The file with the access to the store: on the host with its own key, on control planes with the cluster's key.
pub const SETTINGS_FILE: &str = "store.json";
/// The file with the certificate authority of the server of the store, on control planes.
pub const AUTHORITY_FILE: &str = "store-ca.crt";

/// Reads a file with the location of a store and the access to it; `None` if it does not exist.
pub fn read_settings(path: &Path) -> Result<Option<Value>, Error> {
    let shown = path.display().to_string();
    match std::fs::read(path) {
        Ok(text) => serde_json::from_slice(&text)
            .map(Some)
            .map_err(|source| Error::Settings { path: shown, source }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(kops_store::Error::file("reading", &shown)(error).into()),
    }
}

/// Returns an environment variable that the settings define.
pub fn variable(settings: &Value, name: &str) -> Option<String> {
    settings.at(&["environment", name]).as_str().map(str::to_owned)
}

/// Opens a store: a control plane uses its settings file, other machines their environment.
pub(crate) fn open(url: &str) -> Result<Store, Error> {
    let settings = if url.starts_with("file:") {
        None
    } else {
        read_settings(&Path::new(TRUSTED_FILES).join(SETTINGS_FILE))?
    };
    Ok(match settings {
        Some(settings) => Store::open_in(url, &|name| variable(&settings, name))?,
        None => Store::open(url)?,
    })
}

/// Reads a secret of a cluster's store; `None` if it does not exist.
pub(crate) fn read_secret(store: &Store, name: &str) -> Result<Option<Vec<u8>>, Error> {
    let path = format!("secrets/{name}");
    let found = store.read(&path)?;
    Ok(found.map(|(content, _)| parse_secret(&path, &content)).transpose()?)
}
