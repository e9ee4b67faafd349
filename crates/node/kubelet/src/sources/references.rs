//! The API objects that a Pod's spec refers to. A static Pod must refer to none: it runs without the API server, and
//! gives the author of a manifest no access to objects (`PreventStaticPodAPIReferences`).

use k8s_openapi::api::core::v1::{Container, PodSpec, Volume, VolumeProjection};

const ACCOUNTS: &str = "serviceaccounts";
const SECRETS: &str = "secrets";
const CONFIG_MAPS: &str = "configmaps";
const CLAIMS: &str = "persistentvolumeclaims";

/// Returns the resource of an API object that a Pod's spec refers to; `None` if it refers to no object.
pub(super) fn find(spec: &PodSpec) -> Option<&'static str> {
    let mut accounts = [&spec.service_account_name, &spec.service_account].into_iter().flatten();
    if accounts.any(|name| !name.is_empty()) {
        return Some(ACCOUNTS);
    }
    if spec.image_pull_secrets.iter().flatten().next().is_some() {
        return Some(SECRETS);
    }
    if spec.resource_claims.iter().flatten().next().is_some() {
        return Some("resourceclaims");
    }
    let mut containers = spec.init_containers.iter().flatten().chain(&spec.containers);
    containers.find_map(of_container).or_else(|| spec.volumes.iter().flatten().find_map(of_volume))
}

fn of_container(container: &Container) -> Option<&'static str> {
    let variables = || container.env.iter().flatten().filter_map(|one| one.value_from.as_ref());
    let sources = || container.env_from.iter().flatten();
    let has_secret = variables().any(|from| from.secret_key_ref.is_some())
        || sources().any(|from| from.secret_ref.is_some());
    let has_config_map = variables().any(|from| from.config_map_key_ref.is_some())
        || sources().any(|from| from.config_map_ref.is_some());
    has_secret.then_some(SECRETS).or(has_config_map.then_some(CONFIG_MAPS))
}

/// Returns the resource of a volume's object. Volumes of other types are not supported by this kubelet.
fn of_volume(volume: &Volume) -> Option<&'static str> {
    let csi = volume.csi.as_ref().and_then(|source| source.node_publish_secret_ref.as_ref());
    let iscsi = volume.iscsi.as_ref().and_then(|source| source.secret_ref.as_ref());
    if volume.secret.is_some() || csi.or(iscsi).is_some() {
        return Some(SECRETS);
    }
    if volume.config_map.is_some() {
        return Some(CONFIG_MAPS);
    }
    if volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some() {
        return Some(CLAIMS);
    }
    let projected = volume.projected.iter();
    projected.flat_map(|projected| projected.sources.iter().flatten()).find_map(of_projection)
}

fn of_projection(source: &VolumeProjection) -> Option<&'static str> {
    let objects = [
        (source.config_map.is_some(), CONFIG_MAPS),
        (source.secret.is_some(), SECRETS),
        (source.service_account_token.is_some(), ACCOUNTS),
        (source.cluster_trust_bundle.is_some(), "clustertrustbundles"),
        (source.pod_certificate.is_some(), "podcertificates"),
    ];
    objects.into_iter().find_map(|(is_used, resource)| is_used.then_some(resource))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn found(fields: Value) -> Option<&'static str> {
        let mut spec = json!({ "containers": [{ "name": "c" }] });
        spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        find(&serde_json::from_value(spec).unwrap())
    }

    #[test]
    fn finds_each_kind_of_object() {
        let env = |from: Value| {
            let env = json!([{ "name": "E", "valueFrom": from }]);
            json!({ "initContainers": [{ "name": "i", "env": env }] })
        };
        let all = |from: Value| json!({ "containers": [{ "name": "c", "envFrom": [from] }] });
        let volume = |source: Value| {
            let mut volume = json!({ "name": "v" });
            volume.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
            json!({ "volumes": [{ "name": "first", "emptyDir": {} }, volume] })
        };
        let projected = |source: Value| volume(json!({ "projected": { "sources": [source] } }));
        for (fields, resource) in [
            (json!({ "serviceAccountName": "a" }), ACCOUNTS),
            (json!({ "serviceAccount": "a" }), ACCOUNTS),
            (json!({ "imagePullSecrets": [{ "name": "s" }] }), SECRETS),
            (
                json!({ "resourceClaims": [{ "name": "r", "resourceClaimName": "r" }] }),
                "resourceclaims",
            ),
            (env(json!({ "secretKeyRef": { "name": "s", "key": "k" } })), SECRETS),
            (env(json!({ "configMapKeyRef": { "name": "s", "key": "k" } })), CONFIG_MAPS),
            (all(json!({ "secretRef": { "name": "s" } })), SECRETS),
            (all(json!({ "configMapRef": { "name": "s" } })), CONFIG_MAPS),
            (volume(json!({ "secret": { "secretName": "s" } })), SECRETS),
            (
                volume(
                    json!({ "csi": { "driver": "d", "nodePublishSecretRef": { "name": "s" } } }),
                ),
                SECRETS,
            ),
            (volume(json!({ "configMap": { "name": "m" } })), CONFIG_MAPS),
            (volume(json!({ "persistentVolumeClaim": { "claimName": "p" } })), CLAIMS),
            (volume(json!({ "ephemeral": {} })), CLAIMS),
            (projected(json!({ "secret": { "name": "s" } })), SECRETS),
            (projected(json!({ "configMap": { "name": "s" } })), CONFIG_MAPS),
            (projected(json!({ "serviceAccountToken": { "path": "t" } })), ACCOUNTS),
            (
                projected(json!({ "clusterTrustBundle": { "name": "b", "path": "p" } })),
                "clustertrustbundles",
            ),
            (
                projected(
                    json!({ "podCertificate": { "signerName": "a.b/c", "keyType": "ED25519" } }),
                ),
                "podcertificates",
            ),
        ] {
            assert_eq!(found(fields.clone()), Some(resource), "{fields}");
        }
    }

    #[test]
    fn finds_nothing_in_pod_that_needs_no_api_server() {
        let fields = json!({
            "serviceAccountName": "",
            "containers": [{ "name": "c", "env": [
                { "name": "A", "value": "1" },
                { "name": "B", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } },
            ] }],
            "volumes": [
                { "name": "a", "hostPath": { "path": "/etc" } },
                { "name": "b", "image": { "reference": "i" } },
                { "name": "c", "csi": { "driver": "d" } },
                { "name": "d", "projected": { "sources": [{ "downwardAPI": {} }] } },
            ],
        });
        assert_eq!(found(fields), None);
    }
}
