//! The controllers against the real API server, in one process, with RBAC on: each writes as its own
//! service account.
#![allow(clippy::unwrap_used)]

mod api;
mod life;
mod simulation;
