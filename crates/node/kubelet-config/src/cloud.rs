//! The settings of a node in a cloud, whose cloud controller manager completes the Node object.

use crate::{args::Args, error::ConfigError};

/// The part of the Node that a cloud controller manager completes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CloudSettings {
    /// `true` if a cloud controller manager initializes the Node (`--cloud-provider=external`).
    pub external: bool,
    /// The addresses of `--node-ip`, from which the cloud controller manager chooses; empty if it chooses freely.
    pub provided_ips: Vec<String>,
}

impl CloudSettings {
    /// Reads the flags.
    ///
    /// # Errors
    ///
    /// Returns an error for a provider inside the kubelet, which upstream has removed.
    pub fn new(args: &Args) -> Result<Self, ConfigError> {
        let external = match args.cloud_provider.as_str() {
            "" => return Ok(Self::default()),
            "external" => true,
            value => {
                return Err(ConfigError::Flag {
                    flag: "cloud-provider",
                    value: value.to_owned(),
                    expected: "external, or empty without a cloud",
                });
            }
        };
        // The unspecified address only chooses a family.
        let unspecified = |ip: &String| {
            ip.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_unspecified())
        };
        let mut provided_ips = args.node_ip.clone();
        if provided_ips.first().is_some_and(unspecified) {
            provided_ips.clear();
        }
        Ok(Self { external, provided_ips })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn settings(flags: &[&str]) -> Result<CloudSettings, ConfigError> {
        CloudSettings::new(&Args::try_parse_from([&["kubelet"], flags].concat()).unwrap())
    }

    #[test]
    fn accepts_only_an_external_provider() {
        assert_eq!(settings(&["--node-ip=10.0.0.1"]).unwrap(), CloudSettings::default());
        assert_eq!(settings(&["--cloud-provider="]).unwrap(), CloudSettings::default());
        let external =
            settings(&["--cloud-provider=external", "--node-ip=10.0.0.1,fd00::1"]).unwrap();
        assert!(external.external);
        assert_eq!(external.provided_ips, ["10.0.0.1", "fd00::1"]);
        for any in ["0.0.0.0", "::"] {
            let flag = format!("--node-ip={any}");
            let chosen = settings(&["--cloud-provider=external", &flag]).unwrap();
            assert!(chosen.external && chosen.provided_ips.is_empty());
        }
        for removed in ["aws", "gce", "External", "external,aws"] {
            let error =
                settings(&[&format!("--cloud-provider={removed}")]).unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("--cloud-provider={removed}: it must be")),
                "{error}"
            );
        }
    }
}
