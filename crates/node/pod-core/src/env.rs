//! The environment of a container: `$(NAME)` expansion and the order of sources.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ConfigMap, Container, FileKeySelector, Pod, Secret};

use crate::{
    env_file::{self, EnvFileError},
    fields::{self, FieldError, NodeFacts},
};

/// The largest size of a string that the kernel passes to a program (`MAX_ARG_STRLEN`), in bytes.
const MAX_STRING: usize = 128 << 10;
/// The largest size of the arguments or the variables that the kernel passes to a program (three quarters of
/// `_STK_LIM`), in bytes.
const MAX_TOTAL: usize = 6 << 20;

/// Replaces `$(NAME)` by the variable's value. `$$` stands for `$`, and unknown names are kept unchanged.
///
/// # Errors
///
/// The result is too long for an argument or variable. Variables that contain others twice grow exponentially.
pub fn expand(text: &str, lookup: impl Fn(&str) -> Option<String>) -> Result<String, EnvError> {
    let mut out = String::new();
    let mut rest = text;
    let last = text.rfind(')').unwrap_or(0);
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        let name = || after.strip_prefix('(')?.split_once(')');
        if let Some(tail) = after.strip_prefix('$') {
            out.push('$');
            rest = tail;
        } else if text.len() - after.len() < last
            && let Some((name, tail)) = name()
        {
            match lookup(name) {
                Some(value) => out.push_str(&value),
                None => out.push_str(&rest[at..at + name.len() + 3]),
            }
            rest = tail;
        } else {
            out.push('$');
            rest = after;
        }
        if out.len() > MAX_STRING {
            return Err(EnvError::LongString);
        }
    }
    out.push_str(rest);
    Ok(out)
}

/// Expands the words of a command or its arguments.
///
/// # Errors
///
/// The words are too long for the kernel.
pub fn expand_all(
    words: &[String],
    expand: impl Fn(&String) -> Result<String, EnvError>,
) -> Result<Vec<String>, EnvError> {
    let mut size = 0;
    let expand = |word| {
        let word = expand(word)?;
        size += word.len();
        if size > MAX_TOTAL { Err(EnvError::LargeTotal) } else { Ok(word) }
    };
    words.iter().map(expand).collect()
}

/// The sources of a container's environment. The caller has read the objects that the spec references.
pub struct Sources<'a> {
    /// The Pod.
    pub pod: &'a Pod,
    /// The container, one of the Pod's.
    pub container: &'a Container,
    /// The referenced ConfigMaps by name. A missing one does not exist.
    pub config_maps: &'a BTreeMap<String, ConfigMap>,
    /// The referenced Secrets by name. A missing one does not exist.
    pub secrets: &'a BTreeMap<String, Secret>,
    /// The content of referenced files by volume and path. A missing one does not exist.
    pub files: &'a BTreeMap<(String, String), String>,
    /// The environment variables of Services.
    pub services: BTreeMap<String, String>,
    /// The node's values for `fieldRef` and `resourceFieldRef`.
    pub node: &'a NodeFacts<'a>,
}

/// The error of an environment that cannot be built. The container waits with `CreateContainerConfigError`.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum EnvError {
    #[error("{kind} \"{name}\" not found")]
    Missing { kind: &'static str, name: String },
    #[error("couldn't find key {key} in {kind} {namespace}/{name}")]
    MissingKey { key: String, kind: &'static str, namespace: String, name: String },
    #[error(
        "the value of key {key} in Secret {name} is not text, which an environment variable must be"
    )]
    NotText { key: String, name: String },
    #[error("environment variable key {key:?} not found in file {path:?}")]
    NotInFile { key: String, path: String },
    #[error("couldn't parse env file {path:?}: {source}")]
    File { path: String, source: EnvFileError },
    #[error(
        "an argument or variable has more than {MAX_STRING} bytes after its variables are expanded"
    )]
    LongString,
    #[error("the command, the arguments or the environment have more than {MAX_TOTAL} bytes")]
    LargeTotal,
    #[error(transparent)]
    Field(#[from] FieldError),
}

/// Returns the variables in the order of their first definition. The last definition of a name wins.
pub fn environment(sources: &Sources<'_>) -> Result<Vec<(String, String)>, EnvError> {
    let mut env = Env::default();
    for from in sources.container.env_from.iter().flatten() {
        let prefix = from.prefix.as_deref().unwrap_or_default();
        if let Some(source) = &from.config_map_ref {
            if let Some(map) = config_map(sources, &source.name, source.optional)? {
                for (key, value) in map.data.iter().flatten() {
                    env.set(format!("{prefix}{key}"), value.clone())?;
                }
            }
        } else if let Some(source) = &from.secret_ref
            && let Some(secret) = secret(sources, &source.name, source.optional)?
        {
            for (key, value) in secret.data.iter().flatten() {
                env.set(format!("{prefix}{key}"), text(&value.0, key, &source.name)?)?;
            }
        }
    }
    for variable in sources.container.env.iter().flatten() {
        let value = if let Some(from) = &variable.value_from {
            value_from(sources, from)?
        } else {
            let raw = variable.value.as_deref().unwrap_or_default();
            Some(expand(raw, |name| {
                env.get(name).cloned().or_else(|| sources.services.get(name).cloned())
            })?)
        };
        if let Some(value) = value {
            env.set(variable.name.clone(), value)?;
        }
    }
    // Service variables never override variables of the spec.
    for (name, value) in &sources.services {
        if env.get(name).is_none() {
            env.set(name.clone(), value.clone())?;
        }
    }
    let Env { order, mut values, .. } = env;
    let pair = |name: String| values.remove(&name).map(|value| (name, value));
    Ok(order.into_iter().filter_map(pair).collect())
}

#[derive(Default)]
struct Env {
    order: Vec<String>,
    values: BTreeMap<String, String>,
    /// The size of all names and values.
    size: usize,
}

impl Env {
    fn set(&mut self, name: String, value: String) -> Result<(), EnvError> {
        self.size += value.len();
        match self.values.insert(name.clone(), value) {
            Some(before) => self.size -= before.len(),
            None => {
                self.size += name.len();
                self.order.push(name);
            }
        }
        if self.size > MAX_TOTAL { Err(EnvError::LargeTotal) } else { Ok(()) }
    }

    fn get(&self, name: &str) -> Option<&String> {
        self.values.get(name)
    }
}

fn value_from(
    sources: &Sources<'_>,
    from: &k8s_openapi::api::core::v1::EnvVarSource,
) -> Result<Option<String>, EnvError> {
    let namespace = sources.pod.metadata.namespace.clone().unwrap_or_default();
    if let Some(field) = &from.field_ref {
        return Ok(Some(fields::field(sources.pod, &field.field_path, sources.node)?));
    }
    if let Some(field) = &from.resource_field_ref {
        return Ok(Some(fields::resource_field(
            sources.pod,
            Some(sources.container),
            field,
            sources.node,
        )?));
    }
    if let Some(key) = &from.config_map_key_ref {
        let Some(map) = config_map(sources, &key.name, key.optional)? else { return Ok(None) };
        let value = map.data.as_ref().and_then(|d| d.get(&key.key)).cloned();
        if value.is_none() && key.optional != Some(true) {
            let (key, name) = (key.key.clone(), key.name.clone());
            return Err(EnvError::MissingKey { key, kind: "ConfigMap", namespace, name });
        }
        return Ok(value);
    }
    if let Some(key) = &from.secret_key_ref {
        let Some(secret) = secret(sources, &key.name, key.optional)? else { return Ok(None) };
        return match secret.data.as_ref().and_then(|d| d.get(&key.key)) {
            Some(value) => text(&value.0, &key.key, &key.name).map(Some),
            None if key.optional == Some(true) => Ok(None),
            None => {
                let (key, name) = (key.key.clone(), key.name.clone());
                Err(EnvError::MissingKey { key, kind: "Secret", namespace, name })
            }
        };
    }
    match &from.file_key_ref {
        Some(key) => file_key(sources, key),
        None => Ok(Some(String::new())),
    }
}

fn file_key(sources: &Sources<'_>, selector: &FileKeySelector) -> Result<Option<String>, EnvError> {
    let FileKeySelector { key, path, volume_name, optional } = selector.clone();
    let value = match sources.files.get(&(volume_name, path.clone())) {
        Some(text) => env_file::value(text, &key)
            .map_err(|source| EnvError::File { path: path.clone(), source })?,
        None => None,
    };
    match value {
        None if optional != Some(true) => Err(EnvError::NotInFile { key, path }),
        value => Ok(value),
    }
}

fn config_map<'a>(
    sources: &Sources<'a>,
    name: &str,
    optional: Option<bool>,
) -> Result<Option<&'a ConfigMap>, EnvError> {
    match sources.config_maps.get(name) {
        None if optional != Some(true) => {
            Err(EnvError::Missing { kind: "configmap", name: name.to_owned() })
        }
        map => Ok(map),
    }
}

fn secret<'a>(
    sources: &Sources<'a>,
    name: &str,
    optional: Option<bool>,
) -> Result<Option<&'a Secret>, EnvError> {
    match sources.secrets.get(name) {
        None if optional != Some(true) => {
            Err(EnvError::Missing { kind: "secret", name: name.to_owned() })
        }
        secret => Ok(secret),
    }
}

fn text(bytes: &[u8], key: &str, name: &str) -> Result<String, EnvError> {
    std::str::from_utf8(bytes)
        .map(str::to_owned)
        .map_err(|_| EnvError::NotText { key: key.to_owned(), name: name.to_owned() })
}

/// The objects and files that a container's environment references.
#[derive(Debug, Default)]
pub struct References<'a> {
    /// The names of ConfigMaps.
    pub config_maps: Vec<&'a str>,
    /// The names of Secrets.
    pub secrets: Vec<&'a str>,
    /// The files of volumes.
    pub files: Vec<&'a FileKeySelector>,
}

/// Returns the objects to read before the environment can be built. Optional ones are included.
pub fn references(container: &Container) -> References<'_> {
    let References { config_maps: mut maps, mut secrets, mut files } = References::default();
    for from in container.env_from.iter().flatten() {
        maps.extend(from.config_map_ref.as_ref().map(|r| r.name.as_str()));
        secrets.extend(from.secret_ref.as_ref().map(|r| r.name.as_str()));
    }
    for source in container.env.iter().flatten().filter_map(|v| v.value_from.as_ref()) {
        maps.extend(source.config_map_key_ref.as_ref().map(|r| r.name.as_str()));
        secrets.extend(source.secret_key_ref.as_ref().map(|r| r.name.as_str()));
        files.extend(source.file_key_ref.as_ref());
    }
    References { config_maps: maps, secrets, files }
}
