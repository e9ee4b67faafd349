//! What is done for a request that may be done: reads, writes, deletions, subresources.

pub(crate) mod admission;
pub(crate) mod attributes;
pub(crate) mod authorization;
pub(crate) mod body;
pub(crate) mod call;
pub(crate) mod change;
pub(crate) mod create;
pub(crate) mod decode;
pub(crate) mod delete;
pub(crate) mod dispatch;
pub(crate) mod image_policy;
pub(crate) mod meta;
pub(crate) mod options;
pub(crate) mod patch;
pub(crate) mod plugins;
pub(crate) mod policies;
pub(crate) mod read;
pub(crate) mod state;
pub(crate) mod steps;
pub(crate) mod stream;
pub(crate) mod subresource;
pub(crate) mod update;
pub(crate) mod webhooks;
pub(crate) mod websocket;
