//! Tests of completion, against kOps' own files where available, and with our own tables.

mod completed;
mod created;
mod direct;
mod gce;
#[path = "../../../kops-api/tests/it/golden.rs"]
mod golden;
mod mock;
mod node;
mod nodeup;
mod own;
mod pods;
mod resources;
mod terraform;
