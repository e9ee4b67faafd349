//! Rotates the authorities and the service account key of a live cluster, in three steps on every machine.
//!
//! After `trust` on every machine, old and new are trusted everywhere. After `issue`, everything is signed by the new.
//! After `finish`, the old are removed. In each step, control planes go first, one after the other. Each machine
//! records its state on its Node, so that no step starts before all machines have completed the previous one.
//!
//! Invariants: no component ever presents a certificate or token that another one does not trust. A step can be run
//! again.

mod authorities;
mod bundle;
mod cluster;
mod machine;

use std::time::Duration;

use clap::ValueEnum;

use crate::{Error, FileChange, RotationError, cluster as api, node::Node};

/// The maximum time in which the kubelet replaces the tokens of Pods.
const TOKENS_REPLACED: Duration = Duration::from_secs(3600);

/// A step of a rotation. All machines complete it before any starts the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Step {
    /// Create the new authorities (on the first control plane) and trust both the old and the new
    Trust,
    /// Sign every certificate and token with the new
    Issue,
    /// Trust only the new
    Finish,
}

/// The options of a step.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The key to decrypt the authorities that the first control plane has uploaded.
    pub certificate_key: Option<String>,
    /// `true` to continue although a machine has not completed the previous step, or tokens may not have been replaced.
    pub force: bool,
}

/// Runs one step on this machine.
pub async fn rotate(
    node: &mut Node,
    step: Step,
    options: &Options,
) -> Result<Vec<FileChange>, Error> {
    let is_control_plane = node.layout.kubeconfig("admin.conf").exists();
    let mut touched = match (is_control_plane, step) {
        (true, Step::Trust) => trust(node, options).await?,
        (true, Step::Issue) => issue(node, options).await?,
        (true, Step::Finish) => finish(node, options).await?,
        (false, step) => follow(node, step).await?,
    };
    let bundle = pki::read_certs(&node.layout.pki("ca", "crt"))?;
    touched.extend(machine::trust_authorities(&node.layout, &bundle)?);
    let mark = cluster::mark(&bundle);
    let (written, pods) = machine::mark_pods(&node.layout, &mark)?;
    touched.extend(written);
    node.service.start().await?;
    let own = api::client(&node.layout.kubeconfig("kubelet.conf"))?;
    let patience = node.timeouts().control_plane_component_health_check.unwrap_or_default();
    cluster::wait_for_pods(&own, node.name(), &pods, &mark, patience.to_std()).await?;
    if is_control_plane {
        cluster::publish(&node.client().await?, &bundle).await?;
    } else if step == Step::Issue {
        touched.push(machine::renew_kubelet(node, &bundle[0]).await?);
    }
    let standing = cluster::RotationState::of(&node.layout, &bundle, node.now())?;
    cluster::record(&own, node.name(), &standing).await?;
    Ok(touched)
}

/// Returns the instructions to print after a step.
pub(crate) fn next_steps(step: Step, program: &str) -> String {
    match step {
        Step::Trust => format!(
            "\nThis machine trusts the old and the new authorities. Share the new ones with the other control planes \
             (`{program} init phase upload-certs --upload-certs`), run `{program} certs rotate-ca trust \
             --certificate-key KEY` on each of them and `{program} certs rotate-ca trust` on every worker; then \
             `{program} certs rotate-ca issue`, control planes first."
        ),
        Step::Issue => format!(
            "\nThis machine's certificates are signed by the new authority. When all machines' are, and an hour later, \
             when Pods have new tokens, run `{program} certs rotate-ca finish`, control planes first."
        ),
        Step::Finish => "\nThis machine trusts the new authority alone.".to_owned(),
    }
}

async fn trust(node: &mut Node, options: &Options) -> Result<Vec<FileChange>, Error> {
    let dir = node.layout.certificates.clone();
    let mut touched = Vec::new();
    if let Some(key) = &options.certificate_key {
        touched.extend(
            api::download_certs(&node.client().await?, &dir, &node.config.cluster.etcd, key)
                .await?,
        );
    } else if !authorities::is_begun(&dir) {
        let held = pki::read_certs(&node.layout.pki("ca", "crt"))?;
        if held.len() > 1 {
            return Err(RotationError::Unfinished { program: node.program }.into());
        }
        let published = cluster::published(&node.layout).await?;
        if let Some(other) = published.iter().find(|cert| !held.contains(cert)) {
            let (pin, program) = (other.pin()?, node.program);
            return Err(RotationError::OtherAuthority { pin, program }.into());
        }
        touched.extend(authorities::prepare(&dir, &node.pki()?, node.now())?);
    }
    touched.extend(authorities::trust(&dir)?);
    Ok(touched)
}

async fn issue(node: &mut Node, options: &Options) -> Result<Vec<FileChange>, Error> {
    let dir = node.layout.certificates.clone();
    let next = authorities::next(&dir)?;
    if !options.force {
        let pin = next.pin()?;
        let client = node.client().await?;
        let lacking =
            cluster::nodes_without(&client, |s| s.is_some_and(|s| s.trusts.contains(&pin)));
        require_none("issue", "does not trust the new authority yet (trust)", lacking.await?)?;
        cluster::wait_for_root_ca(&client, &next).await?;
    }
    let mut touched = authorities::issue(&dir)?;
    touched.extend(machine::reissue(&node.layout, node.now())?);
    Ok(touched)
}

async fn finish(node: &mut Node, options: &Options) -> Result<Vec<FileChange>, Error> {
    let dir = node.layout.certificates.clone();
    let signer = authorities::signer(&dir)?;
    if !options.force {
        let (pin, now) = (signer.pin()?, node.now());
        let client = node.client().await?;
        let lacking = cluster::nodes_without(&client, |s| s.is_some_and(|s| s.uses == pin)).await?;
        require_none("finish", "still uses the old authority (issue)", lacking)?;
        let settled = |s: Option<&cluster::RotationState>| {
            s.is_some_and(|s| s.since().is_none_or(|at| at + TOKENS_REPLACED <= now))
        };
        let lacking = cluster::nodes_without(&client, settled).await?;
        let why = "may have Pods with tokens of the old key, which are replaced within an hour";
        require_none("finish", why, lacking)?;
    }
    authorities::finish(&dir)
}

/// Runs a step on a worker, which uses the authorities that the control planes have published.
async fn follow(node: &Node, step: Step) -> Result<Vec<FileChange>, Error> {
    let published = cluster::published(&node.layout).await?;
    let issued = cluster::youngest(&published)? == published.first();
    let missing = match step {
        Step::Trust if published.len() < 2 => Some("trust"),
        Step::Issue if !issued => Some("issue"),
        Step::Finish if published.len() > 1 => Some("finish"),
        _ => None,
    };
    if let Some(step) = missing {
        return Err(RotationError::ControlPlanes { step, program: node.program }.into());
    }
    let held = pki::read_certs(&node.layout.pki("ca", "crt"))?;
    if step == Step::Issue && !held.contains(&published[0]) {
        let (pin, program) = (published[0].pin()?, node.program);
        return Err(RotationError::NotTrusted { pin, program }.into());
    }
    let path = node.layout.pki("ca", "crt");
    authorities::write_bundle(&path, &published)?;
    Ok(vec![FileChange::written(path)])
}

/// Returns an error if nodes have not completed the previous step.
fn require_none(
    step: &'static str,
    reason: &'static str,
    nodes: Vec<String>,
) -> Result<(), RotationError> {
    if nodes.is_empty() { Ok(()) } else { Err(RotationError::Nodes { step, reason, nodes }) }
}

#[cfg(test)]
mod tests;
