use std::hash::{DefaultHasher, Hash, Hasher};

/// A string, known by its hash.
///
/// Comparing labels is most of what a scheduler does, and an interning table would have to be shared,
/// locked and swept. Sixty-four bits of SipHash need neither: among a million different strings the odds of
/// any two meeting are one in thirty million, and a meeting could only misjudge a label, never an object's
/// identity, which always goes by its full name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Sym(u64);

impl Sym {
    /// No string: what a node without the label has for a value.
    pub const NONE: Sym = Sym(0);

    /// The symbol of a text, the same in every run of one build.
    pub fn of(text: &str) -> Self {
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        Sym(hasher.finish().max(1))
    }
}

/// Symbols are hashes already: tables keyed by them need not hash again.
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
