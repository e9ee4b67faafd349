//! The errors of the machines' programs.

use kops_store::{ETCD, IDENTITY_CA};

use crate::systemd_error::SystemdError;

/// An error of a program of a machine.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Object(#[from] kops_store::Error),
    #[error(transparent)]
    Store(#[from] vfs::Error),
    #[error(transparent)]
    Parse(#[from] kops_api::Error),
    #[error(transparent)]
    Pki(#[from] pki::Error),
    #[error(transparent)]
    Machine(#[from] instances::Error),
    #[error(transparent)]
    Bootstrap(#[from] bootstrap::Error),
    #[error(transparent)]
    Plan(#[from] bootstrap_core::Error),
    #[error(transparent)]
    Config(#[from] api_config::Error),
    #[error(transparent)]
    Api(#[from] client::Error),
    #[error(transparent)]
    Kubeconfig(#[from] client::KubeconfigError),
    #[error(transparent)]
    ClientTls(#[from] client::TlsError),
    #[error(transparent)]
    ServerTls(#[from] serve::TlsError),
    #[error(transparent)]
    ClientAuthority(#[from] pki::ClientError),
    #[error("writing the output: {0}")]
    Output(#[from] std::io::Error),
    #[error("reading {path}: {source}")]
    Settings { path: String, source: serde_json::Error },
    #[error("{name} is missing; run kops update cluster --yes to write it")]
    Missing { name: String },
    #[error("{name} is not UTF-8: {source}")]
    Encoding { name: String, source: std::string::FromUtf8Error },
    #[error("machines of cloud {0:?} are not set up here yet")]
    Cloud(String),
    #[error(
        "the node configuration differs from the one that this machine was created for (its hash does not match); if \
         the cluster was updated since, replace the machine"
    )]
    NodeConfig,
    #[error("asset {url}: only files of this machine are supported yet")]
    AssetUrl { url: String },
    #[error("asset {url} differs from the configuration: its hash does not match")]
    AssetHash { url: String },
    #[error("file asset {path}: {source}")]
    FileAsset { path: String, source: base64::DecodeError },
    #[error("file asset {path}: its mode {mode:?}: {source}")]
    FileMode { path: String, mode: String, source: std::num::ParseIntError },
    #[error("containerd did not start in time; see /var/log/containerd.log of the machine")]
    Containerd,
    #[error("etcd is not installed here; install it (Debian: apt-get install etcd-server)")]
    MissingEtcd,
    #[error(
        "machines need programs of this host that are not installed: {}; install them (Debian: apt-get install \
         containerd runc etcd-server e2fsprogs mount util-linux)",
        .programs.join(", ")
    )]
    MissingPrograms { programs: Vec<&'static str> },
    #[error(
        "etcd wrote no data within {seconds} s; its log says why (/var/log/pods of the machine), and so does \
         kubelet.log"
    )]
    EtcdStart { seconds: u64 },
    #[error("the etcd member cannot join: the boot configuration names no other member")]
    NoOtherMembers,
    #[error("the manifest of channels uses upstream's image, which this machine cannot pull yet")]
    ChannelsImage,
    #[error("etcd's volume {volume}: {reason}")]
    Volume { volume: String, reason: String },
    #[error(
        "the machine has no volume of etcd cluster {etcd}; run kops update cluster --yes, and replace the machine"
    )]
    MissingVolume { etcd: String },
    #[error(
        "machines run the etcd clusters main and events only, not {name:?}; remove it from spec.etcdClusters"
    )]
    EtcdCluster { name: String },
    #[error(
        "etcd cluster {name:?} cannot be restored, because machines restore {ETCD} only; name the backups of {ETCD} by \
         --backup-store"
    )]
    RestoredCluster { name: String },
    #[error("volume {id}: {source}")]
    VolumeTags { id: String, source: kops_core::volumes::TagError },
    #[error(transparent)]
    Program(#[from] sys::ProgramError),
    #[error(transparent)]
    Systemd(#[from] SystemdError),
    #[error(transparent)]
    Kernel(#[from] sys::Error),
    #[error("{path} does not name the owner of the volume; move the volume away")]
    VolumeOwner { path: String },
    #[error("the boot configuration names no server for the node configuration")]
    ConfigServer,
    #[error("kops-controller's answer is not JSON ({0}); check that it is of this release")]
    ControllerJson(serde_json::Error),
    #[error(
        "kops-controller's answer lacks the configuration or the certificate; check that it is of this release"
    )]
    ControllerResponse,
    #[error(
        "kops-controller's answer has a secret that is not base64 ({0}); check that it is of this release"
    )]
    NodeSecret(base64::DecodeError),
    #[error(
        "the secret encryptionconfig differs from the one that this machine was created for (its hash does not match); \
         replace the machine with kops rolling-update cluster"
    )]
    EncryptionConfig,
    #[error(transparent)]
    Core(#[from] kops_core::Error),
    #[error(transparent)]
    ServiceAccount(#[from] client::ServiceAccountError),
    #[error(
        "server.pki is missing in the settings: machines of cloud {cloud:?} can prove their identity only by the keys \
         of Hosts"
    )]
    Proof { cloud: String },
    #[error("{IDENTITY_CA} of the state store is missing; kops update cluster --yes writes it")]
    IdentityCa,
    #[error("{name} of the state store is missing")]
    Manifest { name: String },
    #[error("{channel} is not a list of add-ons: its kind is {kind:?}")]
    Channel { channel: String, kind: String },
    #[error(
        "add-on {addon}: the label selector {selector:?} of its prune rules also selects other objects; it must \
         contain addon.kops.k8s.io/name={addon}"
    )]
    PruneSelector { addon: String, selector: String },
    #[error(
        "the manifest {manifest} differs from the one that the channel names: its hash does not match"
    )]
    ManifestHash { manifest: String },
    #[error("{field} of etcd cluster {ETCD}: {value:?}: {source}")]
    Period { field: String, value: String, source: api_meta::ParseDurationError },
}
