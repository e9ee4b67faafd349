mod admit;
mod container;
mod evict;
mod features;
mod resize;
mod simulation;
pub(crate) mod steps;
