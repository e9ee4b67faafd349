//! The name and version of the container runtime, for features that it does not report.

use std::fmt;

/// The name and version that a container runtime reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RuntimeVersion {
    name: String,
    version: String,
}

impl From<cri::v1::VersionResponse> for RuntimeVersion {
    fn from(response: cri::v1::VersionResponse) -> Self {
        Self { name: response.runtime_name, version: response.runtime_version }
    }
}

impl fmt::Display for RuntimeVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, self.version)
    }
}

impl RuntimeVersion {
    /// Reports whether the runtime adds CDI devices to containers. Other runtimes silently ignore them.
    pub(crate) fn has_cdi(&self) -> bool {
        self.is_at_least(&[("containerd", (1, 7))])
    }

    /// Reports whether the runtime mounts images and parts of them as volumes. Other runtimes silently ignore them.
    pub(crate) fn has_image_volumes(&self) -> bool {
        self.is_at_least(&[("containerd", (2, 1)), ("cri-o", (1, 33))])
    }

    /// Compares the version with the first one that has a feature. Assumes support if the runtime or its version is
    /// unknown.
    fn is_at_least(&self, first: &[(&str, (u32, u32))]) -> bool {
        let Some((_, first)) = first.iter().find(|(name, _)| *name == self.name) else {
            return true;
        };
        let digits = |part: &str| {
            let end = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
            part.get(..end).and_then(|digits| digits.parse::<u32>().ok())
        };
        let mut parts = self.version.trim_start_matches('v').split('.').map(digits);
        match (parts.next().flatten(), parts.next().flatten()) {
            (Some(major), Some(minor)) => (major, minor) >= *first,
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detects_features_by_version() {
        for (name, version, has_cdi, has_image_volumes) in [
            ("containerd", "1.6.20~ds1", false, false),
            ("containerd", "v1.6.36", false, false),
            ("containerd", "1.7.0-rc.1", true, false),
            ("containerd", "2.0.5", true, false),
            ("containerd", "2.1.0-beta.1", true, true),
            ("containerd", "2.3.4", true, true),
            ("containerd", "v10.0.0", true, true),
            ("containerd", "devel", true, true),
            ("cri-o", "1.32.1", true, false),
            ("cri-o", "1.33.0", true, true),
            ("other", "0.1", true, true),
        ] {
            let runtime = RuntimeVersion { name: name.to_owned(), version: version.to_owned() };
            let found = (runtime.has_cdi(), runtime.has_image_volumes());
            assert_eq!(found, (has_cdi, has_image_volumes), "{runtime}");
        }
    }
}
