//! Builds the node image: a kernel and a root from Debian's packages and this binary.
//!
//! Read [`build`] first. The image has two parts besides the kernel. `initrd.img` has drivers, disk tools and this
//! binary as the init process (crate `firstboot`). `rootfs.img` is the root, which is unpacked into memory or onto a
//! disk. Network boots load both; an installed disk contains the first. Serving and installing the image are the tasks
//! of `netboot` and `firstboot`.
//!
//! Invariants: the same tree and binary give the same bytes (names sorted, times fixed, no clock or random number
//! read). Nothing else of the build machine gets into the image. The image contains no key or identity, so that
//! machines never share one.

mod contents;
mod cpio;
mod elf;
mod error;
mod image;
mod initrd;
mod tree;

pub use error::Error;
pub use image::{Args, build};
