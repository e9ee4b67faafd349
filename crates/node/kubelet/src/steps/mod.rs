//! The steps of a plan: one file for each kind of action on a Pod. `pod-core` decides, and the worker calls these
//! functions.

mod config;
mod container;
mod hooks;
mod image;
mod resize;
mod sandbox;
mod security;
mod stop;

pub(crate) use config::{hosts_path, messages_path, node_facts};
pub(crate) use container::start;
pub(crate) use hooks::{HttpTarget, http_get, port_of};
pub(crate) use resize::{follow_resources, resize};
pub(crate) use sandbox::{
    class_group, create_sandbox, group_uid, group_uids, log_directory, pods_group, remove_group,
    stop_sandbox,
};
pub(crate) use stop::{kill, stop_all};
