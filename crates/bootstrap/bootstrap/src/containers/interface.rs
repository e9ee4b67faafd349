//! The interface to a container runtime.

use futures_util::future::BoxFuture;

use crate::Error;

/// A container in the runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    /// The runtime's id.
    pub id: String,
    /// The name in the Pod.
    pub name: String,
    /// `true` if the container runs.
    pub running: bool,
    /// The exit code of an ended container.
    pub exit_code: Option<i32>,
    /// The reason for its end, as the runtime reports it.
    pub reason: String,
    /// The number of earlier runs.
    pub attempt: u32,
    /// The path of its log.
    pub log_path: String,
}

/// A container runtime with its images: a real one over CRI, or a fake in tests.
pub trait Containers: Send + Sync {
    /// Returns the runtime's name and version.
    fn version(&self) -> BoxFuture<'_, Result<String, Error>>;
    fn has_image<'a>(&'a self, image: &'a str) -> BoxFuture<'a, Result<bool, Error>>;
    /// Returns the names of all images, with tags.
    fn images(&self) -> BoxFuture<'_, Result<Vec<String>, Error>>;
    fn pull<'a>(&'a self, image: &'a str) -> BoxFuture<'a, Result<(), Error>>;
    /// Builds our own images and imports them into the runtime.
    fn build<'a>(&'a self, images: &'a [String]) -> BoxFuture<'a, Result<(), Error>>;
    /// Returns the configured sandbox image, if the runtime reports it.
    fn sandbox_image(&self) -> BoxFuture<'_, Result<Option<String>, Error>>;
    /// Returns all containers of Kubernetes Pods, ended ones too, newest first.
    fn containers(&self) -> BoxFuture<'_, Result<Vec<Container>, Error>>;
    /// Stops and removes every Pod and returns their number.
    fn remove_pods(&self) -> BoxFuture<'_, Result<usize, Error>>;
}
