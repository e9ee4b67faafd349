mod admit;
mod evict;
mod given;
mod resize;
mod simulation;
mod steps;
