//! Decides when a restoration has succeeded, and when it is undone.

use std::time::Duration;

use crate::marks::{Mark, Restore};

/// The time for the members to come up after a restoration.
pub const TIMEOUT: Duration = Duration::from_secs(300);

/// The observed state of a restored cluster.
#[derive(Clone, Copy, Debug)]
pub struct Observation {
    /// `true` if an API server is ready, which requires a quorum of etcd's members.
    pub is_ready: bool,
    /// The time since the restored cluster was first seen.
    pub waited: Duration,
    /// The number of members.
    pub members: usize,
    /// The number of members that hold their data from before the restoration.
    pub intact: usize,
}

/// The next action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The cluster was not restored, has come up before, or still has time.
    Nothing,
    /// Write this mark: the restored cluster has come up.
    Confirm(Mark),
    /// Write this mark and terminate the control planes: the members return to their data.
    Undo(Mark),
    /// The restored cluster does not come up, and too few members hold their data: the user restores another backup.
    Stuck,
}

/// Decides the next action for the cluster of a mark.
pub fn step(mark: &Mark, observed: &Observation) -> Step {
    let Some(undone) = mark.undo() else { return Step::Nothing };
    if observed.is_ready {
        return Step::Confirm(mark.confirmed());
    }
    if observed.waited < TIMEOUT {
        return Step::Nothing;
    }
    if observed.intact > observed.members / 2 { Step::Undo(undone) } else { Step::Stuck }
}

/// Returns the mark that cancels a pending command, because not all members have come back in time to begin. They then
/// run their data. `None` if there is still time, or if too few members hold their data.
pub fn cancel(mark: &Mark, pending: &Restore, observed: &Observation) -> Option<Mark> {
    let is_late = observed.waited >= TIMEOUT && observed.intact > observed.members / 2;
    is_late.then(|| Mark { undone: pending.timestamp, ..mark.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn undoes_only_unconfirmed_restorations_with_a_quorum_of_old_data() {
        let restored = Mark {
            generation: "restored-7".to_owned(),
            backup: "b".to_owned(),
            previous: Some("restored-3".to_owned()),
            ..Mark::default()
        };
        let late = Observation { is_ready: false, waited: TIMEOUT, members: 3, intact: 2 };
        let soon = Observation { waited: TIMEOUT / 2, ..late };
        assert_eq!(step(&restored, &soon), Step::Nothing);
        let Step::Undo(undone) = step(&restored, &late) else { panic!("not undone") };
        assert_eq!((undone.generation.as_str(), undone.undone), ("restored-3", 7));
        assert_eq!(step(&undone, &late), Step::Nothing);
        for intact in [0, 1] {
            assert_eq!(step(&restored, &Observation { intact, ..late }), Step::Stuck);
        }
        let Step::Confirm(up) = step(&restored, &Observation { is_ready: true, ..late }) else {
            panic!("not confirmed")
        };
        // A failure that comes later has another cause.
        assert_eq!(step(&up, &late), Step::Nothing);
        assert_eq!(step(&Mark::default(), &late), Step::Nothing);
    }

    #[test]
    fn cancels_commands_that_do_not_begin_in_time() {
        let late = Observation { is_ready: false, waited: TIMEOUT, members: 3, intact: 2 };
        let pending = Restore { backup: "b".to_owned(), timestamp: 9 };
        let mark = Mark { generation: "restored-7".to_owned(), ..Mark::default() };
        let cancelled = cancel(&mark, &pending, &late).unwrap();
        assert_eq!((&cancelled.generation, cancelled.restored_at()), (&mark.generation, Some(9)));
        assert_eq!(cancel(&mark, &pending, &Observation { waited: TIMEOUT / 2, ..late }), None);
        // The members wait for the backup, because they have nothing else to run.
        assert_eq!(cancel(&mark, &pending, &Observation { intact: 1, ..late }), None);
    }
}
