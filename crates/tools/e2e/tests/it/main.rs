//! End-to-end tests of the real binary with the real kubectl and helm, one file for each subject.

#![allow(clippy::unwrap_used)] // Tests and their helpers fail by panicking.

mod access;
mod addon;
mod attack_alloc;
mod attack_authz;
mod attack_decode;
mod attack_identity;
mod attack_network;
mod attack_proxy;
mod attack_subpath;
mod basics;
mod charts;
mod claims;
mod clients;
mod control_planes;
mod csi;
mod custom;
mod devices;
mod dra_driver;
mod dual_stack;
mod external_ca;
mod external_etcd;
mod ha;
mod interop;
mod kops;
mod kubeadm;
mod kubeadm_mistakes;
mod life;
mod metal;
mod mistakes;
mod network;
mod node;
mod nodes;
mod objects;
mod placement;
mod policy;
mod proxy_modes;
mod rotate;
mod status;
mod storage;
mod streams;
mod survive;
mod systemd;
mod top;
mod workloads;
