//! IPMI 2.0 over LAN (RMCP+): a session with a password, and the chassis commands.

mod error;
mod session;
mod wire;

#[cfg(test)]
mod tests;

pub use self::{error::Error, session::Session};
use super::action::{Action, Device, PowerOperation};

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
async fn set_next_boot(session: &mut Session, device: Device, uefi: bool) -> Result<(), Error> {
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
        Action::NextBootNetwork => set_next_boot(session, Device::Network, uefi).await?,
        Action::NextBootDisk => set_next_boot(session, Device::Disk, uefi).await?,
        Action::BootNetwork => {
            set_next_boot(session, Device::Network, uefi).await?;
            let now =
                if is_on(session).await? { PowerOperation::Reset } else { PowerOperation::On };
            set_power(session, now).await?;
        }
    }
    Ok(action.message())
}
