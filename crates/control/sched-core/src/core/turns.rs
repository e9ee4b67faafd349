//! Shares the time for decisions between namespaces.

use super::Core;
use crate::pod::Pod;

impl Core {
    /// Records the duration of the decision for a Pod or its gang, in milliseconds. After a long one, the Pods of the
    /// namespace wait for as long as it took, if Pods of other namespaces can be tried. Reports whether it was long.
    pub fn charge(&mut self, pod: &Pod, duration: u64, now: u64) -> bool {
        self.queue.charge(&pod.id.namespace, duration, now)
    }
}
