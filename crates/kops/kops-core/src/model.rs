//! Models of a complete cluster's cloud resources, as data with references. Targets (Terraform, direct calls) render a
//! model or compare it with existing resources; none of them adds to it. Read [`aws`] first.

pub mod aws;
