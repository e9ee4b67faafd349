//! The plugins of a server block, each with the parser of its options.

mod acl;
mod autopath;
mod cache;
mod dns64;
mod edns;
mod file;
mod files;
mod forward;
mod hosts;
mod kubernetes;
mod local;
mod log;
mod pattern;
mod plain;
mod response;
mod rewrite;
mod template;
mod transfer;
mod upstream;

pub(crate) use acl::Acl;
pub(crate) use autopath::AutoPath;
pub(crate) use cache::Cache;
pub(crate) use dns64::Dns64;
pub(crate) use file::File;
pub(crate) use forward::{Forward, ForwardError};
pub(crate) use hosts::Hosts;
pub(crate) use kubernetes::{Kubernetes, parse as parse_kubernetes};
pub(crate) use local::Local;
pub(crate) use log::{Errors, Log};
pub(crate) use plain::{Any, BufSize, Chaos, Erratic, Header, LoadBalance, Minimal, Whoami};
pub(crate) use rewrite::Rewrite;
pub(crate) use template::TemplatePlugin;
pub(crate) use transfer::Transfer;
