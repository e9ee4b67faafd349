//! The client of a Pod, with the credentials of its service account.

use std::sync::Arc;

use crate::{
    error::Error,
    http::HttpTransport,
    request::Client,
    tls::{ClientTls, TlsError, TlsFiles},
};

/// The directory of the service account's files in a Pod.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// The error of creating a Pod's client.
#[derive(Debug, thiserror::Error)]
pub enum ServiceAccountError {
    /// A variable that every Pod has is not set.
    #[error("{0} is not set, so this is not a Pod; give --kubeconfig")]
    NotAPod(&'static str),
    /// The authority of the service account cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The server's address cannot be used.
    #[error(transparent)]
    Transport(#[from] Error),
}

impl Client {
    /// Creates a client for the API server of the Pod that this process runs in.
    ///
    /// The CA is read again when it changes, and the token for each request, because the kubelet renews both.
    pub fn from_service_account(user_agent: &str) -> Result<Self, ServiceAccountError> {
        let variable = |name| std::env::var(name).map_err(|_| ServiceAccountError::NotAPod(name));
        let (host, port) =
            (variable("KUBERNETES_SERVICE_HOST")?, variable("KUBERNETES_SERVICE_PORT")?);
        let host = if host.contains(':') { format!("[{host}]") } else { host };
        let ca = Some(format!("{ACCOUNT}/ca.crt").into());
        let tls = ClientTls::from_files(TlsFiles { ca, ..TlsFiles::default() })?;
        let token = || std::fs::read_to_string(format!("{ACCOUNT}/token")).ok();
        let url = format!("https://{host}:{port}");
        let transport = HttpTransport::new(&url, tls, Some(Arc::new(token)))?;
        Ok(Self::new(Arc::new(transport), user_agent))
    }
}
