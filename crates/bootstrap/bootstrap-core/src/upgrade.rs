//! The rules for upgrades: to which versions a cluster may be upgraded, and from which static Pods. Read [`violations`]
//! first.

use std::collections::BTreeSet;

use api_meta::Tree as _;
use semver::Version;
use serde_json::Value;

use crate::{Error, manifests::EtcdMember};

/// The number of minor versions by which a kubelet may be older than the API server.
pub const KUBELET_SKEW: u64 = 3;

/// The annotation of a static Pod with the digest of Windlass' binary, from which its image was built. The image's name
/// does not change with the binary, and a changed annotation restarts the Pod.
pub const PROGRAM: &str = "windlass.local/program";

/// Parses a version of Kubernetes, with or without `v`.
pub fn parse_version(text: &str) -> Result<Version, Error> {
    Version::parse(text.strip_prefix('v').unwrap_or(text))
        .map_err(|source| Error::Version { text: text.to_owned(), source })
}

/// The versions that run in a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Running {
    /// The version of the API server.
    pub cluster: Version,
    /// The versions of the kubelets.
    pub kubelets: BTreeSet<Version>,
}

/// The unstable versions that a user allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allowed {
    /// `true` to allow alpha and beta versions.
    pub experimental: bool,
    /// `true` to allow release candidates.
    pub release_candidates: bool,
}

/// The rules that an upgrade breaks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Violations {
    /// The messages that nothing overrides.
    pub fatal: Vec<String>,
    /// The messages that `--force` turns into warnings.
    pub bypassable: Vec<String>,
}

/// Checks an upgrade to `target` by a program of version `own` against the version skew policy.
pub fn violations(
    target: &Version,
    own: &Version,
    running: &Running,
    allowed: Allowed,
) -> Violations {
    let (mut found, cluster) = (Violations::default(), &running.cluster);
    let is_allowed = if target.pre.starts_with("rc") {
        allowed.release_candidates
    } else {
        target.pre.is_empty() || allowed.experimental
    };
    if !is_allowed {
        found.bypassable.push(format!(
            "Specified version to upgrade to \"v{target}\" is an unstable version and such upgrades weren't allowed \
             via setting the --allow-*-upgrades flags"
        ));
    }
    if target.major != own.major || target.minor > own.minor {
        found.fatal.push(format!(
            "Specified version to upgrade to \"v{target}\" is at least one minor release higher than the kubeadm minor \
             release ({} > {}). Such an upgrade is not supported",
            target.minor, own.minor
        ));
    } else if target.cmp_precedence(own).is_gt() {
        found.bypassable.push(format!(
            "Specified version to upgrade to \"v{target}\" is higher than the kubeadm version \"v{own}\". Upgrade \
             kubeadm first using the tool you used to install kubeadm"
        ));
    } else if target.minor < own.minor {
        found.bypassable.push(format!(
            "Kubeadm version v{own} can only be used to upgrade to Kubernetes version {}.{}",
            own.major, own.minor
        ));
    }
    if target.minor > cluster.minor + 1 {
        found.fatal.push(format!(
            "Specified version to upgrade to \"v{target}\" is too high; kubeadm can upgrade only 1 minor version at a \
             time"
        ));
    } else if target.minor < cluster.minor {
        found.fatal.push(format!(
            "Specified version to downgrade to \"v{target}\" is too low: the cluster is v{cluster}, and a store that a \
             newer minor version has written may not be readable by an older one"
        ));
    } else if target.cmp_precedence(cluster).is_lt() {
        found.bypassable.push(format!(
            "Specified version to upgrade to \"v{target}\" is lower than the cluster's version \"v{cluster}\""
        ));
    }
    let old: Vec<String> = running
        .kubelets
        .iter()
        .filter(|kubelet| kubelet.minor + KUBELET_SKEW < target.minor)
        .map(|kubelet| format!("v{kubelet}"))
        .collect();
    if !old.is_empty() {
        found.bypassable.push(format!(
            "There are kubelets in this cluster that are too old that have these versions [{}]",
            old.join(" ")
        ));
    }
    found
}

/// The flags of a static Pod's command.
pub struct Flags<'a>(Vec<&'a str>);

impl<'a> Flags<'a> {
    /// Reads the command of the Pod's only container.
    pub fn of(pod: &'a Value) -> Self {
        let command = pod.items("spec.containers").first().map(|c| c.texts("command"));
        Self(command.into_iter().flatten().collect())
    }

    /// Returns the value of the flag, as in `--name=value`.
    pub fn value(&self, name: &str) -> Option<&'a str> {
        let value = |word: &&'a str| word.strip_prefix("--")?.strip_prefix(name)?.strip_prefix('=');
        self.0.iter().find_map(value)
    }
}

/// Returns the members in the manifest of an etcd that has joined others. They are kept, because etcd ignores them
/// once it has data, and a changed manifest restarts it.
pub fn joined_members(etcd: &Value) -> Vec<EtcdMember> {
    let flags = Flags::of(etcd);
    if flags.value("initial-cluster-state") != Some("existing") {
        return Vec::new();
    }
    let members = flags.value("initial-cluster").unwrap_or_default().split(',');
    members
        .filter_map(|member| member.split_once('='))
        .map(|(name, url)| EtcdMember { name: name.to_owned(), peer_url: url.to_owned() })
        .collect()
}

/// Returns the image of the first container of a Pod or Pod template; empty if there is none.
pub fn first_image(pod: &Value) -> &str {
    pod.items("spec.containers").first().map_or("", |container| container.text("image"))
}

/// Returns the tag of an image's name without digest; empty without tag.
pub fn image_tag(image: &str) -> &str {
    let name = image.split('@').next().unwrap_or_default();
    let (_, last) = name.rsplit_once('/').unwrap_or(("", name));
    last.split_once(':').map_or("", |(_, tag)| tag)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn version(text: &str) -> Version {
        parse_version(text).unwrap()
    }

    /// Returns the messages for an upgrade by v1.36.2: fatal ones, and those that --force overrides.
    fn check(target: &str, cluster: &str, kubelets: &[&str]) -> (String, String) {
        let kubelets = kubelets.iter().map(|text| version(text)).collect();
        let running = Running { cluster: version(cluster), kubelets };
        let found = violations(&version(target), &version("v1.36.2"), &running, Allowed::default());
        (found.fatal.join("\n"), found.bypassable.join("\n"))
    }

    #[test]
    fn allows_upgrades_within_the_skew_policy() {
        for (target, cluster, kubelets) in [
            ("v1.36.2", "v1.35.9", &["v1.35.9", "v1.33.0"][..]),
            ("1.36.2", "v1.36.0", &["v1.36.0"]),
            ("v1.36.2", "v1.36.2", &[]),
            ("v1.36.2", "v1.36.2+windlass.3", &[]),
        ] {
            let none = (String::new(), String::new());
            assert_eq!(check(target, cluster, kubelets), none, "{cluster} to {target}");
        }
    }

    #[test]
    fn rejects_versions_with_the_reason() {
        for (target, cluster, kubelet, fatal, bypassable) in [
            ("v1.37.0", "v1.36.2", "v1.36.2", "(37 > 36)", ""),
            ("v1.36.2", "v1.34.1", "v1.34.1", "only 1 minor version at a time", ""),
            ("v1.35.4", "v1.36.2", "v1.35.4", "is too low", "only be used to upgrade to"),
            ("v1.36.0", "v1.36.2", "v1.36.0", "", "lower than the cluster's version"),
            ("v1.36.3", "v1.36.2", "v1.36.2", "", "Upgrade kubeadm first"),
            ("v1.36.2", "v1.35.1", "v1.32.7", "", "too old that have these versions [v1.32.7]"),
            ("v1.36.2-rc.1", "v1.35.1", "v1.35.1", "", "an unstable version"),
            ("v1.36.0-beta.0", "v1.35.1", "v1.35.1", "", "an unstable version"),
            ("v2.36.0", "v1.36.2", "v1.36.2", "not supported", ""),
        ] {
            let (first, second) = check(target, cluster, &[kubelet]);
            let (case, found) = (format!("{cluster} to {target}"), format!("{first} | {second}"));
            assert!(
                first.contains(fatal) && first.is_empty() == fatal.is_empty(),
                "{case}: {found}"
            );
            let expected =
                second.contains(bypassable) && second.is_empty() == bypassable.is_empty();
            assert!(expected, "{case}: {found}");
        }
    }

    #[test]
    fn rejects_what_is_no_version() {
        for text in [
            "",
            "v",
            "1.36",
            "latest",
            "v1.36.2.1",
            "1.036.2",
            "-1.2.3",
            "v1.36.99999999999999999999",
        ] {
            let error = parse_version(text).unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?}")), "{error}");
        }
    }

    #[test]
    fn keeps_members_of_joined_etcd() {
        let pod = |flags: &[&str]| json!({"spec": {"containers": [{"command": flags}]}});
        let list = "--initial-cluster=a=https://1:2380,b=https://2:2380";
        let first = pod(&["etcd", list]);
        assert_eq!(joined_members(&first), []);
        let joined = pod(&["etcd", list, "--initial-cluster-state=existing"]);
        let names: Vec<_> =
            joined_members(&joined).into_iter().map(|m| (m.name, m.peer_url)).collect();
        let expected = [("a", "https://1:2380"), ("b", "https://2:2380")];
        assert_eq!(names, expected.map(|(name, url)| (name.to_owned(), url.to_owned())));
        assert_eq!(joined_members(&json!({})), []);
    }

    #[test]
    fn reads_image_tags() {
        for (image, tag) in [
            ("registry.k8s.io/kube-proxy:v1.36.2", "v1.36.2"),
            ("localhost:5000/a/b:1@sha256:ab", "1"),
            ("localhost:5000/a", ""),
            ("a", ""),
            ("", ""),
        ] {
            assert_eq!(image_tag(image), tag, "{image}");
        }
    }
}
