//! Completion, beside kOps' own files where they are given and on tables of our own.

mod completed;
mod created;
mod direct;
#[path = "../../../kops-api/tests/it/golden.rs"]
mod golden;
mod mock;
mod node;
mod own;
mod pods;
mod resources;
mod terraform;
