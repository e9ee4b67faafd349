//! The directory of the files that a config names with `local`.

/// The directory of the files that a config names with `local`.
pub trait Directory {
    /// Reads a file.
    fn read(&self, name: &str) -> Result<Vec<u8>, DirectoryError>;
    /// Returns the entries below a directory, sorted by name. The directory itself comes first, with an empty name.
    fn below(&self, name: &str) -> Result<Vec<(String, TreeEntry)>, DirectoryError>;
}

/// The directory that the user named, for `local` files and trees. Files outside of it are not read.
pub type Files<'f> = &'f dyn Directory;

/// The message for a `local` file without a directory.
pub(super) const NO_FILES: &str =
    "local file paths are relative to a files directory, and none is given";

/// The cause for which a directory of files cannot be read.
pub type DirectoryError = Box<dyn std::error::Error + Send + Sync>;

/// An entry of a local directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TreeEntry {
    Directory,
    File { executable: bool },
    Link { target: String },
    Other,
}
