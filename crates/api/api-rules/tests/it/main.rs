//! Tests of the rules through their public functions.

mod allocations;
