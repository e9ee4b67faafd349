//! The mirrors and credentials of image registries, and containerd's `hosts.toml` files.

use std::{fmt::Write as _, path::PathBuf};

use serde::{Deserialize, Serialize};

use super::error::ConfigError;

/// An image registry.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Registry {
    /// The host in names of images, such as `docker.io` or `localhost:5000`; `_default` for all others.
    pub host: String,
    /// The URLs that are tried before the registry itself.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mirrors: Vec<String>,
    /// The URL of the registry itself, if it is not `https://HOST`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// The file with the CA that verifies the registry and its mirrors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    /// `true` if certificates are not verified.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub skip_verify: bool,
    /// The user of the registry.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub username: String,
    /// The file with the password of the user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password_file: Option<PathBuf>,
}

impl Registry {
    /// Checks the registry with this index in the document.
    pub(super) fn check(&self, index: usize) -> Result<(), ConfigError> {
        let wrong = |field: &str, value: &str, expected| {
            Err(ConfigError::Value {
                field: format!("registries[{index}].{field}"),
                value: value.to_owned(),
                expected,
            })
        };
        let is_plain = |c: char| c.is_ascii_alphanumeric() || ".-:_[]".contains(c);
        if self.host.is_empty() || !self.host.chars().all(is_plain) || self.host.starts_with('.') {
            return wrong("host", &self.host, "a host with an optional port");
        }
        for url in self.mirrors.iter().chain(&self.server) {
            let parsed = url.parse::<http::Uri>();
            let is_url = parsed.is_ok_and(|uri| {
                matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some()
            });
            if !is_url || url.contains(['"', '\\']) {
                return wrong("mirrors", url, "an http or https URL");
            }
        }
        let absolute = |path: &PathBuf| {
            path.is_absolute() && !path.display().to_string().contains(['"', '\\'])
        };
        for (field, path) in [("ca", &self.ca), ("passwordFile", &self.password_file)] {
            if let Some(path) = path.as_ref().filter(|path| !absolute(path)) {
                return wrong(field, &path.display().to_string(), "an absolute path");
            }
        }
        if self.username.is_empty() != self.password_file.is_none() {
            return wrong("username", &self.username, "given together with passwordFile");
        }
        Ok(())
    }

    /// Returns the file `hosts.toml` of the registry.
    pub(crate) fn hosts(&self) -> String {
        let mut text = String::new();
        let server = self.server.clone().unwrap_or_else(|| format!("https://{}", self.host));
        // The namespace of all other registries has no server of its own.
        if self.host != "_default" {
            let _ = writeln!(text, "server = \"{server}\"");
        }
        let own = Some(&server).filter(|_| self.host != "_default");
        for url in self.mirrors.iter().chain(own) {
            let _ = writeln!(text, "\n[host.\"{url}\"]\n  capabilities = [\"pull\", \"resolve\"]");
            if let Some(ca) = &self.ca {
                let _ = writeln!(text, "  ca = \"{}\"", ca.display());
            }
            if self.skip_verify {
                text.push_str("  skip_verify = true\n");
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn writes_mirrors_before_registry() {
        let registry: Registry = serde_json::from_value(json!({"host": "docker.io",
            "mirrors": ["http://192.0.2.5:5000"], "server": "https://registry-1.docker.io", "ca": "/etc/ca.crt",
            "skipVerify": true}))
        .unwrap();
        assert!(registry.check(0).is_ok());
        let host = |url: &str| {
            format!(
                "\n[host.\"{url}\"]\n  capabilities = [\"pull\", \"resolve\"]\n  ca = \"/etc/ca.crt\"\n  skip_verify = true\n"
            )
        };
        let server = "https://registry-1.docker.io";
        let expected =
            format!("server = \"{server}\"\n{}{}", host("http://192.0.2.5:5000"), host(server));
        assert_eq!(registry.hosts(), expected);
    }

    #[test]
    fn rejects_values_that_would_change_the_file() {
        for (value, field) in [
            (json!({"host": ""}), "host"),
            (json!({"host": "../etc"}), "host"),
            (json!({"host": "a\"\n"}), "host"),
            (json!({"host": "a", "mirrors": ["ftp://a"]}), "mirrors"),
            (json!({"host": "a", "mirrors": ["https://a\"]\nskip_verify = true"]}), "mirrors"),
            (json!({"host": "a", "server": "a"}), "mirrors"),
            (json!({"host": "a", "ca": "ca.crt"}), "ca"),
            (json!({"host": "a", "ca": "/a\"b"}), "ca"),
            (json!({"host": "a", "username": "u"}), "username"),
            (json!({"host": "a", "passwordFile": "/p"}), "username"),
        ] {
            let registry: Registry = serde_json::from_value(value.clone()).unwrap();
            let message = registry.check(3).unwrap_err().to_string();
            assert!(message.starts_with(&format!("registries[3].{field}:")), "{value}: {message}");
        }
    }
}
