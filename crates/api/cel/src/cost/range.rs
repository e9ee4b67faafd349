//! Ranges of costs and sizes.

use super::units;

/// A range of costs or sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// The minimum.
    pub min: u64,
    /// The maximum; `u64::MAX` if unbounded.
    pub max: u64,
}

impl Cost {
    pub(crate) const UNKNOWN: Self = Self { min: 0, max: u64::MAX };
    pub(crate) const ZERO: Self = Self::exactly(0);
    pub(crate) const ONE: Self = Self::exactly(1);

    pub(crate) const fn exactly(value: u64) -> Self {
        Self { min: value, max: value }
    }

    pub(crate) fn add(self, other: Self) -> Self {
        Self { min: self.min.saturating_add(other.min), max: self.max.saturating_add(other.max) }
    }

    pub(crate) fn times(self, other: Self) -> Self {
        Self { min: self.min.saturating_mul(other.min), max: self.max.saturating_mul(other.max) }
    }

    pub(crate) fn scaled(self, by: f64) -> Self {
        Self { min: units::scaled(self.min, by), max: units::scaled(self.max, by) }
    }

    pub(crate) fn union(self, other: Self) -> Self {
        Self { min: self.min.min(other.min), max: self.max.max(other.max) }
    }
}
