use std::collections::HashSet;

use api_meta::{ErrorList, FieldError, GroupKind, GroupResource, Path, Status, Tree as _};
use serde_json::Value;

use crate::request::{AdmissionResult, Outcome, Plugin, Request};

/// Sets the pull policy of every container to `Always`, so that a Pod cannot use a private image that was pulled with
/// another Pod's secret.
pub(crate) struct AlwaysPullImages;

const LISTS: [&str; 3] = ["spec.initContainers", "spec.containers", "spec.ephemeralContainers"];
const VOLUMES: &str = "spec.volumes";
const ALWAYS: &str = "Always";

fn concerns(request: &Request<'_>) -> bool {
    (request.is(&GroupResource::PODS)
        || request.is_sub(&GroupResource::PODS, "ephemeralcontainers"))
        && (request.creates() || request.updates())
}

/// Returns the names and images of the containers that already run. Their pull policy is immutable.
fn running<'a>(request: &Request<'a>, list: &str) -> HashSet<(&'a str, &'a str)> {
    let old = request.old.filter(|_| request.updates());
    let containers = old.into_iter().flat_map(|old| old.items(list));
    containers.map(name_and_image).collect()
}

fn name_and_image(container: &Value) -> (&str, &str) {
    (container.text("name"), container.text("image"))
}

impl Plugin for AlwaysPullImages {
    fn mutates(&self, request: &Request<'_>) -> bool {
        concerns(request)
    }

    fn mutate(&self, request: &Request<'_>, pod: &mut Value) -> AdmissionResult {
        for list in LISTS {
            let running = running(request, list);
            for container in pod.items_mut(list) {
                if !running.contains(&name_and_image(container)) {
                    container.put(&["imagePullPolicy"], ALWAYS);
                }
            }
        }
        // Volumes are immutable, so only a create sets their pull policy.
        let volumes = pod.items_mut(VOLUMES).filter(|_| request.creates());
        for image in volumes.filter_map(|v| v.get_mut("image")).filter(|image| image.is_object()) {
            image.put(&["pullPolicy"], ALWAYS);
        }
        Ok(())
    }

    fn validate(&self, request: &Request<'_>, pod: &Value, _: &mut Outcome) -> AdmissionResult {
        if !concerns(request) {
            return Ok(());
        }
        let mut errors = ErrorList::new();
        for list in LISTS {
            let (at, running) = (Path::new(list), running(request, list));
            for (i, container) in pod.items(list).iter().enumerate() {
                let policy = container.text("imagePullPolicy");
                if policy != ALWAYS && !running.contains(&name_and_image(container)) {
                    let at = at.index(i).child("imagePullPolicy");
                    errors.push(FieldError::not_supported(&at, policy, &[ALWAYS]));
                }
            }
        }
        for (i, volume) in pod.items(VOLUMES).iter().enumerate().filter(|_| request.creates()) {
            let policy = volume.text("image.pullPolicy");
            if volume.has("image") && policy != ALWAYS {
                let at = Path::new("spec.volumes").index(i).child("image").child("pullPolicy");
                errors.push(FieldError::not_supported(&at, policy, &[ALWAYS]));
            }
        }
        if errors.is_empty() {
            return Ok(());
        }
        Err(Status::invalid(&GroupKind::new("", "Pod"), request.object_name(pod), &errors))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{Cluster, Try, pod};

    #[test]
    fn sets_policy_of_containers_and_volumes() {
        let cluster = Cluster::default();
        let spec = json!({"containers": [{"image": "a", "imagePullPolicy": "Never"}]});
        let made = Try::create(&cluster, &GroupResource::PODS)
            .admitted(&AlwaysPullImages, pod(spec.clone()));
        assert_eq!(made["spec"]["containers"][0]["imagePullPolicy"], "Always");
        let update = Try::update(&cluster, &GroupResource::PODS, pod(spec.clone()));
        assert_eq!(update.admitted(&AlwaysPullImages, pod(spec.clone()))["spec"], spec);
        let volumes = json!({"volumes": [{"name": "v", "image": {"reference": "a"}}]});
        let made =
            Try::create(&cluster, &GroupResource::PODS).admitted(&AlwaysPullImages, pod(volumes));
        assert_eq!(made["spec"]["volumes"][0]["image"]["pullPolicy"], "Always");
    }

    #[test]
    fn sets_policy_of_new_ephemeral_containers_only() {
        let cluster = Cluster::default();
        let old = json!({"containers": [{"name": "a", "image": "a", "imagePullPolicy": "Never"}]});
        let mut new = old.clone();
        new["ephemeralContainers"] = json!([{"name": "d", "image": "a"}]);
        let made = Try::update(&cluster, &GroupResource::PODS, pod(old.clone()))
            .sub("ephemeralcontainers")
            .admitted(&AlwaysPullImages, pod(new));
        assert_eq!(made["spec"]["containers"], old["containers"]);
        assert_eq!(made["spec"]["ephemeralContainers"][0]["imagePullPolicy"], "Always");
    }
}
