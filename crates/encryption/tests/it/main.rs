//! Encryption at rest, seen through the store that it wraps.

mod config;
mod harness;
mod kms;
mod layer;
mod vectors;
