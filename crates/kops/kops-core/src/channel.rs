//! A channel: the recommended versions and images. Upstream publishes `stable` and `alpha`; users may provide a file of
//! their own.

use api_meta::Tree as _;
use serde_json::Value;

use crate::{
    error::Error,
    version::{Version, VersionRange},
};

/// A parsed channel file.
#[derive(Clone, Debug, Default)]
pub struct Channel(Value);

impl Channel {
    /// Parses a channel. `what` names it in errors.
    pub fn read(what: &str, text: &[u8]) -> Result<Self, Error> {
        let tree = kops_api::yaml::parse(what, text)?;
        if !tree.at("spec").is_object() {
            let cause = "it has no spec, so it is not a channel".to_owned();
            return Err(kops_api::Error::Yaml { what: what.to_owned(), cause }.into());
        }
        Ok(Self(tree))
    }

    /// Returns the image for machines of a cloud, Kubernetes version and architecture.
    pub fn image(&self, cloud: &str, version: &Version, architecture: &str) -> Option<&str> {
        let fits = |image: &&Value| {
            let arch = image.text("architectureID");
            image.text("providerID") == cloud
                && (arch.is_empty() || arch == architecture)
                && holds(image.text("kubernetesVersion"), version)
        };
        self.0.items("spec.images").iter().find(fits).map(|image| image.text("name"))
    }

    /// Returns the recommended version for clusters with a version of Kubernetes.
    pub fn recommended(&self, kubernetes: &Version) -> Option<&str> {
        let mut versions = self.0.items("spec.kubernetesVersions").iter();
        let found = versions.find(|version| holds(version.text("range"), kubernetes));
        found.map(|v| v.text("recommendedVersion")).filter(|version| !version.is_empty())
    }

    /// Returns the Kubernetes version that a version of kOps uses for new clusters.
    pub fn kubernetes(&self, kops: &Version) -> Option<&str> {
        let found = self.0.items("spec.kopsVersions").iter().find(|v| holds(v.text("range"), kops));
        found.map(|v| v.text("kubernetesVersion")).filter(|version| !version.is_empty())
    }
}

/// Reports whether a version is in a range. An invalid range contains no version, so that one mistake does not spoil a
/// channel.
fn holds(range: &str, version: &Version) -> bool {
    range.is_empty() || range.parse::<VersionRange>().is_ok_and(|range| range.holds(version))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
spec:
  images:
  - {name: old, providerID: aws, architectureID: amd64, kubernetesVersion: ">=1.27.0 <1.32.0"}
  - {name: odd, providerID: aws, architectureID: amd64, kubernetesVersion: "about 1.32"}
  - {name: new, providerID: aws, architectureID: amd64, kubernetesVersion: ">=1.32.0"}
  - {name: arm, providerID: aws, architectureID: arm64}
  kopsVersions:
  - {range: ">=1.36.0-alpha.1", kubernetesVersion: 1.36.1}
  - {range: ">=1.35.0", kubernetesVersion: 1.35.4}
"#;

    #[test]
    fn takes_first_matching_entry() {
        let channel = Channel::read("test", TEXT.as_bytes()).unwrap();
        let image = |version: &str, arch| channel.image("aws", &version.parse().unwrap(), arch);
        assert_eq!(image("1.31.5", "amd64"), Some("old"));
        assert_eq!(image("1.36.0", "amd64"), Some("new"));
        assert_eq!(image("1.36.0", "arm64"), Some("arm"));
        assert_eq!(image("1.26.0", "amd64"), None);
        assert_eq!(channel.kubernetes(&"1.36.2".parse().unwrap()), Some("1.36.1"));
        assert_eq!(channel.kubernetes(&"1.34.0".parse().unwrap()), None);
        assert!(Channel::read("test", b"kind: Pod").is_err());
    }
}
