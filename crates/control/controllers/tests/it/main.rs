//! Runs the controllers against the API server in one process, each with its own service account under RBAC.
#![allow(clippy::unwrap_used, reason = "helpers of tests panic like tests")]

mod api;
mod life;
mod load_balancers;
mod simulation;
mod token_secrets;
