//! Terraform configurations of any cloud: HCL, names, files, and the order of blocks. The resources are the clouds'.

pub(crate) mod configuration;
pub(crate) mod files;
pub(crate) mod hcl;
pub(crate) mod labels;
pub(crate) mod outputs;
