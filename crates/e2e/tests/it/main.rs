//! The real binary, driven by real kubectl and helm. One file for each subject.

#![allow(clippy::unwrap_used)] // A test that cannot go on fails by panicking, and helpers are tests too.

mod access;
mod basics;
mod charts;
mod clients;
mod custom;
mod ha;
mod interop;
mod kubeadm;
mod life;
mod metal;
mod mistakes;
mod network;
mod node;
mod nodes;
mod objects;
mod policy;
mod status;
mod streams;
mod survive;
mod workloads;
