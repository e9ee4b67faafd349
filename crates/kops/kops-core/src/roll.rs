//! Rolling updates: which machines are replaced next, so that each group keeps the machines it needs.
//!
//! The next step depends only on the present machines, so an interrupted update continues where it stopped.

use api_meta::{IntOrString, Tree as _};
use kops_api::Object;
use serde_json::Value;

use crate::cluster::{CloudName, Cluster as _};

/// The limits on the replacement of a group's machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// The number of machines allowed above the group's size.
    pub surge: usize,
    /// The number of machines allowed to be unavailable.
    pub unavailable: usize,
    /// `true` to drain and terminate machines; `false` to only detach them from their group.
    pub terminate: bool,
}

/// A machine of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RollingMachine {
    /// The machine's name.
    pub name: String,
    /// `true` if it must be replaced.
    pub outdated: bool,
    /// `true` if it was detached from its group.
    pub detached: bool,
    /// `true` if it is ready.
    pub ready: bool,
}

/// The next step for machines of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Detach them from the group, so that replacements come first.
    Detach(Vec<String>),
    /// Drain and terminate them; replacements come afterwards.
    Replace(Vec<String>),
    /// Drain and terminate them; their replacements have come.
    Release(Vec<String>),
    /// Wait until more machines are ready.
    Wait,
}

/// Returns the limits of a group of `size` machines, from the group, then the cluster, then the role's defaults.
pub fn pace(cluster: &Object, group: &Object, size: usize) -> Pace {
    let setting = |field: &str| -> Option<&Value> {
        let of = |object: &'_ Object| object.spec.has(field);
        if of(group) { group.spec.opt_at(field) } else { cluster.spec.opt_at(field) }
    };
    let total = i64::try_from(size).unwrap_or(i64::MAX);
    let scaled = |field: &str, up: bool| -> Option<usize> {
        let value = setting(field)?;
        let value: IntOrString = serde_json::from_value(value.clone()).ok()?;
        usize::try_from(value.scaled(total, up).ok()?).ok()
    };
    let is_control_plane = group.spec.text("role") == "ControlPlane";
    // As upstream, scaling groups of AWS make the new machine first.
    let usual = usize::from(cluster.cloud() == CloudName::Aws);
    let surge =
        if is_control_plane { 0 } else { scaled("rollingUpdate.maxSurge", true).unwrap_or(usual) };
    let unavailable = match scaled("rollingUpdate.maxUnavailable", false) {
        // A percentage allows at least one machine.
        Some(0) if setting("rollingUpdate.maxUnavailable").is_some_and(Value::is_string) => 1,
        Some(unavailable) => unavailable,
        None => usize::from(surge == 0),
    };
    let terminate =
        setting("rollingUpdate.drainAndTerminate").and_then(Value::as_bool) != Some(false);
    Pace { surge, unavailable, terminate }
}

/// Returns the next step for a group of `size` machines; `None` if nothing is left to do.
pub fn next(machines: &[RollingMachine], size: usize, pace: Pace) -> Option<Step> {
    let names =
        |which: &[&RollingMachine]| which.iter().map(|machine| machine.name.clone()).collect();
    let detached: Vec<_> = machines.iter().filter(|machine| machine.detached).collect();
    let (outdated, new): (Vec<_>, Vec<_>) =
        machines.iter().filter(|machine| !machine.detached).partition(|machine| machine.outdated);
    if pace.surge + pace.unavailable == 0 {
        return None;
    }
    // Without a new machine it is unknown whether new ones work, so the first is replaced alone.
    let tried = !new.is_empty();
    let more = pace.surge.min(outdated.len() + detached.len()).saturating_sub(detached.len());
    let more = if tried { more } else { more.min(1) };
    if more > 0 {
        let last: Vec<_> = outdated.iter().rev().take(more).copied().collect();
        return Some(Step::Detach(names(&last)));
    }
    if !pace.terminate {
        return None;
    }
    if outdated.is_empty() {
        return (!detached.is_empty()).then(|| Step::Release(names(&detached)));
    }
    let most = if tried { pace.surge + pace.unavailable } else { 1 };
    let at_work = machines.iter().filter(|machine| machine.ready).count();
    let spare = (at_work + pace.unavailable).saturating_sub(size);
    // An unready machine can be replaced without loss.
    let idle = outdated.iter().filter(|machine| !machine.ready);
    let busy = outdated.iter().filter(|machine| machine.ready).take(spare);
    let chosen: Vec<_> = idle.chain(busy).take(most).copied().collect();
    Some(if chosen.is_empty() { Step::Wait } else { Step::Replace(names(&chosen)) })
}

/// Returns the position of a role's groups in a rolling update. Groups of one role follow one another.
pub fn rank(role: &str) -> usize {
    ["Bastion", "ControlPlane", "APIServer"].iter().position(|known| *known == role).unwrap_or(3)
}

#[cfg(test)]
mod tests {
    use rand::{Rng as _, SeedableRng as _, rngs::StdRng};

    use super::*;

    fn group(role: &str, update: &str) -> Object {
        let text = format!(
            "apiVersion: kops.k8s.io/v1alpha2\nkind: InstanceGroup\nmetadata: {{name: a}}\nspec: {{role: {role}{update}}}\n"
        );
        Object::read("a", text.as_bytes()).unwrap()
    }

    fn cluster(update: &str) -> Object {
        let text = format!(
            "apiVersion: kops.k8s.io/v1alpha2\nkind: Cluster\nmetadata: {{name: a.local}}\nspec: {{{update}}}\n"
        );
        Object::read("a", text.as_bytes()).unwrap()
    }

    #[test]
    fn takes_pace_from_group_then_cluster_then_role() {
        let plain = cluster("");
        let of = |cluster: &Object, role: &str, update: &str, size| {
            let pace = pace(cluster, &group(role, update), size);
            (pace.surge, pace.unavailable, pace.terminate)
        };
        assert_eq!(of(&plain, "Node", "", 3), (0, 1, true));
        assert_eq!(of(&plain, "Node", ", rollingUpdate: {maxSurge: 2}", 3), (2, 0, true));
        assert_eq!(of(&plain, "Node", ", rollingUpdate: {maxSurge: 10%}", 11), (2, 0, true));
        assert_eq!(of(&plain, "Node", ", rollingUpdate: {maxUnavailable: 30%}", 9), (0, 2, true));
        assert_eq!(of(&plain, "Node", ", rollingUpdate: {maxUnavailable: 10%}", 3), (0, 1, true));
        let all = cluster("rollingUpdate: {maxSurge: 1, drainAndTerminate: false}");
        assert_eq!(of(&all, "Node", "", 3), (1, 0, false));
        assert_eq!(of(&all, "Node", ", rollingUpdate: {maxSurge: 0}", 3), (0, 1, false));
        // A control plane is terminated before its replacement comes, because etcd's members are counted.
        assert_eq!(of(&all, "ControlPlane", "", 3), (0, 1, false));
        let aws = cluster("cloudProvider: aws");
        assert_eq!(of(&aws, "Node", "", 3), (1, 0, true));
        assert_eq!(of(&aws, "Node", ", rollingUpdate: {maxSurge: 0}", 3), (0, 1, true));
        assert_eq!(of(&aws, "ControlPlane", "", 3), (0, 1, true));
        assert!(rank("ControlPlane") < rank("Node"));
    }

    fn machine(name: u32, outdated: bool, detached: bool) -> RollingMachine {
        RollingMachine { name: name.to_string(), outdated, detached, ready: true }
    }

    #[test]
    fn replaces_first_alone_then_up_to_the_limit() {
        let pace = Pace { surge: 0, unavailable: 2, terminate: true };
        let old = |numbers: std::ops::Range<u32>| numbers.map(|n| machine(n, true, false));
        let all: Vec<_> = old(0..4).collect();
        assert_eq!(next(&all, 4, pace), Some(Step::Replace(vec!["0".into()])));
        let mut all: Vec<_> = [machine(0, false, false)].into_iter().chain(old(1..4)).collect();
        assert_eq!(next(&all, 4, pace), Some(Step::Replace(vec!["1".into(), "2".into()])));
        // A new machine is not ready, so one fewer may be replaced; an unready outdated one is replaced first.
        all[0].ready = false;
        assert_eq!(next(&all, 4, pace), Some(Step::Replace(vec!["1".into()])));
        all[3].ready = false;
        assert_eq!(next(&all, 4, pace), Some(Step::Replace(vec!["3".into()])));
        let stuck = Pace { unavailable: 1, ..pace };
        all[3].ready = true;
        assert_eq!(next(&all, 4, stuck), Some(Step::Wait));
        assert_eq!(next(&[machine(0, false, false)], 1, pace), None);
        assert_eq!(next(&all, 4, Pace { unavailable: 0, ..pace }), None);
    }

    /// A group whose machines take time to come, and an update that may be interrupted at any time.
    struct World {
        machines: Vec<RollingMachine>,
        /// The ticks until each unready machine is ready.
        coming: Vec<u32>,
        size: usize,
        names: u32,
    }

    impl World {
        fn come(&mut self, random: &mut StdRng) {
            for (machine, left) in self.machines.iter_mut().zip(&mut self.coming) {
                *left = left.saturating_sub(1);
                machine.ready = machine.ready || (*left == 0);
                // Machines may also fail by themselves.
                if !machine.outdated && random.random_bool(0.01) {
                    (machine.ready, *left) = (false, 3);
                }
            }
        }

        fn add(&mut self, random: &mut StdRng) {
            self.names += 1;
            let new = RollingMachine { ready: false, ..machine(self.names, false, false) };
            self.machines.push(new);
            self.coming.push(random.random_range(1..6));
        }

        fn drop_machine(&mut self, name: &str) {
            let at = self.machines.iter().position(|machine| machine.name == name).unwrap();
            self.machines.remove(at);
            self.coming.remove(at);
        }

        fn carry_out(&mut self, step: Step, random: &mut StdRng) {
            let (names, verb) = match step {
                Step::Wait => return,
                Step::Detach(names) => (names, 'd'),
                Step::Replace(names) => (names, 't'),
                Step::Release(names) => (names, 'r'),
            };
            for name in names {
                // The update is interrupted between two machines; the next step is computed again.
                if random.random_bool(0.1) {
                    return;
                }
                match verb {
                    'd' => {
                        let found = self.machines.iter_mut().find(|machine| machine.name == name);
                        found.unwrap().detached = true;
                        self.add(random);
                    }
                    't' => {
                        self.drop_machine(&name);
                        self.add(random);
                    }
                    _ => self.drop_machine(&name),
                }
            }
        }
    }

    #[test]
    fn every_roll_ends_and_keeps_the_limits() {
        for seed in 0..2_000 {
            let random = &mut StdRng::seed_from_u64(seed);
            let size = random.random_range(1..8);
            let surge = random.random_range(0..4);
            let least = usize::from(surge == 0);
            let pace = Pace { surge, unavailable: random.random_range(least..4), terminate: true };
            let outdated = |random: &mut StdRng| random.random_bool(0.8);
            let machines: Vec<_> = (0..size).map(|n| machine(n, outdated(random), false)).collect();
            let coming = vec![0; machines.len()];
            let size = machines.len();
            let mut world = World { machines, coming, size, names: 100 };
            let mut moments = 0;
            while let Some(step) = next(&world.machines, world.size, pace) {
                moments += 1;
                assert!(moments < 1_000, "seed {seed} does not end");
                let at_work = |world: &World| world.machines.iter().filter(|m| m.ready).count();
                let before = at_work(&world);
                let ended: usize = match &step {
                    Step::Replace(names) | Step::Release(names) => names.len(),
                    _ => 0,
                };
                assert!(ended <= (surge + pace.unavailable).max(1), "seed {seed}: {step:?}");
                // The caller checks before a release that all members are ready.
                if matches!(step, Step::Release(_))
                    && world.machines.iter().any(|m| !m.detached && !m.ready)
                {
                    world.come(random);
                    continue;
                }
                world.carry_out(step, random);
                let after = at_work(&world);
                let least = (world.size - pace.unavailable.min(world.size)).min(before);
                assert!(after >= least, "seed {seed}: {after} of {} at work", world.size);
                let counted = world.machines.iter().filter(|m| !m.detached).count();
                assert_eq!(counted, world.size, "seed {seed}");
                assert!(world.machines.len() <= world.size + surge, "seed {seed}");
                world.come(random);
            }
            assert!(world.machines.iter().all(|m| !m.outdated && !m.detached), "seed {seed}");
        }
    }
}
