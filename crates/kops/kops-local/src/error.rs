//! The errors of cloud local.

use crate::names::REPAIR_AFTER;

/// An error of the machines of a cluster on this host.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Object(#[from] kops_store::Error),
    #[error(transparent)]
    Node(#[from] kops_node::Error),
    #[error(transparent)]
    Store(#[from] vfs::Error),
    #[error(transparent)]
    Core(#[from] kops_core::Error),
    #[error(transparent)]
    Parse(#[from] kops_api::Error),
    #[error(transparent)]
    Pki(#[from] pki::Error),
    #[error(transparent)]
    Machine(#[from] instances::Error),
    #[error(transparent)]
    Plan(#[from] bootstrap_core::Error),
    #[error(transparent)]
    Api(#[from] client::Error),
    #[error(transparent)]
    Kubeconfig(#[from] client::KubeconfigError),
    #[error(transparent)]
    Tls(#[from] serve::TlsError),
    #[error("the balancer's access to the cluster: {0}")]
    BalancerAccess(api_config::Error),
    #[error("no answer within {seconds} s")]
    Timeout { seconds: u64 },
    #[error("finding the running program: {0}")]
    Program(std::io::Error),
    #[error("{setting}: cloud local does not do this yet; remove it")]
    Unsupported { setting: String },
    #[error(
        "spec.subnets: {first} and {second} overlap: machines of cloud local share one network, in which an address \
         belongs to one subnet; give the subnets separate ranges"
    )]
    Subnets { first: String, second: String },
    #[error(
        "cloud {cloud} is not supported yet by this command, which needs the machines or the cloud's API: it works \
         with cloud local, and most commands with aws; on gce, use create cluster and update cluster --target=terraform"
    )]
    Cloud { cloud: &'static str },
    #[error(
        "metadata.annotations[{REPAIR_AFTER}] of instance group {group}: {value:?}: {cause}; set a duration such as \
         1m, or 0s for never"
    )]
    RepairAfter { group: String, value: String, cause: RepairAfterError },
    #[error(
        "control planes {removed} would end, but cloud local does not remove members of etcd: make another cluster, or \
         take the change back"
    )]
    ControlPlanes { removed: String },
    #[error(
        "spec.etcdClusters[*].etcdMembers: instance group {group:?} is not one of control planes; store that group \
         first, or remove the member"
    )]
    MemberGroup { group: String },
    #[error(
        "keyset {keyset}: {place} does not trust keypair {id}, which cannot be the primary yet; run kops update \
         cluster --yes and kops rolling-update cluster --yes first"
    )]
    KeypairUntrusted { keyset: String, id: String, place: String },
    #[error(
        "keyset {keyset}: {place} uses keypair {id}, which must stay trusted; run kops update cluster --yes and kops \
         rolling-update cluster --yes first"
    )]
    KeypairInUse { keyset: String, id: String, place: String },
    #[error(
        "keyset service-account: Pods of {place} may have tokens of the distrusted keypair for {minutes} minutes; \
         wait, and distrust the keypairs of the other keysets by their names"
    )]
    TokensInUse { place: String, minutes: u64 },
    #[error(
        "the keypairs of {place} are unknown, because its configuration is neither applied nor stored; run kops \
         update cluster --yes, wait until the machine has started, or replace it"
    )]
    UnknownKeys { place: String },
    #[error(
        "cluster {cluster:?} has machines of cloud local, so its cloud cannot become {cloud}; delete the cluster \
         first, or keep its label"
    )]
    CloudChanged { cluster: String, cloud: &'static str },
    #[error(
        "state store {url:?}: machines of cloud local cannot read it; name one as file:///path or s3://bucket/path"
    )]
    UnreadableStore { url: String },
    #[error(
        "the fleet's settings name no state store; run kops update cluster --yes to write them"
    )]
    MissingStore,
    #[error(
        "the fleet's {} names no store on a server ({url:?}); run kops update cluster --yes to write it",
        kops_node::SETTINGS_FILE
    )]
    StoreSettings { url: String },
}

/// The reason why the period before a repair is invalid.
#[derive(Debug, thiserror::Error)]
pub enum RepairAfterError {
    #[error(transparent)]
    Duration(#[from] api_meta::ParseDurationError),
    #[error("it is less than 30s")]
    Short,
}
