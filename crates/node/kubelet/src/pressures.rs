//! The pressure conditions of the node.

use tokio::sync::watch;

/// The pressure conditions of the node that are true.
pub(crate) struct Pressures(watch::Sender<Vec<&'static str>>);

impl Default for Pressures {
    fn default() -> Self {
        Self(watch::Sender::new(Vec::new()))
    }
}

impl Pressures {
    pub(crate) fn now(&self) -> Vec<&'static str> {
        self.0.borrow().clone()
    }

    /// Returns a channel that changes with the conditions.
    pub(crate) fn follow(&self) -> watch::Receiver<Vec<&'static str>> {
        self.0.subscribe()
    }

    pub(crate) fn set(&self, conditions: Vec<&'static str>) {
        self.0.send_if_modified(|current| {
            let changed = *current != conditions;
            *current = conditions;
            changed
        });
    }
}
