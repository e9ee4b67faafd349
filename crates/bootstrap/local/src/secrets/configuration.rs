//! The keys in an EncryptionConfiguration, and the steps of their rotation. All state is in the file, so that a
//! rotation continues after any interruption.
//!
//! The names of generated keys contain their time. If the last key of a provider is newer than the first, the rotation
//! has added it, and all servers must be able to read with it before one writes with it. If the first key is newer than
//! all others, the others are needed until all data is rewritten.

use std::path::Path;

use api_meta::Tree as _;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use encryption::EncryptionConfiguration;
use serde_json::{Value, json};

use crate::secrets_error::SecretsError;

/// The beginning of the names of generated keys. A time follows, so that names sort by age.
const PREFIX: &str = "windlass-";
/// The providers whose keys are in the file, and the length of a new key in bytes.
const PROVIDERS: [(&str, usize); 3] = [("aescbc", 32), ("aesgcm", 32), ("secretbox", 32)];

/// The stage of a rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// No rotation is in progress.
    Start,
    /// The new key is known and not used.
    Prepared,
    /// The new key is used. Data may need the old keys.
    Rotated,
}

/// A configuration that was read from a file.
#[derive(Clone, Debug)]
pub(super) struct Configuration(Value);

/// The part of an entry that `status` shows.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct EntryStatus {
    pub(super) resources: Vec<String>,
    /// The provider that encrypts.
    pub(super) provider: String,
    /// The names of its keys, the one that encrypts first.
    pub(super) keys: Vec<String>,
}

impl Configuration {
    /// Creates the configuration of a new cluster: Secrets are encrypted, and unencrypted ones can be read.
    pub(super) fn new(key_name: &str) -> Self {
        let key = json!({"name": key_name, "secret": secret(32)});
        Self(json!({
            "apiVersion": "apiserver.config.k8s.io/v1",
            "kind": "EncryptionConfiguration",
            "resources": [{
                "resources": ["secrets"],
                "providers": [{"secretbox": {"keys": [key]}}, {"identity": {}}],
            }],
        }))
    }

    /// Parses and validates a file's text as the API server does.
    pub(super) fn parse(path: &Path, text: &str) -> Result<Self, SecretsError> {
        let parsed = EncryptionConfiguration::parse(path, text)?;
        let errors = parsed.errors(true);
        if !errors.is_empty() {
            let reason = api_meta::field::aggregate(&errors).to_string();
            return Err(SecretsError::Invalid { path: path.to_owned(), reason });
        }
        Ok(Self(api_config::yaml::parse(text)?))
    }

    pub(super) fn to_text(&self) -> Result<String, SecretsError> {
        Ok(api_config::yaml::to_string(&self.0)?)
    }

    /// Returns an error that names the first entry whose keys this program cannot rotate.
    pub(super) fn check(&self) -> Result<(), SecretsError> {
        for entry in self.0.items("resources") {
            let resources = names(entry);
            let shown = resources.join(", ");
            match first_provider(entry) {
                "kms" => return Err(SecretsError::Kms(shown)),
                "identity" | "" => return Err(SecretsError::NotEncrypted(shown)),
                _ => {}
            }
            if let Some(name) =
                resources.iter().find(|name| ["services", "*.", "*.*"].contains(&name.as_str()))
            {
                return Err(SecretsError::Allocations(name.clone()));
            }
        }
        Ok(())
    }

    /// Returns the names of all resources that are encrypted.
    pub(super) fn resources(&self) -> Vec<String> {
        self.0.items("resources").iter().flat_map(names).collect()
    }

    /// Returns the entries for `status`.
    pub(super) fn entries(&self) -> Vec<EntryStatus> {
        let status = |entry: &Value| EntryStatus {
            resources: names(entry),
            provider: first_provider(entry).to_owned(),
            keys: keys(entry).iter().map(|key| key.text("name").to_owned()).collect(),
        };
        self.0.items("resources").iter().map(status).collect()
    }

    /// Returns the stage of the rotation: the earliest one of all entries.
    pub(super) fn stage(&self) -> Stage {
        let entries = self.0.items("resources");
        let is_at = |stage| entries.iter().any(|entry| stage_of(keys(entry)) == stage);
        if is_at(Stage::Prepared) {
            Stage::Prepared
        } else if is_at(Stage::Rotated) {
            Stage::Rotated
        } else {
            Stage::Start
        }
    }

    /// Reports whether there are keys that do not encrypt.
    pub(super) fn has_old_keys(&self) -> bool {
        self.0.items("resources").iter().any(|entry| keys(entry).len() > 1)
    }

    /// Adds a new key behind the others of each entry.
    pub(super) fn prepare(&mut self, key_name: &str) {
        self.change_keys(|length, keys| {
            keys.push(json!({"name": key_name, "secret": secret(length)}))
        });
    }

    /// Moves the new keys before the others.
    pub(super) fn rotate(&mut self) {
        self.change_keys(|_, keys| {
            if stage_of(keys) == Stage::Prepared {
                keys.rotate_right(1);
            }
        });
    }

    /// Removes all keys that do not encrypt.
    pub(super) fn retire(&mut self) {
        self.change_keys(|_, keys| keys.truncate(1));
    }

    fn change_keys(&mut self, change: impl Fn(usize, &mut Vec<Value>)) {
        let Some(Value::Array(entries)) = self.0.get_mut("resources") else { return };
        for entry in entries {
            let provider = first_provider(entry).to_owned();
            let known = PROVIDERS.iter().find(|(name, _)| *name == provider);
            let first = entry.items_mut("providers").next();
            if let Some((_, length)) = known
                && let Some(Value::Array(keys)) =
                    first.and_then(|first| first.get_mut(&provider)?.get_mut("keys"))
            {
                change(*length, keys);
            }
        }
    }
}

/// Returns the name of a key that is generated now, newer than all keys of a configuration.
pub(super) fn key_name(now: std::time::SystemTime) -> String {
    let time = api_meta::Timestamp::from(now).micros();
    let digits: String = time.chars().filter(char::is_ascii_alphanumeric).collect();
    format!("{PREFIX}{}", digits.to_lowercase())
}

fn secret(length: usize) -> String {
    let bytes: Vec<u8> = std::iter::repeat_with(rt::random::<u8>).take(length).collect();
    STANDARD.encode(bytes)
}

fn names(entry: &Value) -> Vec<String> {
    let names = entry.items("resources").iter().filter_map(Value::as_str);
    names.map(str::to_owned).collect()
}

/// Returns the name of the provider that encrypts.
fn first_provider(entry: &Value) -> &str {
    let first = entry.items("providers").first().and_then(Value::as_object);
    first.and_then(|provider| provider.keys().next()).map_or("", String::as_str)
}

/// Returns the keys of the provider that encrypts.
fn keys(entry: &Value) -> &[Value] {
    let first = entry.items("providers").first();
    first.map_or(&[], |provider| provider[first_provider(entry)].items("keys"))
}

fn stage_of(keys: &[Value]) -> Stage {
    let [first, others @ ..] = keys else { return Stage::Start };
    match others.last() {
        None => Stage::Start,
        Some(last) if is_newer(last, first) => Stage::Prepared,
        Some(_) if others.iter().all(|other| is_newer(first, other)) => Stage::Rotated,
        Some(_) => Stage::Start,
    }
}

fn is_newer(key: &Value, than: &Value) -> bool {
    let (key, than) = (key.text("name"), than.text("name"));
    key.starts_with(PREFIX) && (!than.starts_with(PREFIX) || key > than)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;

    fn configuration(providers: &str, resources: &str) -> Configuration {
        let text = format!(
            "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [{resources}]\n  providers: [{providers}]\n"
        );
        Configuration::parse(Path::new("file"), &text).unwrap()
    }

    fn aes(names: &[&str]) -> String {
        let keys: Vec<String> =
            names.iter().map(|name| format!("{{name: {name}, secret: {}}}", secret(32))).collect();
        format!("{{aescbc: {{keys: [{}]}}}}", keys.join(", "))
    }

    fn name(second: u64) -> String {
        key_name(SystemTime::UNIX_EPOCH + Duration::from_secs(second))
    }

    fn key_names(configuration: &Configuration) -> Vec<String> {
        configuration.entries().swap_remove(0).keys
    }

    #[test]
    fn rotates_through_stages_that_file_tells() {
        let (old, new) = (name(1_000_000_000), name(2_000_000_000));
        for first in ["key1", &old] {
            let mut all =
                configuration(&format!("{}, {{identity: {{}}}}", aes(&[first])), "secrets");
            assert_eq!(all.stage(), Stage::Start);
            all.prepare(&new);
            assert_eq!(
                (all.stage(), key_names(&all)),
                (Stage::Prepared, vec![first.to_owned(), new.clone()])
            );
            let all_text = all.to_text().unwrap();
            let mut all = Configuration::parse(Path::new("file"), &all_text).unwrap();
            all.rotate();
            assert_eq!(
                (all.stage(), key_names(&all)),
                (Stage::Rotated, vec![new.clone(), first.to_owned()])
            );
            all.retire();
            assert_eq!((all.stage(), key_names(&all)), (Stage::Start, vec![new.clone()]));
            assert_eq!(all.0["resources"][0]["providers"][1], json!({"identity": {}}));
        }
    }

    #[test]
    fn does_not_take_keys_of_others_for_unfinished_rotation() {
        let all = configuration(&aes(&["b", "a", "c"]), "secrets");
        assert_eq!((all.stage(), all.has_old_keys()), (Stage::Start, true));
        // The user has put an older generated key first.
        let all =
            configuration(&aes(&[&name(1_000_000_000), &name(1_500_000_000), "c"]), "secrets");
        assert_eq!(all.stage(), Stage::Start);
    }

    #[test]
    fn refuses_what_it_cannot_rotate() {
        let kms = "{kms: {apiVersion: v2, name: k, endpoint: unix:///k.sock}}";
        for (providers, resources, words) in [
            (kms, "secrets", "KMS plugin"),
            ("{identity: {}}", "secrets", "identity"),
            (&*aes(&["a"]), "secrets, services", "covers services"),
            (&*aes(&["a"]), "\"*.\"", "covers *."),
            (&*aes(&["a"]), "\"*.*\"", "covers *.*"),
        ] {
            let error = configuration(providers, resources).check().unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        configuration(&aes(&["a"]), "secrets, configmaps, pandas.example.com").check().unwrap();
    }

    #[test]
    fn rejects_broken_and_hostile_files() {
        let deep = "[".repeat(100_000);
        let head = "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\n";
        let short = format!(
            "{head}resources: [{{resources: [secrets], providers: [{{aescbc: {{keys: [{{name: a, secret: YQ==}}]}}}}]}}]"
        );
        for text in ["", "a: [", &deep, "kind: Pod", head, &short] {
            assert!(Configuration::parse(Path::new("file"), text).is_err());
        }
    }

    #[test]
    fn creates_configuration_that_server_accepts() {
        let text = Configuration::new(&name(1_000_000_000)).to_text().unwrap();
        let read = Configuration::parse(Path::new("file"), &text).unwrap();
        assert_eq!(read.check().map_err(|e| e.to_string()), Ok(()));
        assert_eq!(read.resources(), ["secrets"]);
        assert_ne!(secret(32), secret(32));
    }
}
