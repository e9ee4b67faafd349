//! Reads channels: the recommended versions of Kubernetes and images.

use std::io::Read as _;

use kops_core::channel::Channel;

use crate::error::Error;

/// The largest channel, in bytes.
const LARGEST: u64 = 4 << 20;

/// Reads a channel from a file. Upstream's channels are not downloaded, so `needed` requires a file or a version.
pub fn read_channel(name: &str, needed: bool) -> Result<Channel, Error> {
    let path = name.strip_prefix("file://").unwrap_or(name);
    if path.starts_with('/') || path.starts_with('.') {
        let failed = || Error::file("reading the channel", path);
        let mut text = Vec::new();
        let file = std::fs::File::open(path).map_err(failed())?;
        file.take(LARGEST + 1).read_to_end(&mut text).map_err(failed())?;
        if text.len() as u64 > LARGEST {
            return Err(Error::object("channel", path, "is larger than 4 MiB"));
        }
        return Ok(Channel::read(path, &text)?);
    }
    if needed {
        return Err(Error::Channel { name: name.to_owned() });
    }
    Ok(Channel::default())
}
