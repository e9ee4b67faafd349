use std::ops::Range;

use rand::{
    Rng, RngCore,
    distr::{Distribution, StandardUniform, uniform::SampleUniform},
};

use crate::simulation;

/// A random value; nobody foresees it but in a simulation, so that tokens may be made of it.
pub fn random<T>() -> T
where
    StandardUniform: Distribution<T>,
{
    with(|source| source.random())
}

/// A random value of a range, which must not be empty.
pub fn random_in<T: SampleUniform + PartialOrd>(range: Range<T>) -> T {
    with(|source| source.random_range(range))
}

/// Brings values into a random order.
pub fn shuffle<T>(values: &mut [T]) {
    with(|source| rand::seq::SliceRandom::shuffle(values, source));
}

/// An identifier that no other has: a random UUID.
pub fn id() -> String {
    uuid::Builder::from_random_bytes(random()).into_uuid().to_string()
}

fn with<R>(draw: impl FnOnce(&mut dyn RngCore) -> R) -> R {
    simulation::with(|simulation| match simulation {
        Some(simulation) => draw(&mut simulation.random),
        None => draw(&mut rand::rng()),
    })
}
