//! Which machine another is to take the place of, because its Node is not Ready and does not become so by itself.

use std::time::Duration;

use api_meta::Timestamp;

/// How long a machine has to join: one that never does is replaced, too.
const STARTING: Duration = Duration::from_secs(600);

/// A machine, and what its cluster says of it.
#[derive(Clone, Debug)]
pub struct Patient {
    pub name: String,
    pub control_plane: bool,
    /// When the machine was made.
    pub made: Timestamp,
    /// When it was last heard of; nothing without a Node.
    pub seen: Option<Timestamp>,
    pub ready: bool,
    /// Since when its Node is or is not Ready.
    pub since: Option<Timestamp>,
    /// How long that may last; nothing says that it is left alone.
    pub repair_after: Option<Duration>,
    /// Whether its member of etcd answers, on a control plane.
    pub member_answers: bool,
}

impl Patient {
    /// Whether it is this machine that was heard of, and not the one that had its name.
    fn has_joined(&self) -> bool {
        self.seen.is_some_and(|seen| seen >= self.made)
    }

    fn is_starting(&self, now: Timestamp) -> bool {
        !self.has_joined() && now.since(self.made) < STARTING
    }

    /// Since when it lacks what it ought to be.
    fn ill_since(&self) -> Option<Timestamp> {
        match (self.has_joined(), self.ready) {
            (true, true) => None,
            (true, false) => self.since.map(|since| since.max(self.made)),
            (false, _) => Some(self.made),
        }
    }

    fn is_due(&self, now: Timestamp) -> bool {
        let Some(allowed) = self.repair_after else { return false };
        let allowed = if self.has_joined() { allowed } else { allowed.max(STARTING) };
        self.ill_since().is_some_and(|since| now.since(since) >= allowed)
    }
}

/// What to do now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Healing {
    /// Nobody is ill for long enough.
    Nothing,
    /// Somebody is, and waits; says who, and for what.
    Wait { machine: String, reason: String },
    /// Another is to take the machine's place, which has been ill for so long.
    Replace { machine: String, ill: Duration },
}

/// One machine at a time; none while too many are ill, because then it is not they; and no control plane that etcd's quorum
/// would go with.
pub fn heal(all: &[Patient], now: Timestamp) -> Healing {
    let mut due: Vec<_> = all.iter().filter(|machine| machine.is_due(now)).collect();
    due.sort_by_key(|machine| (machine.ill_since(), &machine.name));
    let Some(first) = due.first() else { return Healing::Nothing };
    let wait = |reason: String| Healing::Wait { machine: first.name.clone(), reason };
    let ill = all.iter().filter(|machine| machine.ill_since().is_some()).count();
    // In a small cluster one is over a third by itself.
    if ill > (all.len() / 3).max(1) {
        return wait(format!(
            "{ill} of {} machines are not ready, which is over a third: what ails them is elsewhere",
            all.len()
        ));
    }
    if let Some(other) = all.iter().find(|machine| machine.is_starting(now)) {
        return wait(format!("machine {} is starting, and one is replaced at a time", other.name));
    }
    let members = all.iter().filter(|machine| machine.control_plane).count();
    let kept = |without: &Patient| {
        let others =
            all.iter().filter(|machine| machine.control_plane && machine.name != without.name);
        others.filter(|machine| machine.member_answers).count() > members / 2
    };
    match due.iter().find(|machine| !machine.control_plane || kept(machine)) {
        Some(machine) => Healing::Replace {
            machine: machine.name.clone(),
            ill: machine.ill_since().map(|since| now.since(since)).unwrap_or_default(),
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

    fn well(name: &str, control_plane: bool) -> Patient {
        Patient {
            name: name.to_owned(),
            control_plane,
            made: at(0),
            seen: Some(at(NOW - 5)),
            ready: true,
            since: Some(at(10)),
            repair_after: Some(Duration::from_secs(60)),
            member_answers: control_plane,
        }
    }

    fn ill(name: &str, control_plane: bool, seconds: i64) -> Patient {
        let since = at(NOW - seconds);
        Patient {
            ready: false,
            since: Some(since),
            seen: Some(since),
            member_answers: false,
            ..well(name, control_plane)
        }
    }

    fn said(all: &[Patient]) -> String {
        match heal(all, at(NOW)) {
            Healing::Nothing => "nothing".to_owned(),
            Healing::Wait { machine, reason } => format!("{machine} waits: {reason}"),
            Healing::Replace { machine, ill } => format!("{machine} after {}", ill.as_secs()),
        }
    }

    #[test]
    fn who_is_ill_for_long_enough_is_replaced_one_at_a_time() {
        let (cp, b) = (well("cp", true), well("b", false));
        assert_eq!(said(&[cp.clone(), b.clone()]), "nothing");
        assert_eq!(said(&[cp.clone(), ill("a", false, 59)]), "nothing");
        assert_eq!(said(&[cp.clone(), ill("a", false, 60)]), "a after 60");
        let left_alone = Patient { repair_after: None, ..ill("a", false, 6000) };
        assert_eq!(said(&[cp.clone(), left_alone]), "nothing");
        // The longest first; two of six are a third, three are more.
        let six = |third: Patient| {
            [
                cp.clone(),
                b.clone(),
                well("c", false),
                third,
                ill("x", false, 70),
                ill("y", false, 80),
            ]
        };
        assert_eq!(said(&six(well("d", false))), "y after 80");
        assert!(said(&six(ill("d", false, 5))).starts_with("y waits: 3 of 6"));
        // One that was replaced has to come up first; its Node still is the old machine's.
        let coming = Patient { made: at(NOW - 20), seen: Some(at(NOW - 90)), ..well("d", false) };
        assert!(said(&six(coming)).contains("over a third"));
        let eight: Vec<_> = ["e", "f", "g"].map(|name| well(name, false)).into();
        let coming = Patient { made: at(NOW - 20), seen: Some(at(NOW - 90)), ..well("d", false) };
        let all: Vec<_> = six(coming).into_iter().chain(eight).collect();
        assert!(said(&all).contains("machine d is starting"), "{}", said(&all));
    }

    #[test]
    fn a_machine_that_never_joins_is_tried_again() {
        let never = |made: i64| Patient {
            made: at(made),
            seen: None,
            ready: false,
            since: None,
            ..well("a", false)
        };
        assert_eq!(said(&[well("cp", true), never(NOW - 599)]), "nothing");
        assert_eq!(said(&[well("cp", true), never(NOW - 600)]), "a after 600");
    }

    #[test]
    fn a_control_plane_is_replaced_only_while_the_others_are_a_quorum() {
        let (a, b) = (well("a", true), well("b", true));
        assert_eq!(said(&[a.clone(), b.clone(), ill("c", true, 90)]), "c after 90");
        // Its Node is Ready, and its member does not answer.
        let silent = Patient { member_answers: false, ..b };
        assert!(said(&[a, silent, ill("c", true, 90)]).contains("quorum"));
        assert!(said(&[ill("a", true, 90), well("n", false)]).contains("quorum"));
        // A worker goes before it.
        let all = [
            well("a", true),
            Patient { member_answers: false, ..well("b", true) },
            ill("c", true, 90),
        ];
        let more = ["n", "o", "p"].map(|name| well(name, false));
        let all: Vec<_> = all.into_iter().chain(more).chain([ill("w", false, 70)]).collect();
        assert_eq!(said(&all), "w after 70");
    }
}
