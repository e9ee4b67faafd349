//! The errors of volumes. Those of claims and CSI drivers are in this file too, because each contains others.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use api_meta::go_quote;
use kubelet_objects::ObjectsError;

use crate::{operations::OperationError, program::VolumeProgramError, space::SpaceError};

/// The error of a volume.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Objects(#[from] ObjectsError),
    #[error("{kind} \"{name}\" not found")]
    Missing { kind: &'static str, name: String },
    #[error(transparent)]
    Files(#[from] pod_core::files::FilesError),
    #[error(transparent)]
    Space(#[from] SpaceError),
    #[error(transparent)]
    HugePages(#[from] pod_core::huge_pages::MediumError),
    #[error(transparent)]
    Mount(#[from] sys::Error),
    #[error("{operation} {}: {source}", path.display())]
    File { operation: &'static str, path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Operation(#[from] OperationError),
    #[error("hostPath type check failed: {} is not a {expected}", path.display())]
    HostPath { path: PathBuf, expected: String },
    #[error(transparent)]
    Claim(#[from] ClaimError),
    #[error(transparent)]
    Csi(#[from] Box<CsiError>),
    #[error(transparent)]
    Program(Box<VolumeProgramError>),
    #[error("nfs.server {0:?}: it must be a host name or an address")]
    NfsServer(String),
    #[error("nfs.path {0:?}: it must be an absolute path")]
    NfsPath(String),
    #[error("iscsi.{field} {value:?}: it must be {expected}")]
    Iscsi { field: &'static str, value: String, expected: &'static str },
    #[error("iscsiadm has left no record of the target, so its CHAP credentials cannot be set")]
    IscsiRecord,
    #[error("the Secret's key {0:?} is empty or has more than one line; CHAP credentials have one")]
    IscsiSecret(String),
    #[error("the disk has not appeared at {} within 10 s of the login; check its LUN", .0.display())]
    IscsiDevice(PathBuf),
    #[error(transparent)]
    TrustBundle(#[from] TrustBundleError),
    #[error(transparent)]
    Certificate(Box<CertificateError>),
    #[error("volumes of this type are not supported by this kubelet")]
    Unsupported,
}

/// The error of the trust anchors in a projected volume.
#[derive(Debug, thiserror::Error)]
pub enum TrustBundleError {
    #[error("combination of signerName and labelSelector matched zero ClusterTrustBundles")]
    NoMatch,
    #[error("decode the labelSelector of a ClusterTrustBundle source: {0}")]
    Decode(serde_json::Error),
    #[error("read the labelSelector of a ClusterTrustBundle source: {0}")]
    Selector(api_meta::SelectorError),
    #[error("read the PEM text of a ClusterTrustBundle: {0}")]
    Pem(pki::Error),
}

impl From<VolumeProgramError> for Error {
    fn from(error: VolumeProgramError) -> Self {
        Self::Program(Box::new(error))
    }
}

impl Error {
    pub(crate) fn file(
        operation: &'static str,
        path: &Path,
    ) -> impl FnOnce(std::io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self::File { operation, path, source }
    }
}

/// The error of a volume that could not be mounted.
#[derive(Debug, thiserror::Error)]
#[error("{}", self.text())]
pub struct MountError {
    pub(crate) volume: String,
    pub(crate) source: Error,
}

impl MountError {
    /// Returns the failed operation, as upstream names it, and the volume's name.
    fn operation(&self) -> (Option<&'static str>, &str) {
        match &self.source {
            Error::Csi(failed) => (failed.step.name(), &failed.volume),
            _ => (Some("MountVolume.SetUp"), &self.volume),
        }
    }

    fn text(&self) -> String {
        match self.operation() {
            (Some(operation), volume) => {
                format!("{operation} failed for volume \"{volume}\" : {}", self.source)
            }
            (None, _) => self.source.to_string(),
        }
    }

    /// Returns the reason of the Event about the error.
    pub fn reason(&self) -> &'static str {
        match &self.source {
            Error::Csi(failed) => failed.step.reason(),
            _ => "FailedMount",
        }
    }
}

/// The error of a claim that the Pod cannot use, or of its volume.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    #[error("persistentvolumeclaim \"{0}\" not found")]
    Missing(String),
    #[error("PersistentVolumeClaim is not bound: \"{0}\"")]
    Unbound(String),
    #[error("PVC is being deleted: \"{0}\"")]
    Deleting(String),
    #[error("PVC {claim} was not created for pod {pod} (pod is not owner)")]
    NotOwner { claim: String, pod: String },
    #[error("persistentvolume \"{volume}\" is not bound to PersistentVolumeClaim \"{claim}\"")]
    NotItsVolume { volume: String, claim: String },
    #[error("PersistentVolume \"{0}\" is for other nodes: no matching NodeSelectorTerms")]
    OtherNode(String),
    #[error(
        "PersistentVolume \"{0}\" is a block volume, which this kubelet supports only with local and CSI volumes"
    )]
    Block(String),
    #[error("PersistentVolume \"{volume}\" has fsType {fs_type:?}: the kubelet creates only ext4")]
    FileSystem { volume: String, fs_type: String },
    #[error(
        "PersistentVolume \"{0}\" is of a type that this kubelet does not support: use hostPath, local, nfs, iscsi or \
         csi"
    )]
    Type(String),
}

/// The step that failed, as upstream names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VolumeStep {
    /// Waiting for the volume, which is not an operation upstream.
    Wait,
    MountDevice,
    SetUp,
    MapDevice,
    MapPod,
    Expand,
}

impl VolumeStep {
    pub(crate) fn publish(block: bool) -> Self {
        if block { Self::MapPod } else { Self::SetUp }
    }

    pub(crate) fn stage(block: bool) -> Self {
        if block { Self::MapDevice } else { Self::MountDevice }
    }

    pub(crate) fn name(self) -> Option<&'static str> {
        match self {
            Self::Wait => None,
            Self::MountDevice => Some("MountVolume.MountDevice"),
            Self::SetUp => Some("MountVolume.SetUp"),
            Self::MapDevice => Some("MapVolume.SetUpDevice"),
            Self::MapPod => Some("MapVolume.MapPodDevice"),
            Self::Expand => Some("NodeExpandVolume.NodeExpandVolume"),
        }
    }

    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::Wait | Self::MountDevice | Self::SetUp => "FailedMount",
            Self::MapDevice | Self::MapPod => "FailedMapVolume",
            Self::Expand => "VolumeResizeFailed",
        }
    }
}

/// The error of mounting or unmounting a driver's volume.
#[derive(Debug, thiserror::Error)]
#[error("{cause}")]
pub struct CsiError {
    /// The step that failed.
    pub(crate) step: VolumeStep,
    /// The PersistentVolume's name, or the volume's name in the Pod.
    pub(crate) volume: String,
    pub(crate) cause: Cause,
}

/// The cause of a CSI error.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Cause {
    #[error(
        "kubernetes.io/csi: {caller} failed to get CSI client: driver name {driver} not found in the list of \
         registered CSI drivers"
    )]
    NoDriver { caller: &'static str, driver: String },
    #[error(
        "kubernetes.io/csi: driver {driver} has had no free slot for {waited:?}; check whether it is healthy"
    )]
    Busy { driver: String, waited: Duration },
    #[error(
        "kubernetes.io/csi: mounter.SetupAt failed to check volume lifecycle mode: volume mode {mode:?} not \
         supported by driver {driver} ({declared})"
    )]
    Lifecycle { mode: &'static str, driver: String, declared: String },
    #[error(
        "Unable to attach or mount volumes: unmounted volumes=[{0}], unattached volumes=[{0}], failed to process \
         volumes=[]: context deadline exceeded"
    )]
    NotAttached(String),
    #[error("volume uses the ReadWriteOncePod access mode and is already in use by another pod")]
    InUse,
    #[error("kubernetes.io/csi: volume attachment {0} is gone, or the volume is not attached")]
    Attachment(String),
    #[error("fetching {kind} {namespace}/{name} failed: secrets {name:?} not found")]
    Secret { kind: &'static str, namespace: String, name: String },
    #[error(transparent)]
    Driver(#[from] csi::Error),
    #[error(transparent)]
    Own(#[from] Box<Error>),
    #[error(transparent)]
    Api(#[from] client::Error),
}

impl From<Error> for Cause {
    fn from(error: Error) -> Self {
        Self::Own(Box::new(error))
    }
}

impl From<sys::Error> for Cause {
    fn from(error: sys::Error) -> Self {
        Error::from(error).into()
    }
}

impl From<ObjectsError> for Cause {
    fn from(error: ObjectsError) -> Self {
        Error::from(error).into()
    }
}

/// The error of a Pod's certificate, in upstream's words if upstream has it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CertificateError {
    #[error("credential bundle is not issued yet")]
    NotIssued,
    #[error(
        "PodCertificateRequest was permanently {outcome}: reason={} message={}",
        go_quote(reason),
        go_quote(message)
    )]
    Refused { outcome: &'static str, reason: String, message: String },
    #[error(
        "the certificate chain of PodCertificateRequest {name} is rejected: {cause}; the signer must mend it, and the \
         Pod be created again"
    )]
    Chain { name: String, cause: String },
    #[error("keyType {0:?} of a podCertificate source is not supported by this kubelet")]
    KeyType(String),
    #[error("the key of a podCertificate source cannot be made: {0}")]
    Key(String),
    #[error("the Node object of this node has not been read yet")]
    Node,
    #[error(
        "podCertificate sources need the feature gate PodCertificateRequest, which is off on this node"
    )]
    Off,
}

impl From<CertificateError> for Error {
    fn from(error: CertificateError) -> Self {
        Self::Certificate(Box::new(error))
    }
}
