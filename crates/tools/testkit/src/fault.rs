//! The failures of fake drivers and plugins.

use std::collections::BTreeMap;

use tonic::Status;

/// A failure of a call.
#[derive(Clone, Debug)]
pub enum Fault {
    /// The call never returns.
    Hang,
    /// The call returns this status.
    Refuse(tonic::Code, String),
    /// The call returns a status that exceeds the maximum message size.
    Huge,
}

impl Fault {
    /// Runs the failure, if there is one.
    pub(crate) async fn happen(fault: Option<Self>) -> Result<(), Status> {
        match fault {
            None => Ok(()),
            Some(Self::Hang) => std::future::pending().await,
            Some(Self::Refuse(code, message)) => Err(Status::new(code, message)),
            Some(Self::Huge) => Err(Status::internal("x".repeat(5 << 20))),
        }
    }
}

/// The failures of a driver, by method.
#[derive(Default)]
pub(crate) struct Faults(BTreeMap<String, Fault>);

impl Faults {
    /// Makes a method fail from now on, or work again.
    pub(crate) fn set(&mut self, method: &str, fault: Option<Fault>) {
        match fault {
            Some(fault) => drop(self.0.insert(method.to_owned(), fault)),
            None => drop(self.0.remove(method)),
        }
    }

    pub(crate) fn of(&self, method: &str) -> Option<Fault> {
        self.0.get(method).cloned()
    }
}
