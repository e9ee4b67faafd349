//! The conformance tests of every engine, and the embedded engine's own tests.

pub mod history;
pub mod model;

#[cfg(test)]
mod compactor;
#[cfg(test)]
mod copy;
#[cfg(test)]
mod crash;
#[cfg(test)]
mod embedded;
#[cfg(test)]
mod faults;
#[cfg(test)]
mod linear;
#[cfg(test)]
mod watch;
