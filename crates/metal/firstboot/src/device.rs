//! Waits for devices.

use std::{path::Path, time::Duration};

use tokio::time::Instant;

use crate::error::Error;

/// Waits until a device exists.
pub(crate) fn wait_for_device(timeout: Duration, device: &str) -> Result<(), Error> {
    let deadline = Instant::now() + timeout;
    while !Path::new(device).exists() {
        if Instant::now() >= deadline {
            let seconds = timeout.as_secs();
            return Err(Error::NoDevice { device: device.to_owned(), seconds });
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}
