//! Handles authorized resource requests: reads, writes, deletions and subresources, with admission. Authentication,
//! authorization and flow control happen earlier, in [`crate::server`]. Start with [`dispatch`] and [`call::Call`];
//! [`change`] is the path of every update.

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
mod expiry;
pub(crate) mod image_policy;
pub(crate) mod meta;
pub(crate) mod options;
pub(crate) mod patch;
pub(crate) mod plugins;
pub(crate) mod policies;
pub(crate) mod read;
mod spans;
pub(crate) mod state;
pub(crate) mod steps;
pub(crate) mod stream;
pub(crate) mod subresource;
pub(crate) mod update;
pub(crate) mod webhooks;
pub(crate) mod websocket;
