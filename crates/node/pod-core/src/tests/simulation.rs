//! Simulates whole lives of Pods on a faulty runtime, each from a seed.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};

use super::steps::{at, pod};
use crate::{
    Container, Ending, Inputs, Memory, Observed, Role, Run, Sandbox, StatusInputs, Step, Timestamp,
    Verdicts, after, container_hash, members, plan, status,
};

const SEEDS: u64 = 400;
const LOOKS: usize = 400;

struct World {
    random: StdRng,
    seed: u64,
    pod: Pod,
    observed: Observed,
    memory: Memory,
    now: Timestamp,
    /// The time and exit code of each running container's exit.
    fates: Vec<(String, Timestamp, i32)>,
    made: u32,
    previous: PodStatus,
    ending: Option<Ending>,
    /// The last restart of each container since the memory was lost.
    restarted: Vec<(String, Timestamp)>,
}

fn random_pod(random: &mut StdRng) -> Pod {
    let mut names = 0;
    let mut container = |extra: Value| {
        names += 1;
        let mut container = json!({ "name": format!("c{names}"), "image": "i" });
        container.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        container
    };
    let init: Vec<Value> = (0..random.random_range(0..4))
        .map(|_| {
            container(if random.random_bool(0.4) {
                json!({ "restartPolicy": "Always" })
            } else {
                json!({})
            })
        })
        .collect();
    let apps: Vec<Value> = (0..random.random_range(1..4)).map(|_| container(json!({}))).collect();
    let policy = ["Always", "OnFailure", "Never"][random.random_range(0..3)];
    pod(json!({ "restartPolicy": policy, "initContainers": init, "containers": apps }))
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        Self {
            pod: random_pod(&mut random),
            random,
            seed,
            observed: Observed::default(),
            memory: Memory::default(),
            now: at(0),
            fates: Vec::new(),
            made: 0,
            previous: PodStatus::default(),
            ending: None,
            restarted: Vec::new(),
        }
    }

    fn live(mut self) {
        for _ in 0..LOOKS {
            self.memory.begin_pass();
            let verdicts = Verdicts::default();
            let inputs = Inputs {
                pod: &self.pod,
                observed: &self.observed,
                memory: &self.memory,
                verdicts: &verdicts,
                now: self.now,
            };
            let plan = plan(&inputs);
            self.check_status();
            if plan.ending.is_some() {
                self.ending = plan.ending;
                return self.end();
            }
            let idle = plan.steps.is_empty();
            for step in plan.steps {
                self.take(step);
            }
            if idle {
                self.pass_time(plan.again);
            }
            self.mishap();
        }
        let policy = self.pod.spec.as_ref().unwrap().restart_policy.clone();
        assert_eq!(
            policy.as_deref(),
            Some("Always"),
            "seed {}: a Pod that can end has not",
            self.seed
        );
    }

    fn check_status(&mut self) {
        let told = status(&StatusInputs {
            pod: &self.pod,
            observed: &self.observed,
            memory: &self.memory,
            verdicts: &Verdicts::default(),
            now: self.now,
            previous: &self.previous,
            ending: self.ending.as_ref(),
            stopping: self.ending.is_some(),
            host_ips: &[],
            runtime: "sim",
            pending: None,
            resize_error: None,
        });
        let ended = matches!(self.previous.phase.as_deref(), Some("Succeeded" | "Failed"));
        assert!(
            !ended || told.phase == self.previous.phase,
            "seed {}: an ended Pod came back",
            self.seed
        );
        let restarts = |status: &PodStatus, name: &str| {
            let all =
                status.container_statuses.iter().chain(&status.init_container_statuses).flatten();
            all.into_iter().find(|s| s.name == name).map_or(0, |s| s.restart_count)
        };
        for member in members(&self.pod) {
            let name = &member.container.name;
            assert!(
                restarts(&told, name) >= restarts(&self.previous, name),
                "seed {}: {name} was counted down",
                self.seed
            );
        }
        self.previous = told;
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::CreateSandbox { attempt } => {
                assert!(
                    self.observed.running().next().is_none(),
                    "seed {}: two sandboxes at work",
                    self.seed
                );
                if self.random.random_bool(0.2) {
                    return self.memory.record_sandbox_failure(self.now);
                }
                self.memory.record_sandbox();
                let id = format!("s{attempt}");
                self.observed.sandboxes.insert(
                    0,
                    Sandbox { id, attempt, ready: true, created: self.now, ips: vec![] },
                );
            }
            Step::StopSandbox { id } => {
                self.observed
                    .sandboxes
                    .iter_mut()
                    .filter(|s| s.id == id)
                    .for_each(|s| s.ready = false);
            }
            Step::Kill { id, .. } => self.exit(&id, 137),
            // No container requests resources, or has a restart rule.
            Step::Resize { .. } | Step::ResizePod | Step::RestartAll { .. } => {
                panic!("seed {}: {step:?} that nobody wants", self.seed)
            }
            Step::RemoveSandbox { id } => self.observed.sandboxes.retain(|s| s.id != id),
            Step::Remove { id } => self.observed.containers.retain(|c| c.id != id),
            Step::Start { name, role, sandbox, attempt, exited } => {
                self.start(&name, role, &sandbox, attempt, exited)
            }
        }
    }

    fn start(
        &mut self,
        name: &str,
        role: Role,
        sandbox: &str,
        attempt: u32,
        exited: Option<Timestamp>,
    ) {
        self.check_order(name, role, sandbox);
        let own = self.observed.containers.iter().filter(|c| c.name == name);
        assert!(own.clone().all(|c| !c.is_running()), "seed {}: {name} runs twice", self.seed);
        assert!(
            own.clone().all(|c| c.attempt < attempt),
            "seed {}: an attempt of {name} is counted twice",
            self.seed
        );
        if let Some(exited) = exited {
            let before = self.restarted.iter().rev().find(|(n, _)| n == name);
            if let Some((_, before)) = before {
                let waited = Duration::try_from(self.now.duration_since(exited)).unwrap();
                let ran = Duration::try_from(exited.duration_since(*before)).unwrap();
                let quiet = ran > Duration::from_secs(600);
                assert!(
                    quiet || waited >= Duration::from_secs(10),
                    "seed {}: {name} came back too soon",
                    self.seed
                );
            }
        }
        if self.random.random_bool(0.1) {
            return self.memory.record_pull_failure(
                name,
                "ErrImagePull",
                "simulated".into(),
                self.now,
            );
        }
        if let Some(exited) = exited {
            self.memory.record_restart(name, exited, self.now);
            self.restarted.push((name.to_owned(), self.now));
        }
        self.memory.record_start(name);
        self.made += 1;
        let id = format!("{name}-{}", self.made);
        let member = members(&self.pod).into_iter().find(|m| m.container.name == name).unwrap();
        let hash = container_hash(&member.container);
        self.observed.containers.insert(
            0,
            Container {
                id: id.clone(),
                name: name.to_owned(),
                sandbox: sandbox.to_owned(),
                attempt,
                created: self.now,
                run: Run::Running { started: self.now },
                image: "i".into(),
                image_id: "i".into(),
                hash,
                message: String::new(),
                recursive_read_only: Vec::new(),
                resources: None,
                shared: None,
            },
        );
        // After enough attempts every container succeeds, so that every Pod that can end does.
        let code = i32::from(attempt < 4 && self.random.random_bool(0.5));
        let life = Duration::from_secs(self.random.random_range(0..900));
        self.fates.push((id, after(self.now, life), code));
    }

    /// Checks that no container starts before those that it waits for.
    fn check_order(&self, name: &str, role: Role, sandbox: &str) {
        if role == Role::Ephemeral {
            return;
        }
        let members = members(&self.pod);
        let started_before = self.observed.containers.iter().any(|c| {
            c.sandbox == sandbox
                && members.iter().any(|m| m.role == Role::App && m.container.name == c.name)
        });
        if started_before {
            return;
        }
        for member in members.iter().take_while(|m| m.container.name != name) {
            let newest = self.observed.newest_in(&member.container.name, sandbox);
            let fine = match member.role {
                Role::Init => newest.is_some_and(|c| c.exit_code() == Some(0)),
                Role::Sidecar => newest.is_some_and(Container::is_running),
                Role::App | Role::Ephemeral => true,
            };
            assert!(fine, "seed {}: {name} starts before {}", self.seed, member.container.name);
        }
    }

    fn exit(&mut self, id: &str, code: i32) {
        self.fates.retain(|(fated, ..)| fated != id);
        for container in self.observed.containers.iter_mut().filter(|c| c.id == id) {
            let Run::Running { started } = container.run else { continue };
            container.run = Run::Exited {
                started: Some(started),
                finished: self.now,
                code,
                reason: String::new(),
            };
        }
    }

    /// Advances the clock to the next exit or the next plan.
    fn pass_time(&mut self, again: Option<Timestamp>) {
        self.fates.sort_by_key(|(_, at, _)| *at);
        let exit = self.fates.first().map(|(_, at, _)| *at);
        let next = exit.into_iter().chain(again).min();
        let next =
            next.unwrap_or_else(|| panic!("seed {}: nothing will ever happen again", self.seed));
        assert!(next >= self.now, "seed {}: a look into the past", self.seed);
        self.now = next;
        for (id, at, code) in self.fates.clone() {
            if at <= self.now {
                self.exit(&id, code);
            }
        }
    }

    /// Loses the kubelet's memory or the sandbox, at random.
    fn mishap(&mut self) {
        if self.random.random_bool(0.02) {
            self.memory = Memory::default();
            self.restarted.clear();
        }
        if self.random.random_bool(0.01) {
            self.observed.sandboxes.iter_mut().for_each(|s| s.ready = false);
        }
    }

    fn end(mut self) {
        let running: Vec<String> = self.observed.running().map(|c| c.id.clone()).collect();
        self.check_status();
        for id in running {
            self.exit(&id, 137);
        }
        self.check_status();
        let phase = self.ending.as_ref().map(|e| e.phase.as_str());
        assert_eq!(self.previous.phase.as_deref(), phase, "seed {}: the end is told", self.seed);
    }
}

#[test]
fn pods_end_correctly_on_a_faulty_runtime() {
    for seed in 0..SEEDS {
        World::new(seed).live();
    }
}
