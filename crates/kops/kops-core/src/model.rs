//! Models of a complete cluster's cloud resources, as data with references. Targets (Terraform, direct calls) render a
//! model or compare it with existing resources; none of them adds to it. Read [`aws::aws`] or [`gce::gce`] first.

pub mod aws;
mod bucket;
pub mod gce;
pub mod metal;
mod queries;
mod store;
mod user_data;
