//! Bootstrap tokens for each boot of a machine, which identify the machine.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use api_config::kubeadm::BootstrapToken;
use api_meta::{PartialObject, Timestamp, Tree as _};
use bootstrap_core::tokens::{self, Token};
use client::{Client, DeleteOptions, List, ListOptions, NotFoundExt as _, Resource};
use netboot::matchbox::TokenMaker;
use serde_json::Value;
use tokio::runtime::Handle;

use crate::plan::BOOTSTRAPPERS;

/// The label on a token's Secret: the machine's MAC address with hyphens.
const MACHINE: &str = "metal.windlass/machine";
/// The validity of a token. It covers installation, reboot and certificate request.
const VALIDITY: Duration = Duration::from_secs(3600);
/// The deadline for making a token, because the machine waits for its config.
const CREATION_TIMEOUT: Duration = Duration::from_secs(10);
const NAMESPACE: &str = "kube-system";

/// Returns the token's Secret.
fn object(token: &Token, machine: &str, now: SystemTime) -> Value {
    let entry = BootstrapToken {
        description: format!("the last boot of {machine}, by windlass metal serve"),
        usages: vec!["authentication".into()],
        groups: vec![BOOTSTRAPPERS.into()],
        ..BootstrapToken::default()
    };
    let end = Timestamp::from(now + VALIDITY).to_string();
    let mut secret = tokens::secret(token, &entry, Some(&end));
    secret.put(&["metadata", "labels", MACHINE], label(machine));
    secret
}

/// Converts a MAC address to a label value, which cannot contain colons.
fn label(machine: &str) -> String {
    machine.replace(':', "-")
}

/// Makes a token and deletes the tokens of the machine's previous boots.
pub(crate) async fn make(client: &Client, machine: &str) -> Result<String, client::Error> {
    let secrets = &Resource::SECRETS;
    let own = ListOptions::labels(&format!("{MACHINE}={}", label(machine)));
    let old: List<PartialObject> = client.list(secrets, NAMESPACE, &own).await?;
    for secret in old.items {
        let gone = client
            .delete(secrets, NAMESPACE, &secret.metadata.name, &DeleteOptions::default())
            .await;
        gone.or_none()?;
    }
    let token = Token::generate(|below| rt::random_in(0..below));
    let _: Value = client.create(secrets, NAMESPACE, &object(&token, machine, rt::now())).await?;
    Ok(token.reveal())
}

/// Returns the token maker of `metal serve`, which runs on a blocking thread.
pub(crate) fn maker(client: Client) -> TokenMaker {
    let runtime = Handle::current();
    Arc::new(move |machine| {
        // The timer belongs to the runtime.
        let creation =
            async { tokio::time::timeout(CREATION_TIMEOUT, make(&client, machine)).await };
        match runtime.block_on(creation) {
            Ok(Ok(token)) => Ok(token),
            Ok(Err(error)) => {
                Err(format!("making a bootstrap token in the cluster: {error}").into())
            }
            Err(_) => {
                let limit = CREATION_TIMEOUT;
                Err(format!("the cluster did not store a bootstrap token within {limit:?}").into())
            }
        }
    })
}

/// The reasons why a request was not made with the token of its machine's last boot.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TokenMismatch {
    #[error("{0:?} is not the user of a bootstrap token")]
    User(String),
    #[error("its token was given to the machine {owner}, not to {machine}")]
    Machine { owner: String, machine: String },
    #[error("its token {id} was not made for the last boot of {machine}")]
    Token { id: String, machine: String },
}

/// Checks that a request was made with the token of this machine's last boot; `None` if it was.
pub(crate) async fn find_mismatch(
    client: &Client,
    user: &str,
    machine: &str,
) -> Result<Option<TokenMismatch>, client::Error> {
    let Some(id) = user.strip_prefix("system:bootstrap:") else {
        return Ok(Some(TokenMismatch::User(user.to_owned())));
    };
    let secret =
        client.get::<PartialObject>(&Resource::SECRETS, NAMESPACE, &tokens::secret_name(id)).await;
    let owner = secret.or_none()?.and_then(|mut secret| secret.metadata.labels.remove(MACHINE));
    let machine = machine.to_owned();
    Ok(match owner {
        Some(owner) if owner == label(&machine) => None,
        Some(owner) => Some(TokenMismatch::Machine { owner, machine }),
        None => Some(TokenMismatch::Token { id: id.to_owned(), machine }),
    })
}
