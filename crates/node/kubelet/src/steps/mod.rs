//! The steps of a plan: one file for each kind of action on a Pod. `pod-core` decides, and the worker calls these
//! functions.

mod config;
mod container;
mod hooks;
mod image;
mod image_volumes;
mod limits;
mod resize;
mod sandbox;
mod security;
mod stop;

pub(crate) use container::Start;
pub(crate) use resize::{ResizeError, allow_both, follow_resources, resize, resize_pod};
pub(crate) use sandbox::{SandboxError, create_sandbox, group_uids, remove_group, stop_sandbox};
pub(crate) use stop::{kill, stop_all};
