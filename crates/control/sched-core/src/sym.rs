//! Strings as symbols, which compare in one instruction.

use std::hash::{DefaultHasher, Hash, Hasher};

/// A string, represented by its hash.
///
/// Comparing labels is the scheduler's main work. An interning table would have to be shared, locked and cleaned. A
/// 64-bit SipHash needs none of that: among a million different strings the probability of a collision is one in thirty
/// million. A collision could only misjudge a label; objects are identified by their full names.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Sym(u64);

impl Sym {
    /// The absence of a string: the value of a label that a node does not have.
    pub const NONE: Sym = Sym(0);

    /// Returns the symbol of a string, the same in every run of one build.
    pub fn of(text: &str) -> Self {
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        Sym(hasher.finish().max(1))
    }

    /// Returns the symbol of an image. Nodes list images with a tag or digest; a Pod may omit the tag.
    pub(crate) fn of_image(name: &str) -> Self {
        let last = name.rsplit('/').next().unwrap_or(name);
        if last.contains(':') || name.contains('@') {
            Self::of(name)
        } else {
            Self::of(&format!("{name}:latest"))
        }
    }
}

/// A hasher that passes symbols through, because they are hashes already.
#[derive(Clone, Copy, Default)]
pub(crate) struct SymHasher(u64);

impl Hasher for SymHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(5) ^ u64::from(*byte);
        }
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = self.0.rotate_left(5) ^ value;
    }
}

pub(crate) type SymMap<V> =
    std::collections::HashMap<Sym, V, std::hash::BuildHasherDefault<SymHasher>>;
