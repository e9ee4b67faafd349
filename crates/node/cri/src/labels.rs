//! The labels and annotations by which a restarted kubelet recognizes its sandboxes and containers.

/// The label with a Pod's name.
pub const POD_NAME: &str = "io.kubernetes.pod.name";
/// The label with a Pod's namespace.
pub const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
/// The label with a Pod's UID.
pub const POD_UID: &str = "io.kubernetes.pod.uid";
/// The label with a container's name.
pub const CONTAINER: &str = "io.kubernetes.container.name";
/// The annotation with the hash of a container's definition.
pub const HASH: &str = "io.kubernetes.container.hash";
/// The annotation with the resources with which a container was created.
pub const RESOURCES: &str = "io.windlass.container.resources";
/// The annotation with the resources that all containers of the Pod shared when a container was created.
pub const SHARED_RESOURCES: &str = "io.windlass.pod.resources";
/// The annotation with the number of restarts of a container.
pub const RESTARTS: &str = "io.kubernetes.container.restartCount";
/// The annotation with the path of the termination message in a container.
pub const MESSAGE_PATH: &str = "io.kubernetes.container.terminationMessagePath";
/// The annotation with the policy for termination messages.
pub const MESSAGE_POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";
/// The annotation with a Pod's termination grace period in seconds.
pub const POD_GRACE: &str = "io.kubernetes.pod.terminationGracePeriod";
