//! The versions of this build, which all components report. Read [`BUILD_VERSION`] first.
//!
//! The version of the crate itself is that of the release: Kubernetes' version with the release's number as build
//! metadata, such as `1.36.2+windlass.1`, as other distributions write it. Names of images and the defaults of new
//! clusters use Kubernetes' version alone. `cargo xtask dist` sets the commit and its date; other builds have none.

/// The version of Kubernetes that the components implement.
pub const KUBERNETES_VERSION: &str = "v1.36.2";

/// The version of this build, such as `v1.36.2+windlass.1`. Go's clients and semantic versioning ignore all after `+`.
pub const BUILD_VERSION: &str = concat!("v", env!("CARGO_PKG_VERSION"));

/// The commit of this build, or `unknown` if it is not a release.
pub const COMMIT: &str = match option_env!("WINDLASS_COMMIT") {
    Some(commit) => commit,
    None => "unknown",
};

/// The time of this build's commit in RFC 3339, or the epoch if it is not a release.
pub const BUILD_DATE: &str = match option_env!("WINDLASS_BUILD_DATE") {
    Some(date) => date,
    None => "1970-01-01T00:00:00Z",
};

/// The operating system and architecture, as Go names them.
pub const PLATFORM: &str =
    if cfg!(target_arch = "aarch64") { "linux/arm64" } else { "linux/amd64" };

/// Returns the `User-Agent` of a program's requests, such as `kubelet/v1.36.2 (windlass)`.
pub fn user_agent(program: &str) -> String {
    format!("{program}/{KUBERNETES_VERSION} (windlass)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adds_only_build_metadata_to_kubernetes_version() {
        let (kubernetes, release) = BUILD_VERSION.split_once("+windlass.").unwrap();
        assert_eq!(kubernetes, KUBERNETES_VERSION);
        release.parse::<u32>().unwrap();
    }
}
