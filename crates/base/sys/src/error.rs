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
    /// Returns the function that makes the error of an operation on a path from the kernel's error.
    pub fn at<P: AsRef<std::path::Path>>(
        operation: &'static str,
        path: P,
    ) -> impl FnOnce(std::io::Error) -> Self + use<P> {
        let path = path.as_ref().to_owned();
        move |source| Self { operation, path, source }
    }
}
