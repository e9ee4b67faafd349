//! Combines repeated and similar occurrences, and limits the rate for each object.

use std::{collections::HashMap, hash::Hash};

use api_meta::{Timestamp, Tree as _};
use serde_json::{Value, json};

use crate::occurrence::{EventKind, ObjectRef, Occurrence};

/// The action for an occurrence.
#[derive(Debug, PartialEq)]
pub enum Decision {
    /// Create the Event.
    Create { namespace: String, event: Value },
    /// Merge `patch` into the Event of this name. If the Event is gone, create `event` instead.
    Count { namespace: String, name: String, patch: Value, event: Value },
    /// Send nothing.
    Drop,
}

/// The number of different Events of one reason about one object within ten minutes that are combined into one.
const SIMILAR: usize = 10;
const SIMILAR_SECONDS: i64 = 600;
/// The rate limit of one object's Events: a burst, then one in five minutes.
const BURST: f64 = 25.0;
const REFILL_SECONDS: f64 = 300.0;
const REMEMBERED: usize = 4096;

#[derive(Clone, PartialEq, Eq, Hash)]
struct Group {
    regarding: ObjectRef,
    kind: EventKind,
    reason: String,
}

struct Similar {
    messages: Vec<String>,
    last: i64,
}

#[derive(Clone)]
struct SentEvent {
    name: String,
    first: Timestamp,
    count: u64,
}

/// Decides which occurrences become Events, as upstream's clients do.
pub struct Correlator {
    component: String,
    host: String,
    groups: Recent<Group, Similar>,
    sent: Recent<(Group, String), SentEvent>,
    budgets: Recent<ObjectRef, (f64, i64)>,
    /// The number of occurrences so far, which makes names unique.
    sequence: u64,
}

impl Correlator {
    /// Creates a correlator without history. The two names are the source of its Events.
    pub fn new(component: &str, host: &str) -> Self {
        Self {
            component: component.to_owned(),
            host: host.to_owned(),
            groups: Recent::default(),
            sent: Recent::default(),
            budgets: Recent::default(),
            sequence: 0,
        }
    }

    /// Returns the action for an occurrence: create an Event, increment its count, or drop it.
    pub fn decide(&mut self, occurrence: &Occurrence, now: Timestamp) -> Decision {
        let regarding =
            ObjectRef { resource_version: String::new(), ..occurrence.regarding.clone() };
        if !self.within_budget(&regarding, now.unix()) {
            return Decision::Drop;
        }
        let group = Group { regarding, kind: occurrence.kind, reason: occurrence.reason.clone() };
        let message = self.combine(&group, &occurrence.message, now.unix());
        let key = (group, message.clone().unwrap_or_else(|| occurrence.message.clone()));
        let text = match &message {
            Some(_) => format!("(combined from similar events): {}", occurrence.message),
            None => occurrence.message.clone(),
        };
        self.sequence += 1;
        let fresh = SentEvent {
            name: name(&occurrence.regarding, now, self.sequence),
            first: now,
            count: 0,
        };
        let sent = self.sent.entry(key, fresh);
        sent.count += 1;
        let sent = sent.clone();
        let namespace = match occurrence.regarding.namespace.as_str() {
            "" => "default".to_owned(),
            namespace => namespace.to_owned(),
        };
        let event = self.event(occurrence, &sent, &namespace, &text, now);
        if sent.count == 1 {
            return Decision::Create { namespace, event };
        }
        let patch = json!({"count": sent.count, "lastTimestamp": now, "message": text});
        Decision::Count { namespace, name: sent.name, patch, event }
    }

    fn event(
        &self,
        occurrence: &Occurrence,
        sent: &SentEvent,
        namespace: &str,
        message: &str,
        now: Timestamp,
    ) -> Value {
        let mut source = json!({"component": self.component});
        if !self.host.is_empty() {
            source.put(&["host"], json!(self.host));
        }
        json!({
            "metadata": {"name": sent.name, "namespace": namespace},
            "involvedObject": occurrence.regarding,
            "type": occurrence.kind.as_str(),
            "reason": occurrence.reason,
            "message": message,
            "source": source,
            "firstTimestamp": sent.first,
            "lastTimestamp": now,
            "count": sent.count,
            "reportingComponent": self.component,
            "reportingInstance": self.host,
        })
    }

    fn within_budget(&mut self, regarding: &ObjectRef, now: i64) -> bool {
        let (tokens, at) = self.budgets.entry(regarding.clone(), (BURST, now));
        *tokens = (*tokens + (now - *at) as f64 / REFILL_SECONDS).min(BURST);
        *at = now;
        let enough = *tokens >= 1.0;
        if enough {
            *tokens -= 1.0;
        }
        enough
    }

    /// Returns the common key of similar Events, if there are too many of them.
    fn combine(&mut self, group: &Group, message: &str, now: i64) -> Option<String> {
        let similar = self.groups.entry(group.clone(), Similar { messages: vec![], last: now });
        if now - similar.last > SIMILAR_SECONDS {
            similar.messages.clear();
        }
        similar.last = now;
        if similar.messages.len() < SIMILAR && !similar.messages.iter().any(|m| m == message) {
            similar.messages.push(message.to_owned());
        }
        let many = similar.messages.len() >= SIMILAR;
        // A message from before the flood keeps its own Event.
        let own = similar.messages[..similar.messages.len() - usize::from(many)].iter();
        (many && !own.into_iter().any(|m| m == message)).then(|| "similar".to_owned())
    }
}

/// Returns the name of an Event. As upstream, it consists of the object's name and the time; the counter separates
/// Events of the same nanosecond.
fn name(regarding: &ObjectRef, now: Timestamp, sequence: u64) -> String {
    let nanos = now.unix() as u64 * 1_000_000_000 + u64::from(now.nanos()) + sequence % 1000;
    let base: String = regarding.name.chars().take(230).collect();
    format!("{base}.{nanos:x}")
}

/// A map that drops the entries that were not used recently.
struct Recent<K, V> {
    entries: HashMap<K, (V, u64)>,
    clock: u64,
}

impl<K, V> Default for Recent<K, V> {
    fn default() -> Self {
        Self { entries: HashMap::new(), clock: 0 }
    }
}

impl<K: Hash + Eq + Clone, V> Recent<K, V> {
    fn entry(&mut self, key: K, fresh: V) -> &mut V {
        self.clock += 1;
        if self.entries.len() >= REMEMBERED && !self.entries.contains_key(&key) {
            // Drop half of the entries at once, so that this happens seldom.
            let mut ages: Vec<u64> = self.entries.values().map(|entry| entry.1).collect();
            ages.sort_unstable();
            let middle = ages[ages.len() / 2];
            self.entries.retain(|_, entry| entry.1 > middle);
        }
        let entry = self.entries.entry(key).or_insert((fresh, 0));
        entry.1 = self.clock;
        &mut entry.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn occurrence(name: &str, message: &str) -> Occurrence {
        let regarding = ObjectRef { kind: "Pod".into(), name: name.into(), ..ObjectRef::default() };
        Occurrence {
            regarding,
            kind: EventKind::Normal,
            reason: "R".into(),
            message: message.into(),
        }
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_unix(1_000_000 + seconds, 0)
    }

    #[test]
    fn counts_repetitions_on_one_event() {
        let mut correlator = Correlator::new("c", "h");
        let Decision::Create { event, namespace } = correlator.decide(&occurrence("a", "m"), at(0))
        else {
            panic!("the first is made");
        };
        assert_eq!((namespace.as_str(), &event["count"]), ("default", &json!(1)));
        let Decision::Count { name, patch, .. } = correlator.decide(&occurrence("a", "m"), at(5))
        else {
            panic!("the second is counted");
        };
        assert_eq!(
            (name.as_str(), &patch["count"]),
            (event["metadata"]["name"].as_str().unwrap(), &json!(2))
        );
    }

    #[test]
    fn combines_many_similar_events() {
        let mut correlator = Correlator::new("c", "h");
        let mut made = 0;
        for i in 0..20 {
            if let Decision::Create { .. } =
                correlator.decide(&occurrence("a", &i.to_string()), at(i))
            {
                made += 1;
            }
        }
        assert_eq!(made, SIMILAR);
        // Messages from before the flood are still counted.
        let known = correlator.decide(&occurrence("a", "3"), at(21));
        assert!(matches!(known, Decision::Count { patch, .. } if patch["message"] == "3"));
    }

    #[test]
    fn limits_rate_per_object_and_recovers() {
        let mut correlator = Correlator::new("c", "h");
        let sent = |c: &mut Correlator, from: i64| {
            (0..100).filter(|_| c.decide(&occurrence("a", "m"), at(from)) != Decision::Drop).count()
        };
        assert_eq!(sent(&mut correlator, 0), 25);
        assert_eq!(sent(&mut correlator, 600), 2);
        assert_ne!(correlator.decide(&occurrence("b", "m"), at(600)), Decision::Drop);
    }

    #[test]
    fn memory_is_bounded() {
        let mut recent = Recent::default();
        for i in 0..3 * REMEMBERED {
            *recent.entry(i, 0) += 1;
        }
        assert!(recent.entries.len() <= REMEMBERED);
        assert!(recent.entries.contains_key(&(3 * REMEMBERED - 1)));
    }
}
