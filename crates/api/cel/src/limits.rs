//! The limits of an evaluation.

/// Upstream's cost limit of one evaluation, about a tenth of a second in upstream.
pub const PER_CALL_LIMIT: u64 = 1_000_000;

/// The limits of an evaluation.
#[derive(Clone, Copy)]
pub struct Limits<'c> {
    /// The maximum cost.
    pub cost: u64,
    /// Returns `true` once the caller no longer waits for the result.
    pub cancelled: Option<&'c (dyn Fn() -> bool + 'c)>,
}

impl Default for Limits<'_> {
    fn default() -> Self {
        Self { cost: PER_CALL_LIMIT, cancelled: None }
    }
}
