use std::time::{Duration, SystemTime};

/// The validity period of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// The first moment of the period.
    pub not_before: SystemTime,
    /// The last moment of the period.
    pub not_after: SystemTime,
}

impl Validity {
    /// The time by which a certificate's period starts before now, to tolerate clock skew.
    pub const SKEW: Duration = Duration::from_secs(5 * 60);

    /// Returns a period that starts [`Validity::SKEW`] before now and lasts for `period`.
    pub fn starting(now: SystemTime, period: Duration) -> Self {
        let not_before = now - Self::SKEW;
        Self { not_before, not_after: not_before + period }
    }

    /// Limits the end to `limit`, because clients reject a leaf that outlives its CA.
    pub fn until_at_most(self, limit: SystemTime) -> Self {
        Self { not_after: self.not_after.min(limit), ..self }
    }
}
