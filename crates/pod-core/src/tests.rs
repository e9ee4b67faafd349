mod admit;
mod evict;
mod given;
mod resize;
mod simulation;
pub(crate) mod steps;
