//! Tests of encryption at rest through the store that it wraps.

#![allow(clippy::unwrap_used, reason = "helpers of tests panic like tests")]

mod config;
mod harness;
mod kms;
mod layer;
mod vectors;
