use std::{
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures_util::future::{BoxFuture, join, join_all};
use hickory_proto::{
    op::{Edns, Message, MessageType, OpCode, Query, ResponseCode},
    rr::{Name, Record, RecordType},
};

use crate::{
    chain::{Answer, Context, Next, Request, Server},
    corefile::Block,
    plugin::ForwardError,
    wire,
};

/// The advertised UDP payload size, which is not fragmented.
const UDP_LIMIT: u16 = 1232;
/// The interval between two probes for loops.
const PROBE: Duration = Duration::from_secs(60);
/// The number of records in one message of a zone transfer.
const TRANSFERRED: usize = 200;

/// Answers queries with one state of the Corefile.
pub(crate) struct Resolver {
    blocks: Vec<Block>,
    context: Context,
    /// The name of the loop probe: if a query for it arrives, there is a loop.
    probe: Name,
}

/// The origin of a query.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueryOrigin {
    pub(crate) client: SocketAddr,
    pub(crate) port: u16,
    pub(crate) tcp: bool,
}

impl Resolver {
    pub(crate) fn new(blocks: Vec<Block>, context: Context) -> Arc<Self> {
        let label = || format!("{}", rt::random::<u64>());
        let probe = Name::from_ascii(format!("{}.{}.", label(), label())).unwrap_or_default();
        Arc::new(Self { blocks, context, probe })
    }

    pub(crate) fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// Returns the messages that answer a packet: several ones for a zone transfer, none for a packet that gets no
    /// answer.
    pub(crate) async fn answer(self: Arc<Self>, packet: &[u8], via: QueryOrigin) -> Answers {
        let is_response = packet.get(2).is_none_or(|flags| flags & 0x80 != 0);
        if is_response {
            // Answering it could start an endless exchange between two servers.
            return Answers::default();
        }
        let Ok(mut query) = Message::from_vec(packet) else {
            let id = wire::id(packet).unwrap_or_default();
            let malformed = Message::error_msg(id, OpCode::Query, ResponseCode::FormErr);
            return Answers::of(malformed.to_vec().ok());
        };
        if let Some(code) = rejection(&query) {
            let mut reply = Message::response(query.metadata.id, query.metadata.op_code);
            reply.metadata.recursion_desired = query.metadata.recursion_desired;
            reply.metadata.response_code = code;
            reply.add_queries(std::mem::take(&mut query.queries));
            return Answers::of(Some(encode(reply, query.edns.as_ref(), via.tcp)));
        }
        let mut request = Request {
            header: query.metadata,
            question: query.queries.pop().unwrap_or_default(),
            edns: query.edns,
            client: via.client,
            port: via.port,
            tcp: via.tcp,
            size: packet.len(),
            depth: 0,
            is_refresh: false,
        };
        let answer = self.resolve(&mut request).await;
        let mut reply = match answer {
            Ok(Some(reply)) => reply,
            Ok(None) => return Answers::default(),
            Err(failure) => request.reply(failure.code),
        };
        reply.metadata.id = request.header.id;
        if request.is_transfer() && request.tcp && !reply.answers.is_empty() {
            return Answers::of_zone(ZoneTransfer::new(reply, request.edns));
        }
        Answers::of(Some(encode(reply, request.edns.as_ref(), request.tcp)))
    }

    /// Returns the block on this port with the longest matching zone.
    fn block(&self, name: &Name, port: u16) -> Option<&Block> {
        let on_port = self.blocks.iter().filter(|block| block.port == port);
        let zones = on_port.flat_map(|block| block.zones.iter().map(move |zone| (zone, block)));
        let matching = zones.filter(|(zone, _)| zone.zone_of(name));
        // The first block wins among equal zones.
        let longest = matching.fold(None, |longest: Option<(&Name, _)>, found| match longest {
            Some((zone, _)) if zone.num_labels() >= found.0.num_labels() => longest,
            _ => Some(found),
        });
        longest.map(|(_, block)| block)
    }

    /// Does the periodic work of all plugins until they have none.
    pub(crate) async fn maintain(&self) {
        let plugins = self.blocks.iter().flat_map(|block| block.chain.iter());
        join(join_all(plugins.map(|plugin| plugin.maintain())), self.probe_for_loops()).await;
    }

    /// Sends a random name to every server, again and again. If the name arrives here, forwarding stops until a probe
    /// finds no loop.
    async fn probe_for_loops(&self) {
        let mut query = Message::new(0, MessageType::Query, OpCode::Query);
        query.add_query(Query::query(self.probe.clone(), RecordType::HINFO));
        while self.blocks.iter().any(|block| block.loops) {
            for block in self.blocks.iter().filter(|block| block.loops) {
                for forward in block.forwards.iter().filter(|forward| forward.covers(&self.probe)) {
                    forward.looped.store(false, Ordering::Relaxed);
                    forward.probe(&query).await;
                    if forward.looped.load(Ordering::Relaxed) {
                        let error = ForwardError::Loop;
                        tracing::error!(zone = %forward.from(), %error, "forwarding for the zone is off");
                    }
                }
            }
            tokio::time::sleep(PROBE).await;
        }
    }
}

/// Returns the code with which a query is rejected whatever its name is.
fn rejection(query: &Message) -> Option<ResponseCode> {
    match query.queries.as_slice() {
        _ if query.metadata.op_code != OpCode::Query => Some(ResponseCode::NotImp),
        [_] if query.version() > 0 => Some(ResponseCode::BADVERS),
        [_] => None,
        _ => Some(ResponseCode::FormErr),
    }
}

impl Server for Resolver {
    fn context(&self) -> &Context {
        &self.context
    }

    fn resolve<'a>(self: Arc<Self>, request: &'a mut Request) -> BoxFuture<'a, Answer> {
        Box::pin(async move {
            if *request.name() == self.probe {
                let forwards = self.blocks.iter().flat_map(|block| &block.forwards);
                forwards.for_each(|forward| forward.looped.store(true, Ordering::Relaxed));
                return Ok(Some(request.reply(ResponseCode::ServFail)));
            }
            let block = self.block(request.name(), request.port);
            let is_served = |block: &&Block| {
                (request.is_internet() || block.any_class)
                    && (!request.is_transfer() || block.transfers)
            };
            let Some(block) = block.filter(is_served) else {
                return Ok(Some(request.reply(ResponseCode::Refused)));
            };
            let server: Arc<dyn Server> = self.clone();
            Next::new(&block.chain, &server).answer(request).await
        })
    }
}

/// Encodes an answer as the client can take it.
fn encode(mut reply: Message, asked: Option<&Edns>, tcp: bool) -> Vec<u8> {
    let code = reply.metadata.response_code;
    let options = reply.edns.take();
    if let Some(asked) = asked {
        let mut edns = options.unwrap_or_default();
        edns.set_max_payload(UDP_LIMIT).set_version(0).set_dnssec_ok(asked.flags().dnssec_ok);
        edns.set_rcode_high(code.high());
        reply.set_edns(edns);
    }
    let limit = match asked {
        _ if tcp => usize::from(u16::MAX),
        None => 512,
        Some(edns) => usize::from(edns.max_payload().clamp(512, 4096)),
    };
    shrink(reply, limit)
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

/// The messages that answer a query. Those of a zone transfer are encoded one at a time.
#[derive(Default)]
pub(crate) struct Answers {
    first: Option<Vec<u8>>,
    zone: Option<ZoneTransfer>,
}

impl Answers {
    pub(crate) fn of(first: Option<Vec<u8>>) -> Self {
        Self { first, zone: None }
    }

    fn of_zone(mut zone: ZoneTransfer) -> Self {
        Self { first: zone.next(), zone: Some(zone) }
    }

    /// Returns the first message that was not taken yet.
    pub(crate) fn first(&self) -> Option<&Vec<u8>> {
        self.first.as_ref()
    }
}

impl Iterator for Answers {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        let following = self.zone.as_mut().and_then(Iterator::next);
        std::mem::replace(&mut self.first, following)
    }
}

/// Splits the records of a zone into messages.
struct ZoneTransfer {
    /// A message without records.
    head: Message,
    records: std::vec::IntoIter<Record>,
    edns: Option<Edns>,
}

impl ZoneTransfer {
    fn new(mut head: Message, edns: Option<Edns>) -> Self {
        let records = std::mem::take(&mut head.answers).into_iter();
        Self { head, records, edns }
    }
}

impl Iterator for ZoneTransfer {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        let rest = self.records.as_slice();
        let mut count = rest.len().min(TRANSFERRED);
        if count == 0 {
            return None;
        }
        loop {
            let mut message = self.head.clone();
            message.answers = rest[..count].to_vec();
            let fits = message.to_vec().is_ok_and(|bytes| bytes.len() < usize::from(u16::MAX) - 64);
            if fits || count == 1 {
                self.records.nth(count - 1);
                return Some(encode(message, self.edns.as_ref(), true));
            }
            count /= 2;
        }
    }
}

#[cfg(test)]
mod tests;
