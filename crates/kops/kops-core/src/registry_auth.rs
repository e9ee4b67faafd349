//! Credentials for image registries, from a `config.json` of Docker.

use std::collections::BTreeMap;

use api_meta::Tree as _;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::Value;

use crate::error::Error;

/// The name by which Docker's programs know its registry, and the host that serves it.
const DOCKER: [&str; 2] = ["index.docker.io", "docker.io"];
const DOCKER_HOST: &str = "registry-1.docker.io";

/// Returns the credentials of a `config.json`: base64 of `user:password`, by the host of the registry. Errors do not
/// quote credentials.
pub fn registry_credentials(config: &[u8]) -> Result<BTreeMap<String, String>, Error> {
    let wrong = |reason: &str| Error::value("secret", "dockerconfig", reason);
    let tree: Value = serde_json::from_slice(config).map_err(|_| wrong("is not JSON"))?;
    for field in ["credsStore", "credHelpers"] {
        if tree.has(field) {
            let reason = format!(
                "has {field}: machines of cloud local run no credential helpers; use auths"
            );
            return Err(wrong(&reason));
        }
    }
    let mut all = BTreeMap::new();
    for (registry, entry) in tree.pairs("auths") {
        let host = registry.trim_start_matches("https://").trim_start_matches("http://");
        let host = host.split('/').next().unwrap_or_default();
        let is_plain = |c: char| c.is_ascii_alphanumeric() || ".-:[]".contains(c);
        if host.is_empty() || host.len() > 253 || !host.chars().all(is_plain) {
            return Err(wrong("names a registry that is not a host"));
        }
        let auth = match entry.text("auth") {
            "" => STANDARD.encode(format!("{}:{}", entry.text("username"), entry.text("password"))),
            auth => auth.to_owned(),
        };
        let decoded = STANDARD.decode(&auth).unwrap_or_default();
        if decoded.iter().position(|byte| *byte == b':').is_none_or(|at| at == 0) {
            return Err(wrong(&format!("has no user and password for {host}")));
        }
        let host = if DOCKER.contains(&host) { DOCKER_HOST } else { host };
        all.insert(host.to_owned(), auth);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_credentials_of_dockers_config() {
        let config = br#"{"auths": {
            "registry.example:5000": {"auth": "bWU6c2VjcmV0"},
            "https://index.docker.io/v1/": {"username": "me", "password": "secret"}
        }}"#;
        let all = registry_credentials(config).unwrap_or_else(|e| panic!("{e}"));
        let expected = [
            ("registry-1.docker.io".to_owned(), "bWU6c2VjcmV0".to_owned()),
            ("registry.example:5000".to_owned(), "bWU6c2VjcmV0".to_owned()),
        ];
        assert_eq!(all.into_iter().collect::<Vec<_>>(), expected);
        assert!(registry_credentials(b"{}").unwrap_or_else(|e| panic!("{e}")).is_empty());
    }

    #[test]
    fn rejects_configs_that_containerd_could_not_use() {
        for (hostile, reason) in [
            ("", "is not JSON"),
            (
                "{\"auths\": {\"a\\\"]\\nx = [\\\"\": {\"auth\": \"bWU6c2VjcmV0\"}}}",
                "is not a host",
            ),
            (r#"{"auths": {"": {"auth": "bWU6c2VjcmV0"}}}"#, "is not a host"),
            (r#"{"auths": {"a": {"auth": "bWU6c2VjcmV0\"\n"}}}"#, "has no user and password for a"),
            (r#"{"auths": {"a": {"auth": "c2VjcmV0"}}}"#, "has no user and password for a"),
            (r#"{"auths": {"a": {}}}"#, "has no user and password for a"),
            (r#"{"credsStore": "ecr-login"}"#, "no credential helpers"),
            (r#"{"auths": {}, "credHelpers": {"a": "b"}}"#, "no credential helpers"),
        ] {
            let error = registry_credentials(hostile.as_bytes()).expect_err(hostile).to_string();
            assert!(error.contains(reason), "{hostile}: {error}");
            assert!(!error.contains("bWU6"), "the error quotes a credential");
        }
    }
}
