//! Counts the live memory of threads, for tests that bound the memory of a data structure.
//!
//! A test binary installs [`CountingAllocator`] as its global allocator. Every thread has its own counter, so that
//! other tests do not disturb a measurement.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

thread_local! {
    // It has no constructor and no destructor, so that the allocator may use it.
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

/// The system's allocator with a counter of live bytes.
pub struct CountingAllocator;

/// Runs `work` and returns its result, and by how many bytes the live memory of this thread has grown. Without
/// [`CountingAllocator`] it is 0.
pub fn growth<T>(work: impl FnOnce() -> T) -> (T, isize) {
    let before = LIVE.get();
    let result = work();
    (result, LIVE.get() - before)
}

/// Runs `work` and returns its result, and by how many bytes the live memory of this thread exceeded the memory before
/// it at most. Without [`CountingAllocator`] it is 0.
pub fn peak<T>(work: impl FnOnce() -> T) -> (T, isize) {
    let before = LIVE.get();
    PEAK.set(before);
    let result = work();
    (result, PEAK.get() - before)
}

/// Runs `work` and returns its result, and how many allocations this thread has made. Without [`CountingAllocator`] it
/// is 0.
pub fn allocations<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = ALLOCATIONS.get();
    let result = work();
    (result, ALLOCATIONS.get() - before)
}

fn add(bytes: usize) {
    ALLOCATIONS.set(ALLOCATIONS.get() + 1);
    let live = LIVE.get().wrapping_add_unsigned(bytes);
    LIVE.set(live);
    PEAK.set(PEAK.get().max(live));
}

fn subtract(bytes: usize) {
    LIVE.set(LIVE.get().wrapping_sub_unsigned(bytes));
}

#[allow(unsafe_code)]
// SAFETY: every call is passed unchanged to the system's allocator.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        subtract(layout.size());
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        subtract(layout.size());
        add(size);
        unsafe { System.realloc(memory, layout, size) }
    }
}
