//! kubeconfig files: types, loading, and merging a cluster into an existing file.

mod check;
mod cluster;
mod exec;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use self::cluster::{Cluster, NamedCluster};
pub use self::exec::{Exec, ExecEnv, Interactive, InteractiveModeError};
use crate::{decode, error::Error, yaml};

/// A kubeconfig file. Unknown fields are ignored, as in client-go.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct Kubeconfig {
    /// The apiVersion, `v1`.
    #[serde(rename = "apiVersion")]
    pub api_version: String,
    /// The kind, `Config`.
    pub kind: String,
    /// The clusters.
    pub clusters: Vec<NamedCluster>,
    /// The contexts.
    pub contexts: Vec<NamedContext>,
    /// The name of the current context.
    pub current_context: String,
    /// The users.
    pub users: Vec<NamedUser>,
    /// The extensions of other programs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub extensions: Vec<Value>,
}

impl Default for Kubeconfig {
    fn default() -> Self {
        Self {
            api_version: "v1".to_owned(),
            kind: "Config".to_owned(),
            clusters: Vec::new(),
            contexts: Vec::new(),
            current_context: String::new(),
            users: Vec::new(),
            extensions: Vec::new(),
        }
    }
}

/// A named context.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NamedContext {
    /// The name.
    pub name: String,
    /// The context.
    pub context: Context,
}

/// A cluster, a user and a default namespace.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Context {
    /// The name of the cluster.
    pub cluster: String,
    /// The name of the user.
    pub user: String,
    /// The default namespace; empty for `default`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// The extensions of other programs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub extensions: Vec<Value>,
}

/// A named user.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NamedUser {
    /// The name.
    pub name: String,
    /// The user.
    pub user: User,
}

/// The credentials of a user.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct User {
    /// The path of the client certificate.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub client_certificate: String,
    /// The client certificate, as base64 of PEM.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub client_certificate_data: String,
    /// The path of the client certificate's key.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub client_key: String,
    /// The client certificate's key, as base64 of PEM.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub client_key_data: String,
    /// The bearer token.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub token: String,
    /// The path of a file with the bearer token, which wins over `token`.
    #[serde(rename = "tokenFile", skip_serializing_if = "String::is_empty")]
    pub token_file: String,
    /// The user to impersonate.
    #[serde(rename = "as", skip_serializing_if = "String::is_empty")]
    pub impersonate: String,
    /// The UID to impersonate.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub as_uid: String,
    /// The groups to impersonate.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub as_groups: Vec<String>,
    /// The extra fields to impersonate.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub as_user_extra: BTreeMap<String, Vec<String>>,
    /// The user name for basic authentication.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub username: String,
    /// The password for basic authentication.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub password: String,
    /// The credential plugin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exec: Option<Exec>,
    /// The removed kind of authentication plugin, which is rejected.
    #[serde(rename = "auth-provider", skip_serializing_if = "Option::is_none")]
    pub auth_provider: Option<Value>,
    /// The extensions of other programs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub extensions: Vec<Value>,
}

/// The cluster and user of a context.
#[derive(Clone, Copy, Debug)]
pub struct ResolvedContext<'a> {
    /// The name of the cluster.
    pub cluster_name: &'a str,
    /// The name of the user.
    pub user_name: &'a str,
    /// The cluster.
    pub cluster: &'a Cluster,
    /// The user.
    pub user: &'a User,
    /// The namespace; `default` if the context names none.
    pub namespace: &'a str,
}

impl Kubeconfig {
    /// Creates a kubeconfig with one cluster, one user and the context `user@cluster`, like kubeadm.
    pub fn single(cluster_name: &str, cluster: Cluster, user_name: &str, user: User) -> Self {
        let name = format!("{user_name}@{cluster_name}");
        let context = Context {
            cluster: cluster_name.to_owned(),
            user: user_name.to_owned(),
            ..Context::default()
        };
        Self {
            clusters: vec![NamedCluster { name: cluster_name.to_owned(), cluster }],
            contexts: vec![NamedContext { name: name.clone(), context }],
            current_context: name,
            users: vec![NamedUser { name: user_name.to_owned(), user }],
            ..Self::default()
        }
    }

    /// Parses a file's text. An empty text is an empty kubeconfig, and unknown fields are ignored, like in kubectl.
    pub fn parse(text: &str) -> Result<Self, Error> {
        match yaml::parse(text)? {
            Value::Null => Ok(Self::default()),
            value => {
                let config: Self = decode("Config", value)?.value;
                config.check_names()?;
                Ok(config)
            }
        }
    }

    /// Returns the file's text with sorted keys, like kubectl.
    pub fn to_yaml(&self) -> Result<String, Error> {
        yaml::to_string(self)
    }

    /// Reads a file. Relative paths in it are resolved against its directory.
    pub fn load(path: &Path) -> Result<Self, Error> {
        let text = fs::read_to_string(path).map_err(|source| Error::Io {
            operation: "read",
            path: path.into(),
            source,
        })?;
        let mut config = Self::parse(&text)
            .map_err(|source| Error::In { path: path.into(), source: Box::new(source) })?;
        config.resolve_paths(path.parent().unwrap_or(Path::new(".")));
        Ok(config)
    }

    /// Replaces the file atomically. Only the owner can read it.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        pki::write_file(path, self.to_yaml()?.as_bytes(), pki::KEY_MODE)
            .map_err(|source| Error::Write { path: path.into(), source })
    }

    fn resolve_paths(&mut self, dir: &Path) {
        let resolve = |file: &mut String| {
            if !file.is_empty() && Path::new(file.as_str()).is_relative() {
                *file = dir.join(file.as_str()).to_string_lossy().into_owned();
            }
        };
        for named in &mut self.clusters {
            resolve(&mut named.cluster.certificate_authority);
        }
        for named in &mut self.users {
            let user = &mut named.user;
            [&mut user.client_certificate, &mut user.client_key, &mut user.token_file]
                .into_iter()
                .for_each(resolve);
            // A command without a slash is searched in PATH.
            if let Some(exec) = user.exec.as_mut().filter(|exec| exec.command.contains('/')) {
                resolve(&mut exec.command);
            }
        }
    }

    /// Returns the cluster and user of the current context.
    pub fn current(&self) -> Result<ResolvedContext<'_>, Error> {
        if self.current_context.is_empty() {
            return Err(Error::NoCurrentContext {
                have: list_names(self.contexts.iter().map(|c| &c.name)),
            });
        }
        self.context(&self.current_context)
    }

    /// Returns the cluster and user of a context. The default namespace is `default`.
    pub fn context(&self, name: &str) -> Result<ResolvedContext<'_>, Error> {
        let context = find("context", name, &self.contexts, |c| &c.name)?;
        let cluster = find("cluster", &context.context.cluster, &self.clusters, |c| &c.name)?;
        let user = find("user", &context.context.user, &self.users, |u| &u.name)?;
        let namespace = match context.context.namespace.as_str() {
            "" => "default",
            namespace => namespace,
        };
        Ok(ResolvedContext {
            cluster_name: &cluster.name,
            user_name: &user.name,
            cluster: &cluster.cluster,
            user: &user.user,
            namespace,
        })
    }

    /// Adds all entries of `other`, replaces those of the same name, and takes its current context.
    pub fn merge(&mut self, other: Self) {
        merge_by(&mut self.clusters, other.clusters, |c| &c.name);
        merge_by(&mut self.contexts, other.contexts, |c| &c.name);
        merge_by(&mut self.users, other.users, |u| &u.name);
        if !other.current_context.is_empty() {
            self.current_context = other.current_context;
        }
    }

    /// Removes the entries that [`Kubeconfig::merge`] added for the context `name`. Returns `false` if there is no such
    /// context.
    pub fn remove(&mut self, name: &str) -> bool {
        let Some(at) = self.contexts.iter().position(|c| c.name == name) else { return false };
        let context = self.contexts.remove(at).context;
        if !self.contexts.iter().any(|c| c.context.cluster == context.cluster) {
            self.clusters.retain(|c| c.name != context.cluster);
        }
        if !self.contexts.iter().any(|c| c.context.user == context.user) {
            self.users.retain(|u| u.name != context.user);
        }
        if self.current_context == name {
            self.current_context.clear();
        }
        true
    }
}

/// Changes or creates a kubeconfig file under the lock file that kubectl and kind use.
pub fn update_file(path: &Path, change: impl FnOnce(&mut Kubeconfig)) -> Result<(), Error> {
    let io = |operation, path: &Path| {
        let path = path.to_owned();
        move |source| Error::Io { operation, path, source }
    };
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir).map_err(io("create the directory", dir))?;
    }
    let mut lock = path.as_os_str().to_owned();
    lock.push(".lock");
    let lock = Lock(PathBuf::from(lock));
    match fs::OpenOptions::new().write(true).create_new(true).open(&lock.0) {
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {
            let lock = std::mem::ManuallyDrop::new(lock);
            return Err(Error::Locked { path: path.into(), lock: lock.0.clone() });
        }
        other => other.map_err(io("create", &lock.0))?,
    };
    let mut config = match fs::read_to_string(path) {
        Ok(text) => Kubeconfig::parse(&text)
            .map_err(|source| Error::In { path: path.into(), source: Box::new(source) })?,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Kubeconfig::default(),
        Err(e) => return Err(io("read", path)(e)),
    };
    change(&mut config);
    config.write(path)
}

struct Lock(PathBuf);

impl Drop for Lock {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Returns the file that kubectl would change: the first existing one of `KUBECONFIG`, its last one, or
/// `~/.kube/config`.
pub fn file_to_change(env: Option<&str>, home: &Path) -> PathBuf {
    let files: Vec<PathBuf> =
        env.unwrap_or_default().split(':').filter(|f| !f.is_empty()).map(PathBuf::from).collect();
    let existing = files.iter().find(|f| f.exists()).cloned();
    existing.or_else(|| files.last().cloned()).unwrap_or_else(|| home.join(".kube/config"))
}

impl Cluster {
    /// Returns the CA certificates as PEM, from the data or the file.
    pub fn ca_pem(&self) -> Result<Option<String>, Error> {
        content(
            "certificate-authority-data",
            &self.server,
            &self.certificate_authority_data,
            &self.certificate_authority,
        )
    }

    /// Creates a cluster with a CA, which is stored inline.
    pub fn with_ca(server: impl Into<String>, ca_pem: &str) -> Self {
        Self {
            server: server.into(),
            certificate_authority_data: STANDARD.encode(ca_pem),
            ..Self::default()
        }
    }
}

impl User {
    /// Creates a user with a client certificate and key, which are stored inline.
    pub fn with_cert(cert_pem: &str, key_pem: &str) -> Self {
        Self {
            client_certificate_data: STANDARD.encode(cert_pem),
            client_key_data: STANDARD.encode(key_pem),
            ..Self::default()
        }
    }

    /// Creates a user with a bearer token.
    pub fn with_token(token: impl Into<String>) -> Self {
        Self { token: token.into(), ..Self::default() }
    }

    /// Returns the client certificate as PEM, from the data or the file; `None` if there is neither.
    pub fn cert_pem(&self) -> Result<Option<String>, Error> {
        content(
            "client-certificate-data",
            "user",
            &self.client_certificate_data,
            &self.client_certificate,
        )
    }

    /// Returns the client certificate's key as PEM, from the data or the file.
    pub fn key_pem(&self) -> Result<Option<String>, Error> {
        content("client-key-data", "user", &self.client_key_data, &self.client_key)
    }

    /// Returns the bearer token. A token file wins; it is read at each call, because tokens in files rotate.
    pub fn bearer(&self) -> Result<Option<String>, Error> {
        if !self.token_file.is_empty() {
            return Ok(
                content("tokenFile", "user", "", &self.token_file)?.map(|t| t.trim().to_owned())
            );
        }
        Ok(Some(self.token.clone()).filter(|t| !t.is_empty()))
    }
}

/// Returns inline data or a file's content. Inline data wins, as in client-go.
fn content(
    field: &'static str,
    owner: &str,
    data: &str,
    file: &str,
) -> Result<Option<String>, Error> {
    if !data.is_empty() {
        let fail = |reason: String| Error::Base64 { field, owner: owner.to_owned(), reason };
        let bytes = STANDARD.decode(data.trim()).map_err(|e| fail(e.to_string()))?;
        return String::from_utf8(bytes).map(Some).map_err(|e| fail(e.to_string()));
    }
    if file.is_empty() {
        return Ok(None);
    }
    fs::read_to_string(file).map(Some).map_err(|source| Error::Io {
        operation: "read",
        path: file.into(),
        source,
    })
}

fn find<'a, T>(
    entry: &'static str,
    name: &str,
    items: &'a [T],
    name_of: fn(&T) -> &String,
) -> Result<&'a T, Error> {
    items.iter().find(|i| name_of(i) == name).ok_or_else(|| Error::NoSuchEntry {
        entry,
        name: name.to_owned(),
        have: list_names(items.iter().map(name_of)),
    })
}

fn list_names<'a>(names: impl Iterator<Item = &'a String>) -> String {
    let names: Vec<_> = names.map(String::as_str).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

fn merge_by<T>(into: &mut Vec<T>, from: Vec<T>, name_of: fn(&T) -> &String) {
    for item in from {
        match into.iter_mut().find(|i| name_of(i) == name_of(&item)) {
            Some(existing) => *existing = item,
            None => into.push(item),
        }
    }
}

#[cfg(test)]
mod tests;
