//! The resources that running containers were resized to. The runtime only knows those of their creation.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{PodStatus, ResourceRequirements};
use pod_core::Container;

/// The resources that a running container was resized to.
pub(super) struct Resized {
    pub(super) own: Option<ResourceRequirements>,
    /// The resources that all containers of the Pod shared then.
    pub(super) shared: Option<ResourceRequirements>,
}

impl Resized {
    /// Returns the resources by container ID that an earlier kubelet reported.
    pub(super) fn of_status(status: &PodStatus) -> BTreeMap<String, Self> {
        let lists = [&status.init_container_statuses, &status.container_statuses];
        let all = lists.into_iter().flatten().flatten();
        all.filter_map(|container| {
            let (_, id) = container.container_id.as_ref()?.split_once("://")?;
            let own = container.resources.clone();
            Some((id.to_owned(), Self { own, shared: status.resources.clone() }))
        })
        .collect()
    }

    /// Corrects what the runtime knows.
    pub(super) fn correct(&self, container: &mut Container) {
        if self.own.is_some() {
            container.resources.clone_from(&self.own);
        }
        if self.shared.is_some() {
            container.shared.clone_from(&self.shared);
        }
    }
}
