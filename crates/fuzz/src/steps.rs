//! Counts the steps of code that is built for it: the basic blocks that it runs, and the memory that it asks for.
//!
//! A count is the same on a fast and a slow machine, so a test can tell linear work from quadratic work by it. Nothing in
//! the counted code names a counter: the compiler puts a call before every basic block (LLVM's SanitizerCoverage), in
//! loops of the standard library too where they are generic. `xtask/src/steps.rs` builds crates in this way, with
//! `--cfg steps`; this crate is left out, because the counter would count itself.
//!
//! Every thread has a counter of its own.

/// `true` if this build counts steps.
pub const COUNTED: bool = cfg!(steps);

/// Runs `work` and returns its result and the steps that it took; 0 steps in a build that does not count.
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
        // Neither made nor dropped at run time, so that the allocator may use it.
        static STEPS: Cell<u64> = const { Cell::new(0) };
    }
    /// As many bytes of an allocation count as one step. Copies show in this way: no basic block tells how long one is.
    const BYTES: u64 = 32;

    pub(super) fn read() -> u64 {
        STEPS.get()
    }

    fn add(steps: u64) {
        STEPS.set(STEPS.get().wrapping_add(steps));
    }

    /// The call that the compiler puts before every basic block.
    #[unsafe(no_mangle)]
    extern "C" fn __sanitizer_cov_trace_pc() {
        add(1);
    }

    struct Counting;

    #[global_allocator]
    static ALLOCATOR: Counting = Counting;

    // SAFETY: every call goes to the system's allocator as it came.
    unsafe impl GlobalAlloc for Counting {
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
    fn counts_only_in_builds_for_it() {
        let (length, steps) = count(|| (0..100).map(|i| i.to_string()).collect::<String>().len());
        assert_eq!((length, steps > 0), (190, COUNTED));
    }
}
