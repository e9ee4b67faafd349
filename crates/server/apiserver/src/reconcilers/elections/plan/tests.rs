use proptest::prelude::{ProptestConfig, any, prop, prop_assert, prop_assert_eq, proptest};

use super::*;

const NOW: i64 = 1_000_000;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_unix(seconds, 0)
}

/// Returns a candidate that renewed `age` seconds ago.
fn candidate(name: &str, emulated: &str, age: i64) -> Candidate {
    Candidate {
        metadata: ObjectMeta { name: name.to_owned(), ..ObjectMeta::default() },
        spec: CandidateSpec {
            lease_name: "l".to_owned(),
            strategy: OLDEST.to_owned(),
            binary_version: "1.36.2".to_owned(),
            emulation_version: emulated.to_owned(),
            ping_time: None,
            renew_time: Some(at(NOW - age)),
        },
    }
}

/// Returns a candidate that was pinged `age` seconds ago and has not answered.
fn pinged(name: &str, emulated: &str, age: i64) -> Candidate {
    let mut candidate = candidate(name, emulated, age + 1);
    candidate.spec.ping_time = Some(at(NOW - age));
    candidate
}

fn step(candidates: &[Candidate], holder: Holder<'_>) -> String {
    match next_step(candidates, holder, at(NOW)) {
        Ok(Step::Settled) => "settled".to_owned(),
        Ok(Step::Wait) => "wait".to_owned(),
        Ok(Step::Ping(pinged)) => {
            let names: Vec<&str> = pinged.iter().map(|c| &*c.metadata.name).collect();
            format!("ping {}", names.join(" "))
        }
        Ok(Step::Elect(Outcome { strategy, electee })) => {
            format!("{strategy} {}", electee.unwrap_or("nobody"))
        }
        Err(error) => error.to_string(),
    }
}

#[test]
fn decides_next_step_of_election() {
    let (old, new) =
        (|name, age| candidate(name, "1.35.0", age), |name, age| candidate(name, "1.36.0", age));
    for (case, candidates, holder, want) in [
        ("no candidate", vec![], Holder::None, "settled"),
        ("answered", vec![new("a", 1)], Holder::None, "OldestEmulationVersion a"),
        ("asks first", vec![new("a", 6), new("b", 1)], Holder::None, "ping a"),
        ("waits", vec![pinged("a", "1.35.0", 4), new("b", 1)], Holder::None, "wait"),
        (
            "silent",
            vec![pinged("a", "1.35.0", 5), new("b", 1)],
            Holder::None,
            "OldestEmulationVersion b",
        ),
        ("only silent", vec![pinged("a", "1.35.0", 60)], Holder::None, "settled"),
        ("expired", vec![old("a", 1801), new("b", 1)], Holder::None, "OldestEmulationVersion b"),
        ("oldest", vec![new("a", 1), old("b", 1)], Holder::None, "OldestEmulationVersion b"),
        (
            "numeric",
            vec![new("a", 1), candidate("b", "1.9.0", 1)],
            Holder::None,
            "OldestEmulationVersion b",
        ),
        ("name decides", vec![new("b", 1), new("a", 1)], Holder::None, "OldestEmulationVersion a"),
        ("best holds", vec![old("a", 600), new("b", 600)], Holder::Named("a"), "settled"),
        ("a better one", vec![old("a", 600), new("b", 600)], Holder::Named("b"), "ping a b"),
        (
            "silent better one",
            vec![pinged("a", "1.35.0", 60), new("b", 60)],
            Holder::Named("b"),
            "settled",
        ),
        ("renews in time", vec![old("a", 901), new("b", 600)], Holder::Named("a"), "ping a b"),
        (
            "far future",
            vec![candidate("a", "1.35.0", -4000), new("b", 1)],
            Holder::None,
            "OldestEmulationVersion b",
        ),
        (
            "ping of the future",
            vec![pinged("a", "1.35.0", -60), new("b", 1)],
            Holder::None,
            "OldestEmulationVersion b",
        ),
        (
            "invalid version",
            vec![candidate("a", "", 1), new("b", 1)],
            Holder::None,
            "OldestEmulationVersion b",
        ),
        ("only invalid", vec![candidate("a", "x", 1)], Holder::None, "settled"),
    ] {
        assert_eq!(step(&candidates, holder), want, "{case}");
    }
}

#[test]
fn newest_binary_decides_strategy() {
    let with = |name: &str, binary: &str, strategy: &str| {
        let mut candidate = candidate(name, "1.35.0", 1);
        candidate.spec.binary_version = binary.to_owned();
        candidate.spec.strategy = strategy.to_owned();
        candidate
    };
    let (mine, other) = (with("a", "1.36.0", OLDEST), with("b", "1.37.0", "a.b/c"));
    assert_eq!(step(&[mine.clone(), other], Holder::None), "a.b/c nobody");
    let newest = with("c", "1.100.0", OLDEST);
    let middle = with("b", "1.99.0", "a.b/c");
    assert_eq!(step(&[middle, newest, mine.clone()], Holder::None), "OldestEmulationVersion a");
    let conflict = with("d", "1.36.0", "a.b/c");
    let found = step(&[mine, conflict], Holder::None);
    assert!(found.contains("\"a\" and \"d\" have the same binary version"), "{found}");
}

#[test]
fn older_object_wins_among_same_versions() {
    let mut young = candidate("a", "1.36.0", 1);
    young.metadata.creation_timestamp = Some(at(NOW - 1));
    let mut old = candidate("b", "1.36.0", 1);
    old.metadata.creation_timestamp = Some(at(NOW - 100));
    assert_eq!(step(&[young.clone(), old.clone()], Holder::None), "OldestEmulationVersion b");
    // An older emulated version comes before an older binary, and this one before the age.
    young.spec.binary_version = "1.36.1".to_owned();
    assert_eq!(step(&[young.clone(), old.clone()], Holder::None), "OldestEmulationVersion a");
    old.spec.emulation_version = "1.35.0".to_owned();
    assert_eq!(step(&[young, old], Holder::None), "OldestEmulationVersion b");
}

#[test]
fn writes_outcome_without_deposing_holder_that_may_act() {
    let outcome = Outcome { strategy: OLDEST, electee: Some("b") };
    let held = json!({"holderIdentity": "a", "leaseDurationSeconds": 15, "renewTime": "t",
        "acquireTime": "t", "leaseTransitions": 3});
    let mut spec = held.clone();
    write_outcome(&mut spec, outcome, Holder::Named("a"), at(NOW));
    assert_eq!(spec["preferredHolder"], "b");
    assert_eq!((&spec["holderIdentity"], &spec["renewTime"]), (&json!("a"), &json!("t")));
    write_outcome(&mut spec, outcome, Holder::None, at(NOW));
    let want = json!({"holderIdentity": "b", "leaseDurationSeconds": 5, "leaseTransitions": 3,
        "strategy": OLDEST, "renewTime": at(NOW).micros()});
    assert_eq!(spec, want);
    let mut again = spec.clone();
    write_outcome(&mut again, outcome, Holder::Named("b"), at(NOW + 1));
    assert_eq!(again, spec);
    // Other programs elect the holders of their strategies.
    let mut spec = Value::Null;
    write_outcome(&mut spec, Outcome { strategy: "a.b/c", electee: None }, Holder::None, at(NOW));
    assert_eq!(spec, json!({"strategy": "a.b/c"}));
}

/// A process that answers pings and renews its Lease while it is alive.
#[derive(Clone, Copy, Debug)]
struct Process {
    minor: u8,
    alive: bool,
    /// The seconds after which a ping is answered.
    delay: i64,
}

/// The cluster of the property: a Lease, its candidates and their processes.
struct Cluster {
    processes: Vec<Process>,
    candidates: Vec<Candidate>,
    spec: Value,
    /// The time of the last renewal of the Lease.
    since: i64,
    writes: usize,
}

impl Cluster {
    fn new(processes: &[Process]) -> Self {
        let new = |(index, process): (usize, &Process)| {
            candidate(&index.to_string(), &format!("1.{}.0", process.minor), 60)
        };
        let candidates = processes.iter().enumerate().map(new).collect();
        Self { processes: processes.to_vec(), candidates, spec: Value::Null, since: 0, writes: 0 }
    }

    fn holder(&self, now: i64) -> Holder<'_> {
        match self.spec.text("holderIdentity") {
            "" => Holder::None,
            _ if now - self.since >= self.spec.int("leaseDurationSeconds") => Holder::None,
            holder => Holder::Named(holder),
        }
    }

    /// Advances by a second: processes answer and renew, then the elector takes a step.
    fn tick(&mut self, now: i64) {
        for (candidate, process) in self.candidates.iter_mut().zip(&self.processes) {
            if process.alive
                && candidate.open_ping().is_some_and(|p| now >= p.unix() + process.delay)
            {
                candidate.spec.renew_time = Some(at(now));
            }
        }
        if let Holder::Named(holder) = self.holder(now)
            && self.processes[holder.parse::<usize>().unwrap()].alive
            && self.spec.blank("preferredHolder")
        {
            self.spec["leaseDurationSeconds"] = json!(15);
            self.since = now;
        }
        let pinged: Vec<String> = match next_step(&self.candidates, self.holder(now), at(now)) {
            Ok(Step::Ping(pinged)) => pinged.iter().map(|c| c.metadata.name.clone()).collect(),
            Ok(Step::Elect(outcome)) => {
                let mut spec = self.spec.clone();
                write_outcome(&mut spec, outcome, self.holder(now), at(now));
                if spec["renewTime"] != self.spec["renewTime"] {
                    self.since = now;
                }
                if spec != self.spec {
                    self.spec = spec;
                    self.writes += 1;
                }
                return;
            }
            _ => return,
        };
        self.writes += pinged.len();
        for candidate in &mut self.candidates {
            if pinged.contains(&candidate.metadata.name) {
                candidate.spec.ping_time = Some(at(now));
            }
        }
    }

    /// Returns the best living process that answers in time.
    fn best(&self) -> Option<usize> {
        let able = |(_, process): &(usize, &Process)| process.alive && process.delay < 5;
        let able = self.processes.iter().enumerate().filter(able);
        able.min_by_key(|(index, process)| (process.minor, index.to_string()))
            .map(|(index, _)| index)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The best process that answers holds the Lease within a minute of any change, and an election that is over writes
    /// nothing.
    #[test]
    fn best_process_holds_lease_in_the_end(
        processes in prop::collection::vec((30_u8..40, any::<bool>(), 0_i64..5), 1..8),
        died in any::<prop::sample::Index>(),
    ) {
        let new = |(minor, alive, delay)| Process { minor, alive, delay };
        let processes: Vec<Process> = processes.into_iter().map(new).collect();
        let mut cluster = Cluster::new(&processes);
        for phase in 0..2 {
            let begun = NOW + phase * 200;
            (begun..begun + 60).for_each(|now| cluster.tick(now));
            let writes = cluster.writes;
            (begun + 60..begun + 200).for_each(|now| cluster.tick(now));
            let end = begun + 200;
            match cluster.best() {
                Some(best) => prop_assert_eq!(cluster.holder(end), Holder::Named(&best.to_string())),
                None => prop_assert_eq!(cluster.holder(end), Holder::None),
            }
            prop_assert!(cluster.writes == writes, "{} writes", cluster.writes - writes);
            prop_assert!(cluster.writes <= 4 * processes.len() + 4, "{} writes", cluster.writes);
            let dies = died.index(processes.len());
            cluster.processes[dies].alive = false;
        }
    }
}
