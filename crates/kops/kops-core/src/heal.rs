//! Decides which machine to replace because its Node stays not Ready.

use std::time::Duration;

use api_meta::Timestamp;

/// The time for a new machine to join. A machine that never joins is replaced, too.
const STARTING: Duration = Duration::from_secs(600);

/// A machine with its state in the cluster.
#[derive(Clone, Debug)]
pub struct MachineHealth {
    /// The machine's name.
    pub name: String,
    /// `true` for a control plane.
    pub control_plane: bool,
    /// The creation time of the machine.
    pub created: Timestamp,
    /// The last sign of life of its Node; `None` without a Node.
    pub last_sign: Option<Timestamp>,
    /// `true` if its Node is Ready.
    pub ready: bool,
    /// The time of the Node's last change to or from Ready.
    pub since: Option<Timestamp>,
    /// The time after which a machine that is not ready is replaced; `None` if it is left alone.
    pub repair_after: Option<Duration>,
    /// `true` if the etcd member of a control plane answers.
    pub member_answers: bool,
}

impl MachineHealth {
    /// Reports whether the last sign of life came from this machine, not from an earlier one of the same name.
    fn has_joined(&self) -> bool {
        self.last_sign.is_some_and(|sign| sign >= self.created)
    }

    fn is_starting(&self, now: Timestamp) -> bool {
        !self.has_joined() && now.since(self.created) < STARTING
    }

    /// Returns the time since which the machine is not ready.
    fn unready_since(&self) -> Option<Timestamp> {
        match (self.has_joined(), self.ready) {
            (true, true) => None,
            (true, false) => self.since.map(|since| since.max(self.created)),
            (false, _) => Some(self.created),
        }
    }

    fn is_due(&self, now: Timestamp) -> bool {
        let Some(allowed) = self.repair_after else { return false };
        let allowed = if self.has_joined() { allowed } else { allowed.max(STARTING) };
        self.unready_since().is_some_and(|since| now.since(since) >= allowed)
    }
}

/// The next action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Healing {
    /// No machine has been unready for long enough.
    Nothing,
    /// A machine is due, but must wait.
    Wait { machine: String, reason: String },
    /// Replace the machine, which has been unready for `ill`.
    Replace { machine: String, ill: Duration },
}

/// Decides the next action. One machine is replaced at a time. No machine is replaced if too many are unready, because
/// the cause is then elsewhere. No control plane is replaced if etcd would lose its quorum.
pub fn heal(all: &[MachineHealth], now: Timestamp) -> Healing {
    let mut due: Vec<_> = all.iter().filter(|machine| machine.is_due(now)).collect();
    due.sort_by_key(|machine| (machine.unready_since(), &machine.name));
    let Some(first) = due.first() else { return Healing::Nothing };
    let wait = |reason: String| Healing::Wait { machine: first.name.clone(), reason };
    let ill = all.iter().filter(|machine| machine.unready_since().is_some()).count();
    // In a small cluster, one machine alone may be over a third.
    if ill > (all.len() / 3).max(1) {
        return wait(format!(
            "{ill} of {} machines are not ready, which is over a third: the cause is not a single machine",
            all.len()
        ));
    }
    if let Some(other) = all.iter().find(|machine| machine.is_starting(now)) {
        return wait(format!("machine {} is starting, and one is replaced at a time", other.name));
    }
    let members = all.iter().filter(|machine| machine.control_plane).count();
    let keeps_quorum = |without: &MachineHealth| {
        let others =
            all.iter().filter(|machine| machine.control_plane && machine.name != without.name);
        others.filter(|machine| machine.member_answers).count() > members / 2
    };
    match due.iter().find(|machine| !machine.control_plane || keeps_quorum(machine)) {
        Some(machine) => Healing::Replace {
            machine: machine.name.clone(),
            ill: machine.unready_since().map(|since| now.since(since)).unwrap_or_default(),
        },
        None => wait("etcd would have no quorum without it".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_unix(seconds, 0)
    }

    const NOW: i64 = 10_000;

    fn well(name: &str, control_plane: bool) -> MachineHealth {
        MachineHealth {
            name: name.to_owned(),
            control_plane,
            created: at(0),
            last_sign: Some(at(NOW - 5)),
            ready: true,
            since: Some(at(10)),
            repair_after: Some(Duration::from_secs(60)),
            member_answers: control_plane,
        }
    }

    fn ill(name: &str, control_plane: bool, seconds: i64) -> MachineHealth {
        let since = at(NOW - seconds);
        MachineHealth {
            ready: false,
            since: Some(since),
            last_sign: Some(since),
            member_answers: false,
            ..well(name, control_plane)
        }
    }

    fn outcome(all: &[MachineHealth]) -> String {
        match heal(all, at(NOW)) {
            Healing::Nothing => "nothing".to_owned(),
            Healing::Wait { machine, reason } => format!("{machine} waits: {reason}"),
            Healing::Replace { machine, ill } => format!("{machine} after {}", ill.as_secs()),
        }
    }

    #[test]
    fn replaces_unready_machines_one_at_a_time() {
        let (cp, b) = (well("cp", true), well("b", false));
        assert_eq!(outcome(&[cp.clone(), b.clone()]), "nothing");
        assert_eq!(outcome(&[cp.clone(), ill("a", false, 59)]), "nothing");
        assert_eq!(outcome(&[cp.clone(), ill("a", false, 60)]), "a after 60");
        let left_alone = MachineHealth { repair_after: None, ..ill("a", false, 6000) };
        assert_eq!(outcome(&[cp.clone(), left_alone]), "nothing");
        // The longest unready one first. Two of six are a third, three are more.
        let six = |third: MachineHealth| {
            [
                cp.clone(),
                b.clone(),
                well("c", false),
                third,
                ill("x", false, 70),
                ill("y", false, 80),
            ]
        };
        assert_eq!(outcome(&six(well("d", false))), "y after 80");
        assert!(outcome(&six(ill("d", false, 5))).starts_with("y waits: 3 of 6"));
        // A replaced machine has to come up first; its Node still is the old machine's.
        let coming = MachineHealth {
            created: at(NOW - 20),
            last_sign: Some(at(NOW - 90)),
            ..well("d", false)
        };
        assert!(outcome(&six(coming)).contains("over a third"));
        let eight: Vec<_> = ["e", "f", "g"].map(|name| well(name, false)).into();
        let coming = MachineHealth {
            created: at(NOW - 20),
            last_sign: Some(at(NOW - 90)),
            ..well("d", false)
        };
        let all: Vec<_> = six(coming).into_iter().chain(eight).collect();
        assert!(outcome(&all).contains("machine d is starting"), "{}", outcome(&all));
    }

    #[test]
    fn replaces_machine_that_never_joins() {
        let never = |made: i64| MachineHealth {
            created: at(made),
            last_sign: None,
            ready: false,
            since: None,
            ..well("a", false)
        };
        assert_eq!(outcome(&[well("cp", true), never(NOW - 599)]), "nothing");
        assert_eq!(outcome(&[well("cp", true), never(NOW - 600)]), "a after 600");
    }

    #[test]
    fn replaces_control_plane_only_with_quorum() {
        let (a, b) = (well("a", true), well("b", true));
        assert_eq!(outcome(&[a.clone(), b.clone(), ill("c", true, 90)]), "c after 90");
        // Its Node is Ready, but its member does not answer.
        let silent = MachineHealth { member_answers: false, ..b };
        assert!(outcome(&[a, silent, ill("c", true, 90)]).contains("quorum"));
        assert!(outcome(&[ill("a", true, 90), well("n", false)]).contains("quorum"));
        // A worker is replaced first.
        let all = [
            well("a", true),
            MachineHealth { member_answers: false, ..well("b", true) },
            ill("c", true, 90),
        ];
        let more = ["n", "o", "p"].map(|name| well(name, false));
        let all: Vec<_> = all.into_iter().chain(more).chain([ill("w", false, 70)]).collect();
        assert_eq!(outcome(&all), "w after 70");
    }
}
