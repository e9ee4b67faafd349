//! Binds the claims that waited for their Pod's node (PreBind of `VolumeBinding`).

use std::time::Duration;

use api_meta::Tree as _;
use client::{Error, Resource};
use sched_core::{ClaimBinding, Pod, Progress};
use serde_json::{Value, json};

use crate::{profile::Profile, work::Worker};

/// The longest expected lag of an informer.
const LAG: Duration = Duration::from_secs(5);

const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";

/// The claims of a Pod are not bound.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClaimsError {
    #[error("write {kind} \"{name}\": {source}")]
    Write { kind: &'static str, name: String, source: Error },
    #[error("volume \"{volume}\" already bound to a different claim")]
    Taken { volume: String },
    #[error("binding volumes: {reason}")]
    Refused { reason: String },
    #[error("binding volumes: the provisioner does not create a volume for this node")]
    NodeRejected,
    #[error("binding volumes: persistentvolumeclaim \"{claim}\" is gone")]
    ClaimGone { claim: String },
    #[error("binding volumes: the scheduler is stopping")]
    Stopping,
    #[error("binding volumes: the claims were not bound within {} s", .0.as_secs())]
    Late(Duration),
}

impl Worker {
    /// Binds the claims or has their volumes provisioned, and waits for the result.
    pub(crate) async fn bind_claims(
        &self,
        pod: &Pod,
        node: &str,
        claims: &[ClaimBinding],
    ) -> Result<(), ClaimsError> {
        if claims.is_empty() {
            return Ok(());
        }
        for binding in claims {
            match &binding.volume {
                Some(volume) => self.reserve(pod, binding, volume).await?,
                None => self.select(pod, binding, node).await?,
            }
        }
        let mut updates = self.shared.updates.subscribe();
        let bound = async {
            // A missing selected node only counts after the informer has shown it or should have.
            let mut is_current = false;
            loop {
                updates.mark_unchanged();
                let (progress, is_node_rejected) = {
                    let core = self.shared.core();
                    (core.volume_progress(pod, claims), core.is_node_rejected(pod, claims))
                };
                match progress {
                    Progress::Bound => return Ok(()),
                    Progress::Refused(reason) => return Err(ClaimsError::Refused { reason }),
                    Progress::Waiting if is_current && is_node_rejected => {
                        return Err(ClaimsError::NodeRejected);
                    }
                    Progress::Waiting => is_current |= !is_node_rejected,
                }
                // After this time the core knows the written state.
                is_current |= tokio::time::timeout(LAG, updates.changed()).await.is_err();
            }
        };
        let limit = self.bind_timeout(pod);
        let late = Err(ClaimsError::Late(limit));
        let bound = async { tokio::time::timeout(limit, bound).await.unwrap_or(late) };
        self.tasks.shutdown().unless_stopping(bound).await.unwrap_or(Err(ClaimsError::Stopping))
    }

    /// Returns the time limit for provisioning and binding a Pod's volumes, from its profile.
    fn bind_timeout(&self, pod: &Pod) -> Duration {
        let mut profiles = self.profiles.iter();
        let profile = profiles.find(|profile| profile.core.scheduler_name == pod.scheduler_name);
        profile.map_or_else(|| Profile::default().bind_timeout, |profile| profile.bind_timeout)
    }

    /// Reserves a volume for the claim; the volume binder completes the binding.
    async fn reserve(
        &self,
        pod: &Pod,
        binding: &ClaimBinding,
        name: &str,
    ) -> Result<(), ClaimsError> {
        let failed =
            |source| ClaimsError::Write { kind: "persistentvolume", name: name.to_owned(), source };
        let resource = &Resource::PERSISTENT_VOLUMES;
        let mut volume: Value = self.client.get(resource, "", name).await.map_err(failed)?;
        let own = volume.at("spec.claimRef");
        let is_reserved = own["namespace"] == *pod.id.namespace && own["name"] == *binding.claim;
        let same = own["uid"].as_str().is_none_or(|uid| uid.is_empty() || *uid == *binding.uid);
        if !(own.is_null() || is_reserved && same) {
            return Err(ClaimsError::Taken { volume: name.to_owned() });
        }
        if own["uid"] == *binding.uid {
            return Ok(());
        }
        if own.is_null() {
            let at = &["metadata", "annotations", BOUND_BY_CONTROLLER];
            volume.put(at, json!("yes"));
        }
        let reference = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "namespace": pod.id.namespace, "name": binding.claim, "uid": binding.uid});
        volume.put(&["spec", "claimRef"], reference);
        // Write to the version that was read, so that two schedulers cannot give away the same volume.
        let written = self.client.update::<_, Value>(resource, "", name, &volume).await;
        written.map(drop).map_err(failed)
    }

    /// Sets the selected node of the claim, for which its provisioner creates the volume.
    async fn select(
        &self,
        pod: &Pod,
        binding: &ClaimBinding,
        node: &str,
    ) -> Result<(), ClaimsError> {
        let (namespace, name) = (&*pod.id.namespace, &*binding.claim);
        let failed = |source| ClaimsError::Write {
            kind: "persistentvolumeclaim",
            name: name.to_owned(),
            source,
        };
        let resource = &Resource::PERSISTENT_VOLUME_CLAIMS;
        let mut claim: Value = self.client.get(resource, namespace, name).await.map_err(failed)?;
        if *claim.at("metadata.uid") != *binding.uid {
            return Err(ClaimsError::ClaimGone { claim: name.to_owned() });
        }
        if *claim.at(&["metadata", "annotations", SELECTED_NODE]) == node {
            return Ok(());
        }
        let at = &["metadata", "annotations", SELECTED_NODE];
        claim.put(at, json!(node));
        let written = self.client.update::<_, Value>(resource, namespace, name, &claim).await;
        written.map(drop).map_err(failed)
    }
}
