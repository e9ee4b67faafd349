//! The image of each component.

use api_config::kubeadm::ClusterConfiguration;

use crate::constants::{
    API_SERVER, CONTROLLER_MANAGER, COREDNS_VERSION, DEFAULT_REPOSITORY, ETCD_VERSION,
    OWN_REPOSITORY, PAUSE_VERSION, SCHEDULER,
};

/// Returns `true` for an image that is built on the node and in no registry.
pub fn is_own(image: &str) -> bool {
    image.strip_prefix(OWN_REPOSITORY).is_some_and(|rest| rest.starts_with('/'))
}

/// Converts a version to an image tag: adds `v`, and replaces `+`, which tags cannot contain.
pub fn version_tag(version: &str) -> String {
    let tag = version.replace('+', "_");
    if tag.starts_with(|c: char| c.is_ascii_digit()) { format!("v{tag}") } else { tag }
}

/// Returns the image of a component of Kubernetes such as kube-apiserver or kube-proxy.
pub fn kubernetes(cluster: &ClusterConfiguration, component: &str) -> String {
    format!("{}/{component}:{}", cluster.image_repository, version_tag(&cluster.kubernetes_version))
}

fn or<'a>(own: &'a str, default: &'a str) -> &'a str {
    if own.is_empty() { default } else { own }
}

/// Returns etcd's image, from its own repository if one is configured.
pub fn etcd(cluster: &ClusterConfiguration) -> String {
    let (repository, tag) = match &cluster.etcd.local {
        Some(local) => (local.image_repository.as_str(), local.image_tag.as_str()),
        None => ("", ""),
    };
    format!("{}/etcd:{}", or(repository, &cluster.image_repository), or(tag, ETCD_VERSION))
}

/// Returns the image of cluster DNS, from its own repository if one is configured.
pub fn coredns(cluster: &ClusterConfiguration) -> String {
    let tag = or(&cluster.dns.image_tag, COREDNS_VERSION);
    // registry.k8s.io has CoreDNS one level deeper; custom repositories are flat.
    match cluster.dns.image_repository.as_str() {
        "" if cluster.image_repository == DEFAULT_REPOSITORY => {
            format!("{DEFAULT_REPOSITORY}/coredns/coredns:{tag}")
        }
        own => format!("{}/coredns:{tag}", or(own, &cluster.image_repository)),
    }
}

/// Returns the sandbox image.
pub fn pause(cluster: &ClusterConfiguration) -> String {
    format!("{}/pause:{PAUSE_VERSION}", cluster.image_repository)
}

/// Returns the image of Windlass, for Pods without an upstream counterpart.
pub fn windlass(cluster: &ClusterConfiguration) -> String {
    kubernetes(cluster, "windlass")
}

/// Returns every image of a control plane, in kubeadm's order.
pub fn all(cluster: &ClusterConfiguration) -> Vec<String> {
    let mut images: Vec<String> = [API_SERVER, CONTROLLER_MANAGER, SCHEDULER]
        .into_iter()
        .map(|c| kubernetes(cluster, c))
        .collect();
    if !cluster.proxy.disabled {
        images.push(kubernetes(cluster, "kube-proxy"));
    }
    if !cluster.dns.disabled {
        images.push(coredns(cluster));
    }
    images.push(pause(cluster));
    // Our static Pods use it, and so does the Pod network, which can be added later.
    let is_own = cluster.image_repository == OWN_REPOSITORY;
    if is_own || cluster.node_balancer.is_some() || cluster.virtual_address.is_some() {
        images.push(windlass(cluster));
    }
    if cluster.etcd.local.is_some() {
        images.push(etcd(cluster));
    }
    images
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Facts, default_cluster};

    #[test]
    fn returns_kubeadm_images() {
        let mut cluster = ClusterConfiguration::default();
        default_cluster(&mut cluster, &Facts::default());
        assert_eq!(
            all(&cluster),
            [
                "registry.k8s.io/kube-apiserver:v1.36.2",
                "registry.k8s.io/kube-controller-manager:v1.36.2",
                "registry.k8s.io/kube-scheduler:v1.36.2",
                "registry.k8s.io/kube-proxy:v1.36.2",
                "registry.k8s.io/coredns/coredns:v1.14.2",
                "registry.k8s.io/pause:3.10.2",
                "registry.k8s.io/etcd:3.6.8-0",
            ]
        );
        cluster.image_repository = OWN_REPOSITORY.to_owned();
        let network = "windlass.local/windlass:v1.36.2".to_owned();
        assert!(all(&cluster).contains(&network), "the Pod network is of no registry");
        cluster.image_repository = "example.org/k8s".into();
        cluster.kubernetes_version = "1.36.2+build.1".into();
        assert_eq!(coredns(&cluster), "example.org/k8s/coredns:v1.14.2");
        assert_eq!(
            kubernetes(&cluster, "kube-proxy"),
            "example.org/k8s/kube-proxy:v1.36.2_build.1"
        );
    }
}
