//! `EncryptionConfiguration` (apiserver.config.k8s.io/v1): its file format, and upstream's validation.

use std::{collections::BTreeSet, fmt, path::Path as File};

use api_config::GoDuration;
use api_meta::{ErrorList, FieldError, GroupResource, Path};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::Deserialize;
use serde_json::Value;

use crate::error::ConfigError;

const AES_KEYS: &[usize] = &[16, 24, 32];
const SECRETBOX_KEYS: &[usize] = &[32];
/// The default time limit of a KMS plugin's answer.
const TIMEOUT: GoDuration = GoDuration::from_secs(3);

/// The whole file. The first entry that names a resource applies to it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct EncryptionConfiguration {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(rename = "kind")]
    _kind: String,
    /// The entries, in order.
    pub resources: Vec<ResourceConfiguration>,
}

/// Resources and their providers. The first provider encrypts; all of them are tried for decryption.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ResourceConfiguration {
    /// `secrets`, `deployments.apps`, `*.`, `*.apps` or `*.*`.
    pub resources: Vec<String>,
    /// The providers, in order.
    pub providers: Vec<Provider>,
}

/// A provider. Exactly one field is set.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Provider {
    /// AES-GCM with keys in the file.
    pub aesgcm: Option<Keys>,
    /// AES-CBC with keys in the file.
    pub aescbc: Option<Keys>,
    /// XSalsa20-Poly1305 with keys in the file.
    pub secretbox: Option<Keys>,
    /// No encryption.
    pub identity: Option<Identity>,
    /// A KMS plugin.
    pub kms: Option<Kms>,
}

/// The provider that stores values unencrypted.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Identity {}

/// The keys of a provider. The first key encrypts; all of them decrypt.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Keys {
    /// The keys, in order.
    pub keys: Vec<Key>,
}

/// A key, with the name that stored values contain.
#[derive(Clone, Default, Deserialize)]
#[serde(default)]
pub struct Key {
    /// The key's name.
    pub name: String,
    /// The key in base64.
    pub secret: String,
}

/// Hides the secret.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Name: {}, Secret: [REDACTED]", self.name)
    }
}

/// A KMS plugin on this machine.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Kms {
    /// `v1` or `v2`; see [`Kms::api_version`].
    #[serde(rename = "apiVersion")]
    pub api_version: Option<String>,
    /// The plugin's name, which stored values contain.
    pub name: String,
    /// The cache size of v1 plugins; v2 plugins may not set it.
    pub cachesize: Option<i32>,
    /// The socket, as `unix://` and its path.
    pub endpoint: String,
    /// The time limit of one call; see [`Kms::timeout`].
    pub timeout: Option<GoDuration>,
}

impl Kms {
    /// Returns the API version; v1 by default.
    pub fn api_version(&self) -> &str {
        self.api_version.as_deref().filter(|v| !v.is_empty()).unwrap_or("v1")
    }

    /// Returns the time limit of one call; upstream's three seconds by default.
    pub fn timeout(&self) -> GoDuration {
        self.timeout.unwrap_or(TIMEOUT)
    }
}

impl EncryptionConfiguration {
    /// Parses a file strictly: an unknown field is an error. `path` is for messages.
    pub fn parse(path: &File, text: &str) -> Result<Self, ConfigError> {
        let decode = |detail: String| ConfigError::Decode { path: path.into(), detail };
        if text.is_empty() {
            return Err(ConfigError::Empty { path: path.into() });
        }
        let tree: Value = api_config::yaml::parse(text).map_err(|e| decode(e.to_string()))?;
        match api_config::gvk(&tree) {
            ("apiserver.config.k8s.io/v1", "EncryptionConfiguration")
            | ("v1", "EncryptionConfig") => {}
            (version, kind) => {
                let detail = format!("no kind {kind:?} is registered for version {version:?}");
                return Err(decode(detail));
            }
        }
        let decoded = api_config::decode("EncryptionConfiguration", tree);
        let strict = decoded.and_then(|d| d.checked(api_config::Strictness::Refuse));
        strict.map(|d| d.value).map_err(|e| decode(e.to_string()))
    }

    /// Validates the configuration, with upstream's messages. `reload` is `true` if the file may be read again.
    pub fn errors(&self, reload: bool) -> ErrorList {
        let root = Path::new("resources");
        if self.resources.is_empty() {
            return [FieldError::required(&root, "at least one resources is required")].into();
        }
        let mut errors = ErrorList::new();
        let mut names = BTreeSet::new();
        for (i, entry) in self.resources.iter().enumerate() {
            let at = root.index(i);
            let (resources, providers) = (at.child("resources"), at.child("providers"));
            if entry.resources.is_empty() {
                let detail = format!("at least one {} is required", resources.as_str());
                errors.push(FieldError::required(&resources, detail));
            }
            validate_overlaps(&entry.resources, &resources, &mut errors);
            for (j, name) in entry.resources.iter().enumerate() {
                errors.extend(
                    resource_problem(name)
                        .map(|detail| FieldError::invalid(&resources.index(j), &**name, detail)),
                );
            }
            if entry.providers.is_empty() {
                let detail = format!("at least one {} is required", providers.as_str());
                errors.push(FieldError::required(&providers, detail));
            }
            for (j, provider) in entry.providers.iter().enumerate() {
                provider.validate(&providers.index(j), &mut names, reload, &mut errors);
            }
        }
        errors
    }
}

/// Parses a resource's name in a configuration: the part before the first dot is the resource, the rest its group.
pub fn parse_resource(name: &str) -> GroupResource {
    let (resource, group) = name.split_once('.').unwrap_or((name, ""));
    GroupResource::new(group.to_owned(), resource.to_owned())
}

fn validate_overlaps(names: &[String], path: &Path, errors: &mut ErrorList) {
    let parsed: Vec<_> = names.iter().map(|name| parse_resource(name)).collect();
    let (mut doubled, mut overlapping) = (false, false);
    for (i, one) in parsed.iter().enumerate() {
        for (j, other) in parsed.iter().enumerate() {
            if i == j {
                continue;
            }
            // As in upstream, only the first pair of equal names counts as a repetition.
            if one == other && !doubled {
                doubled = true;
                continue;
            }
            let any = &*one.group == "*" && &*one.resource == "*";
            let star = &*one.resource == "*" || &*other.resource == "*";
            overlapping |= any || (one.group == other.group && star);
        }
    }
    let value = || Value::from(names);
    if doubled {
        let detail = "the same resource cannot be specified multiple times";
        errors.push(FieldError::invalid(path, value(), detail));
    }
    if overlapping {
        let detail = "using overlapping resources such as 'secrets' and '*.' in the same resource list is not allowed \
                      as they will be masked";
        errors.push(FieldError::invalid(path, value(), detail));
    }
}

fn resource_problem(name: &str) -> Option<&'static str> {
    let parsed = parse_resource(name);
    if name.to_lowercase() != name {
        return Some("resource name should not contain capital letters");
    }
    match (name, &*parsed.group) {
        ("*", _) => Some(
            "use '*.' to encrypt all the resources from core API group or *.* to encrypt all resources",
        ),
        ("apiserveripinfo" | "serviceipallocations" | "servicenodeportallocations", _) => {
            Some("resources which do not have REST API/s cannot be encrypted")
        }
        (_, "events.k8s.io") => Some(
            "'*.events.k8s.io' objects are stored using the 'events' API group in etcd. Use 'events' instead in the \
             config file",
        ),
        (_, "extensions") => {
            Some("'extensions' group has been removed and cannot be used for encryption")
        }
        (_, "*") if &*parsed.resource != "*" => {
            Some("encrypting the same resource across groups is not supported")
        }
        _ => None,
    }
}

impl Provider {
    fn validate<'a>(
        &'a self,
        path: &Path,
        names: &mut BTreeSet<&'a str>,
        reload: bool,
        errors: &mut ErrorList,
    ) {
        let given = [
            self.kms.is_some(),
            self.aesgcm.is_some(),
            self.aescbc.is_some(),
            self.secretbox.is_some(),
            self.identity.is_some(),
        ];
        // The value is not shown, because it contains keys.
        let problem = match given.iter().filter(|given| **given).count() {
            0 => Some(
                "provider does not contain any of the expected providers: KMS, AESGCM, AESCBC, Secretbox, Identity",
            ),
            1 => None,
            _ => Some(
                "more than one provider specified in a single element, should split into different list elements",
            ),
        };
        errors.extend(problem.map(|detail| FieldError::invalid(path, "REDACTED", detail)));
        if let Some(kms) = &self.kms {
            kms.validate(&path.child("kms"), names, reload, errors);
            names.insert(&kms.name);
        } else if let Some(keys) = &self.aesgcm {
            keys.validate(&path.child("aesgcm").child("keys"), AES_KEYS, errors);
        } else if let Some(keys) = &self.aescbc {
            keys.validate(&path.child("aescbc").child("keys"), AES_KEYS, errors);
        } else if let Some(keys) = &self.secretbox {
            keys.validate(&path.child("secretbox").child("keys"), SECRETBOX_KEYS, errors);
        }
    }
}

impl Keys {
    fn validate(&self, path: &Path, lengths: &[usize], errors: &mut ErrorList) {
        if self.keys.is_empty() {
            errors.push(FieldError::required(path, "at least one keys is required"));
        }
        for (i, key) in self.keys.iter().enumerate() {
            key.validate(&path.index(i), lengths, errors);
        }
    }
}

impl Key {
    /// Returns the decoded key; `None` if it is not base64.
    pub(crate) fn bytes(&self) -> Option<Vec<u8>> {
        // Go's decoder ignores line breaks.
        let text: String = self.secret.chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
        STANDARD.decode(text).ok()
    }

    fn validate(&self, path: &Path, lengths: &[usize], errors: &mut ErrorList) {
        if self.name.is_empty() {
            let detail = "name is a mandatory field for a key";
            errors.push(FieldError::required(&path.child("name"), detail));
        }
        let secret = path.child("secret");
        if self.secret.is_empty() {
            let detail = "secret is a mandatory field for a key";
            errors.push(FieldError::required(&secret, detail));
            return;
        }
        let detail = match self.bytes() {
            None => "secrets must be base64 encoded".to_owned(),
            Some(key) if !lengths.contains(&key.len()) => {
                let wanted: Vec<_> = lengths.iter().map(ToString::to_string).collect();
                format!(
                    "secret is not of the expected length, got {}, expected one of [{}]",
                    key.len(),
                    wanted.join(" ")
                )
            }
            Some(_) => return,
        };
        errors.push(FieldError::invalid(&secret, "REDACTED", detail));
    }
}

impl Kms {
    fn validate(&self, path: &Path, names: &BTreeSet<&str>, reload: bool, errors: &mut ErrorList) {
        let version = self.api_version();
        let (at, name) = (path.child("name"), self.name.as_str());
        let mut invalid = |path: &Path, value: Value, detail: String| {
            errors.push(FieldError::invalid(path, value, detail));
        };
        if version != "v1" && name.contains(':') {
            let detail = format!("invalid KMS provider name {name}, must not contain ':'");
            invalid(&at, name.into(), detail);
        }
        if (reload || version != "v1") && names.contains(name) {
            let detail = format!("duplicate KMS provider name {name}, names must be unique");
            invalid(&at, name.into(), detail);
        }
        if self.timeout().nanos() <= 0 {
            let value = self.timeout().to_string();
            invalid(
                &path.child("timeout"),
                value.into(),
                "timeout should be a positive value".into(),
            );
        }
        let endpoint = path.child("endpoint");
        let scheme = self.endpoint.split_once("://").map_or("", |(scheme, _)| scheme);
        if self.endpoint.is_empty() {
            invalid(&endpoint, "".into(), "endpoint is a mandatory field for a kms".into());
        } else if scheme != "unix" {
            let detail =
                format!("unsupported scheme {scheme:?} for KMS provider, only unix is supported");
            invalid(&endpoint, self.endpoint.as_str().into(), detail);
        }
        let size = path.child("cachesize");
        match self.cachesize {
            Some(given) if version != "v1" => {
                invalid(&size, given.into(), "cachesize is not supported in v2".into());
            }
            Some(0) => {
                let detail = "cachesize should be a positive value, or negative to disable";
                invalid(&size, 0.into(), detail.into());
            }
            _ => {}
        }
        if !matches!(version, "v1" | "v2") {
            let detail =
                "unsupported apiVersion apiVersion for KMS provider, only v1 and v2 are supported";
            invalid(&path.child("apiVersion"), version.into(), detail.into());
        }
        if name.is_empty() {
            let detail = "name is a mandatory field for a provider";
            errors.push(FieldError::required(&at, detail));
        }
    }
}
