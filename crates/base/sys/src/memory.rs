//! Returns free memory to the kernel.

// Links the allocator, also into programs that have another one.
use mimalloc as _;

mod mimalloc_api {
    #[allow(
        unsafe_code,
        reason = "as declared in mimalloc.h; the function may be called by any thread at any time"
    )]
    unsafe extern "C" {
        pub(super) safe fn mi_collect(force: bool);
    }
}

/// Returns memory to the kernel that has been free for a second. The allocator itself does so only when a thread frees
/// more memory, so an idle process would keep what it needed at its peak.
pub fn return_free_memory() {
    mimalloc_api::mi_collect(false);
}
