//! The node image: a kernel and what it starts, from Debian's packages and this binary.
//!
//! It has two parts beside the kernel. `initrd.img` is small: drivers, programs that lay disks out, and this binary
//! as the first process (crate `firstboot`). `rootfs.img` is the root, which is unpacked into memory or onto a disk;
//! who boots from the network loads both, and a disk that is installed carries the first.
//!
//! Invariants: the same tree and binary give the same bytes (names sorted, times fixed, no clock or random number
//! read); nothing of the machine that builds gets into the image but the two; the image holds no key or identity, so
//! that two machines never share one.

mod contents;
mod cpio;
mod elf;
mod image;
mod initrd;
mod tree;

pub use image::{Args, Error, build};
