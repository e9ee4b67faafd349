//! The real binary, driven by real kubectl and helm. One file for each subject.

mod access;
mod basics;
mod charts;
mod custom;
mod life;
mod mistakes;
mod network;
mod objects;
mod policy;
mod streams;
mod survive;
mod workloads;
