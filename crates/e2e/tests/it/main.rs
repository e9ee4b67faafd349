//! The real binary, driven by real kubectl and helm. One file for each subject.

mod access;
mod basics;
mod objects;
mod streams;
mod workloads;
