//! Reads and validates the configuration of credential providers (CredentialProviderConfig).

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use api_config::{GoDuration, gvk};
use kubelet_config::CredentialProviderPaths;
use serde::Deserialize;

const KIND: &str = "CredentialProviderConfig";
const VERSIONS: [&str; 3] =
    ["kubelet.config.k8s.io/v1", "kubelet.config.k8s.io/v1beta1", "kubelet.config.k8s.io/v1alpha1"];
/// The version of the programs' protocol that has service account tokens.
const V1: &str = "credentialprovider.kubelet.k8s.io/v1";
const PROTOCOLS: [&str; 3] =
    [V1, "credentialprovider.kubelet.k8s.io/v1alpha1", "credentialprovider.kubelet.k8s.io/v1beta1"];

/// The error of the credential providers' configuration. It prevents the kubelet's start.
#[derive(Debug, thiserror::Error)]
pub enum ProvidersError {
    #[error("read the credential providers' configuration {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("no configuration files found in directory {}", path.display())]
    NoFiles { path: PathBuf },
    #[error("the credential providers' configuration {}: {source}", path.display())]
    Decode { path: PathBuf, source: api_config::Error },
    #[error(
        "the credential providers' configuration {}: no kind {kind:?} is known for version {version:?}; it must be \
         CredentialProviderConfig of kubelet.config.k8s.io/v1", path.display()
    )]
    Kind { path: PathBuf, version: String, kind: String },
    #[error("the credential providers' configuration: {field}: {message}")]
    Invalid { field: &'static str, message: String },
    #[error("the program of credential provider {name:?}, {}, cannot be executed: {source}", path.display())]
    Program { name: String, path: PathBuf, source: io::Error },
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct File {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(rename = "kind")]
    _kind: String,
    providers: Vec<ProviderConfig>,
}

/// A provider in the configuration.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ProviderConfig {
    pub(super) name: String,
    pub(super) match_images: Vec<String>,
    pub(super) default_cache_duration: Option<GoDuration>,
    pub(super) api_version: String,
    pub(super) args: Vec<String>,
    pub(super) env: Vec<Variable>,
    pub(super) token_attributes: Option<TokenAttributes>,
}

/// An environment variable of a provider's program.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Variable {
    pub(super) name: String,
    pub(super) value: String,
}

/// The service account token that a provider receives.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct TokenAttributes {
    pub(super) service_account_token_audience: String,
    pub(super) cache_type: String,
    pub(super) require_service_account: Option<bool>,
    pub(super) required_service_account_annotation_keys: Vec<String>,
    pub(super) optional_service_account_annotation_keys: Vec<String>,
}

/// An annotation that a provider requires and a service account lacks.
#[derive(Debug)]
pub(super) struct MissingAnnotation {
    pub(super) key: String,
}

/// Reads the providers of the file, or of all files of the directory in the order of their names.
pub(super) fn read(paths: &CredentialProviderPaths) -> Result<Vec<ProviderConfig>, ProvidersError> {
    let mut providers = Vec::new();
    for path in files(&paths.config)? {
        providers.extend(parse(&path)?);
    }
    validate(&providers, paths.account_tokens)?;
    for provider in &providers {
        let path = paths.programs.join(&provider.name);
        is_executable(&path).map_err(|source| ProvidersError::Program {
            name: provider.name.clone(),
            path,
            source,
        })?;
    }
    Ok(providers)
}

fn is_executable(path: &Path) -> io::Result<()> {
    let meta = fs::metadata(path)?;
    if meta.is_file() && meta.permissions().mode() & 0o111 != 0 {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::PermissionDenied, "it is no executable file"))
}

fn files(path: &Path) -> Result<Vec<PathBuf>, ProvidersError> {
    let failed = |source| ProvidersError::Read { path: path.to_owned(), source };
    if !fs::metadata(path).map_err(failed)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let entries = fs::read_dir(path).and_then(Iterator::collect::<io::Result<Vec<_>>>);
    let mut files: Vec<PathBuf> = entries.map_err(failed)?.iter().map(|e| e.path()).collect();
    files.retain(|file| {
        let extension = file.extension().and_then(|extension| extension.to_str());
        matches!(extension, Some("json" | "yaml" | "yml")) && !file.is_dir()
    });
    files.sort();
    if files.is_empty() {
        return Err(ProvidersError::NoFiles { path: path.to_owned() });
    }
    Ok(files)
}

fn parse(path: &Path) -> Result<Vec<ProviderConfig>, ProvidersError> {
    let text = fs::read_to_string(path)
        .map_err(|source| ProvidersError::Read { path: path.to_owned(), source })?;
    let failed = |source| ProvidersError::Decode { path: path.to_owned(), source };
    let value = api_config::yaml::parse(&text).map_err(failed)?;
    let (version, kind) = gvk(&value);
    if kind != KIND || !VERSIONS.contains(&version) {
        let (version, kind) = (version.to_owned(), kind.to_owned());
        return Err(ProvidersError::Kind { path: path.to_owned(), version, kind });
    }
    let file = api_config::decode::<File>(KIND, value).map_err(failed)?;
    if let Some(warning) = file.warning() {
        tracing::warn!(path = %path.display(), warning, "credential providers have unknown fields");
    }
    Ok(file.value.providers)
}

/// Validates the providers. `account_tokens` permits tokens of service accounts for programs.
fn validate(providers: &[ProviderConfig], account_tokens: bool) -> Result<(), ProvidersError> {
    let invalid = |field, message: String| Err(ProvidersError::Invalid { field, message });
    if providers.is_empty() {
        return invalid("providers", "at least 1 item in plugins is required".to_owned());
    }
    let mut names = BTreeSet::new();
    for provider in providers {
        let name = &provider.name;
        if name.is_empty() || name.contains(['/', ' ', '\0']) || name == "." || name == ".." {
            let message = format!(
                "{name:?}: provider name cannot be empty, '.', '..', or contain '/' or spaces"
            );
            return invalid("providers.name", message);
        }
        if !names.insert(name) {
            let message =
                format!("duplicate provider name {name:?} found in configuration file(s)");
            return invalid("providers.name", message);
        }
        if !PROTOCOLS.contains(&provider.api_version.as_str()) {
            let message =
                format!("{:?}: supported values: {}", provider.api_version, PROTOCOLS.join(", "));
            return invalid("providers.apiVersion", message);
        }
        if provider.match_images.iter().all(String::is_empty) {
            let message = format!("{name}: at least 1 item in matchImages is required");
            return invalid("providers.matchImages", message);
        }
        match provider.default_cache_duration {
            None => return invalid("providers.defaultCacheDuration", format!("{name}: required")),
            Some(duration) if duration.nanos() < 0 => {
                let message =
                    format!("{duration}: defaultCacheDuration must be greater than or equal to 0");
                return invalid("providers.defaultCacheDuration", message);
            }
            Some(_) => {}
        }
        if let Some(attributes) = &provider.token_attributes {
            if !account_tokens {
                let message = "tokenAttributes is not supported when KubeletServiceAccountTokenForCredentialProviders \
                               feature gate is disabled";
                return invalid("providers.tokenAttributes", message.to_owned());
            }
            attributes.validate(&provider.api_version)?;
        }
    }
    Ok(())
}

impl TokenAttributes {
    fn validate(&self, protocol: &str) -> Result<(), ProvidersError> {
        const FIELD: &str = "providers.tokenAttributes";
        let (required, optional) = (
            &self.required_service_account_annotation_keys,
            &self.optional_service_account_annotation_keys,
        );
        let mut seen = BTreeSet::new();
        let message = if protocol != V1 {
            format!("tokenAttributes is only supported for {V1} API version")
        } else if self.service_account_token_audience.is_empty() {
            "serviceAccountTokenAudience is required".to_owned()
        } else if self.require_service_account.is_none() {
            "requireServiceAccount is required".to_owned()
        } else if self.require_service_account == Some(false) && !required.is_empty() {
            "requireServiceAccount cannot be false when requiredServiceAccountAnnotationKeys is set"
                .to_owned()
        } else if !["ServiceAccount", "Token"].contains(&self.cache_type.as_str()) {
            "cacheType is required to be set when tokenAttributes is specified. Supported values are: \
             ServiceAccount, Token"
                .to_owned()
        } else if let Some(key) = required.iter().chain(optional).find(|key| !seen.insert(*key)) {
            format!(
                "annotation keys cannot be both required and optional, nor be repeated: {key:?}"
            )
        } else {
            return Ok(());
        };
        Err(ProvidersError::Invalid { field: FIELD, message })
    }

    /// Returns the annotations of a service account that the provider receives.
    pub(super) fn annotations(
        &self,
        all: &BTreeMap<String, String>,
    ) -> Result<BTreeMap<String, String>, MissingAnnotation> {
        let required = &self.required_service_account_annotation_keys;
        if let Some(missing) = required.iter().find(|key| !all.contains_key(*key)) {
            return Err(MissingAnnotation { key: missing.clone() });
        }
        let keys = required.iter().chain(&self.optional_service_account_annotation_keys);
        Ok(keys.filter_map(|key| Some((key.clone(), all.get(key)?.clone()))).collect())
    }
}
