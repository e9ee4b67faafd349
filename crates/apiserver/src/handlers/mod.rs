//! What is done for a request that may be done: reads, writes, deletions, subresources.

pub(crate) mod admission;
pub(crate) mod authorization;
pub(crate) mod call;
pub(crate) mod decode;
pub(crate) mod delete;
pub(crate) mod meta;
pub(crate) mod options;
pub(crate) mod patch;
pub(crate) mod read;
pub(crate) mod stream;
pub(crate) mod subresource;
pub(crate) mod websocket;
pub(crate) mod write;
