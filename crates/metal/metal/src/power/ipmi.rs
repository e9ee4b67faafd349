//! IPMI 2.0 over LAN (RMCP+): a session with a password, and the chassis commands.

mod session;
mod wire;

#[cfg(test)]
mod tests;

pub use session::Session;

use super::{Action, Device, PowerOperation, done};

/// The errors of an IPMI session.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "cannot reach the controller: {0}; check its address and that IPMI over LAN is enabled"
    )]
    Socket(std::io::Error),
    #[error("no answer to {0}; check that IPMI over LAN is enabled and UDP port 623 is open")]
    Silent(&'static str),
    #[error("{what} was refused: {why}")]
    Refused { what: &'static str, why: String },
    #[error("the answer to {0} is malformed")]
    Malformed(&'static str),
    #[error("the controller's proof does not match the password; check the password")]
    Password,
    #[error("the user name is longer than 16 bytes, or the password than 20")]
    TooLong,
    #[error("encryption failed")]
    Crypto,
}

const CHASSIS: u8 = 0;

/// Returns the chassis control number.
fn number(operation: PowerOperation) -> u8 {
    match operation {
        PowerOperation::Off => 0,
        PowerOperation::On => 1,
        PowerOperation::Cycle => 2,
        PowerOperation::Reset => 3,
        PowerOperation::Shutdown => 5,
    }
}

async fn is_on(session: &mut Session) -> Result<bool, Error> {
    let data = session.command("chassis status", CHASSIS, 1, &[]).await?;
    data.first().map(|state| state & 1 != 0).ok_or(Error::Malformed("chassis status"))
}

async fn set_power(session: &mut Session, operation: PowerOperation) -> Result<(), Error> {
    session.command("chassis control", CHASSIS, 2, &[number(operation)]).await.map(drop)
}

/// Sets the boot flags for the next boot only.
async fn next(session: &mut Session, device: Device, uefi: bool) -> Result<(), Error> {
    let device = match device {
        Device::Network => 1 << 2,
        Device::Disk => 2 << 2,
    };
    // The flags are valid for one boot.
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
        Action::On => set_power(session, PowerOperation::On).await?,
        Action::Off => set_power(session, PowerOperation::Off).await?,
        Action::Shutdown => set_power(session, PowerOperation::Shutdown).await?,
        Action::Reset => set_power(session, PowerOperation::Reset).await?,
        Action::Cycle => set_power(session, PowerOperation::Cycle).await?,
        Action::NextBootNetwork => next(session, Device::Network, uefi).await?,
        Action::NextBootDisk => next(session, Device::Disk, uefi).await?,
        Action::BootNetwork => {
            next(session, Device::Network, uefi).await?;
            let now =
                if is_on(session).await? { PowerOperation::Reset } else { PowerOperation::On };
            set_power(session, now).await?;
        }
    }
    Ok(done(action))
}
