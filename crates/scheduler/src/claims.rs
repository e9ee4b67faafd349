//! Binding the claims that waited for their Pod's node (`VolumeBinding`'s PreBind).

use std::time::Duration;

use client::{Error, Resource};
use sched_core::{ClaimBinding, Pod, Progress};
use serde_json::{Value, json};

use crate::{profiles::Profile, work::Worker};

/// How far an informer may be behind.
const LAG: Duration = Duration::from_secs(5);

const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";

#[derive(Debug, thiserror::Error)]
pub(crate) enum ClaimsError {
    #[error("write {kind} \"{name}\": {source}")]
    Write { kind: &'static str, name: String, source: Error },
    #[error("volume \"{volume}\" already bound to a different claim")]
    Taken { volume: String },
    #[error("binding volumes: {0}")]
    Refused(String),
    #[error("binding volumes: the claims were not bound within {} s", .0.as_secs())]
    Late(Duration),
}

impl Worker {
    /// Binds the claims, or has their volumes made, and waits until that has come about.
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
        let mut told = self.shared.told.subscribe();
        let bound = async {
            // The claims are seen as they were written before it counts that a node was taken back.
            let mut seen = false;
            loop {
                told.mark_unchanged();
                let (progress, given_back) = {
                    let core = self.shared.core();
                    (core.binding(pod, claims), core.given_back(pod, claims))
                };
                match progress {
                    Progress::Bound => return Ok(()),
                    Progress::Refused(why) => return Err(ClaimsError::Refused(why)),
                    Progress::Waiting if seen && given_back => {
                        let why = "the provisioner does not make a volume for this node";
                        return Err(ClaimsError::Refused(why.to_owned()));
                    }
                    Progress::Waiting => seen |= !given_back,
                }
                // By the end of this time the core knows what was written.
                seen |= tokio::time::timeout(LAG, told.changed()).await.is_err();
            }
        };
        let patience = self.bind_timeout(pod);
        let late = Err(ClaimsError::Late(patience));
        let bound = async { tokio::time::timeout(patience, bound).await.unwrap_or(late) };
        let stopping = || Err(ClaimsError::Refused("the scheduler stops".to_owned()));
        self.tasks.shutdown().unless_stopping(bound).await.unwrap_or_else(stopping)
    }

    /// Returns the time that the volumes of a Pod may take to be made and bound, as its profile says.
    fn bind_timeout(&self, pod: &Pod) -> Duration {
        let mut profiles = self.profiles.iter();
        let profile = profiles.find(|profile| profile.core.scheduler_name == pod.scheduler_name);
        profile.map_or_else(|| Profile::default().bind_timeout, |profile| profile.bind_timeout)
    }

    /// Keeps a volume for the claim; the binder does the rest.
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
        let own = &volume["spec"]["claimRef"];
        let kept = own["namespace"] == *pod.id.namespace && own["name"] == *binding.claim;
        let same = own["uid"].as_str().is_none_or(|uid| uid.is_empty() || *uid == *binding.uid);
        if !(own.is_null() || kept && same) {
            return Err(ClaimsError::Taken { volume: name.to_owned() });
        }
        if own["uid"] == *binding.uid {
            return Ok(());
        }
        if own.is_null() {
            let at = &["metadata", "annotations", BOUND_BY_CONTROLLER];
            api_meta::Tree::put(&mut volume, at, json!("yes"));
        }
        let reference = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "namespace": pod.id.namespace, "name": binding.claim, "uid": binding.uid});
        api_meta::Tree::put(&mut volume, &["spec", "claimRef"], reference);
        // On the version that was read: two schedulers do not give one volume away twice.
        let written = self.client.update::<_, Value>(resource, "", name, &volume).await;
        written.map(drop).map_err(failed)
    }

    /// Tells the claim's provisioner for which node to make the volume.
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
        if claim["metadata"]["uid"] != *binding.uid {
            return Err(ClaimsError::Refused(format!("persistentvolumeclaim \"{name}\" is gone")));
        }
        if claim["metadata"]["annotations"][SELECTED_NODE] == node {
            return Ok(());
        }
        let at = &["metadata", "annotations", SELECTED_NODE];
        api_meta::Tree::put(&mut claim, at, json!(node));
        let written = self.client.update::<_, Value>(resource, namespace, name, &claim).await;
        written.map(drop).map_err(failed)
    }
}
