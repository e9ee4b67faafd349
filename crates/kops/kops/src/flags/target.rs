//! The flag `--target`.

/// The program that changes the cloud's resources.
#[derive(clap::ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Target {
    /// This program
    #[default]
    Direct,
    /// Terraform, with a generated configuration
    Terraform,
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Direct => "direct",
            Self::Terraform => "terraform",
        })
    }
}
