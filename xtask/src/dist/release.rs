use crate::build::Commit;

/// The facts about a release that its files contain.
pub(super) struct Release<'a> {
    /// The version without `v`, such as `1.36.2+windlass.1`.
    pub(super) version: String,
    /// The architecture as Debian and Go name it.
    pub(super) architecture: &'static str,
    pub(super) commit: &'a Commit,
}
