//! Lookups of environment variables.

/// A lookup of environment variables.
pub type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;
