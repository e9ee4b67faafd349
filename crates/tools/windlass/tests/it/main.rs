//! Tests the binary's components as separate processes, like kubeadm runs them.

#![allow(clippy::unwrap_used, reason = "helpers of tests panic like tests")]

mod chain;
mod differential;
mod go_runner;
mod ignition;
mod overrides;
mod printing;
mod processes;
mod published;
mod tpm;
mod turns;
