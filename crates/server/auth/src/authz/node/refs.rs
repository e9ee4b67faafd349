//! Extracts the references of Pods and PersistentVolumes.

use std::collections::BTreeSet;

use api_meta::Tree as _;
use serde_json::Value;

/// An object that a node may need.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Object {
    Secret(String, String),
    ConfigMap(String, String),
    Claim(String, String),
    ResourceClaim(String, String),
    ServiceAccount(String, String),
    Pod(String, String),
    Volume(String),
    VolumeAttachment(String),
}

macro_rules! constructors {
    ($($function:ident $variant:ident)*) => {
        impl Object {
            $(pub(super) fn $function(namespace: &str, name: &str) -> Self {
                Self::$variant(namespace.to_owned(), name.to_owned())
            })*
        }
    };
}

constructors! {
    secret Secret
    config_map ConfigMap
    claim Claim
    resource_claim ResourceClaim
    service_account ServiceAccount
    pod Pod
}

/// The references of a Pod that is bound to a node.
pub(super) struct Refs {
    pub(super) node: String,
    pub(super) objects: Vec<Object>,
}

/// The volume sources of a Pod with a Secret, and the path of the Secret's name.
pub(super) const SECRET_SOURCES: [(&str, &str); 10] = [
    ("secret", "secretName"),
    ("azureFile", "secretName"),
    ("cephfs", "secretRef.name"),
    ("csi", "nodePublishSecretRef.name"),
    ("flexVolume", "secretRef.name"),
    ("iscsi", "secretRef.name"),
    ("rbd", "secretRef.name"),
    ("scaleIO", "secretRef.name"),
    ("storageos", "secretRef.name"),
    ("cinder", "secretRef.name"),
];

/// The fields of a Pod that this authorizer reads, as dotted paths through lists. Notifications of changes need no
/// other fields, which saves decoding.
pub const POD_MEMBERS: [&str; 29] = [
    "metadata.annotations",
    "spec.nodeName",
    "spec.serviceAccountName",
    "spec.imagePullSecrets",
    "spec.initContainers.env.valueFrom",
    "spec.initContainers.envFrom",
    "spec.containers.env.valueFrom",
    "spec.containers.envFrom",
    "spec.ephemeralContainers.env.valueFrom",
    "spec.ephemeralContainers.envFrom",
    "spec.volumes.name",
    "spec.volumes.secret.secretName",
    "spec.volumes.azureFile.secretName",
    "spec.volumes.cephfs.secretRef.name",
    "spec.volumes.csi.nodePublishSecretRef.name",
    "spec.volumes.flexVolume.secretRef.name",
    "spec.volumes.iscsi.secretRef.name",
    "spec.volumes.rbd.secretRef.name",
    "spec.volumes.scaleIO.secretRef.name",
    "spec.volumes.storageos.secretRef.name",
    "spec.volumes.cinder.secretRef.name",
    "spec.volumes.configMap.name",
    "spec.volumes.persistentVolumeClaim.claimName",
    "spec.volumes.ephemeral",
    "spec.volumes.projected.sources.secret.name",
    "spec.volumes.projected.sources.configMap.name",
    "spec.resourceClaims",
    "status.resourceClaimStatuses",
    "status.extendedResourceClaimStatus",
];

const MIRROR: &[&str] = &["metadata", "annotations", "kubernetes.io/config.mirror"];

/// Returns the references of a Pod, or `None` if it is bound to no node.
pub(super) fn pod_refs(namespace: &str, name: &str, pod: &Value) -> Option<Refs> {
    let node = pod.opt_text("spec.nodeName")?.to_owned();
    let mut objects = vec![Object::pod(namespace, name)];
    // A mirror Pod is created by the node itself, so it gives no access.
    if !pod.has(MIRROR) {
        let spec = &pod["spec"];
        objects.extend(
            spec.opt_text("serviceAccountName")
                .map(|name| Object::service_account(namespace, name)),
        );
        content_refs(spec, namespace, name, &mut objects);
        let status = &pod["status"];
        let claims =
            spec.items("resourceClaims").iter().chain(status.items("resourceClaimStatuses"));
        let claims = claims.chain([&status["extendedResourceClaimStatus"]]);
        objects.extend(claims.filter_map(|c| {
            Some(Object::resource_claim(namespace, c.opt_text("resourceClaimName")?))
        }));
    }
    objects.sort_unstable();
    objects.dedup();
    Some(Refs { node, objects })
}

/// Returns the names of the Secrets that a Pod uses.
pub fn secrets_of_pod(pod: &Value) -> BTreeSet<String> {
    let mut objects = Vec::new();
    content_refs(&pod["spec"], "", "", &mut objects);
    let secret = |object| match object {
        Object::Secret(_, name) => Some(name),
        _ => None,
    };
    objects.into_iter().filter_map(secret).collect()
}

/// Adds the objects from which images are pulled, and containers and volumes are filled.
fn content_refs(spec: &Value, namespace: &str, pod: &str, objects: &mut Vec<Object>) {
    let pulls = spec.items("imagePullSecrets").iter();
    objects.extend(pulls.filter_map(|r| Some(Object::secret(namespace, r.opt_text("name")?))));
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        let containers = spec.items(list).iter();
        containers.for_each(|container| container_refs(container, namespace, objects));
    }
    let volumes = spec.items("volumes").iter();
    volumes.for_each(|volume| source_refs(volume, namespace, pod, objects));
}

fn container_refs(container: &Value, namespace: &str, objects: &mut Vec<Object>) {
    for variable in container.items("env") {
        let from = &variable["valueFrom"];
        objects
            .extend(from.opt_text("secretKeyRef.name").map(|name| Object::secret(namespace, name)));
        objects.extend(
            from.opt_text("configMapKeyRef.name").map(|name| Object::config_map(namespace, name)),
        );
    }
    for from in container.items("envFrom") {
        objects.extend(from.opt_text("secretRef.name").map(|name| Object::secret(namespace, name)));
        objects.extend(
            from.opt_text("configMapRef.name").map(|name| Object::config_map(namespace, name)),
        );
    }
}

fn source_refs(volume: &Value, namespace: &str, pod: &str, objects: &mut Vec<Object>) {
    for (source, way) in SECRET_SOURCES {
        objects.extend(volume[source].opt_text(way).map(|name| Object::secret(namespace, name)));
    }
    objects
        .extend(volume.opt_text("configMap.name").map(|name| Object::config_map(namespace, name)));
    objects.extend(
        volume
            .opt_text("persistentVolumeClaim.claimName")
            .map(|name| Object::claim(namespace, name)),
    );
    if volume.get("ephemeral").is_some_and(|source| !source.is_null()) {
        let name = volume.opt_text("name").unwrap_or("");
        objects.push(Object::claim(namespace, &format!("{pod}-{name}")));
    }
    for source in volume["projected"].items("sources") {
        objects.extend(source.opt_text("secret.name").map(|name| Object::secret(namespace, name)));
        objects.extend(
            source.opt_text("configMap.name").map(|name| Object::config_map(namespace, name)),
        );
    }
}

/// Returns the claim that a volume is bound to and the Secrets for mounting it, or `None` for an unbound volume.
pub(super) fn volume_refs(volume: &Value) -> Option<(Object, Vec<Object>)> {
    let spec = &volume["spec"];
    let namespace = spec.opt_text("claimRef.namespace")?;
    let claim = Object::claim(namespace, spec.opt_text("claimRef.name")?);
    let named = ["cephfs", "flexVolume", "iscsi", "rbd", "scaleIO", "storageos", "cinder"];
    let of_csi = ["nodePublishSecretRef", "nodeStageSecretRef", "nodeExpandSecretRef"];
    let references =
        named.iter().map(|s| &spec[s]["secretRef"]).chain(of_csi.iter().map(|r| &spec["csi"][r]));
    let mut secrets: Vec<Object> = references
        .filter_map(|r| {
            Some(Object::secret(r.opt_text("namespace").unwrap_or(namespace), r.opt_text("name")?))
        })
        .collect();
    if let Some(name) = spec.opt_text("azureFile.secretName") {
        secrets.push(Object::secret(
            spec.opt_text("azureFile.secretNamespace").unwrap_or(namespace),
            name,
        ));
    }
    Some((claim, secrets))
}
