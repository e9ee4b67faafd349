//! Counts the steps of instrumented code: its executed basic blocks, and its memory allocations.
//!
//! A count is the same on fast and slow machines, so a test can distinguish linear from quadratic work. The counted
//! code contains no counters: the compiler inserts a call before every basic block (LLVM's SanitizerCoverage), also in
//! generic loops of the standard library. `xtask/src/steps.rs` builds crates in this way, with `--cfg steps`. This
//! crate is excluded, because the counter would count itself.
//!
//! Every thread has its own counter.

/// `true` if this build counts steps.
pub const COUNTED: bool = cfg!(steps);

/// Runs `work` and returns its result and its number of steps, which is 0 in a build that does not count.
pub fn count<T>(work: impl FnOnce() -> T) -> (T, u64) {
    let before = counter::read();
    let result = work();
    (result, counter::read().wrapping_sub(before))
}

#[cfg(not(steps))]
mod counter {
    pub(super) fn read() -> u64 {
        0
    }
}

#[cfg(steps)]
#[allow(unsafe_code)]
mod counter {
    use std::{
        alloc::{GlobalAlloc, Layout, System},
        cell::Cell,
    };

    thread_local! {
        // It has no constructor and no destructor, so that the allocator may use it.
        static STEPS: Cell<u64> = const { Cell::new(0) };
    }
    /// The number of allocated bytes that count as one step. This accounts for copies, whose length is not visible in
    /// basic blocks.
    const BYTES: u64 = 32;

    pub(super) fn read() -> u64 {
        STEPS.get()
    }

    fn add(steps: u64) {
        STEPS.set(STEPS.get().wrapping_add(steps));
    }

    /// The call that the compiler inserts before every basic block.
    #[unsafe(no_mangle)]
    extern "C" fn __sanitizer_cov_trace_pc() {
        add(1);
    }

    struct CountingAllocator;

    #[global_allocator]
    static ALLOCATOR: CountingAllocator = CountingAllocator;

    // SAFETY: every call is passed unchanged to the system's allocator.
    unsafe impl GlobalAlloc for CountingAllocator {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            add(layout.size() as u64 / BYTES);
            unsafe { System.alloc(layout) }
        }

        unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
            unsafe { System.dealloc(memory, layout) }
        }

        unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
            add(size as u64 / BYTES);
            unsafe { System.realloc(memory, layout, size) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_steps_only_in_instrumented_builds() {
        let (length, steps) = count(|| (0..100).map(|i| i.to_string()).collect::<String>().len());
        assert_eq!((length, steps > 0), (190, COUNTED));
    }
}
