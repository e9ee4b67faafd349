//! References to resources of a model.

/// A reference to a resource of a cloud's model. Kind and name identify the resource.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ref<K> {
    /// The resource's kind.
    pub kind: K,
    /// The resource's name.
    pub name: String,
}

impl<K> Ref<K> {
    /// Creates a reference. The resource need not exist.
    pub fn new(kind: K, name: impl Into<String>) -> Self {
        Self { kind, name: name.into() }
    }
}
