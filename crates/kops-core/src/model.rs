//! What a complete cluster comes to in a cloud: resources with references, as data. Targets (Terraform, a plan that calls
//! the cloud) render it or compare it with what is there; none of them adds to it.

pub mod aws;
