//! The command `kops`: stores clusters in upstream's layout, and manages their machines.
//!
//! Machines of cloud local are [`instances`], derived by [`kops_local`]. Those of AWS are managed by its API (`aws.rs`,
//! with [`kops_aws`]) or by Terraform, and those of GCE by Terraform, with a generated configuration (`terraform.rs`).
//! For cloud metal, boot configurations are written (`metal.rs`). Other clouds are rejected by name. The pure part is
//! `kops-core`, and the machines' own programs are in `kops-node`. Read [`run`] first.
//!
//! Invariants:
//! - Stored objects are valid, and a write fails if the object has changed since it was read.
//! - Everything is validated before anything is written.
//! - A command that changes a cluster's resources holds its lock.
//! - Only objects that kOps wrote are deleted from a cluster's directory, and only marked machines from a fleet.
//! - Private keys are in the store and on control planes only.

mod api_access;
mod assets;
mod aws;
mod change;
mod cloud;
mod cluster_deletion;
mod cluster_update;
mod completion;
mod create;
mod delete_file;
mod difference;
mod document;
mod drain;
mod edit;
mod editor;
mod environment;
mod error;
mod flags;
mod get;
mod group;
mod group_selection;
mod input;
mod instance_list;
mod keypair;
mod kubeconfig;
mod kubelet_skew;
mod metal;
mod plan;
mod prompt;
mod reconcile;
mod role;
mod roll;
mod run;
mod secret;
mod settings;
mod shutdown;
mod ssh_key;
mod table;
mod terraform;
mod toolbox;
mod update;
mod upgrade;
mod validate;
mod version;

pub use environment::CommandEnvironment;
pub use error::Error;
pub use flags::{Args, Command, Target};
pub use run::run;
