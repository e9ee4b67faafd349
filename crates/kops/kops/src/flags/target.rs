//! The flag `--target` and the flags for its programs.

/// The program that changes the cloud's resources.
#[derive(clap::ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Target {
    /// This program
    #[default]
    Direct,
    /// Terraform, with a generated configuration
    Terraform,
}

/// The flags of the commands that create a cluster's resources.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct TargetFlags {
    /// The program that creates the cloud's resources
    #[arg(long = "target", value_name = "TARGET", value_enum, default_value_t)]
    pub(crate) program: Target,
    /// The directory for the configuration of --target=terraform [default: out/terraform] or, in update cluster on
    /// metal, for the machines' boot configurations
    #[arg(long)]
    pub(crate) out: Option<String>,
    /// A file for aws, gce and metal with hashes of files, and with facts that are then not queried from the cloud
    /// (account, images, machineTypes, dnsZones, networks, bucketRegions)
    #[arg(long)]
    pub(crate) known: Option<String>,
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Direct => "direct",
            Self::Terraform => "terraform",
        })
    }
}
