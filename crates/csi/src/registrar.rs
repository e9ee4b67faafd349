use std::{path::PathBuf, time::Duration};

use tonic::transport::Channel;

use crate::{
    Error, channel,
    registration::{
        InfoRequest, PluginInfo, RegistrationStatus, registration_client::RegistrationClient,
    },
    within,
};

/// How long a registrar has to answer: it does no work.
const TIMEOUT: Duration = Duration::from_secs(10);

/// What announces a plugin, by a socket in the kubelet's `plugins_registry`.
pub struct Registrar {
    client: RegistrationClient<Channel>,
}

impl Registrar {
    /// Dials nothing yet. Must be called within a Tokio runtime.
    pub fn new(socket: PathBuf) -> Self {
        Self { client: RegistrationClient::new(channel(socket)) }
    }

    /// What plugin it announces. Everything in the answer is the plugin's word alone.
    pub async fn info(&self) -> Result<PluginInfo, Error> {
        let mut client = self.client.clone();
        within(TIMEOUT, client.get_info(InfoRequest {})).await
    }

    /// Tells it what became of the registration.
    pub async fn notify(&self, result: Result<(), String>) -> Result<(), Error> {
        let mut client = self.client.clone();
        let status = RegistrationStatus {
            plugin_registered: result.is_ok(),
            error: result.err().unwrap_or_default(),
        };
        within(TIMEOUT, client.notify_registration_status(status)).await.map(drop)
    }
}
