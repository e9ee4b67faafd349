//! Caches the encoded responses of upstream servers until their TTL ends.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::{corefile::CacheOptions, wire};

/// The parts that two queries must share to get the same response: the question, and the flags that change the answer
/// (recursion, checking disabled, EDNS and its DNSSEC flag).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    question: Box<[u8]>,
    flags: u8,
}

impl Key {
    /// Returns the key of a query. `edns` is `None` for a query without EDNS, else the DNSSEC flag.
    pub(crate) fn of(query: &[u8], edns: Option<bool>) -> Option<Self> {
        let end = wire::question_end(query)?;
        let recursion = query.get(2)? & 0x01;
        let checking = query.get(3)? & 0x10;
        let edns = edns.map_or(0, |dnssec| 2 + u8::from(dnssec) * 4);
        Some(Self {
            question: query[12..end].to_ascii_lowercase().into(),
            flags: recursion | checking | edns,
        })
    }
}

struct Entry {
    bytes: Box<[u8]>,
    offsets: Box<[u16]>,
    stored: Instant,
    ttl: Duration,
}

/// A bounded cache of two generations. When the young one is full, the old one is dropped and the young one becomes the
/// old one. A hit moves an entry to the young generation, so that only entries without recent hits are dropped.
pub(crate) struct Cache {
    options: CacheOptions,
    generations: Mutex<Generations>,
}

#[derive(Default)]
struct Generations {
    young: HashMap<Key, Entry>,
    old: HashMap<Key, Entry>,
}

impl Cache {
    pub(crate) fn new(options: CacheOptions) -> Self {
        Self { options, generations: Mutex::default() }
    }

    fn generations(&self) -> std::sync::MutexGuard<'_, Generations> {
        self.generations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a cached response with the id and the letter case of `query`, and with its TTLs reduced by its age.
    pub(crate) fn get(&self, key: &Key, query: &[u8], now: Instant) -> Option<Vec<u8>> {
        let mut generations = self.generations();
        if let Some(entry) = generations.old.remove(key) {
            self.insert(&mut generations, key.clone(), entry);
        }
        let entry = generations.young.get(key)?;
        let age = now.saturating_duration_since(entry.stored);
        if age >= entry.ttl {
            generations.young.remove(key);
            return None;
        }
        let mut bytes = entry.bytes.to_vec();
        for at in entry.offsets.iter().map(|at| usize::from(*at)) {
            let left = wire::u32_at(&bytes, at)?.saturating_sub(age.as_secs() as u32);
            // The client must not keep an answer longer than this cache.
            let left = left.min((entry.ttl - age).as_secs() as u32);
            bytes[at..at + 4].copy_from_slice(&left.to_be_bytes());
        }
        let end = wire::question_end(query)?;
        bytes.get_mut(12..end)?.copy_from_slice(&query[12..end]);
        wire::set_id(&mut bytes, wire::id(query)?);
        Some(bytes)
    }

    pub(crate) fn put(&self, key: Key, response: &[u8], now: Instant) {
        let Some(lifetime) = wire::lifetime(response) else { return };
        let longest = if lifetime.is_denial { self.options.denial } else { self.options.success };
        let ttl = lifetime.ttl.min(Duration::from_secs(longest.into()));
        if ttl.is_zero() {
            return;
        }
        let entry =
            Entry { bytes: response.into(), offsets: lifetime.offsets.into(), stored: now, ttl };
        self.insert(&mut self.generations(), key, entry);
    }

    fn insert(&self, generations: &mut Generations, key: Key, entry: Entry) {
        if generations.young.len() >= self.options.capacity.div_ceil(2).max(1) {
            generations.old = std::mem::take(&mut generations.young);
        }
        generations.young.insert(key, entry);
    }

    pub(crate) fn len(&self) -> usize {
        let generations = self.generations();
        generations.young.len() + generations.old.len()
    }
}

#[cfg(test)]
mod tests {
    use hickory_proto::{
        op::{Message, MessageType, OpCode, Query},
        rr::{Name, RData, Record, RecordType, rdata::A},
    };

    use super::*;

    fn query(name: &str, id: u16) -> Vec<u8> {
        let mut message = Message::new(id, MessageType::Query, OpCode::Query);
        message.add_query(Query::query(Name::from_ascii(name).unwrap(), RecordType::A));
        message.to_vec().unwrap()
    }

    fn response(name: &str, ttl: u32) -> Vec<u8> {
        let mut message = Message::response(1, OpCode::Query);
        let name = Name::from_ascii(name).unwrap();
        message.add_query(Query::query(name.clone(), RecordType::A));
        message.add_answer(Record::from_rdata(name, ttl, RData::A(A([192, 0, 2, 1].into()))));
        message.to_vec().unwrap()
    }

    fn cache(capacity: usize) -> Cache {
        Cache::new(CacheOptions { success: 30, denial: 30, capacity })
    }

    #[test]
    fn cached_response_ages_and_gets_id_and_case_of_query() {
        let (cache, start) = (cache(10), Instant::now());
        let key = Key::of(&query("a.example.", 1), None).unwrap();
        cache.put(key.clone(), &response("a.example.", 300), start);
        let asked = query("A.Example.", 77);
        assert_eq!(Key::of(&asked, None).unwrap(), key);
        assert_ne!(Key::of(&asked, Some(false)), Key::of(&asked, None));
        let bytes = cache.get(&key, &asked, start + Duration::from_secs(10)).unwrap();
        let message = Message::from_vec(&bytes).unwrap();
        assert_eq!(
            (message.metadata.id, message.answers[0].ttl),
            (77, 20),
            "at most what is left here"
        );
        assert!(message.queries[0].name.eq_case(&Name::from_ascii("A.Example.").unwrap()));
        assert!(cache.get(&key, &asked, start + Duration::from_secs(30)).is_none());
    }

    #[test]
    fn cache_is_bounded_and_keeps_recent_hits() {
        let (cache, now) = (cache(20), Instant::now());
        let key = |n: usize| Key::of(&query(&format!("{n}.example."), 1), None).unwrap();
        for n in 0..1000 {
            cache.put(key(n), &response(&format!("{n}.example."), 300), now);
            assert!(cache.get(&key(0), &query("0.example.", 1), now).is_some());
            assert!(cache.len() <= 20);
        }
        assert!(cache.get(&key(1), &query("1.example.", 1), now).is_none());
    }
}
