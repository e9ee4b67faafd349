//! TLS bootstrap: a machine with a token becomes a node with a certificate.

use std::{path::PathBuf, sync::Arc, time::Duration};

use client::Client;
use pki::{Key, KeyAlgorithm};

use crate::{
    Args, Config, Error,
    certificate::{AGAIN, Certificate, is_passing},
    run,
};

/// How long the kubelet without a certificate has to end when there is one.
const ENDED: Duration = Duration::from_secs(5);

/// Why the machine has no certificate; what passes by itself was tried again.
#[derive(Debug, thiserror::Error)]
pub enum EnrollError {
    #[error("read the bootstrap kubeconfig: {0}")]
    Kubeconfig(#[from] client::KubeconfigError),
    #[error(transparent)]
    Config(#[from] api_config::Error),
    #[error("ask for a certificate: {0}")]
    Api(#[from] client::Error),
    #[error(transparent)]
    Pki(#[from] pki::Error),
    #[error("the request for a certificate, {name}, was {what}: {message}")]
    Refused { name: String, what: &'static str, message: String },
    #[error("the certificate that was issued for {name} cannot be read: {message}")]
    Unreadable { name: String, message: String },
    #[error("nobody decided within {after:?} about a request for {usage}; approve it with kubectl")]
    Unanswered { usage: &'static str, after: Duration },
    #[error("link {}: {source}", path.display())]
    Link { path: PathBuf, source: std::io::Error },
}

/// Makes the kubeconfig that `--kubeconfig` names if it is missing, by asking for a certificate with the bootstrap
/// one. Waits until the request is approved, or shutdown begins.
///
/// A joining control plane's certificate comes from an API server that this kubelet has to start: until it is there, static
/// Pods run and nothing else. The kubelet after it adopts them.
pub async fn enroll(args: &Args, tasks: &rt::Tasks) -> Result<(), Error> {
    if !args.wants_enrolling() {
        return Ok(());
    }
    let alone = rt::Tasks::new(tasks.shutdown().child());
    let statics = run(Config::from_args(args)?, None, &alone);
    let enrolled = tokio::select! {
        enrolled = ask(args, &rt::SystemClock) => enrolled.map_err(Error::from),
        ended = statics => ended,
    };
    alone.drain(ENDED).await;
    enrolled
}

async fn ask(args: &Args, clock: &dyn rt::Clock) -> Result<(), EnrollError> {
    let (Some(kubeconfig), Some(bootstrap)) = (&args.kubeconfig, &args.bootstrap_kubeconfig) else {
        return Ok(());
    };
    if kubeconfig.exists() {
        return Ok(());
    }
    let node = args.node_name();
    let client = Client::from_kubeconfig_file(bootstrap, "kubelet-bootstrap")?;
    let (wanted, key) =
        (Certificate::client(node.clone()), Key::generate(KeyAlgorithm::EcdsaP256)?);
    tracing::info!(node, "ask for the node's client certificate; it has to be approved");
    let certificate = loop {
        match wanted.obtain(&client, &key).await {
            Err(EnrollError::Api(error)) if is_passing(&error) => {
                tracing::debug!(%error, "ask for the node's client certificate again");
                tokio::time::sleep(AGAIN).await;
            }
            result => break result?,
        }
    };
    let current = wanted.keep(&args.cert_dir(), &certificate, &key, clock.now())?;
    // The new file leads to the same cluster with the new identity, which is read from where renewals put it.
    let old = api_config::Kubeconfig::load(bootstrap)?;
    let identity = current.display().to_string();
    let user = api_config::kubeconfig::User {
        client_certificate: identity.clone(),
        client_key: identity,
        ..Default::default()
    };
    let cluster = old.current()?.cluster.clone();
    api_config::Kubeconfig::single("default-cluster", cluster, "default-auth", user)
        .write(kubeconfig)?;
    Ok(())
}

/// The kubelet's own renewal of its client certificate, long before its end. A certificate that came with the
/// kubeconfig is replaced at once, as upstream's kubelet does, so that it is never the only one.
pub async fn keep_enrolled(args: Args, client: Client, clock: Arc<dyn rt::Clock>) {
    Certificate::client(args.node_name()).keep_current(args.cert_dir(), client, clock).await;
}
