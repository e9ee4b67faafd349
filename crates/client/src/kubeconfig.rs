use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::Deserialize;

use crate::{
    Client, Error, HttpTransport,
    tls::{TlsError, TlsMaterial},
};

/// The parts of a kubeconfig that a component needs; unknown fields are kept out, as client-go does.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct Kubeconfig {
    pub clusters: Vec<Named<Cluster>>,
    pub users: Vec<Named<User>>,
    pub contexts: Vec<Named<Context>>,
    pub current_context: String,
    /// Where it was read from: relative paths inside are relative to this file's directory.
    #[serde(skip)]
    pub path: Option<PathBuf>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Named<T> {
    pub name: String,
    #[serde(alias = "cluster", alias = "user", alias = "context")]
    pub value: T,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct Cluster {
    pub server: String,
    pub certificate_authority: Option<PathBuf>,
    pub certificate_authority_data: Option<String>,
    pub insecure_skip_tls_verify: bool,
    pub tls_server_name: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct User {
    pub client_certificate: Option<PathBuf>,
    pub client_certificate_data: Option<String>,
    pub client_key: Option<PathBuf>,
    pub client_key_data: Option<String>,
    pub token: Option<String>,
    #[serde(rename = "tokenFile")]
    pub token_file: Option<PathBuf>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Context {
    pub cluster: String,
    pub user: String,
    pub namespace: Option<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum KubeconfigError {
    #[error("reading {path}: {source}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("parsing the kubeconfig {path}: {detail}")]
    Parse { path: PathBuf, detail: String },
    #[error("the kubeconfig {path} has no {what} named {name:?}, which its current context needs")]
    Missing { path: PathBuf, what: &'static str, name: String },
    #[error("the kubeconfig {path}: {source}")]
    Tls { path: PathBuf, source: TlsError },
    #[error("the kubeconfig {path}: {source}")]
    Server { path: PathBuf, source: Error },
}

impl Kubeconfig {
    pub fn load(path: &Path) -> Result<Self, KubeconfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| KubeconfigError::Read { path: path.into(), source })?;
        let mut config: Self = serde_saphyr::from_str(&text)
            .map_err(|e| KubeconfigError::Parse { path: path.into(), detail: e.to_string() })?;
        config.path = Some(path.into());
        Ok(config)
    }

    /// The cluster and user of the current context.
    pub fn current(&self) -> Result<(&Cluster, &User), KubeconfigError> {
        let context = find(&self.contexts, &self.current_context)
            .ok_or_else(|| self.missing("context", &self.current_context))?;
        let cluster = find(&self.clusters, &context.cluster)
            .ok_or_else(|| self.missing("cluster", &context.cluster))?;
        let user =
            find(&self.users, &context.user).ok_or_else(|| self.missing("user", &context.user))?;
        Ok((cluster, user))
    }

    fn shown(&self) -> PathBuf {
        self.path.clone().unwrap_or_default()
    }

    fn missing(&self, what: &'static str, name: &str) -> KubeconfigError {
        KubeconfigError::Missing { path: self.shown(), what, name: name.to_owned() }
    }

    fn material(
        &self,
        file: Option<&PathBuf>,
        data: Option<&String>,
    ) -> Result<Option<Vec<u8>>, KubeconfigError> {
        if let Some(data) = data {
            let decoded = STANDARD.decode(data.trim()).map_err(|e| KubeconfigError::Parse {
                path: self.shown(),
                detail: e.to_string(),
            })?;
            return Ok(Some(decoded));
        }
        let Some(file) = file else { return Ok(None) };
        let path = match self.path.as_deref().and_then(Path::parent) {
            Some(directory) => directory.join(file),
            None => file.clone(),
        };
        std::fs::read(&path).map(Some).map_err(|source| KubeconfigError::Read { path, source })
    }
}

fn find<'a, T>(all: &'a [Named<T>], name: &str) -> Option<&'a T> {
    all.iter().find(|n| n.name == name).map(|n| &n.value)
}

impl Client {
    /// A client of the kubeconfig's current context.
    pub fn from_kubeconfig(config: &Kubeconfig, user_agent: &str) -> Result<Self, KubeconfigError> {
        let (cluster, user) = config.current()?;
        let material = TlsMaterial {
            ca: config.material(
                cluster.certificate_authority.as_ref(),
                cluster.certificate_authority_data.as_ref(),
            )?,
            certificate: config.material(
                user.client_certificate.as_ref(),
                user.client_certificate_data.as_ref(),
            )?,
            key: config.material(user.client_key.as_ref(), user.client_key_data.as_ref())?,
            insecure: cluster.insecure_skip_tls_verify,
        };
        let tls = material
            .client_config()
            .map_err(|source| KubeconfigError::Tls { path: config.shown(), source })?;
        let token: Option<Arc<dyn Fn() -> Option<String> + Send + Sync>> =
            match (&user.token_file, &user.token) {
                // Read each time: the kubelet rotates the file.
                (Some(file), _) => {
                    let file = file.clone();
                    Some(Arc::new(move || std::fs::read_to_string(&file).ok()))
                }
                (None, Some(token)) => {
                    let token = token.clone();
                    Some(Arc::new(move || Some(token.clone())))
                }
                (None, None) => None,
            };
        let transport = HttpTransport::new(&cluster.server, tls, token)
            .map_err(|source| KubeconfigError::Server { path: config.shown(), source })?;
        Ok(Self::new(Arc::new(transport), user_agent))
    }
}
