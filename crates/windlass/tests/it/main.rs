//! The binary's components as processes of their own, as kubeadm would have them run.

#![allow(clippy::unwrap_used)]

mod chain;
mod differential;
mod ignition;
mod printing;
mod processes;
mod published;
mod tpm;
mod turns;
