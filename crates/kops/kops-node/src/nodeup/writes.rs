//! The writes of an etcd member's start, in order. Tests stop them at any one.

#[cfg(test)]
use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

use crate::error::Error;

/// The writes of a member's start. Outside of tests, every write is carried out.
#[derive(Clone, Debug, Default)]
pub(super) struct Writes {
    /// The number of writes that are carried out; `None` for all.
    #[cfg(test)]
    pub(super) left: Rc<Cell<Option<usize>>>,
    /// The writes so far, the one that failed included.
    #[cfg(test)]
    pub(super) done: Rc<RefCell<Vec<&'static str>>>,
}

impl Writes {
    /// Carries out a write.
    pub(super) fn step<T>(
        &self,
        name: &'static str,
        write: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.stop(name)?;
        write()
    }

    #[cfg(not(test))]
    fn stop(&self, _: &'static str) -> Result<(), Error> {
        Ok(())
    }

    /// Counts a write, and fails if none is left.
    #[cfg(test)]
    fn stop(&self, name: &'static str) -> Result<(), Error> {
        self.done.borrow_mut().push(name);
        match self.left.get() {
            Some(0) => Err(kops_store::Error::Interrupted.into()),
            Some(left) => {
                self.left.set(Some(left - 1));
                Ok(())
            }
            None => Ok(()),
        }
    }
}
