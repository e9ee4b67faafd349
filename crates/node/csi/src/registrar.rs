//! The client of a plugin's registration service.

use std::{path::PathBuf, time::Duration};

use tonic::transport::Channel;

use crate::{
    connection::within,
    error::Error,
    registration::{
        InfoRequest, PluginInfo, RegistrationStatus, registration_client::RegistrationClient,
    },
};

/// The timeout of a call, short because a registrar does no work.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The client of a registrar, which announces a plugin by a socket in the kubelet's `plugins_registry`.
pub struct Registrar {
    client: RegistrationClient<Channel>,
}

impl Registrar {
    /// Creates a client that connects at the first call. Must be called within a Tokio runtime.
    pub fn new(socket: PathBuf) -> Self {
        Self { client: RegistrationClient::new(grpc::channel(socket)) }
    }

    /// Returns the announced plugin. The response is not verified.
    pub async fn info(&self) -> Result<PluginInfo, Error> {
        let mut client = self.client.clone();
        within(TIMEOUT, client.get_info(InfoRequest {})).await
    }

    /// Sends the result of the registration to the registrar.
    pub async fn notify<E: std::fmt::Display>(&self, result: Result<(), E>) -> Result<(), Error> {
        let mut client = self.client.clone();
        let status = RegistrationStatus {
            plugin_registered: result.is_ok(),
            error: result.err().map(|error| error.to_string()).unwrap_or_default(),
        };
        within(TIMEOUT, client.notify_registration_status(status)).await.map(drop)
    }
}
