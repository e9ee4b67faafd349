//! The actions on a machine's power, and the operations of a controller that carry them out.

use clap::ValueEnum;

/// The actions on a machine's power.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Action {
    /// Print whether it is on
    Status,
    On,
    /// Cut its power
    Off,
    /// Ask its system to shut down
    Shutdown,
    /// Start it again at once
    Reset,
    /// Cut its power and give it again
    Cycle,
    /// Boot from the network, once, at its next start
    NextBootNetwork,
    /// Boot from its disk, once, at its next start
    NextBootDisk,
    /// Boot from the network now: choose it for once, and reset or power on
    BootNetwork,
}

/// The power operations of a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PowerOperation {
    On,
    Off,
    Shutdown,
    Reset,
    Cycle,
}

/// The device of the next boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    Network,
    Disk,
}

impl Action {
    /// Returns the message after the action.
    pub(super) fn message(self) -> &'static str {
        match self {
            Self::Status => "asked",
            Self::On => "powered on",
            Self::Off => "powered off",
            Self::Shutdown => "asked to shut down",
            Self::Reset => "reset",
            Self::Cycle => "power-cycled",
            Self::NextBootNetwork => "boots from the network once",
            Self::NextBootDisk => "boots from its disk once",
            Self::BootNetwork => "boots from the network now",
        }
    }
}
