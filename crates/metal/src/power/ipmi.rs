//! IPMI 2.0 over the network (RMCP+): a session by password, and the few commands for chassis.

mod session;
mod wire;

#[cfg(test)]
mod tests;

pub use session::Session;

use super::{Action, Device, Press, done};

/// Why the controller did not do it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("no way to the controller: {0}; is its address right, and IPMI over LAN turned on?")]
    Socket(std::io::Error),
    #[error("no answer to {0}; is IPMI over LAN turned on, and UDP port 623 open?")]
    Silent(&'static str),
    #[error("{what} was refused: {why}")]
    Refused { what: &'static str, why: String },
    #[error("the answer to {0} is malformed")]
    Malformed(&'static str),
    #[error("the controller does not know the password; is it right?")]
    Password,
    #[error("the user name is longer than 16 bytes, or the password than 20")]
    TooLong,
    #[error("encryption failed")]
    Crypto,
}

const CHASSIS: u8 = 0;

/// The chassis control numbers.
fn number(press: Press) -> u8 {
    match press {
        Press::Off => 0,
        Press::On => 1,
        Press::Cycle => 2,
        Press::Reset => 3,
        Press::Shutdown => 5,
    }
}

async fn is_on(session: &mut Session) -> Result<bool, Error> {
    let data = session.command("chassis status", CHASSIS, 1, &[]).await?;
    data.first().map(|state| state & 1 != 0).ok_or(Error::Malformed("chassis status"))
}

async fn press(session: &mut Session, press: Press) -> Result<(), Error> {
    session.command("chassis control", CHASSIS, 2, &[number(press)]).await.map(drop)
}

/// Sets the boot flags for the next boot alone.
async fn next(session: &mut Session, device: Device, uefi: bool) -> Result<(), Error> {
    let device = match device {
        Device::Network => 1 << 2,
        Device::Disk => 2 << 2,
    };
    // Valid, for one boot.
    let kind = if uefi { 0xa0 } else { 0x80 };
    let flags = [5, kind, device, 0, 0, 0];
    session.command("set boot options", CHASSIS, 8, &flags).await.map(drop)
}

pub(super) async fn perform(
    session: &mut Session,
    action: Action,
    uefi: bool,
) -> Result<&'static str, Error> {
    match action {
        Action::Status => return Ok(if is_on(session).await? { "on" } else { "off" }),
        Action::On => press(session, Press::On).await?,
        Action::Off => press(session, Press::Off).await?,
        Action::Shutdown => press(session, Press::Shutdown).await?,
        Action::Reset => press(session, Press::Reset).await?,
        Action::Cycle => press(session, Press::Cycle).await?,
        Action::NextBootNetwork => next(session, Device::Network, uefi).await?,
        Action::NextBootDisk => next(session, Device::Disk, uefi).await?,
        Action::BootNetwork => {
            next(session, Device::Network, uefi).await?;
            let now = if is_on(session).await? { Press::Reset } else { Press::On };
            press(session, now).await?;
        }
    }
    Ok(done(action))
}
