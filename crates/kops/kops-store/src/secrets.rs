//! A cluster's secrets in the store: `secrets/NAME`, JSON with the field `Data` in base64.

use api_meta::Tree as _;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use vfs::{Precondition, Secrecy};

use crate::{error::Error, registry::Registry};

/// The secrets of a cluster.
pub struct Secrets<'a> {
    registry: &'a Registry,
    cluster: &'a str,
}

impl Registry {
    /// Returns the secrets of a cluster.
    pub fn secrets<'a>(&'a self, cluster: &'a str) -> Secrets<'a> {
        Secrets { registry: self, cluster }
    }
}

impl Secrets<'_> {
    fn path(&self, name: &str) -> Result<String, Error> {
        check_name(name)?;
        Ok(format!("{}/secrets/{name}", self.cluster))
    }

    /// Returns the names, sorted.
    pub fn names(&self) -> Result<Vec<String>, Error> {
        let entries = self.registry.list_entries(&format!("{}/secrets", self.cluster))?;
        let names = entries.into_iter().filter(|(_, is_directory)| !is_directory);
        Ok(names.map(|(name, _)| name).collect())
    }

    /// Returns the data of a secret; `None` if it does not exist.
    pub fn read(&self, name: &str) -> Result<Option<Vec<u8>>, Error> {
        let path = self.path(name)?;
        match self.registry.read_object(&path)? {
            Some((content, _)) => parse_secret(&path, &content).map(Some),
            None => Ok(None),
        }
    }

    /// Creates a secret. Returns `false` if it exists; then nothing is written.
    pub fn create(&self, name: &str, data: &[u8]) -> Result<bool, Error> {
        let path = self.path(name)?;
        if self.registry.read_object(&path)?.is_some() {
            return Ok(false);
        }
        self.write(&path, data, &Precondition::Absent)?;
        Ok(true)
    }

    /// Creates or replaces a secret.
    pub fn replace(&self, name: &str, data: &[u8]) -> Result<(), Error> {
        let path = self.path(name)?;
        let old = self.registry.read_object(&path)?;
        let since = old.map_or(Precondition::Absent, |(_, read)| Precondition::Read(read));
        self.write(&path, data, &since)
    }

    fn write(&self, path: &str, data: &[u8], since: &Precondition) -> Result<(), Error> {
        let content = json!({"Data": STANDARD.encode(data)}).to_string();
        self.registry.write_object(path, content.as_bytes(), since, Secrecy::Private)
    }

    /// Deletes a secret, which must exist.
    pub fn delete(&self, name: &str) -> Result<(), Error> {
        let path = self.path(name)?;
        let Some((_, read)) = self.registry.read_object(&path)? else {
            return Err(Error::object("secret", name, "not found"));
        };
        self.registry.delete_object(&path, &read)
    }
}

/// Checks that a name is one part of a path: it leads to no other directory.
fn check_name(name: &str) -> Result<(), Error> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.starts_with('.') || name.len() > 253 || !name.chars().all(is_plain) {
        let name: String = name.chars().take(253).collect();
        let problem = "is not a name: use letters, digits, dashes, dots and underscores";
        return Err(Error::object("secret", &name, problem));
    }
    Ok(())
}

/// Parses a stored secret, and returns its data. `path` names it in errors, which never quote its content.
pub fn parse_secret(path: &str, content: &[u8]) -> Result<Vec<u8>, Error> {
    let malformed =
        || Error::Malformed { path: path.to_owned(), expected: "a secret: JSON with base64 Data" };
    let tree: Value = serde_json::from_slice(content).map_err(|_| malformed())?;
    STANDARD.decode(tree.text("Data")).map_err(|_| malformed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_secrets_in_upstreams_format() {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("file://{}", dir.path().display());
        let registry = Registry::open(&url, &|_| None).unwrap();
        let secrets = registry.secrets("a.b");
        assert!(secrets.create("dockerconfig", b"{}").unwrap());
        assert!(!secrets.create("dockerconfig", b"other").unwrap());
        let path = dir.path().join("a.b/secrets/dockerconfig");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), r#"{"Data":"e30="}"#);
        secrets.replace("dockerconfig", b"\xff").unwrap();
        assert_eq!(secrets.read("dockerconfig").unwrap().unwrap(), b"\xff");
        assert_eq!(secrets.names().unwrap(), ["dockerconfig"]);
        for hostile in ["", ".", "..", "../config", "a/b", "/etc/passwd", "a\0b"] {
            assert!(secrets.read(hostile).is_err(), "{hostile:?}");
            assert!(secrets.replace(hostile, b"x").is_err(), "{hostile:?}");
            assert!(secrets.delete(hostile).is_err(), "{hostile:?}");
        }
        for damaged in ["", "{", r#"{"Data":"?"}"#, r#"{"Data":7}x"#] {
            std::fs::write(&path, damaged).unwrap();
            let error = secrets.read("dockerconfig").unwrap_err().to_string();
            assert!(error.contains("a.b/secrets/dockerconfig"), "{error}");
        }
        secrets.delete("dockerconfig").unwrap();
        assert!(secrets.delete("dockerconfig").unwrap_err().to_string().contains("not found"));
    }
}
