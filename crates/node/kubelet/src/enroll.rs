//! TLS bootstrap: a machine with a bootstrap token obtains the client certificate of its node.

use std::{sync::Arc, time::Duration};

use client::Client;
use kubelet_config::Args;
use pki::{Key, KeyAlgorithm};

use crate::{
    certificate::{Certificate, RETRY_DELAY, is_transient},
    error::{EnrollError, Error},
    run::{Config, run},
};

/// The time that the standalone kubelet has for its shutdown once there is a certificate.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// Creates the file that `--kubeconfig` names, if it does not exist, with a certificate requested by means of the
/// bootstrap kubeconfig. Waits until the request is approved or shutdown begins.
///
/// On a joining control plane, the API server that approves the request may be a static Pod of this kubelet. So a
/// standalone kubelet runs the static Pods meanwhile, and the kubelet after it adopts them.
pub async fn enroll(args: &Args, tasks: &rt::Tasks) -> Result<(), Error> {
    if !args.needs_certificate() {
        return Ok(());
    }
    let alone = rt::Tasks::new(tasks.shutdown().child());
    let statics = run(Config::from_args(args)?, None, &alone);
    let enrolled = tokio::select! {
        enrolled = request_certificate(args, &rt::SystemClock) => enrolled.map_err(Error::from),
        ended = statics => ended,
    };
    alone.drain(SHUTDOWN_TIMEOUT).await;
    enrolled
}

async fn request_certificate(args: &Args, clock: &dyn rt::Clock) -> Result<(), EnrollError> {
    let (Some(kubeconfig), Some(bootstrap)) = (&args.kubeconfig, &args.bootstrap_kubeconfig) else {
        return Ok(());
    };
    if kubeconfig.exists() {
        return Ok(());
    }
    let node = args.node_name();
    let client = Client::from_kubeconfig_file(bootstrap, "kubelet-bootstrap")?;
    let (client_certificate, key) =
        (Certificate::client(node.clone()), Key::generate(KeyAlgorithm::EcdsaP256)?);
    tracing::info!(node, "request the node's client certificate and wait for approval");
    let certificate = loop {
        match client_certificate.request(&client, &key).await {
            Err(EnrollError::Api(error)) if is_transient(&error) => {
                tracing::debug!(%error, "request the node's client certificate again");
                tokio::time::sleep(RETRY_DELAY).await;
            }
            result => break result?,
        }
    };
    let current = client_certificate.keep(&args.cert_dir(), &certificate, &key, clock.now())?;
    // The new file names the same cluster and the file of the current certificate, which renewals replace.
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

/// Renews the kubelet's client certificate long before it expires. A certificate that came with the kubeconfig is
/// renewed immediately, as in upstream's kubelet, so that there are two.
pub async fn keep_enrolled(args: Args, client: Client, clock: Arc<dyn rt::Clock>) {
    Certificate::client(args.node_name()).keep_current(args.cert_dir(), client, clock).await;
}
