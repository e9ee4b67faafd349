//! A bootstrap token for each boot of each machine, so that who has it is that machine and no other.

use api_meta::{PartialObject, Timestamp, Tree as _};
use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use api_config::kubeadm::BootstrapToken;
use bootstrap_core::tokens::{self, Token};
use client::{Client, DeleteOptions, IfThere as _, List, ListOptions, Resource};
use netboot::matchbox::TokenMaker;
use serde_json::Value;
use tokio::runtime::Handle;

use crate::plan::BOOTSTRAPPERS;

/// On a token's Secret: the MAC address of the machine that it was made for, with hyphens.
const MACHINE: &str = "metal.windlass/machine";
/// From its config a machine goes on to be installed, boots again and asks for its certificate.
const LIFE: Duration = Duration::from_secs(3600);
/// The machine waits for its config meanwhile.
const PATIENCE: Duration = Duration::from_secs(10);
const NAMESPACE: &str = "kube-system";

/// The token's Secret.
fn object(token: &Token, machine: &str, now: SystemTime) -> Value {
    let entry = BootstrapToken {
        description: format!("the last boot of {machine}, by windlass metal serve"),
        usages: vec!["authentication".into()],
        groups: vec![BOOTSTRAPPERS.into()],
        ..BootstrapToken::default()
    };
    let end = Timestamp::from(now + LIFE).to_string();
    let mut secret = tokens::secret(token, &entry, Some(&end));
    secret.put(&["metadata", "labels", MACHINE], label(machine));
    secret
}

/// A label's value may have no colons.
fn label(machine: &str) -> String {
    machine.replace(':', "-")
}

/// Makes the machine's token; those of its boots before are good for nothing any more.
pub(crate) async fn make(client: &Client, machine: &str) -> Result<String, client::Error> {
    let secrets = &Resource::SECRETS;
    let own = ListOptions::labels(&format!("{MACHINE}={}", label(machine)));
    let old: List<PartialObject> = client.list(secrets, NAMESPACE, &own).await?;
    for secret in old.items {
        let gone = client
            .delete(secrets, NAMESPACE, &secret.metadata.name, &DeleteOptions::default())
            .await;
        gone.if_there()?;
    }
    let token = Token::generate(|below| rt::random_in(0..below));
    let _: Value = client.create(secrets, NAMESPACE, &object(&token, machine, rt::now())).await?;
    Ok(token.reveal())
}

/// What `metal serve` makes tokens with, on a thread that may block.
pub(crate) fn maker(client: Client) -> TokenMaker {
    let runtime = Handle::current();
    Arc::new(move |machine| {
        // The timer is the runtime's.
        let made = async { tokio::time::timeout(PATIENCE, make(&client, machine)).await };
        match runtime.block_on(made) {
            Ok(Ok(token)) => Ok(token),
            Ok(Err(error)) => Err(format!("making a bootstrap token in the cluster: {error}")),
            Err(_) => {
                Err(format!("the cluster did not take a bootstrap token within {PATIENCE:?}"))
            }
        }
    })
}

/// Whether the token that a request was made with is that of this machine's last boot; an error says why not.
pub(crate) async fn is_of(
    client: &Client,
    user: &str,
    machine: &str,
) -> Result<Result<(), String>, client::Error> {
    let Some(id) = user.strip_prefix("system:bootstrap:") else {
        return Ok(Err(format!("{user:?} is not who has a bootstrap token")));
    };
    let secret =
        client.get::<PartialObject>(&Resource::SECRETS, NAMESPACE, &tokens::secret_name(id)).await;
    let of = secret.if_there()?.and_then(|mut secret| secret.metadata.labels.remove(MACHINE));
    Ok(match of {
        Some(of) if of == label(machine) => Ok(()),
        Some(of) => Err(format!("its token was given to the machine {of}, not to {machine}")),
        None => Err(format!("its token {id} is not that of the last boot of {machine}")),
    })
}
