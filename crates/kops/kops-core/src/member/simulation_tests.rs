//! Simulates machines and volumes that come, go and stop between any two writes, restorations, and undone restorations.

use std::collections::{BTreeMap, BTreeSet};

use rand::{Rng as _, SeedableRng as _, rngs::StdRng};

use super::*;

const NAMES: [&str; 3] = ["a", "b", "c"];

/// A member's volume and machine.
#[derive(Clone, Default)]
struct Site {
    tag: Option<Tag>,
    /// The generation of the data in place.
    data: Option<String>,
    /// The generations of the data that was set aside.
    aside: BTreeSet<String>,
    runs: bool,
}

#[derive(Default)]
struct Simulation {
    sites: [Site; 3],
    mark: Option<Mark>,
    restore: Option<Restore>,
    blank: BTreeMap<String, String>,
    /// The generations in which a member of a name has run.
    votes: [BTreeSet<String>; 3],
    marks: usize,
    commands: usize,
}

impl Simulation {
    fn generation(&self) -> String {
        self.mark.as_ref().map(|mark| mark.generation.clone()).unwrap_or_default()
    }

    /// Decides for one member, as nodeup does at its start.
    fn decide(&mut self, who: usize, id: String) -> Start {
        let generation = self.generation();
        let site = &mut self.sites[who];
        let tag = site.tag.get_or_insert_with(|| Tag {
            cluster: "c".to_owned(),
            etcd: "main".to_owned(),
            member: NAMES[who].to_owned(),
            id,
            used: false,
            generation: String::new(),
        });
        let tag = tag.clone();
        if (site.data.is_none() && self.mark.is_none()) || self.restore.is_some() {
            self.blank.insert(NAMES[who].to_owned(), tag.id.clone());
        }
        let site = self.sites[who].clone();
        let is_current = |site: &&Site| site.runs && site.data.as_ref() == Some(&generation);
        let has_quorum = self.sites.iter().filter(is_current).count() >= 2;
        let member = |n: usize| EtcdMember {
            peer_url: format!("https://{}", NAMES[n]),
            name: if self.votes[n].contains(&generation) {
                NAMES[n].to_owned()
            } else {
                String::new()
            },
            learner: false,
        };
        let quorum: Vec<_> = (0..3).map(member).collect();
        start(&Volume {
            cluster: "c",
            etcd: "main",
            member: NAMES[who],
            peer_url: &format!("https://{}", NAMES[who]),
            tag: Some(&tag),
            content: if site.data.is_some() { Content::Data } else { Content::Blank },
            members: &NAMES.map(str::to_owned),
            quorum: has_quorum.then_some(quorum.as_slice()),
            mark: self.mark.as_ref(),
            restore: self.restore.as_ref(),
            blank: &self.blank,
            backup: false,
            aside: site.aside.contains(&generation),
        })
    }

    /// Sets data aside, writes the tag, puts restored data in place and starts etcd. Stops before step `stop`.
    fn begin(&mut self, who: usize, stop: usize) {
        let (generation, is_restored) =
            (self.generation(), self.mark.as_ref().is_some_and(|mark| !mark.backup.is_empty()));
        let site = &mut self.sites[who];
        if stop >= 1
            && let Some(old) = site.data.take()
        {
            assert!(site.aside.insert(old), "the trash holds two of a generation");
        }
        if stop >= 2 {
            let tag = site.tag.as_mut().unwrap();
            (tag.used, tag.generation) = (false, generation.clone());
        }
        if stop >= 3 && is_restored {
            site.data = Some(generation);
        }
        if stop >= 4 {
            self.run(who, stop >= 5);
        }
    }

    /// Starts etcd, and records on the tag that it has run unless nodeup stops before.
    fn run(&mut self, who: usize, records: bool) {
        let generation = self.generation();
        let site = &mut self.sites[who];
        let tag = site.tag.as_mut().unwrap();
        assert_eq!(tag.generation, generation, "etcd runs in another generation");
        tag.used |= records;
        (site.data, site.runs) = (Some(generation.clone()), true);
        self.votes[who].insert(generation);
    }

    fn carry_out(&mut self, seed: u64, who: usize, step: Start, stop: usize) {
        let (generation, has_started) =
            (self.generation(), self.votes.iter().any(|v| !v.is_empty()));
        match step.clone() {
            Start::Mark(mark) => {
                assert!(!has_started || self.restore.is_some(), "seed {seed}: a second cluster");
                assert!(self.sites.iter().all(|site| !site.runs), "seed {seed}: two clusters");
                self.marks += 1;
                (self.mark, self.restore) = (Some(mark), None);
                self.blank.clear();
            }
            Start::Begin => {
                assert!(!self.votes[who].contains(&generation), "seed {seed}: it forgot its votes");
                self.begin(who, stop);
            }
            Start::Join | Start::Expected => {
                let site = &mut self.sites[who];
                if stop >= 1 {
                    site.aside.extend(site.data.take());
                }
                if stop >= 2 {
                    let tag = site.tag.as_mut().unwrap();
                    (tag.used, tag.generation) = (false, generation);
                    // A member that joins is a new one.
                    tag.id =
                        if step == Start::Join { format!("{}+", tag.id) } else { tag.id.clone() };
                }
                if stop >= 4 {
                    self.run(who, stop >= 5);
                }
            }
            Start::Return => {
                let site = &mut self.sites[who];
                if stop >= 1
                    && let Some(undone) = site.data.take()
                {
                    site.aside.insert(undone);
                }
                if stop >= 2 {
                    let tag = site.tag.as_mut().unwrap();
                    (tag.used, tag.generation) = (true, generation.clone());
                }
                if stop >= 3 {
                    assert!(site.aside.remove(&generation), "seed {seed}: nothing to return to");
                    site.data = Some(generation);
                }
                if stop >= 4 {
                    self.run(who, true);
                }
            }
            Start::Run => {
                assert_eq!(self.sites[who].data, Some(generation), "seed {seed}");
                self.run(who, stop >= 5);
            }
            Start::Wait(_) => {}
            Start::Refuse(reason) => panic!("seed {seed}: {reason}"),
        }
    }

    /// Restores a backup, or undoes the restoration if enough members hold their data, as the keeper does.
    fn command(&mut self, moment: i64, undo: bool) {
        if !undo {
            self.commands += 1;
            self.restore = Some(Restore { backup: "b".to_owned(), timestamp: moment });
            self.blank.clear();
            return;
        }
        let Some(undone) = self.mark.as_ref().and_then(Mark::undo) else { return };
        let intact = self.sites.iter().filter(|site| {
            site.aside.contains(&undone.generation)
                || site.data.as_ref() == Some(&undone.generation)
        });
        if self.restore.is_none() && intact.count() >= 2 {
            self.mark = Some(undone);
            self.sites.iter_mut().for_each(|site| site.runs = false);
        }
    }
}

/// Two clusters never start, and no member forgets its votes. The simulation reaches each kind of start.
#[test]
fn never_starts_two_clusters() {
    let (mut returns, mut restored, mut repeated) = (0, 0, 0);
    for seed in 0..3_000 {
        let random = &mut StdRng::seed_from_u64(seed);
        let mut all = Simulation::default();
        for moment in 0..80 {
            let who = random.random_range(0..3);
            let has_started = all.votes.iter().any(|votes| !votes.is_empty());
            match random.random_range(0..10) {
                // The machine ends; its volume stays.
                0 | 1 => all.sites[who].runs = false,
                // The volume is lost, or only the data.
                2 if has_started && random.random_bool(0.2) => all.sites[who] = Site::default(),
                2 if all.sites[who].tag.as_ref().is_some_and(|tag| tag.used)
                    && random.random_bool(0.1) =>
                {
                    (all.sites[who].data, all.sites[who].runs) = (None, false);
                }
                3 if has_started && random.random_bool(0.3) => {
                    all.command(moment + 1, random.random_bool(0.5));
                }
                _ if !all.sites[who].runs => {
                    let step = all.decide(who, format!("{moment}-{who}"));
                    returns += usize::from(step == Start::Return);
                    restored += usize::from(step == Start::Begin && !all.generation().is_empty());
                    let tag = all.sites[who].tag.clone();
                    let is_again = tag.is_some_and(|tag| tag.generation == all.generation());
                    repeated += usize::from(step == Start::Begin && is_again);
                    all.carry_out(seed, who, step, random.random_range(0..8));
                }
                _ => {}
            }
        }
        assert!(all.marks <= 1 + all.commands, "seed {seed}");
    }
    assert!(returns > 100 && restored > 100 && repeated > 100, "{returns} {restored} {repeated}");
}
