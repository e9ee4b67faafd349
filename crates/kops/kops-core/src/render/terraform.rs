//! Renders a model as a Terraform configuration: `kubernetes.tf`, and multi-line content under `data/`. Names, order
//! and layout are upstream's, so that switching from upstream's `kops` shows no changes. Read [`aws()`] first.

mod aws;
mod gce;
mod settings;

pub use self::{aws::aws, gce::gce, settings::Settings};
pub use crate::terraform::files::Files;
