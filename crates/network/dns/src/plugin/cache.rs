//! The plugin `cache`: keeps answers until their TTL ends, refreshes popular ones, and serves old ones on request.

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use hickory_proto::{
    op::{Message, ResponseCode},
    rr::{DNSClass, Name, RecordType},
};
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use super::response::{Class, class, lifetime};
use crate::{
    chain::{Answer, Next, Plugin, Request},
    directive::{CorefileError, Directive, Fallthrough, longest},
};

/// The most bytes of an answer that is kept. The number of answers is bounded too, so that a client that asks for large
/// ones of its own cannot fill the memory.
const LARGEST: usize = 4096;

/// The parts that two queries must share to get the same answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    name: Name,
    kind: RecordType,
    class: DNSClass,
    recursion: bool,
    checking_disabled: bool,
    dnssec: bool,
}

impl Key {
    fn of(request: &Request) -> Self {
        Self {
            name: request.name().to_lowercase(),
            kind: request.kind(),
            class: request.question.query_class(),
            recursion: request.header.recursion_desired,
            checking_disabled: request.header.checking_disabled,
            dnssec: request.dnssec_ok(),
        }
    }
}

#[derive(Debug)]
struct Entry {
    reply: Arc<Message>,
    stored: Instant,
    ttl: Duration,
    /// The number of hits without a long gap between them, and the last hit.
    hits: u32,
    last_hit: Instant,
    /// The time until which no further refresh is started.
    refreshed_until: Option<Instant>,
}

impl Entry {
    fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.stored)
    }

    /// Returns the time since the end of the TTL; `None` before it.
    fn expired_for(&self, now: Instant) -> Option<Duration> {
        self.age(now).checked_sub(self.ttl)
    }
}

/// A bounded store of two generations. When the young one is full, the old one is dropped and the young one becomes the
/// old one. A hit moves an entry to the young generation, so that only entries without recent hits are dropped.
#[derive(Debug)]
struct Store {
    capacity: usize,
    longest: Duration,
    shortest: Duration,
    /// The zones without this store.
    disabled: Fallthrough,
    young: HashMap<Key, Entry>,
    old: HashMap<Key, Entry>,
}

impl Store {
    fn new(longest: u64) -> Self {
        let (longest, shortest) = (Duration::from_secs(longest), Duration::from_secs(5));
        let (young, old) = (HashMap::new(), HashMap::new());
        Self { capacity: 9984, longest, shortest, disabled: Fallthrough::None, young, old }
    }

    fn get(&mut self, key: &Key) -> Option<&mut Entry> {
        if let Some(entry) = self.old.remove(key) {
            self.insert(key.clone(), entry);
        }
        self.young.get_mut(key)
    }

    fn insert(&mut self, key: Key, entry: Entry) {
        if self.young.len() >= self.capacity.div_ceil(2).max(1) {
            self.old = std::mem::take(&mut self.young);
        }
        self.old.remove(&key);
        self.young.insert(key, entry);
    }

    fn remove(&mut self, key: &Key) {
        self.young.remove(key);
        self.old.remove(key);
    }

    fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }
}

#[derive(Debug)]
struct Stores {
    success: Store,
    denial: Store,
}

/// The refresh of popular answers before they expire.
#[derive(Debug)]
struct Prefetch {
    amount: u32,
    gap: Duration,
    percentage: u32,
}

/// The serving of expired answers.
#[derive(Debug)]
struct Stale {
    longest: Duration,
    /// The time to wait for a fresh answer; `None` to send the expired one at once.
    verify: Option<Duration>,
    ttl: u32,
    recheck: Duration,
}

#[derive(Debug)]
pub(crate) struct Cache {
    zones: Vec<Name>,
    stores: Mutex<Stores>,
    failure: Duration,
    prefetch: Option<Prefetch>,
    stale: Option<Stale>,
    keeps_ttl: bool,
}

/// The longest time for which failures are cached.
const MAX_FAILURE: Duration = Duration::from_secs(300);
/// The time after which a refresh that has not ended is given up.
const REFRESH: Duration = Duration::from_secs(5);

impl Cache {
    pub(crate) fn parse(directive: &Directive, zones: &[Name]) -> Result<Self, CorefileError> {
        let (ttl, named) = match directive.arguments() {
            [ttl, named @ ..] if ttl.bytes().all(|byte| byte.is_ascii_digit()) => {
                (Some(directive.number(ttl)?), named)
            }
            named => (None, named),
        };
        if ttl == Some(0) {
            return directive.fail("the TTL is positive");
        }
        let (success, denial) = (Store::new(ttl.unwrap_or(3600)), Store::new(ttl.unwrap_or(1800)));
        let mut parsed = Self {
            zones: directive.zones_or(named, zones)?,
            stores: Mutex::new(Stores { success, denial }),
            failure: Duration::from_secs(5),
            prefetch: None,
            stale: None,
            keeps_ttl: false,
        };
        directive.body.iter().try_for_each(|option| parsed.set(option))?;
        Ok(parsed)
    }

    fn set(&mut self, option: &Directive) -> Result<(), CorefileError> {
        let stores = self.stores.get_mut();
        match (option.name(), option.arguments()) {
            ("success", words @ ([_] | [_, _] | [_, _, _])) => {
                store_options(option, words, &mut stores.success)?
            }
            ("denial", words @ ([_] | [_, _] | [_, _, _])) => {
                store_options(option, words, &mut stores.denial)?
            }
            ("disable", [which, zones @ ..]) => {
                let store = match which.as_str() {
                    "success" => &mut stores.success,
                    "denial" => &mut stores.denial,
                    _ => return option.fail("it is success or denial"),
                };
                store.disabled = Fallthrough::Zones(option.zones(zones)?);
            }
            ("prefetch", [amount, rest @ ..]) if rest.len() <= 2 => {
                self.prefetch = Some(Prefetch::parse(option, amount, rest)?);
            }
            ("serve_stale", words) => self.stale = Some(Stale::parse(option, words)?),
            ("servfail", [text]) => {
                self.failure = option.duration(text)?;
                if self.failure > MAX_FAILURE {
                    return option.fail("failures are cached for at most 5 minutes");
                }
            }
            ("keepttl", []) => self.keeps_ttl = true,
            _ => {
                let known = "success, denial, disable, prefetch, serve_stale, servfail and keepttl";
                return option.unknown("cache", known);
            }
        }
        Ok(())
    }

    fn stores(&self) -> MutexGuard<'_, Stores> {
        self.stores.lock()
    }

    /// Looks for an answer that is fresh, or old enough to be refreshed or replaced.
    fn find(&self, key: &Key, now: Instant) -> Hit {
        let mut stores = self.stores();
        let stores = &mut *stores;
        for store in [&mut stores.success, &mut stores.denial] {
            let Some(entry) = store.get(key) else { continue };
            let Some(expired) = entry.expired_for(now) else {
                let refresh =
                    self.prefetch.as_ref().is_some_and(|prefetch| prefetch.is_due(entry, now));
                let age = if self.keeps_ttl { 0 } else { entry.age(now).as_secs() };
                let ttl = entry.ttl.as_secs().saturating_sub(age) as u32;
                return Hit::Fresh {
                    reply: CachedReply { reply: entry.reply.clone(), ttl },
                    refresh,
                };
            };
            match &self.stale {
                Some(stale) if expired < stale.longest => {
                    let is_waiting = entry.refreshed_until.is_some_and(|until| now < until);
                    if !is_waiting {
                        entry.refreshed_until = Some(now + REFRESH.max(stale.recheck));
                    }
                    let reply = CachedReply { reply: entry.reply.clone(), ttl: stale.ttl };
                    let refresh = !is_waiting;
                    return Hit::Stale { reply, refresh, verify: stale.verify };
                }
                _ => store.remove(key),
            }
        }
        Hit::None
    }

    /// Keeps an answer, and returns the time for which it is good here.
    fn put(&self, key: Key, reply: &Message, now: Instant) -> Option<Duration> {
        let class = class(reply);
        // The answer is copied before the lock is taken.
        let kept = Arc::new(kept_form(reply)?);
        let mut stores = self.stores();
        let stores = &mut *stores;
        let (store, other) = match class {
            Class::Success => (&mut stores.success, &mut stores.denial),
            Class::Denial | Class::Error => (&mut stores.denial, &mut stores.success),
        };
        let is_failure = reply.metadata.response_code == ResponseCode::ServFail;
        let ttl = match class {
            Class::Error => Some(self.failure).filter(|_| is_failure),
            _ => lifetime(reply)
                .filter(|ttl| !ttl.is_zero())
                .map(|ttl| ttl.max(store.shortest).min(store.longest)),
        };
        let ttl = ttl.filter(|ttl| !ttl.is_zero() && !reply.metadata.truncation)?;
        // A failure does not replace an answer that may be served although it is old.
        let is_worse = class == Class::Error && self.stale.is_some() && other.get(&key).is_some();
        if is_worse || store.disabled.covers(&key.name) {
            return Some(ttl);
        }
        other.remove(&key);
        let before = store.get(&key).map(|entry| (entry.hits, entry.last_hit));
        let (hits, last_hit) = before.unwrap_or((0, now));
        let entry = Entry { reply: kept, stored: now, ttl, hits, last_hit, refreshed_until: None };
        store.insert(key, entry);
        Some(ttl)
    }

    fn len(&self) -> usize {
        let stores = self.stores();
        stores.success.len() + stores.denial.len()
    }

    /// Gets a fresh answer from the next plugin and keeps it.
    async fn fetch(&self, key: Key, request: &mut Request, next: Next<'_>) -> Answer {
        let mut answer = next.answer(request).await;
        if let Ok(Some(reply)) = &mut answer
            && let Some(ttl) = self.put(key, reply, Instant::now())
        {
            // The client must not keep an answer longer than this cache.
            set_ttl(reply, ttl.as_secs() as u32);
        }
        answer
    }
}

enum Hit {
    None,
    Fresh { reply: CachedReply, refresh: bool },
    Stale { reply: CachedReply, refresh: bool, verify: Option<Duration> },
}

/// A kept answer, and the TTL of its records now.
struct CachedReply {
    reply: Arc<Message>,
    ttl: u32,
}

impl CachedReply {
    /// Returns the answer to a request.
    fn replay(&self, request: &Request) -> Message {
        let mut reply = Message::clone(&self.reply);
        reply.metadata.id = request.header.id;
        reply.queries = vec![request.question.clone()];
        set_ttl(&mut reply, self.ttl);
        reply
    }
}

/// Returns the part of an answer that every client may get, without the options that a server sent for one client;
/// `None` if the answer is too large to be kept.
fn kept_form(reply: &Message) -> Option<Message> {
    let mut kept = reply.clone();
    kept.edns = None;
    kept.to_vec().is_ok_and(|bytes| bytes.len() <= LARGEST).then_some(kept)
}

/// Sets the TTL of all records, which are good only together.
fn set_ttl(reply: &mut Message, ttl: u32) {
    let sections = [&mut reply.answers, &mut reply.authorities, &mut reply.additionals];
    sections.into_iter().flatten().for_each(|record| record.ttl = ttl);
}

fn store_options(
    option: &Directive,
    words: &[String],
    store: &mut Store,
) -> Result<(), CorefileError> {
    let seconds =
        |text: &String| option.number(text).map(|seconds: u32| Duration::from_secs(seconds.into()));
    // As in CoreDNS, a cache has at least 1024 entries.
    store.capacity = option.number::<usize>(&words[0])?.max(1024);
    if let Some(text) = words.get(1) {
        store.longest = seconds(text)?;
    }
    if let Some(text) = words.get(2) {
        store.shortest = seconds(text)?;
    }
    Ok(())
}

impl Prefetch {
    fn parse(option: &Directive, amount: &str, rest: &[String]) -> Result<Self, CorefileError> {
        let gap = rest.first().map_or(Ok(Duration::from_secs(60)), |text| option.duration(text))?;
        let mut percentage = 10;
        if let Some(text) = rest.get(1) {
            let Some(number) = text.strip_suffix('%') else {
                return option.fail("a percentage is written as 10%");
            };
            percentage = option.number(number)?;
        }
        if !(10..=90).contains(&percentage) {
            return option.fail("the percentage is within 10% and 90%");
        }
        Ok(Self { amount: option.number(amount)?, gap, percentage })
    }

    /// Counts a hit, and reports whether the entry is refreshed now.
    fn is_due(&self, entry: &mut Entry, now: Instant) -> bool {
        let gap = now.saturating_duration_since(entry.last_hit);
        entry.hits = if gap >= self.gap { 1 } else { entry.hits.saturating_add(1) };
        entry.last_hit = now;
        let left = entry.ttl.saturating_sub(entry.age(now));
        let threshold = (entry.ttl * self.percentage / 100).max(Duration::from_secs(1));
        let is_waiting = entry.refreshed_until.is_some_and(|until| now < until);
        let is_due = entry.hits >= self.amount && left <= threshold && !is_waiting;
        if is_due {
            entry.refreshed_until = Some(now + REFRESH);
        }
        is_due
    }
}

impl Stale {
    fn parse(option: &Directive, words: &[String]) -> Result<Self, CorefileError> {
        let mut parsed = Self {
            longest: Duration::from_secs(3600),
            verify: None,
            ttl: 0,
            recheck: Duration::ZERO,
        };
        let mut words = words.iter().peekable();
        if let Some(text) = words.next_if(|word| !matches!(word.as_str(), "immediate" | "verify")) {
            parsed.longest = option.duration(text)?;
        }
        match words.next().map(String::as_str) {
            None | Some("immediate") => {}
            Some("verify") => {
                // Without a timeout, the server that is asked decides.
                let timeout =
                    words.next().map_or(Ok(Duration::ZERO), |text| option.duration(text))?;
                parsed.verify =
                    Some(if timeout.is_zero() { Duration::from_secs(3600) } else { timeout });
            }
            Some(_) => return option.fail("the mode is immediate or verify"),
        }
        if let Some(text) = words.next() {
            let ttl = option.duration(text)?;
            if ttl.subsec_nanos() != 0 || ttl.as_secs() > 86_400 {
                return option.fail("the TTL of old answers is in whole seconds, of at most a day");
            }
            parsed.ttl = ttl.as_secs() as u32;
        }
        if let Some(text) = words.next() {
            parsed.recheck = option.duration(text)?;
        }
        match words.next() {
            Some(word) => option.fail(format!("the argument {word:?} is not supported")),
            None => Ok(parsed),
        }
    }
}

impl Plugin for Cache {
    fn answer<'a>(&'a self, request: &'a mut Request, next: Next<'a>) -> BoxFuture<'a, Answer> {
        if longest(&self.zones, request.name()).is_none() || request.is_transfer() {
            return next.answer(request);
        }
        Box::pin(async move {
            let key = Key::of(request);
            if request.is_refresh {
                return self.fetch(key, request, next).await;
            }
            let hit = self.find(&key, Instant::now());
            next.context().metrics.cache(!matches!(hit, Hit::None), self.len());
            match hit {
                Hit::None => self.fetch(key, request, next).await,
                Hit::Fresh { reply, refresh } => {
                    if refresh {
                        next.refresh(request);
                    }
                    Ok(Some(reply.replay(request)))
                }
                Hit::Stale { reply, refresh: true, verify: Some(limit) } => {
                    match tokio::time::timeout(limit, self.fetch(key, request, next)).await {
                        Ok(Ok(Some(fresh))) if class(&fresh) != Class::Error => Ok(Some(fresh)),
                        Ok(_) => Ok(Some(reply.replay(request))),
                        Err(_) => {
                            // The answer may still arrive, for later queries.
                            next.refresh(request);
                            Ok(Some(reply.replay(request)))
                        }
                    }
                }
                Hit::Stale { reply, refresh, verify: _ } => {
                    if refresh {
                        next.refresh(request);
                    }
                    Ok(Some(reply.replay(request)))
                }
            }
        })
    }
}

#[cfg(test)]
mod tests;
