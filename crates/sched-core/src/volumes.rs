use std::{collections::HashMap, sync::Arc};

use crate::{
    nodeaffinity::NodeSelector,
    pod::Pod,
    view::{PersistentVolumeView, VolumeClaimView},
};

/// What scheduling needs to know of a volume claim.
#[derive(Clone, Debug)]
pub(crate) struct Claim {
    pub(crate) volume: Option<Box<str>>,
    pub(crate) one_pod_only: bool,
}

type Key = (Arc<str>, Box<str>);

/// Claims, volumes, and how many running Pods use each claim.
#[derive(Default)]
pub(crate) struct Volumes {
    claims: HashMap<Key, Claim>,
    volumes: HashMap<Box<str>, Option<NodeSelector>>,
    users: HashMap<Key, u32>,
}

impl Volumes {
    pub(crate) fn set_claim(
        &mut self,
        namespace: &Arc<str>,
        name: &str,
        view: Option<&VolumeClaimView>,
    ) {
        let key = (namespace.clone(), name.into());
        match view {
            Some(view) => {
                let volume = view.spec.volume_name.clone().filter(|v| !v.is_empty());
                let one_pod_only =
                    view.spec.access_modes.iter().any(|m| &**m == "ReadWriteOncePod");
                self.claims.insert(key, Claim { volume, one_pod_only });
            }
            None => {
                self.claims.remove(&key);
            }
        }
    }

    pub(crate) fn set_volume(&mut self, name: &str, view: Option<&PersistentVolumeView>) {
        match view {
            Some(view) => {
                let required = view.spec.node_affinity.as_ref().and_then(|a| a.required.as_ref());
                let selector = NodeSelector::new(&Default::default(), required);
                self.volumes.insert(name.into(), selector);
            }
            None => {
                self.volumes.remove(name);
            }
        }
    }

    pub(crate) fn claim(&self, pod: &Pod, name: &str) -> Option<&Claim> {
        self.claims.get(&(pod.id.namespace.clone(), Box::from(name)))
    }

    pub(crate) fn users(&self, pod: &Pod, name: &str) -> u32 {
        self.users.get(&(pod.id.namespace.clone(), Box::from(name))).copied().unwrap_or(0)
    }

    /// The node selector of a volume; `None` when there is no such volume, or no condition.
    pub(crate) fn selector(&self, volume: &str) -> Option<&NodeSelector> {
        self.volumes.get(volume)?.as_ref()
    }

    pub(crate) fn add_pod(&mut self, pod: &Pod) {
        for claim in &pod.claims {
            *self.users.entry((pod.id.namespace.clone(), claim.clone())).or_default() += 1;
        }
    }

    pub(crate) fn remove_pod(&mut self, pod: &Pod) {
        for claim in &pod.claims {
            let key = (pod.id.namespace.clone(), claim.clone());
            if let Some(users) = self.users.get_mut(&key) {
                *users -= 1;
                if *users == 0 {
                    self.users.remove(&key);
                }
            }
        }
    }
}
