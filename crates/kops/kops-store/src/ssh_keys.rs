//! A cluster's SSH public keys in the store: `pki/ssh/public/admin/FINGERPRINT`, a line in OpenSSH's format.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use kops_core::model::aws;
use vfs::{Precondition, Secrecy};

use crate::{error::Error, registry::Registry};

/// The algorithms of OpenSSH's public keys.
const ALGORITHMS: [&str; 8] = [
    "ssh-rsa",
    "ssh-dss",
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "sk-ssh-ed25519@openssh.com",
    "sk-ecdsa-sha2-nistp256@openssh.com",
];

/// An SSH public key.
#[derive(Debug)]
pub struct SshKey {
    /// The MD5 fingerprint with colons, by which upstream names keys.
    pub fingerprint: String,
    /// The line, without white space around it.
    pub line: String,
}

impl SshKey {
    /// Parses one public key as in an `authorized_keys` file. `what` names it in errors.
    ///
    /// Empty lines and comments are ignored. Several keys are rejected, because clouds import one.
    pub fn parse(what: &str, content: &[u8]) -> Result<Self, Error> {
        let wrong = |problem| Error::SshKey { what: what.to_owned(), problem };
        let text = std::str::from_utf8(content).map_err(|_| wrong("is not text"))?;
        if text.contains("PRIVATE KEY") {
            return Err(wrong("has a private key; give the file that ends in .pub"));
        }
        let lines = text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#'));
        let lines: Vec<_> = lines.collect();
        match lines[..] {
            [] => Err(wrong("has no public key")),
            [line] => match find_key(line) {
                Some(key) => {
                    Ok(Self { fingerprint: aws::fingerprint(&key)?, line: line.to_owned() })
                }
                None => Err(wrong("is not a public key in OpenSSH's format")),
            },
            _ => Err(wrong("has several lines, but must have one public key")),
        }
    }
}

/// Returns the algorithm and the base64 of a line's key. Options may stand before them.
fn find_key(line: &str) -> Option<String> {
    let words: Vec<_> = line.split_whitespace().collect();
    let is_key = |pair: &&[&str]| match pair {
        [algorithm, blob] => {
            ALGORITHMS.contains(algorithm)
                && STANDARD.decode(blob).is_ok_and(|blob| is_key_of(algorithm, &blob))
        }
        _ => false,
    };
    words.windows(2).find(is_key).map(|pair| pair.join(" "))
}

/// Reports whether a blob is a key of an algorithm: strings with their lengths before them, first the algorithm (RFC
/// 4253 §6.6).
fn is_key_of(algorithm: &str, mut blob: &[u8]) -> bool {
    let mut strings = Vec::new();
    while let Some((length, rest)) = blob.split_first_chunk::<4>() {
        let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
        let Some((string, rest)) = rest.split_at_checked(length) else { return false };
        strings.push(string);
        blob = rest;
    }
    blob.is_empty() && strings.len() > 1 && strings.first() == Some(&algorithm.as_bytes())
}

impl Registry {
    /// Returns a cluster's SSH public keys.
    pub fn ssh_keys(&self, cluster: &str) -> Result<Vec<SshKey>, Error> {
        let mut keys = Vec::new();
        for name in self.list_objects(&directory(cluster))? {
            if let Some((content, _)) = self.read_object(&name)? {
                keys.push(SshKey::parse(&name, &content)?);
            }
        }
        Ok(keys)
    }

    /// Stores an SSH public key: the whole content of its file, like upstream. Storing the same key again replaces it.
    pub fn add_ssh_key(&self, cluster: &str, key: &SshKey, content: &[u8]) -> Result<(), Error> {
        let path = format!("{}/{}", directory(cluster), key.fingerprint.replace(':', ""));
        let old = self.read_object(&path)?;
        let since = old.map_or(Precondition::Absent, |(_, read)| Precondition::Read(read));
        self.write_object(&path, content, &since, Secrecy::Open)
    }

    /// Deletes all SSH public keys of a cluster.
    pub fn delete_ssh_keys(&self, cluster: &str) -> Result<(), Error> {
        for name in self.list_objects(&directory(cluster))? {
            if let Some((_, read)) = self.read_object(&name)? {
                self.delete_object(&name, &read)?;
            }
        }
        Ok(())
    }
}

/// Returns the directory of the keys of the machines' user.
fn directory(cluster: &str) -> String {
    format!("{cluster}/pki/ssh/public/admin")
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str =
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBPuFjoI6iK9Nl3hxVuQ7SBhKT2CpsSwp9dVQ4BnFZxY me@here";

    #[test]
    fn parses_one_public_key() {
        let plain = SshKey::parse("a", KEY.as_bytes()).unwrap();
        assert_eq!(plain.fingerprint.len(), 47);
        assert_eq!(plain.fingerprint.matches(':').count(), 15);
        let other = format!("# mine\n\nno-pty,command=\"a b\" {KEY}\n");
        let with_options = SshKey::parse("a", other.as_bytes()).unwrap();
        assert_eq!(with_options.fingerprint, plain.fingerprint);
        let blob = KEY.split(' ').nth(1).unwrap();
        for (text, problem) in [
            (String::new(), "has no public key"),
            ("#".to_owned(), "has no public key"),
            ("\n".repeat(9), "has no public key"),
            ("-----BEGIN OPENSSH PRIVATE KEY-----".to_owned(), "private key"),
            (format!("{KEY}\n{KEY}"), "several lines"),
            (format!("ssh-rsa {blob}"), "OpenSSH's format"),
            (format!("ssh-ed25519 {}", &blob[..40]), "OpenSSH's format"),
            (format!("ssh-ed448 {blob}"), "OpenSSH's format"),
            ("ssh-ed25519".to_owned(), "OpenSSH's format"),
            ("ssh-ed25519 AAAA//////8=".to_owned(), "OpenSSH's format"),
        ] {
            let error = SshKey::parse("a", text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(problem), "{text:?}: {error}");
        }
        assert!(SshKey::parse("a", b"\xff\xfe").is_err());
    }
}
