//! Tests of power loss at every step of the log.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    Expected, KeyRange, Op, Outcome, Revision, Store, Write,
    disk::sim::SimDisk,
    embedded::{Embedded, Options},
};

use super::embedded::{block_on, brisk};

const KEYS: u64 = 5;

/// A writer's knowledge of its key.
#[derive(Default, Clone)]
struct KeyState {
    /// The possible values: the last acknowledged one, then those tried since; `None` for a deletion.
    possible: Vec<Option<Vec<u8>>>,
}

#[derive(Default)]
struct Witness {
    keys: BTreeMap<String, KeyState>,
    newest: Revision,
    written: u64,
}

fn key(n: u64) -> String {
    format!("/registry/{n}")
}

/// Returns a unique value that spans sectors.
fn value(n: u64) -> Vec<u8> {
    format!("{n}.").into_bytes().repeat(1 + (n % 7) as usize * 40)
}

impl Witness {
    /// Writes all keys concurrently, round after round, until the power fails or the rounds are over.
    async fn work(&mut self, store: &Embedded, disk: &SimDisk, rounds: u64) {
        for round in 0..rounds {
            let mut writes = Vec::new();
            for n in 0..KEYS {
                self.written += 1;
                let content = (!self.written.is_multiple_of(4)).then(|| value(self.written));
                let known = self.keys.entry(key(n)).or_insert(KeyState { possible: vec![None] });
                known.possible.push(content.clone());
                let op = match content {
                    Some(value) => Op::Put { value: value.into(), ttl_seconds: None },
                    None => Op::Delete,
                };
                writes.push((
                    key(n),
                    store.write(Write { key: key(n).into(), expected: Expected::Any, op }),
                ));
            }
            let (keys, writes): (Vec<_>, Vec<_>) = writes.into_iter().unzip();
            let outcomes = futures_util::future::join_all(writes).await;
            for (key, outcome) in keys.into_iter().zip(outcomes) {
                self.note(&key, outcome.ok());
            }
            if round % 5 == 4 {
                let _ = store.compact(self.newest.saturating_sub(3)).await;
            }
            if disk.has_crashed() {
                return;
            }
        }
    }

    fn note(&mut self, key: &str, outcome: Option<Outcome>) {
        if let Some(Outcome::Done { revision, .. }) = outcome {
            let known = self.keys.get_mut(key).unwrap();
            known.possible.drain(..known.possible.len() - 1);
            self.newest = self.newest.max(revision);
        }
    }

    /// Checks that the recovered state is possible: every acknowledged write, no value that was never written, and
    /// increasing revisions.
    async fn verify(&mut self, store: &Embedded, context: &str) {
        let found = store.range(KeyRange::prefix("/registry/"), 0, 0).await.unwrap();
        assert!(found.revision >= self.newest, "{context}: at {}", found.revision);
        self.newest = found.revision;
        let mut found: BTreeMap<String, Vec<u8>> =
            found.items.iter().map(|kv| (kv.key.to_string(), kv.value.to_vec())).collect();
        for (key, known) in &mut self.keys {
            let there = found.remove(key);
            assert!(known.possible.contains(&there), "{context}: {key} is {there:?}");
            known.possible = vec![there];
        }
        assert!(found.is_empty(), "{context}: {found:?}");
        let after = store.write(super::embedded::put("/registry/0", "next")).await.unwrap();
        assert_eq!(super::embedded::done(after), self.newest + 1, "{context}");
        self.newest += 1;
        self.keys.entry(key(0)).or_default().possible = vec![Some(b"next".to_vec())];
    }
}

fn options() -> Options {
    Options { snapshot_log_bytes: 3000, history_bytes: 3000, ..brisk() }
}

/// Crashes at `step`, recovers, works on and crashes again, several times. Returns `false` when the work ended before
/// the first crash.
fn life(step: u64, seed: u64, rounds: u64) -> bool {
    let mut disk = SimDisk::default();
    let mut witness = Witness::default();
    let mut crashed_at_first = false;
    for crash in 0..4 {
        let context = format!("step {step}, seed {seed}, crash {crash}");
        disk.crash_at(if crash == 0 { step } else { (step * 7 + seed * 3 + crash) % 60 });
        // Recovery itself may hit the power failure.
        if let Ok(store) = Embedded::open_on(Arc::new(disk.clone()), options()) {
            block_on(witness.work(&store, &disk, rounds));
        }
        crashed_at_first |= crash == 0 && disk.has_crashed();
        disk = disk.after_power_loss(seed * 1000 + crash);
        let store = Embedded::open_on(Arc::new(disk.clone()), options())
            .unwrap_or_else(|error| panic!("{context}: {error}"));
        block_on(witness.verify(&store, &context));
        drop(store);
        disk = disk.after_power_loss(seed * 2000 + crash);
    }
    crashed_at_first
}

#[test]
fn acknowledged_writes_survive_power_loss_at_every_step() {
    let mut steps = 0;
    for seed in 0..6 {
        let mut step = 0;
        while life(step, seed, 12) {
            step += 1;
        }
        steps += step;
    }
    assert!(steps > 6 * 30, "only {steps} steps were tried");
}
