mod admit;
mod evict;
mod features;
mod given;
mod resize;
mod simulation;
pub(crate) mod steps;
