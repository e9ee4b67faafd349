use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, PoisonError, RwLock, atomic::Ordering},
};

use tokio::time::Instant;

use futures_util::future::BoxFuture;
use hickory_proto::{
    op::{Edns, Message, MessageType, OpCode, Query, ResponseCode},
    rr::{DNSClass, Name, RData, Record, RecordType},
};

use crate::{
    cache::{Cache, Key},
    corefile::{Block, HostsOptions, KubernetesOptions},
    forward::{Forward, ForwardError, ServerError},
    index::Index,
    observe::Metrics,
    wire,
    zone::{Alias, Answer, Zone, address_data},
};

/// The largest number of aliases that are followed in sequence.
const MAX_DEPTH: u8 = 8;
/// The advertised UDP payload size, and the limit of responses over UDP; larger ones would be fragmented.
const UDP_LIMIT: u16 = 1232;

/// Answers queries with one state of the Corefile.
pub(crate) struct Resolver {
    blocks: Vec<ServerBlock>,
    index: Arc<RwLock<Index>>,
    is_synced: Box<dyn Fn() -> bool + Send + Sync>,
    metrics: Arc<Metrics>,
    /// The name of the loop probe: if a query for it arrives, there is a loop.
    pub(crate) probe: Name,
}

struct ServerBlock {
    options: Block,
    hosts: HashMap<Name, Vec<IpAddr>>,
    forwards: Vec<Forward>,
    cache: Option<Cache>,
}

/// The transport and port of a query.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Via {
    pub(crate) port: u16,
    pub(crate) tcp: bool,
}

/// The result of handling a query without waiting.
pub(crate) enum Local<'r> {
    Answer(Vec<u8>),
    /// The packet is not a query. Answering it could start an endless exchange between two servers.
    Ignore,
    Pending(Box<PendingQuery<'r>>),
}

/// A query that needs another server or the target of an alias.
pub(crate) struct PendingQuery<'r> {
    query: Message,
    block: &'r ServerBlock,
    answer: PendingAnswer<'r>,
}

enum PendingAnswer<'r> {
    Forward(&'r Forward, Option<Key>),
    Alias(Box<Alias>),
}

impl Resolver {
    pub(crate) fn new(
        blocks: Vec<Block>,
        index: Arc<RwLock<Index>>,
        is_synced: Box<dyn Fn() -> bool + Send + Sync>,
        metrics: Arc<Metrics>,
    ) -> Result<Self, ServerError> {
        let blocks: Result<Vec<_>, _> = blocks.into_iter().map(ServerBlock::new).collect();
        let label = || format!("{}", rt::random::<u64>());
        let probe = Name::from_ascii(format!("{}.{}.", label(), label())).unwrap_or_default();
        Ok(Self { blocks: blocks?, index, is_synced, metrics, probe })
    }

    pub(crate) fn blocks(&self) -> impl Iterator<Item = &Block> {
        self.blocks.iter().map(|block| &block.options)
    }

    /// Answers a query, immediately if possible, otherwise with the help of other servers.
    pub(crate) async fn answer(&self, packet: &[u8], via: Via) -> Option<Vec<u8>> {
        match self.local(packet, via) {
            Local::Answer(answer) => Some(answer),
            Local::Ignore => None,
            Local::Pending(pending) => Some(self.resolve_pending(packet, via, pending, 0).await),
        }
    }

    pub(crate) fn local<'r>(&'r self, packet: &[u8], via: Via) -> Local<'r> {
        let is_response = packet.get(2).is_none_or(|flags| flags & 0x80 != 0);
        if is_response {
            return Local::Ignore;
        }
        let Ok(query) = Message::from_vec(packet) else {
            let id = wire::id(packet).unwrap_or_default();
            let malformed = Message::error_msg(id, OpCode::Query, ResponseCode::FormErr);
            return malformed.to_vec().map_or(Local::Ignore, Local::Answer);
        };
        match self.decide(packet, query, via) {
            Decision::Reply(reply) => Local::Answer(reply.encode(via)),
            Decision::Cached(bytes) => Local::Answer(bytes),
            Decision::Pending(pending) => Local::Pending(pending),
        }
    }

    fn decide<'r>(&'r self, packet: &[u8], query: Message, via: Via) -> Decision<'r> {
        let refuse = |query, code| Decision::Reply(Box::new(Reply::new(query, code)));
        if query.metadata.message_type != MessageType::Query
            || query.metadata.op_code != OpCode::Query
        {
            return refuse(query, ResponseCode::NotImp);
        }
        let [question] = query.queries.as_slice() else {
            return refuse(query, ResponseCode::FormErr);
        };
        if query.version() > 0 {
            return refuse(query, ResponseCode::BADVERS);
        }
        let is_transfer = matches!(question.query_type(), RecordType::AXFR | RecordType::IXFR);
        if question.query_class() != DNSClass::IN || is_transfer {
            return refuse(query, ResponseCode::Refused);
        }
        let name = question.name().clone();
        if name == self.probe {
            self.blocks
                .iter()
                .flat_map(|block| &block.forwards)
                .for_each(|forward| forward.looped.store(true, Ordering::Relaxed));
            return refuse(query, ResponseCode::ServFail);
        }
        let Some(block) = self.block(&name, via.port) else {
            return refuse(query, ResponseCode::Refused);
        };
        if block.options.log {
            tracing::info!(%name, kind = %question.query_type(), "query");
        }
        if let Some(decision) = block
            .resolve_hosts(&query, &name)
            .or_else(|| self.resolve_kubernetes(block, &query, &name))
        {
            return decision;
        }
        let Some(forward) = block.forward(&name) else {
            return refuse(query, ResponseCode::ServFail);
        };
        let dnssec = query.edns.as_ref().map(|edns| edns.flags().dnssec_ok);
        let key = block.cache.as_ref().and_then(|_| Key::of(packet, dnssec));
        if let (Some(cache), Some(key)) = (&block.cache, &key) {
            let cached = cache.get(key, packet, Instant::now());
            self.metrics.cache(cached.is_some(), cache.len());
            if let Some(bytes) = cached {
                return Decision::Cached(fit(bytes, limit(&query, via)));
            }
        }
        Decision::Pending(Box::new(PendingQuery {
            query,
            block,
            answer: PendingAnswer::Forward(forward, key),
        }))
    }

    /// Returns the block on this port with the longest matching zone.
    fn block(&self, name: &Name, port: u16) -> Option<&ServerBlock> {
        let on_port = self.blocks.iter().filter(|block| block.options.port == port);
        let zones =
            on_port.flat_map(|block| block.options.zones.iter().map(move |zone| (zone, block)));
        longest(zones, name).map(|(_, block)| block)
    }

    fn resolve_kubernetes<'r>(
        &'r self,
        block: &'r ServerBlock,
        query: &Message,
        name: &Name,
    ) -> Option<Decision<'r>> {
        let options = block.options.kubernetes.as_ref()?;
        let (origin, ()) = longest(options.zones.iter().map(|zone| (zone, ())), name)?;
        if !(self.is_synced)() {
            return Some(Decision::Reply(Box::new(Reply::new(
                query.clone(),
                ResponseCode::ServFail,
            ))));
        }
        let kind = query.queries.first()?.query_type();
        let index = self.index.read().unwrap_or_else(PoisonError::into_inner);
        let zone = Zone { options, origin, index: &index };
        let mut reply = Reply::new(query.clone(), ResponseCode::NoError);
        reply.authoritative = true;
        match zone.answer(name, kind) {
            Answer::NoSuchName if falls_through(options, name) => return None,
            Answer::NoSuchName => {
                reply.code = ResponseCode::NXDomain;
                reply.authorities = vec![zone.soa(origin)];
            }
            Answer::Records { answers, additionals } => {
                if answers.is_empty() {
                    reply.authorities = vec![zone.soa(origin)];
                }
                (reply.answers, reply.additionals) = (answers, additionals);
                if block.options.shuffle {
                    reply.shuffle();
                }
            }
            Answer::Alias(alias) if kind == RecordType::CNAME => reply.answers = vec![alias.record],
            Answer::Alias(alias) => {
                let answer = PendingAnswer::Alias(alias);
                return Some(Decision::Pending(Box::new(PendingQuery {
                    query: query.clone(),
                    block,
                    answer,
                })));
            }
        }
        Some(Decision::Reply(Box::new(reply)))
    }

    pub(crate) fn resolve_pending<'a>(
        &'a self,
        packet: &'a [u8],
        via: Via,
        pending: Box<PendingQuery<'a>>,
        depth: u8,
    ) -> BoxFuture<'a, Vec<u8>> {
        Box::pin(async move {
            let PendingQuery { query, block, answer } = *pending;
            match answer {
                PendingAnswer::Forward(forward, key) => match forward.send(packet, via.tcp).await {
                    Ok(response) => {
                        if let (Some(cache), Some(key)) = (&block.cache, key) {
                            cache.put(key, &response, Instant::now());
                        }
                        fit(response, limit(&query, via))
                    }
                    Err(error) => self.fail_forward(query, block, &error).encode(via),
                },
                PendingAnswer::Alias(alias) => {
                    let Alias { record, target } = *alias;
                    let mut reply = Reply::new(query, ResponseCode::NoError);
                    reply.authoritative = true;
                    reply.answers = vec![record];
                    let kind = reply.query.queries.first().map_or(RecordType::A, Query::query_type);
                    reply.answers.extend(self.follow(target, kind, via, depth).await);
                    reply.encode(via)
                }
            }
        })
    }

    /// Counts and logs a failure to forward, and returns the reply to the client.
    fn fail_forward(&self, query: Message, block: &ServerBlock, error: &ForwardError) -> Reply {
        self.metrics.forward_failed();
        if block.options.errors {
            let name = query.queries.first().map(|question| question.name().to_string());
            tracing::warn!(name, %error, "forwarding");
        }
        let busy = matches!(error, ForwardError::Busy);
        Reply::new(query, if busy { ResponseCode::Refused } else { ResponseCode::ServFail })
    }

    /// Returns the records behind an alias; empty if they cannot be found.
    async fn follow(&self, target: Name, kind: RecordType, via: Via, depth: u8) -> Vec<Record> {
        if depth >= MAX_DEPTH {
            return Vec::new();
        }
        let mut query = Message::new(rt::random(), MessageType::Query, OpCode::Query);
        query.metadata.recursion_desired = true;
        query.add_query(Query::query(target, kind));
        let Ok(packet) = query.to_vec() else { return Vec::new() };
        // Use TCP, so that nothing is truncated.
        let via = Via { tcp: true, ..via };
        let answer = match self.local(&packet, via) {
            Local::Answer(answer) => answer,
            Local::Ignore => return Vec::new(),
            Local::Pending(pending) => self.resolve_pending(&packet, via, pending, depth + 1).await,
        };
        Message::from_vec(&answer).map(|answer| answer.answers).unwrap_or_default()
    }

    /// Sends a random name to every server. If it arrives here, `decide` stops forwarding until a probe finds no loop.
    pub(crate) async fn probe_for_loops(&self) {
        let mut query = Message::new(rt::random(), MessageType::Query, OpCode::Query);
        query.add_query(Query::query(self.probe.clone(), RecordType::HINFO));
        let Ok(packet) = query.to_vec() else { return };
        for block in self.blocks.iter().filter(|block| block.options.loops) {
            for forward in block.forwards.iter().filter(|forward| forward.covers(&self.probe)) {
                forward.looped.store(false, Ordering::Relaxed);
                forward.probe(&packet).await;
                if forward.looped.load(Ordering::Relaxed) {
                    let error = ForwardError::Loop;
                    tracing::error!(zone = %forward.from(), %error, "forwarding for the zone is off");
                }
            }
        }
    }
}

enum Decision<'r> {
    Reply(Box<Reply>),
    Cached(Vec<u8>),
    Pending(Box<PendingQuery<'r>>),
}

fn falls_through(options: &KubernetesOptions, name: &Name) -> bool {
    let zones = options.fallthrough.as_ref();
    zones.is_some_and(|zones| zones.is_empty() || zones.iter().any(|zone| zone.zone_of(name)))
}

fn longest<'z, T>(
    zones: impl Iterator<Item = (&'z Name, T)>,
    name: &Name,
) -> Option<(&'z Name, T)> {
    zones.filter(|(zone, _)| zone.zone_of(name)).max_by_key(|(zone, _)| zone.num_labels())
}

impl ServerBlock {
    fn new(options: Block) -> Result<Self, ServerError> {
        let forwards: Result<Vec<_>, _> =
            options.forward.iter().cloned().map(Forward::new).collect();
        let cache = options.cache.clone().map(Cache::new);
        let hosts = options.hosts.as_ref().map(read_hosts).unwrap_or_default();
        Ok(Self { hosts, forwards: forwards?, cache, options })
    }

    fn forward(&self, name: &Name) -> Option<&Forward> {
        let covering = self.forwards.iter().filter(|forward| forward.covers(name));
        covering.max_by_key(|forward| forward.from().num_labels())
    }

    fn resolve_hosts<'r>(&self, query: &Message, name: &Name) -> Option<Decision<'r>> {
        let options = self.options.hosts.as_ref()?;
        let mut reply = Reply::new(query.clone(), ResponseCode::NoError);
        reply.authoritative = true;
        match self.hosts.get(&name.to_lowercase()) {
            Some(ips) => {
                let kind = query.queries.first()?.query_type();
                let records = ips
                    .iter()
                    .map(|ip| Record::from_rdata(name.clone(), options.ttl, address_data(*ip)));
                reply.answers = records.filter(|record| record.record_type() == kind).collect();
            }
            None if options.fallthrough || self.options.kubernetes.is_some() => return None,
            None if self.forward(name).is_some() => return None,
            None => reply.code = ResponseCode::NXDomain,
        }
        Some(Decision::Reply(Box::new(reply)))
    }
}

/// Reads the entries of the Corefile and of the hosts file. An unreadable file has no entries.
fn read_hosts(options: &HostsOptions) -> HashMap<Name, Vec<IpAddr>> {
    let mut hosts: HashMap<Name, Vec<IpAddr>> = HashMap::new();
    for (name, ip) in &options.entries {
        hosts.entry(name.clone()).or_default().push(*ip);
    }
    let text = options.file.as_ref().map(std::fs::read_to_string);
    if let Some(Err(error)) = &text {
        tracing::warn!(file = ?options.file, %error, "reading hosts");
    }
    for line in text.and_then(Result::ok).unwrap_or_default().lines() {
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        let Some(ip) = words.next().and_then(|word| word.parse().ok()) else { continue };
        for mut name in words.filter_map(|word| Name::from_ascii(word).ok()) {
            name.set_fqdn(true);
            hosts.entry(name.to_lowercase()).or_default().push(ip);
        }
    }
    hosts
}

/// An answer of this server.
struct Reply {
    query: Message,
    code: ResponseCode,
    authoritative: bool,
    answers: Vec<Record>,
    authorities: Vec<Record>,
    additionals: Vec<Record>,
}

impl Reply {
    fn new(query: Message, code: ResponseCode) -> Self {
        Self {
            query,
            code,
            authoritative: false,
            answers: Vec::new(),
            authorities: Vec::new(),
            additionals: Vec::new(),
        }
    }

    /// Shuffles addresses, because clients use the first one.
    fn shuffle(&mut self) {
        if self.answers.iter().all(|record| matches!(record.data, RData::A(_) | RData::AAAA(_))) {
            rt::shuffle(&mut self.answers);
        }
    }

    fn encode(self, via: Via) -> Vec<u8> {
        let limit = limit(&self.query, via);
        let metadata = &self.query.metadata;
        let mut message = Message::response(metadata.id, metadata.op_code);
        message.metadata.recursion_desired = metadata.recursion_desired;
        message.metadata.recursion_available = true;
        message.metadata.authoritative = self.authoritative;
        message.metadata.response_code = self.code;
        message.add_queries(self.query.queries);
        if let Some(asked) = &self.query.edns {
            let mut edns = Edns::new();
            edns.set_max_payload(UDP_LIMIT).set_dnssec_ok(asked.flags().dnssec_ok);
            edns.set_rcode_high(self.code.high());
            message.set_edns(edns);
        }
        message.insert_answers(self.answers);
        message.insert_authorities(self.authorities);
        message.insert_additionals(self.additionals);
        shrink(message, limit)
    }
}

/// Removes additional records and then answers until the message fits. Sets the truncation flag if answers are removed.
fn shrink(mut message: Message, limit: usize) -> Vec<u8> {
    loop {
        let bytes = match message.to_vec() {
            Ok(bytes) if bytes.len() <= limit => return bytes,
            Ok(bytes) => bytes,
            // Larger than any message.
            Err(_) => vec![0; usize::from(u16::MAX) + 1],
        };
        if !message.additionals.is_empty() {
            message.additionals.clear();
            continue;
        }
        message.metadata.truncation = true;
        let (have, size) = (message.answers.len(), bytes.len().max(1));
        if have == 0 {
            return wire::truncated(&bytes);
        }
        // A record has at least 16 bytes. Long messages compress worse, so the size of a shortened message can only be
        // estimated if it is not much longer than the limit.
        let most = limit / 16;
        message.answers.truncate(if have > most {
            most
        } else {
            (have * limit / size).min(have - 1)
        });
    }
}

/// Returns the largest message that the client accepts.
fn limit(query: &Message, via: Via) -> usize {
    match &query.edns {
        _ if via.tcp => usize::from(u16::MAX),
        None => 512,
        Some(edns) => usize::from(edns.max_payload().clamp(512, 4096)),
    }
}

fn fit(response: Vec<u8>, limit: usize) -> Vec<u8> {
    if response.len() <= limit { response } else { wire::truncated(&response) }
}

#[cfg(test)]
mod tests;
