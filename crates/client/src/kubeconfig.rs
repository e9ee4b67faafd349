use std::{path::Path, sync::Arc};

use api_config::{Kubeconfig, kubeconfig::User};

use crate::{
    Client, Error, HttpTransport,
    http::TokenSource,
    tls::{TlsError, TlsMaterial},
};

#[derive(Debug, thiserror::Error)]
pub enum KubeconfigError {
    #[error("using the kubeconfig: {0}")]
    Config(#[from] api_config::Error),
    #[error("using the kubeconfig's credentials for {server}: {source}")]
    Tls { server: String, source: TlsError },
    #[error("using the kubeconfig's server {server}: {source}")]
    Server { server: String, source: Error },
}

impl Client {
    /// A client of a kubeconfig file's current context.
    pub fn from_kubeconfig_file(path: &Path, user_agent: &str) -> Result<Self, KubeconfigError> {
        Self::from_kubeconfig(&Kubeconfig::load(path)?, user_agent)
    }

    /// A client of the kubeconfig's current context.
    pub fn from_kubeconfig(config: &Kubeconfig, user_agent: &str) -> Result<Self, KubeconfigError> {
        let current = config.current()?;
        let server = &current.cluster.server;
        let material = TlsMaterial {
            ca: current.cluster.ca_pem()?.map(String::into_bytes),
            certificate: current.user.cert_pem()?.map(String::into_bytes),
            key: current.user.key_pem()?.map(String::into_bytes),
            insecure: current.cluster.insecure_skip_tls_verify,
        };
        let tls = material
            .client_config()
            .map_err(|source| KubeconfigError::Tls { server: server.clone(), source })?;
        let mut transport = HttpTransport::new(server, tls, token_source(current.user))
            .map_err(|source| KubeconfigError::Server { server: server.clone(), source })?;
        if !current.cluster.tls_server_name.is_empty() {
            transport = transport.with_server_name(&current.cluster.tls_server_name);
        }
        Ok(Self::new(Arc::new(transport), user_agent))
    }
}

/// Asked at every request, as a token in a file is rotated by the kubelet.
fn token_source(user: &User) -> Option<TokenSource> {
    let user = user.clone();
    let has_token = !user.token.is_empty() || !user.token_file.is_empty();
    has_token.then(|| Arc::new(move || user.bearer().ok().flatten()) as TokenSource)
}
