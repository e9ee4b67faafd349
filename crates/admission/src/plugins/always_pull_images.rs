use api_meta::{FieldError, GroupKind, GroupResource, Path, Status};
use serde_json::Value;

use crate::{
    Outcome, Plugin, Request,
    tree::{items, items_mut, text},
};

/// Makes every container pull its image, so that nobody uses an image that only another's secret could fetch.
pub(crate) struct AlwaysPullImages;

const LISTS: [&str; 3] = ["/spec/initContainers", "/spec/containers", "/spec/ephemeralContainers"];

fn concerns(request: &Request<'_>) -> bool {
    (request.is(&GroupResource::PODS)
        || request.is_sub(&GroupResource::PODS, "ephemeralcontainers"))
        && (request.creates() || request.updates())
}

/// An update that changes no image is let be: the policy of what runs cannot be changed.
fn same_images(request: &Request<'_>, pod: &Value) -> bool {
    let images = |pod| {
        LISTS
            .iter()
            .flat_map(|list| items(pod, list))
            .map(|c| text(c, "/image"))
            .collect::<Vec<_>>()
    };
    request.updates() && request.old.is_some_and(|old| images(old) == images(pod))
}

impl Plugin for AlwaysPullImages {
    fn mutate(
        &self,
        request: &Request<'_>,
        pod: &mut Value,
        _: &mut Outcome,
    ) -> Result<(), Status> {
        if concerns(request) && !same_images(request, pod) {
            for list in LISTS {
                items_mut(pod, list)
                    .for_each(|container| container["imagePullPolicy"] = "Always".into());
            }
        }
        Ok(())
    }

    fn validate(&self, request: &Request<'_>, pod: &Value, _: &mut Outcome) -> Result<(), Status> {
        if !concerns(request) || same_images(request, pod) {
            return Ok(());
        }
        let mut errors = Vec::new();
        for list in LISTS {
            for (i, container) in items(pod, list).enumerate() {
                let policy = text(container, "/imagePullPolicy");
                if policy != "Always" {
                    let at =
                        Path::new(&list[1..].replace('/', ".")).index(i).child("imagePullPolicy");
                    errors.push(FieldError::not_supported(&at, policy, &["Always"]));
                }
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
    fn pulls_always() {
        let cluster = Cluster::default();
        let spec = json!({"containers": [{"image": "a", "imagePullPolicy": "Never"}]});
        let made = Try::create(&cluster, &GroupResource::PODS)
            .admitted(&AlwaysPullImages, pod(spec.clone()));
        assert_eq!(made["spec"]["containers"][0]["imagePullPolicy"], "Always");
        let update = Try::update(&cluster, &GroupResource::PODS, pod(spec.clone()));
        assert_eq!(update.admitted(&AlwaysPullImages, pod(spec.clone()))["spec"], spec);
    }
}
