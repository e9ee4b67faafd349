//! The pipeline that every request goes through, by a socket or in this process.

pub(crate) mod checks;
pub(crate) mod compute;
pub(crate) mod health;
pub(crate) mod in_process;
mod meter;
pub(crate) mod metrics;
pub(crate) mod pipeline;
pub(crate) mod slis;
