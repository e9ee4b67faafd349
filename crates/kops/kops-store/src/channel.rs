//! Reads channels: the recommended versions of Kubernetes and images.

use kops_core::channel::Channel;

use crate::error::Error;

/// Reads a channel from a file. Upstream's channels are not downloaded, so `needed` requires a file or a version.
pub fn read_channel(name: &str, needed: bool) -> Result<Channel, Error> {
    let path = name.strip_prefix("file://").unwrap_or(name);
    if path.starts_with('/') || path.starts_with('.') {
        let text = std::fs::read(path).map_err(Error::file("reading the channel", path))?;
        return Ok(Channel::read(path, &text)?);
    }
    if needed {
        return Err(Error::Channel { name: name.to_owned() });
    }
    Ok(Channel::default())
}
