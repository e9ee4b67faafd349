//! The error of an operation on a path.

/// The error of an operation on a path.
#[derive(Debug, thiserror::Error)]
#[error("{operation} {}: {source}", path.display())]
pub struct Error {
    /// The operation, as a verb phrase before the path.
    pub operation: &'static str,
    /// The path.
    pub path: std::path::PathBuf,
    /// The error from the kernel.
    pub source: std::io::Error,
}

impl Error {
    pub(crate) fn at(
        operation: &'static str,
        path: &std::path::Path,
    ) -> impl FnOnce(std::io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self { operation, path, source }
    }
}
