use std::ops::Range;

use rand::{
    Rng, RngCore,
    distr::{Distribution, StandardUniform, uniform::SampleUniform},
};

use crate::simulation;

/// Returns a random value that is suitable for tokens, except in a simulation, where it depends on the seed.
pub fn random<T>() -> T
where
    StandardUniform: Distribution<T>,
{
    with(|source| source.random())
}

/// Returns a random value of a range, which must not be empty.
pub fn random_in<T: SampleUniform + PartialOrd>(range: Range<T>) -> T {
    with(|source| source.random_range(range))
}

/// Shuffles the values.
pub fn shuffle<T>(values: &mut [T]) {
    with(|source| rand::seq::SliceRandom::shuffle(values, source));
}

/// Returns a unique identifier: a random UUID.
pub fn id() -> String {
    uuid::Builder::from_random_bytes(random()).into_uuid().to_string()
}

fn with<R>(draw: impl FnOnce(&mut dyn RngCore) -> R) -> R {
    simulation::with(|simulation| match simulation {
        Some(simulation) => draw(&mut simulation.random),
        None => draw(&mut rand::rng()),
    })
}
