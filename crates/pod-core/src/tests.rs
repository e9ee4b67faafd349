mod given;
mod simulation;
mod steps;
