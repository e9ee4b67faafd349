//! The errors of clusters on AWS and GCE.

/// An error of building a cluster's model, or of changing its resources.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Object(#[from] kops_store::Error),
    #[error(transparent)]
    Parse(#[from] kops_api::Error),
    #[error(transparent)]
    Core(#[from] kops_core::Error),
    #[error(transparent)]
    Call(#[from] aws::Error),
    #[error(
        "the cluster's machines read its configuration at {base}, but the state store has it at {expected}: set \
         --state to the S3 store of spec.configBase"
    )]
    StoreUrl { base: String, expected: String },
    #[error("{url} is outside of the cluster's state store {base}: use --target=terraform")]
    StoreObject { url: String, base: String },
    #[error(
        "machines run only files with known hashes, and these are unknown; list them under files in the file of \
         --known, as upstream's kops get assets -o yaml prints them:\n  {}",
        files.join("\n  ")
    )]
    Hashes { files: Vec<String> },
    #[error("{setting}: clusters on aws, gce and metal do not support this yet; remove it")]
    Unsupported { setting: String },
    #[error(
        "{fact} in the file of --known is a fact of clusters on aws, and would have no effect on {cloud}; remove it"
    )]
    Fact { fact: &'static str, cloud: &'static str },
    #[error(
        "{directory} of the state store may hold only one SSH key, AWS' limit: delete the others"
    )]
    SshKeys { directory: String },
}
