//! Rates of requests.

use crate::error::{ConfigError, invalid};

/// A rate of requests, with a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// The number of requests per second.
    pub per_second: u32,
    /// The number of requests that may be sent at once.
    pub burst: u32,
}

/// A field of a rate, and its value if the configuration has one.
pub(crate) struct RateField {
    pub(crate) name: &'static str,
    pub(crate) value: Option<i32>,
    pub(crate) default: i32,
}

impl RateField {
    fn read(&self) -> Result<u32, ConfigError> {
        not_negative(self.name, self.value.unwrap_or(self.default))
    }
}

impl Rate {
    /// Returns the rate of two fields, or `None` if 0 requests per second turn the limit off.
    pub(crate) fn new(
        per_second: &RateField,
        burst: &RateField,
    ) -> Result<Option<Self>, ConfigError> {
        let (per_second, burst) = (per_second.read()?, burst.read()?);
        Ok((per_second > 0).then_some(Self { per_second, burst }))
    }
}

/// Returns the value of a field, or the error of a negative one.
pub(crate) fn not_negative(field: &'static str, value: i32) -> Result<u32, ConfigError> {
    let error = |_| invalid(field, format!("{value} must not be a negative number"));
    u32::try_from(value).map_err(error)
}
