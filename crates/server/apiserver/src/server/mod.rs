//! The request pipeline, shared by socket and in-process clients, with its health endpoints, metrics and compute
//! budgets. Not responsible for the handlers of resources ([`crate::handlers`]). Start with [`pipeline::Server`].

pub(crate) mod checks;
pub(crate) mod compute;
mod edge;
pub(crate) mod flow_metrics;
pub(crate) mod health;
pub(crate) mod in_flight;
pub(crate) mod in_process;
mod meter;
pub(crate) mod metrics;
pub(crate) mod pipeline;
mod spans;
