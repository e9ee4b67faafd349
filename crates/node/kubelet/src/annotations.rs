//! The annotations of static Pods and their mirrors.

/// The annotation of a static Pod with its UID, a hash of its file.
pub(crate) const HASH: &str = "kubernetes.io/config.hash";
/// The annotation of a Pod with its source.
pub(crate) const SOURCE: &str = "kubernetes.io/config.source";
/// The annotation of a static Pod with the time at which a kubelet read the file.
pub(crate) const SEEN: &str = "kubernetes.io/config.seen";
/// The annotation of a mirror Pod with the UID of its static Pod.
pub(crate) const MIRROR: &str = "kubernetes.io/config.mirror";
