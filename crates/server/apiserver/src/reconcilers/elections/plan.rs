//! The next step of one Lease's election: a function of its candidates, its state and the time.

use std::time::Duration;

use api_meta::{ObjectMeta, Timestamp, Tree as _};
use cel::Version;
use serde::Deserialize;
use serde_json::{Value, json};

/// The time that a candidate has to answer a ping, and for which its answer counts.
pub(super) const ANSWER: Duration = Duration::from_secs(5);
/// The time without a renewal after which a candidate is ignored and may be deleted.
pub(super) const VALIDITY: Duration = Duration::from_secs(30 * 60);
/// The duration of a Lease until its elected holder renews it.
const FIRST_TERM: u64 = 5;
/// The strategy of Kubernetes itself. The holders of other strategies are elected by other programs.
const OLDEST: &str = "OldestEmulationVersion";

/// The fields of a LeaseCandidate that elections use.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Candidate {
    pub(super) metadata: ObjectMeta,
    pub(super) spec: CandidateSpec,
}

/// The spec of a candidate.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct CandidateSpec {
    pub(super) lease_name: String,
    pub(super) strategy: String,
    pub(super) binary_version: String,
    pub(super) emulation_version: String,
    pub(super) ping_time: Option<Timestamp>,
    pub(super) renew_time: Option<Timestamp>,
}

impl Candidate {
    /// Returns `false` if the last renewal is too old, or too far in the future to be one.
    pub(super) fn is_valid(&self, now: Timestamp) -> bool {
        let near = |time| now.since(time) <= VALIDITY && time.since(now) <= VALIDITY;
        self.spec.renew_time.is_some_and(near)
    }

    fn has_renewed_within(&self, time: Duration, now: Timestamp) -> bool {
        self.spec.renew_time.is_some_and(|renewed| now.since(renewed) < time)
    }

    /// Returns the time of a ping that the candidate has not answered.
    fn open_ping(&self) -> Option<Timestamp> {
        self.spec.ping_time.filter(|ping| self.spec.renew_time.is_none_or(|at| at < *ping))
    }

    fn is_pending(&self, now: Timestamp) -> bool {
        let near = |ping| now.since(ping) < ANSWER && ping.since(now) < ANSWER;
        self.open_ping().is_some_and(near)
    }

    /// Returns `true` for a candidate that has not answered its last ping in time.
    fn is_silent(&self, now: Timestamp) -> bool {
        self.open_ping().is_some() && !self.is_pending(now)
    }

    fn binary_version(&self) -> Version {
        Version::parse(&self.spec.binary_version).unwrap_or_default()
    }

    /// Returns the rank under the strategy; the lowest is the best. `None` for invalid versions. As upstream, older
    /// objects come before younger ones of the same versions.
    fn rank(&self) -> Option<impl Ord> {
        let emulated = Version::parse(&self.spec.emulation_version).ok()?;
        let binary = Version::parse(&self.spec.binary_version).ok()?;
        let created = self.metadata.creation_timestamp.unwrap_or_default();
        Some((emulated, binary, created, &self.metadata.name))
    }
}

/// The state of the Lease of an election.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holder<'a> {
    /// There is no Lease, it has no holder, or it has expired.
    None,
    /// A process holds the Lease.
    Named(&'a str),
}

/// The next step of an election.
#[derive(Debug)]
pub(super) enum Step<'a> {
    /// The holder is the best candidate, or there is no candidate.
    Settled,
    /// Some candidates have not answered yet.
    Wait,
    /// Ask these candidates to renew.
    Ping(Vec<&'a Candidate>),
    /// Write the Lease.
    Elect(Outcome<'a>),
}

/// The result of an election.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Outcome<'a> {
    /// The strategy of the candidates.
    pub(super) strategy: &'a str,
    /// The name of the elected candidate; `None` if another program elects it.
    pub(super) electee: Option<&'a str>,
}

/// The error for candidates that contradict each other.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the candidates {0:?} and {1:?} have the same binary version and different strategies; give them the same \
     spec.strategy"
)]
pub(super) struct StrategyConflict(String, String);

/// Returns the next step of the election of one Lease.
///
/// A candidate that leaves a ping unanswered does not count until it renews. It is pinged once, so that a dead one
/// causes neither further writes nor further elections.
pub(super) fn next_step<'a>(
    candidates: impl IntoIterator<Item = &'a Candidate>,
    holder: Holder<'_>,
    now: Timestamp,
) -> Result<Step<'a>, StrategyConflict> {
    let counts = |candidate: &&Candidate| candidate.is_valid(now) && !candidate.is_silent(now);
    let present: Vec<&Candidate> = candidates.into_iter().filter(counts).collect();
    if present.is_empty() || !is_needed(&present, holder, now)? {
        return Ok(Step::Settled);
    }
    let asked = |candidate: &&Candidate| {
        !candidate.has_renewed_within(ANSWER, now) && !candidate.is_pending(now)
    };
    let ping: Vec<&Candidate> = present.iter().copied().filter(asked).collect();
    if !ping.is_empty() {
        return Ok(Step::Ping(ping));
    }
    if present.iter().any(|candidate| candidate.is_pending(now)) {
        return Ok(Step::Wait);
    }
    let strategy = strategy(&present)?;
    let electee = if strategy == OLDEST { best(&present) } else { None };
    if strategy == OLDEST && electee.is_none() {
        return Ok(Step::Settled);
    }
    let electee = electee.map(|candidate| &*candidate.metadata.name);
    Ok(Step::Elect(Outcome { strategy, electee }))
}

/// Reports whether there is no holder, a better one, or a candidate that must renew soon to stay valid.
fn is_needed(
    present: &[&Candidate],
    holder: Holder<'_>,
    now: Timestamp,
) -> Result<bool, StrategyConflict> {
    let Holder::Named(holder) = holder else { return Ok(true) };
    if present.iter().any(|candidate| !candidate.has_renewed_within(VALIDITY / 2, now)) {
        return Ok(true);
    }
    let best = if strategy(present)? == OLDEST { best(present) } else { None };
    Ok(best.is_some_and(|best| best.metadata.name != holder))
}

/// Returns the strategy of the candidates with the newest binary version.
fn strategy<'a>(candidates: &[&'a Candidate]) -> Result<&'a str, StrategyConflict> {
    let Some(newest) = candidates.iter().map(|c| c.binary_version()).max() else { return Ok("") };
    let mut newest = candidates.iter().filter(|c| c.binary_version() == newest);
    let Some(first) = newest.next() else { return Ok("") };
    match newest.find(|other| other.spec.strategy != first.spec.strategy) {
        None => Ok(&first.spec.strategy),
        Some(other) => {
            Err(StrategyConflict(first.metadata.name.clone(), other.metadata.name.clone()))
        }
    }
}

/// Returns the candidate that emulates the oldest version.
fn best<'a>(candidates: &[&'a Candidate]) -> Option<&'a Candidate> {
    let ranked = candidates.iter().filter_map(|candidate| Some((candidate.rank()?, *candidate)));
    ranked.min_by(|a, b| a.0.cmp(&b.0)).map(|(_, candidate)| candidate)
}

/// Writes the outcome of an election into the spec of a Lease. A holder learns by `preferredHolder` that it must give
/// up; the Lease then expires, and the next election replaces the holder.
pub(super) fn write_outcome(
    spec: &mut Value,
    outcome: Outcome<'_>,
    holder: Holder<'_>,
    now: Timestamp,
) {
    if !spec.is_object() {
        *spec = json!({});
    }
    if spec.text("strategy") != outcome.strategy {
        spec.set("strategy", outcome.strategy);
    }
    match (outcome.electee, holder) {
        (None, _) => {}
        (Some(electee), Holder::Named(holder)) => {
            if electee != holder {
                spec.set("preferredHolder", electee);
            }
        }
        (Some(electee), Holder::None) => {
            spec.set("holderIdentity", electee);
            spec.set("leaseDurationSeconds", FIRST_TERM);
            spec.set("renewTime", now.micros());
            spec.remove("preferredHolder");
            spec.remove("acquireTime");
        }
    }
}

#[cfg(test)]
mod tests;
