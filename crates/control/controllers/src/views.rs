//! The fields that controllers read. Informers cache nothing else, so each field costs memory for every object.

mod condition;
mod config_map;
mod devices;
mod labels;
mod namespace;
mod node;
mod pod;
mod service;
mod service_account;
mod storage;
mod taint;
mod workloads;

pub(crate) use condition::*;
pub(crate) use config_map::*;
pub(crate) use devices::*;
pub(crate) use labels::*;
pub(crate) use namespace::*;
pub(crate) use node::*;
pub(crate) use pod::*;
pub(crate) use service::*;
pub(crate) use service_account::*;
pub(crate) use storage::*;
pub(crate) use taint::*;
pub(crate) use workloads::*;
