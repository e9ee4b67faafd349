//! Counts the steps of a computation, so that its caller can bound the processor time that the computation takes.
//!
//! Loops over client data call [`spend`]. It costs about a nanosecond and does nothing unless the computation runs
//! inside [`metered`]. There it asks the caller's [`Meter`] after each [`CHUNK`] of steps, and unwinds the stack if the
//! meter reports that the budget is used up. This is not a panic: it runs no panic hook and writes no log, and
//! [`metered`] turns it into [`BudgetUsedUp`].
//!
//! This crate reads no clock. The meter does, and it measures time instead of steps, because a step may be a comparison
//! or the copy of a list.
//!
//! The initializer of a `LazyLock` must not call [`spend`]: an unwinding would poison the value permanently.

use std::{
    cell::{Cell, RefCell},
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::Arc,
};

/// The number of steps between calls of the meter.
pub const CHUNK: u32 = 256;

/// Decides if a computation may continue, and learns when it must.
pub trait Meter: Send + Sync {
    /// Reports whether the computation may take another [`CHUNK`] of steps.
    fn may_continue(&self) -> bool;

    /// Records that the computation has changed something, so that ending it would misinform the client.
    fn commit(&self);
}

/// The error of a computation that its meter ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the computation has used up its budget")]
pub struct BudgetUsedUp;

thread_local! {
    /// The steps until the next call of the meter. Without a meter the countdown has no effect.
    static LEFT: Cell<u32> = const { Cell::new(u32::MAX) };
    static METER: RefCell<Option<Arc<dyn Meter>>> = const { RefCell::new(None) };
}

/// Counts steps of the computation that runs on this thread. Ends the computation by unwinding when its budget is used
/// up.
#[inline]
pub fn spend(steps: u32) {
    LEFT.with(|left| match left.get().checked_sub(steps) {
        Some(rest) => left.set(rest),
        None => ask_meter(left),
    });
}

/// Declares that the computation on this thread has changed state. It is not ended from here on.
pub fn commit() {
    METER.with_borrow(|meter| {
        if let Some(meter) = meter {
            meter.commit();
        }
    });
}

/// Runs a computation under a meter, or under none if `meter` is `None`, and restores the former meter afterwards.
/// State that the computation shares must be valid wherever it stops, as after a panic.
///
/// # Errors
///
/// [`BudgetUsedUp`] if the meter ended the computation.
///
/// # Panics
///
/// Resumes the panic of the computation.
pub fn metered<T>(
    meter: Option<&Arc<dyn Meter>>,
    computation: impl FnOnce() -> T,
) -> Result<T, BudgetUsedUp> {
    let outer_left = LEFT.replace(if meter.is_some() { CHUNK } else { u32::MAX });
    let outer_meter = METER.replace(meter.cloned());
    let done = catch_unwind(AssertUnwindSafe(computation));
    METER.set(outer_meter);
    LEFT.set(outer_left);
    done.or_else(|payload| {
        if payload.is::<BudgetUsedUp>() { Err(BudgetUsedUp) } else { resume_unwind(payload) }
    })
}

#[cold]
fn ask_meter(left: &Cell<u32>) {
    left.set(u32::MAX);
    let Some(meter) = METER.with_borrow(Clone::clone) else { return };
    // A destructor that counts steps while the stack unwinds must not unwind a second time.
    if std::thread::panicking() {
        return;
    }
    if meter.may_continue() {
        left.set(CHUNK);
        return;
    }
    METER.set(None);
    resume_unwind(Box::new(BudgetUsedUp));
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

    use super::*;

    /// A meter that allows `left` chunks.
    struct Chunks {
        left: AtomicU32,
        committed: AtomicBool,
    }

    impl Meter for Chunks {
        fn may_continue(&self) -> bool {
            let left = self.left.load(Relaxed);
            self.left.store(left.saturating_sub(1), Relaxed);
            left > 0 || self.committed.load(Relaxed)
        }

        fn commit(&self) {
            self.committed.store(true, Relaxed);
        }
    }

    fn chunks(left: u32) -> Arc<dyn Meter> {
        Arc::new(Chunks { left: left.into(), committed: false.into() })
    }

    fn count(steps: u32) -> u32 {
        (0..steps).inspect(|_| spend(1)).fold(0, |done, _| done + 1)
    }

    #[test]
    fn ends_computation_when_budget_is_used_up() {
        assert_eq!(metered(Some(&chunks(2)), || count(2 * CHUNK)), Ok(2 * CHUNK));
        assert_eq!(metered(Some(&chunks(2)), || count(10 * CHUNK)), Err(BudgetUsedUp));
        assert_eq!(count(10 * CHUNK), 10 * CHUNK);
    }

    #[test]
    fn counts_many_steps_at_once() {
        let spent = metered(Some(&chunks(1)), || (0..3).for_each(|_| spend(u32::MAX)));
        assert_eq!(spent, Err(BudgetUsedUp));
        (0..3).for_each(|_| spend(u32::MAX));
    }

    #[test]
    fn does_not_end_computation_after_commit() {
        let committed = || {
            commit();
            count(10 * CHUNK)
        };
        assert_eq!(metered(Some(&chunks(0)), committed), Ok(10 * CHUNK));
    }

    #[test]
    fn separates_meters_of_nested_computations() {
        let nested = || {
            let free = metered(None, || count(10 * CHUNK));
            let inner = metered(Some(&chunks(0)), || count(10 * CHUNK));
            (free, inner, count(CHUNK))
        };
        let expected = (Ok(10 * CHUNK), Err(BudgetUsedUp), CHUNK);
        assert_eq!(metered(Some(&chunks(2)), nested), Ok(expected));
        let endless = || metered(None, || count(CHUNK)).map(|_| count(10 * CHUNK));
        assert_eq!(metered(Some(&chunks(2)), endless), Err(BudgetUsedUp));
    }

    #[test]
    fn resumes_panics_and_counts_in_destructors() {
        struct Counting;
        impl Drop for Counting {
            fn drop(&mut self) {
                count(10 * CHUNK);
            }
        }
        let ended = metered(Some(&chunks(0)), || {
            let _counting = Counting;
            count(10 * CHUNK)
        });
        assert_eq!(ended, Err(BudgetUsedUp));
        let panicking = || {
            let _counting = Counting;
            resume_unwind(Box::new("on purpose"))
        };
        let panicked = catch_unwind(|| metered::<()>(Some(&chunks(0)), panicking));
        assert!(panicked.is_err_and(|payload| payload.is::<&str>()));
    }
}
