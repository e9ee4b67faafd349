//! Clients, transports and TLS settings from a kubeconfig.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use api_config::{
    Kubeconfig,
    kubeconfig::{ResolvedContext, User},
};

use base64::{Engine, engine::general_purpose::STANDARD};

use crate::{
    credentials::{Credentials, TokenSource},
    error::Error,
    http::{HttpTransport, Proxy, ProxyUrlError},
    plugin::Plugin,
    request::Client,
    tls::{ClientTls, TlsError, TlsMaterial},
};

/// The error of creating a client from a kubeconfig.
#[derive(Debug, thiserror::Error)]
pub enum KubeconfigError {
    #[error("using the kubeconfig: {0}")]
    Config(#[from] api_config::Error),
    #[error("using the kubeconfig's credentials for {server}: {source}")]
    Tls { server: String, source: TlsError },
    #[error(
        "using the kubeconfig's user: credential plugins, passwords and impersonation are not supported here; \
         use a client certificate or a token"
    )]
    Credentials,
    #[error("using the kubeconfig's user {user:?}: {reason}")]
    User { user: String, reason: String },
    #[error("invalid 'proxy-url' {url:?} for cluster {cluster:?}: {source}")]
    Proxy { cluster: String, url: String, source: ProxyUrlError },
    #[error("using the kubeconfig's server {server}: {source}")]
    Server { server: String, source: Error },
}

impl HttpTransport {
    /// Returns a transport to the server of a kubeconfig file's current context, and the server's whole URL, which is
    /// the URL of a webhook. Renewed certificates are reloaded as by [`Client::from_kubeconfig_file`].
    pub fn from_kubeconfig_file(path: &Path) -> Result<(Self, String), KubeconfigError> {
        let config = Kubeconfig::load(path)?;
        let current = current_context(&config)?;
        let transport = transport(&current, reloading_tls(path, &current, Kubeconfig::load))?;
        Ok((transport, current.cluster.server.clone()))
    }

    /// Adds the user's bearer token, if it has one, to every request.
    pub fn with_token_of(self, user: &User) -> Self {
        let user = user.clone();
        let has_token = !user.token.is_empty() || !user.token_file.is_empty();
        let token =
            has_token.then(|| Arc::new(move || user.bearer().ok().flatten()) as TokenSource);
        self.with_credentials(token.into())
    }
}

impl Client {
    /// Creates a client for a kubeconfig file's current context. It reloads certificates when the file, or a file that
    /// it names, changes.
    pub fn from_kubeconfig_file(path: &Path, user_agent: &str) -> Result<Self, KubeconfigError> {
        let config = Kubeconfig::load(path)?;
        let current = current_context(&config)?;
        Self::with_tls(&current, reloading_tls(path, &current, Kubeconfig::load), user_agent)
    }

    /// Creates a client for the server of a kubeconfig file's current context, without the credentials of the user. The
    /// caller adds those of each request. It reloads the server's CA like [`Client::from_kubeconfig_file`].
    pub fn anonymous_from_kubeconfig_file(
        path: &Path,
        user_agent: &str,
    ) -> Result<Self, KubeconfigError> {
        let config = read_without_user(path)?;
        let current = current_context(&config)?;
        Self::with_tls(&current, reloading_tls(path, &current, read_without_user), user_agent)
    }

    /// Creates a client for the kubeconfig's current context.
    pub fn from_kubeconfig(config: &Kubeconfig, user_agent: &str) -> Result<Self, KubeconfigError> {
        let current = current_context(config)?;
        let tls = material(&current).and_then(|m| m.client_config()).map(ClientTls::from);
        Self::with_tls(&current, tls, user_agent)
    }

    fn with_tls(
        current: &ResolvedContext<'_>,
        tls: Result<ClientTls, TlsError>,
        user_agent: &str,
    ) -> Result<Self, KubeconfigError> {
        Ok(Self::new(Arc::new(transport(current, tls)?), user_agent))
    }
}

impl ClientTls {
    /// Returns the TLS settings of a kubeconfig file's current context, for servers other than the one that it names.
    pub fn from_kubeconfig_file(path: &Path) -> Result<Self, KubeconfigError> {
        let config = Kubeconfig::load(path)?;
        let current = current_context(&config)?;
        if current.user.exec.is_some() {
            return Err(KubeconfigError::Credentials);
        }
        let server = &current.cluster.server;
        reloading_tls(path, &current, Kubeconfig::load)
            .map_err(|source| KubeconfigError::Tls { server: server.clone(), source })
    }
}

/// Returns the current context and validates it.
fn current_context(config: &Kubeconfig) -> Result<ResolvedContext<'_>, api_config::Error> {
    let current = config.current()?;
    current.check()?;
    Ok(current)
}

/// Returns the TLS settings of a kubeconfig's context, which are reloaded when the file or a file that it names
/// changes.
fn reloading_tls(
    path: &Path,
    current: &ResolvedContext<'_>,
    read: fn(&Path) -> Result<Kubeconfig, api_config::Error>,
) -> Result<ClientTls, TlsError> {
    let named = [
        &current.cluster.certificate_authority,
        &current.user.client_certificate,
        &current.user.client_key,
    ];
    let named = named.into_iter().filter(|name| !name.is_empty()).map(PathBuf::from);
    let (files, path) = (named.chain([path.to_owned()]).collect(), path.to_owned());
    ClientTls::following(files, move || material(&read(&path)?.current()?))
}

/// Reads the cluster of a kubeconfig file's current context.
fn read_without_user(path: &Path) -> Result<Kubeconfig, api_config::Error> {
    let cluster = Kubeconfig::load(path)?.current()?.cluster.clone();
    Ok(Kubeconfig::single("cluster", cluster, "anonymous", User::default()))
}

fn transport(
    current: &ResolvedContext<'_>,
    tls: Result<ClientTls, TlsError>,
) -> Result<HttpTransport, KubeconfigError> {
    let server = &current.cluster.server;
    let tls = tls.map_err(|source| KubeconfigError::Tls { server: server.clone(), source })?;
    let mut transport = HttpTransport::new(server, tls, None)
        .map_err(|source| KubeconfigError::Server { server: server.clone(), source })?
        .with_credentials(credentials(current)?);
    let url = current.cluster.proxy_url.as_str();
    if !url.is_empty() {
        let proxy = Proxy::parse(url).map_err(|source| KubeconfigError::Proxy {
            cluster: current.cluster_name.to_owned(),
            url: Proxy::shown_url(url),
            source,
        })?;
        transport = transport.by_proxy(Some(proxy));
    }
    Ok(match current.cluster.tls_server_name.as_str() {
        "" => transport,
        name => transport.with_server_name(name),
    })
}

fn credentials(current: &ResolvedContext<'_>) -> Result<Credentials, KubeconfigError> {
    let failed =
        |reason: String| KubeconfigError::User { user: current.user_name.to_owned(), reason };
    let plugin = match &current.user.exec {
        Some(exec) => {
            let interactive = exec.interactive(current.user_name);
            let interactive = interactive.map_err(|error| failed(error.to_string()))?;
            let ca = current.cluster.ca_pem()?;
            let ca_data = ca.as_deref().map(|pem| STANDARD.encode(pem));
            let info = [false, true].map(|ask| exec.info(current.cluster, ca_data.as_deref(), ask));
            let trust = TlsMaterial {
                ca: ca.map(String::into_bytes),
                insecure: current.cluster.insecure_skip_tls_verify,
                ..TlsMaterial::default()
            };
            Some(Plugin::new(exec.clone(), interactive, info, trust))
        }
        None => None,
    };
    Credentials::of_user(current.user, plugin).map_err(|error| failed(error.to_string()))
}

fn material(current: &ResolvedContext<'_>) -> Result<TlsMaterial, TlsError> {
    Ok(TlsMaterial {
        ca: current.cluster.ca_pem()?.map(String::into_bytes),
        certificate: current.user.cert_pem()?.map(String::into_bytes),
        key: current.user.key_pem()?.map(String::into_bytes),
        insecure: current.cluster.insecure_skip_tls_verify,
    })
}

#[cfg(test)]
mod tests;
