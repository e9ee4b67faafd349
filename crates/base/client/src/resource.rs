//! The group, version and paths of resources.

use std::borrow::Cow;

/// The REST mapping of a kind.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Resource {
    /// The API group; empty for the core group.
    pub group: Cow<'static, str>,
    /// The version, such as `v1`.
    pub version: Cow<'static, str>,
    /// The plural name in paths, such as `pods`.
    pub plural: Cow<'static, str>,
    /// The kind, such as `Pod`.
    pub kind: Cow<'static, str>,
    /// `true` if objects belong to a namespace.
    pub namespaced: bool,
}

macro_rules! resources {
    ($($name:ident $group:literal $version:literal $plural:literal $kind:literal $namespaced:literal;)*) => {
        impl Resource {
            $(pub const $name: Resource =
                Resource::constant($group, $version, $plural, $kind, $namespaced);)*
        }
    };
}

resources! {
    CONFIG_MAPS "" "v1" "configmaps" "ConfigMap" true;
    ENDPOINTS "" "v1" "endpoints" "Endpoints" true;
    EVENTS "" "v1" "events" "Event" true;
    LIMIT_RANGES "" "v1" "limitranges" "LimitRange" true;
    NAMESPACES "" "v1" "namespaces" "Namespace" false;
    NODES "" "v1" "nodes" "Node" false;
    PERSISTENT_VOLUMES "" "v1" "persistentvolumes" "PersistentVolume" false;
    PERSISTENT_VOLUME_CLAIMS "" "v1" "persistentvolumeclaims" "PersistentVolumeClaim" true;
    PODS "" "v1" "pods" "Pod" true;
    POD_TEMPLATES "" "v1" "podtemplates" "PodTemplate" true;
    REPLICATION_CONTROLLERS "" "v1" "replicationcontrollers" "ReplicationController" true;
    RESOURCE_QUOTAS "" "v1" "resourcequotas" "ResourceQuota" true;
    SECRETS "" "v1" "secrets" "Secret" true;
    SERVICES "" "v1" "services" "Service" true;
    SERVICE_ACCOUNTS "" "v1" "serviceaccounts" "ServiceAccount" true;
    CONTROLLER_REVISIONS "apps" "v1" "controllerrevisions" "ControllerRevision" true;
    DAEMON_SETS "apps" "v1" "daemonsets" "DaemonSet" true;
    DEPLOYMENTS "apps" "v1" "deployments" "Deployment" true;
    REPLICA_SETS "apps" "v1" "replicasets" "ReplicaSet" true;
    STATEFUL_SETS "apps" "v1" "statefulsets" "StatefulSet" true;
    HORIZONTAL_POD_AUTOSCALERS "autoscaling" "v2" "horizontalpodautoscalers" "HorizontalPodAutoscaler" true;
    CRON_JOBS "batch" "v1" "cronjobs" "CronJob" true;
    JOBS "batch" "v1" "jobs" "Job" true;
    LEASE_CANDIDATES "coordination.k8s.io" "v1beta1" "leasecandidates" "LeaseCandidate" true;
    LEASES "coordination.k8s.io" "v1" "leases" "Lease" true;
    ENDPOINT_SLICES "discovery.k8s.io" "v1" "endpointslices" "EndpointSlice" true;
    INGRESSES "networking.k8s.io" "v1" "ingresses" "Ingress" true;
    NETWORK_POLICIES "networking.k8s.io" "v1" "networkpolicies" "NetworkPolicy" true;
    POD_DISRUPTION_BUDGETS "policy" "v1" "poddisruptionbudgets" "PodDisruptionBudget" true;
    CLUSTER_ROLES "rbac.authorization.k8s.io" "v1" "clusterroles" "ClusterRole" false;
    CLUSTER_ROLE_BINDINGS "rbac.authorization.k8s.io" "v1" "clusterrolebindings" "ClusterRoleBinding" false;
    ROLES "rbac.authorization.k8s.io" "v1" "roles" "Role" true;
    ROLE_BINDINGS "rbac.authorization.k8s.io" "v1" "rolebindings" "RoleBinding" true;
    POD_GROUPS "scheduling.k8s.io" "v1alpha2" "podgroups" "PodGroup" true;
    PRIORITY_CLASSES "scheduling.k8s.io" "v1" "priorityclasses" "PriorityClass" false;
    RUNTIME_CLASSES "node.k8s.io" "v1" "runtimeclasses" "RuntimeClass" false;
    DEVICE_CLASSES "resource.k8s.io" "v1" "deviceclasses" "DeviceClass" false;
    RESOURCE_CLAIMS "resource.k8s.io" "v1" "resourceclaims" "ResourceClaim" true;
    RESOURCE_CLAIM_TEMPLATES "resource.k8s.io" "v1" "resourceclaimtemplates" "ResourceClaimTemplate" true;
    RESOURCE_SLICES "resource.k8s.io" "v1" "resourceslices" "ResourceSlice" false;
    STORAGE_CLASSES "storage.k8s.io" "v1" "storageclasses" "StorageClass" false;
    CSI_DRIVERS "storage.k8s.io" "v1" "csidrivers" "CSIDriver" false;
    CSI_STORAGE_CAPACITIES "storage.k8s.io" "v1" "csistoragecapacities" "CSIStorageCapacity" true;
    VOLUME_ATTACHMENTS "storage.k8s.io" "v1" "volumeattachments" "VolumeAttachment" false;
    CSI_NODES "storage.k8s.io" "v1" "csinodes" "CSINode" false;
    CERTIFICATE_SIGNING_REQUESTS "certificates.k8s.io" "v1"
        "certificatesigningrequests" "CertificateSigningRequest" false;
    CLUSTER_TRUST_BUNDLES "certificates.k8s.io" "v1beta1"
        "clustertrustbundles" "ClusterTrustBundle" false;
    POD_CERTIFICATE_REQUESTS "certificates.k8s.io" "v1beta1"
        "podcertificaterequests" "PodCertificateRequest" true;
    STORAGE_VERSION_MIGRATIONS "storagemigration.k8s.io" "v1beta1"
        "storageversionmigrations" "StorageVersionMigration" false;
    RESOURCE_POOL_STATUS_REQUESTS "resource.k8s.io" "v1alpha3"
        "resourcepoolstatusrequests" "ResourcePoolStatusRequest" false;
    DEVICE_TAINT_RULES "resource.k8s.io" "v1beta2" "devicetaintrules" "DeviceTaintRule" false;
    VALIDATING_ADMISSION_POLICIES "admissionregistration.k8s.io" "v1"
        "validatingadmissionpolicies" "ValidatingAdmissionPolicy" false;
    TOKEN_REVIEWS "authentication.k8s.io" "v1" "tokenreviews" "TokenReview" false;
    SUBJECT_ACCESS_REVIEWS "authorization.k8s.io" "v1" "subjectaccessreviews" "SubjectAccessReview" false;
    CUSTOM_RESOURCE_DEFINITIONS "apiextensions.k8s.io" "v1"
        "customresourcedefinitions" "CustomResourceDefinition" false;
}

impl Resource {
    /// Creates a resource at compile time.
    pub const fn constant(
        group: &'static str,
        version: &'static str,
        plural: &'static str,
        kind: &'static str,
        namespaced: bool,
    ) -> Self {
        Self {
            group: Cow::Borrowed(group),
            version: Cow::Borrowed(version),
            plural: Cow::Borrowed(plural),
            kind: Cow::Borrowed(kind),
            namespaced,
        }
    }

    /// Returns the apiVersion, such as `v1` or `apps/v1`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_string()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// Returns the path of the collection in one namespace, or in all if `namespace` is empty.
    pub fn collection(&self, namespace: &str) -> String {
        let root = if self.group.is_empty() { "/api/" } else { "/apis/" };
        let mut path = format!("{root}{}", self.api_version());
        if self.namespaced && !namespace.is_empty() {
            path.push_str("/namespaces/");
            path.push_str(namespace);
        }
        path.push('/');
        path.push_str(&self.plural);
        path
    }

    /// Returns the path of an object, or of its subresource unless `subresource` is empty.
    pub fn object(&self, namespace: &str, name: &str, subresource: &str) -> String {
        // Some kinds, such as PodDisruptionBudget, allow names with characters such as `?`.
        let name = api_meta::percent_encode(name, b"-._~:");
        let mut path = format!("{}/{name}", self.collection(namespace));
        if !subresource.is_empty() {
            path.push('/');
            path.push_str(subresource);
        }
        path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builds_paths_from_group_and_scope() {
        assert_eq!(
            Resource::PODS.object("kube-system", "dns", "log"),
            "/api/v1/namespaces/kube-system/pods/dns/log"
        );
        assert_eq!(Resource::PODS.collection(""), "/api/v1/pods");
        assert_eq!(Resource::NODES.object("", "n1", "status"), "/api/v1/nodes/n1/status");
        assert_eq!(
            Resource::CLUSTER_ROLES.object("", "system:a?b#c d", ""),
            "/apis/rbac.authorization.k8s.io/v1/clusterroles/system:a%3Fb%23c%20d"
        );
        assert_eq!(
            Resource::LEASES.collection("x"),
            "/apis/coordination.k8s.io/v1/namespaces/x/leases"
        );
    }
}
