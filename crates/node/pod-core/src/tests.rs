mod admit;
mod container;
mod evict;
mod features;
mod resize;
mod restart_all;
mod simulation;
pub(crate) mod steps;
