//! The lock of a cluster: an object that names its holder and expires.

use std::time::Duration;

use api_meta::Timestamp;
use serde_json::{Value, json};

use crate::{
    error::Error,
    object::{Precondition, Secrecy, Version},
    store::Store,
};

/// A lock that is held. A holder that ends without releasing it keeps it until it expires.
#[derive(Debug)]
#[must_use]
pub struct Lock {
    name: String,
    version: Version,
}

impl Store {
    /// Takes a lock for `period`. An expired lock is taken over; one that cannot be parsed counts as held.
    pub fn lock(
        &self,
        name: &str,
        holder: &str,
        now: Timestamp,
        period: Duration,
    ) -> Result<Lock, Error> {
        let since = match self.read(name)? {
            None => Precondition::Absent,
            Some((content, version)) => {
                let lock: Value = serde_json::from_slice(&content).unwrap_or_default();
                let text = |field| lock.get(field).and_then(Value::as_str).unwrap_or("unknown");
                let until = text("until").parse::<Timestamp>();
                if !until.is_ok_and(|until| until <= now) {
                    let (holder, until) = (text("holder").to_owned(), text("until").to_owned());
                    return Err(Error::Locked { name: name.to_owned(), holder, until });
                }
                Precondition::Read(version)
            }
        };
        let version = self.put(name, holder, now, period, &since)?;
        Ok(Lock { name: name.to_owned(), version })
    }

    /// Extends a lock by `period`. A conflict means that it expired and has another holder.
    pub fn renew(
        &self,
        lock: &mut Lock,
        holder: &str,
        now: Timestamp,
        period: Duration,
    ) -> Result<(), Error> {
        let since = Precondition::Read(lock.version.clone());
        lock.version = self.put(&lock.name, holder, now, period, &since)?;
        Ok(())
    }

    fn put(
        &self,
        name: &str,
        holder: &str,
        now: Timestamp,
        period: Duration,
        since: &Precondition,
    ) -> Result<Version, Error> {
        let until = now.plus(period).to_string();
        let content = json!({"holder": holder, "until": until}).to_string();
        self.write(name, content.as_bytes(), since, Secrecy::Open)
    }

    /// Releases a lock. A conflict means that it expired and has another holder.
    pub fn unlock(&self, lock: Lock) -> Result<(), Error> {
        self.remove(&lock.name, &lock.version)
    }
}
