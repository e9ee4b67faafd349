//! The controllers against the real API server, in one process, with RBAC on: each writes as its own
//! service account.

mod api;
mod life;
