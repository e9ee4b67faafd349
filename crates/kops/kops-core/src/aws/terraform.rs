//! The Terraform side of resources: HCL, labels, references and files.

pub(crate) mod hcl;
pub(crate) mod labels;
pub(crate) mod writer;
