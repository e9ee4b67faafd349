//! The list of all controllers.

use crate::{
    attach_detach, autoscaler, binder, bootstrap_tokens, certificates, cluster_role,
    context::Context, cronjob, daemonset, deployment, device_taints, disruption, endpointslice,
    ephemeral, expander, garbage, job, load_balancer, local_volumes, namespace, node_ipam,
    node_lifecycle, node_ttl, pod_gc, policy_status, protection, quota, replicaset,
    resource_claims, resource_pools, root_ca, service_account, service_cidr, statefulset,
    storage_migration, token_secrets, trust_bundle, ttl,
};

/// A controller and its service account.
pub struct Controller {
    /// The name as upstream has it, used by `--controllers`.
    pub name: &'static str,
    /// The service account in kube-system that it writes as.
    pub account: &'static str,
    /// The resources that trigger it.
    pub watches: &'static [&'static str],
    /// The feature gate without which the controller does not run.
    pub gate: Option<&'static str>,
    pub(crate) start: fn(Context),
}

macro_rules! controllers {
    ($($name:literal as $account:literal on [$($watched:literal)*] $(if $gate:literal)? = $start:path;)*) => {
        &[$(Controller {
            name: $name,
            account: $account,
            watches: &[$($watched),*],
            gate: controllers!(@gate $($gate)?),
            start: $start,
        }),*]
    };
    (@gate) => { None };
    (@gate $gate:literal) => { Some($gate) };
}

static CONTROLLERS: &[Controller] = controllers! {
    "namespace-controller" as "namespace-controller" on ["namespaces"] = namespace::start;
    "serviceaccount-controller" as "service-account-controller" on ["namespaces" "serviceaccounts"]
        = service_account::start;
    // As upstream, it acts as the controller manager itself, because other controllers' accounts may need it.
    "serviceaccount-token-controller" as "system:kube-controller-manager" on ["secrets" "serviceaccounts"]
        = token_secrets::start;
    "legacy-serviceaccount-token-cleaner-controller" as "legacy-service-account-token-cleaner"
        on ["secrets" "serviceaccounts"] = token_secrets::cleaner::start;
    "root-ca-certificate-publisher-controller" as "root-ca-cert-publisher" on ["namespaces" "configmaps"]
        = root_ca::start;
    "replicaset-controller" as "replicaset-controller" on ["replicasets" "pods"] = replicaset::start;
    "replicationcontroller-controller" as "replication-controller" on ["replicationcontrollers" "pods"]
        = replicaset::start_replication;
    "daemonset-controller" as "daemon-set-controller"
        on ["daemonsets" "pods" "nodes" "controllerrevisions"] = daemonset::start;
    "statefulset-controller" as "statefulset-controller"
        on ["statefulsets" "pods" "persistentvolumeclaims" "controllerrevisions"] = statefulset::start;
    "job-controller" as "job-controller" on ["jobs" "pods"] = job::start;
    "cronjob-controller" as "cronjob-controller" on ["cronjobs" "jobs"] = cronjob::start;
    "ttl-after-finished-controller" as "ttl-after-finished-controller" on ["jobs"] = ttl::start;
    "deployment-controller" as "deployment-controller" on ["deployments" "replicasets" "pods"]
        = deployment::start;
    "endpointslice-controller" as "endpointslice-controller"
        on ["services" "endpointslices" "pods" "nodes"] = endpointslice::start;
    "endpointslice-mirroring-controller" as "endpointslicemirroring-controller"
        on ["endpoints" "services" "endpointslices"] = endpointslice::start_mirroring;
    "endpoints-controller" as "endpoint-controller" on ["services" "endpoints" "pods"]
        = endpointslice::start_endpoints;
    "garbage-collector-controller" as "generic-garbage-collector" on ["*"] = garbage::start;
    "resourcequota-controller" as "resourcequota-controller" on ["resourcequotas" "pods"] = quota::start;
    "disruption-controller" as "disruption-controller"
        on ["poddisruptionbudgets" "pods" "replicasets" "replicationcontrollers" "statefulsets" "deployments"]
        = disruption::start;
    "horizontal-pod-autoscaler-controller" as "horizontal-pod-autoscaler" on ["horizontalpodautoscalers"]
        = autoscaler::start;
    "persistentvolume-binder-controller" as "persistent-volume-binder"
        on ["persistentvolumeclaims" "persistentvolumes" "storageclasses" "pods"] = binder::start;
    "local-volume-provisioner-controller" as "local-volume-provisioner"
        on ["persistentvolumeclaims" "persistentvolumes" "storageclasses" "nodes"] = local_volumes::start;
    "persistentvolume-attach-detach-controller" as "attachdetach-controller"
        on ["volumeattachments" "pods" "nodes" "persistentvolumes" "persistentvolumeclaims" "csidrivers"]
        = attach_detach::start;
    "persistentvolume-expander-controller" as "expand-controller" on ["persistentvolumeclaims" "persistentvolumes"]
        = expander::start;
    "ephemeral-volume-controller" as "ephemeral-volume-controller"
        on ["pods" "persistentvolumeclaims"] = ephemeral::start;
    "persistentvolumeclaim-protection-controller" as "pvc-protection-controller"
        on ["persistentvolumeclaims" "pods"] = protection::start_claims;
    "persistentvolume-protection-controller" as "pv-protection-controller" on ["persistentvolumes"]
        = protection::start_volumes;
    "volumeattributesclass-protection-controller" as "volumeattributesclass-protection-controller"
        on ["volumeattributesclasses" "persistentvolumes" "persistentvolumeclaims"]
        = protection::start_attributes_classes;
    "podgroup-protection-controller" as "podgroup-protection-controller" on ["podgroups" "pods"]
        if "GenericWorkload" = protection::start_groups;
    "resourceclaim-controller" as "resource-claim-controller"
        on ["pods" "resourceclaims" "resourceclaimtemplates"] = resource_claims::start;
    "resourcepoolstatusrequest-controller" as "resourcepoolstatusrequest-controller"
        on ["resourcepoolstatusrequests" "resourceslices" "resourceclaims"] if "DRAResourcePoolStatus"
        = resource_pools::start;
    "device-taint-eviction-controller" as "device-taint-eviction-controller"
        on ["pods" "resourceclaims" "resourceslices"] = device_taints::start;
    "service-lb-controller" as "service-controller" on ["services" "nodes" "endpointslices"]
        = load_balancer::start;
    "service-cidr-controller" as "service-cidrs-controller" on ["servicecidrs" "services"] = service_cidr::start;
    "certificatesigningrequest-approving-controller" as "certificate-controller"
        on ["certificatesigningrequests"] = certificates::start_approving;
    "certificatesigningrequest-signing-controller" as "certificate-controller"
        on ["certificatesigningrequests"] = certificates::start_signing;
    "certificatesigningrequest-cleaner-controller" as "certificate-controller"
        on ["certificatesigningrequests"] = certificates::start_cleaning;
    "podcertificaterequest-cleaner-controller" as "podcertificaterequestcleaner"
        on ["podcertificaterequests"] if "PodCertificateRequest" = certificates::start_cleaning_pods;
    "bootstrap-signer-controller" as "bootstrap-signer" on ["secrets" "configmaps"] = bootstrap_tokens::start_signer;
    "token-cleaner-controller" as "token-cleaner" on ["secrets"] = bootstrap_tokens::start_cleaner;
    "node-lifecycle-controller" as "node-controller" on ["nodes" "leases" "pods"] = node_lifecycle::start;
    "taint-eviction-controller" as "node-controller" on ["pods" "nodes"] = node_lifecycle::start_eviction;
    "pod-garbage-collector-controller" as "pod-garbage-collector" on ["pods" "nodes"] = pod_gc::start;
    "clusterrole-aggregation-controller" as "clusterrole-aggregation-controller" on ["clusterroles"]
        = cluster_role::start;
    "validatingadmissionpolicy-status-controller" as "validatingadmissionpolicy-status-controller"
        on ["validatingadmissionpolicies"] = policy_status::start;
    "storage-version-migrator-controller" as "storage-version-migrator-controller"
        on ["storageversionmigrations"] if "StorageVersionMigrator" = storage_migration::start;
    "kube-apiserver-serving-clustertrustbundle-publisher-controller"
        as "kube-apiserver-serving-clustertrustbundle-publisher" on ["clustertrustbundles"] if "ClusterTrustBundle"
        = trust_bundle::start;
    "ttl-controller" as "ttl-controller" on ["nodes"] = node_ttl::start;
    "node-ipam-controller" as "node-controller" on ["nodes"] = node_ipam::start;
};

/// Returns all controllers.
pub fn registry() -> &'static [Controller] {
    CONTROLLERS
}
