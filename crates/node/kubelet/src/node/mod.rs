//! The node: its registration, its status and its heartbeats.

pub(crate) mod capacity;
mod cloud;
mod lease;
mod register;
mod runtime_grace;
mod status;

pub(crate) use lease::Heartbeats;
pub(crate) use register::run;
