//! The chain of plugins that answers the queries of a server block.
//!
//! Each plugin answers a request, or changes it and passes it on with [`Next`], or changes the answer on its way back.
//! The order of the plugins is CoreDNS's compiled order, whatever the order in the Corefile.

use std::{fmt::Debug, net::SocketAddr, sync::Arc};

use futures_util::future::BoxFuture;
use hickory_proto::{
    op::{Edns, Message, MessageType, Metadata, OpCode, Query, ResponseCode},
    rr::{DNSClass, Name, Record, RecordType},
};
use parking_lot::{RwLock, RwLockReadGuard};
use tokio::sync::Semaphore;

use crate::{index::Index, observe::Metrics};

/// The largest number of lookups that answer one another, for example of aliases that point to aliases.
const MAX_DEPTH: u8 = 8;
/// The largest number of requests that refresh the cache at the same time.
const REFRESHES: usize = 256;

/// A plugin's answer. `None` drops the query: the client gets no answer.
pub(crate) type Answer = Result<Option<Message>, Failure>;

/// A failure to answer. The client gets the code, and the plugin `errors` logs the reason.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub(crate) struct Failure {
    pub(crate) code: ResponseCode,
    #[source]
    pub(crate) reason: Box<dyn std::error::Error + Send + Sync>,
}

impl Failure {
    pub(crate) fn new(
        code: ResponseCode,
        reason: impl std::error::Error + Send + Sync + 'static,
    ) -> Self {
        Self { code, reason: Box::new(reason) }
    }
}

/// The error for a query that no plugin of the chain answers.
#[derive(Debug, thiserror::Error)]
#[error("no plugin of the server block answers the query")]
struct NoPlugin;

/// A query with its one question.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) header: Metadata,
    pub(crate) question: Query,
    pub(crate) edns: Option<Edns>,
    pub(crate) client: SocketAddr,
    /// The port on which the query arrived.
    pub(crate) port: u16,
    pub(crate) tcp: bool,
    /// The length of the encoded query.
    pub(crate) size: usize,
    /// The number of lookups that led to this one.
    pub(crate) depth: u8,
    /// `true` if the cache is refreshed by this request, whose answer no client awaits.
    pub(crate) is_refresh: bool,
}

impl Request {
    pub(crate) fn name(&self) -> &Name {
        self.question.name()
    }

    pub(crate) fn kind(&self) -> RecordType {
        self.question.query_type()
    }

    pub(crate) fn is_internet(&self) -> bool {
        self.question.query_class() == DNSClass::IN
    }

    pub(crate) fn is_transfer(&self) -> bool {
        matches!(self.kind(), RecordType::AXFR | RecordType::IXFR)
    }

    pub(crate) fn dnssec_ok(&self) -> bool {
        self.edns.as_ref().is_some_and(|edns| edns.flags().dnssec_ok)
    }

    /// Returns the query as a message for another server.
    pub(crate) fn message(&self) -> Message {
        let mut message = Message::new(self.header.id, MessageType::Query, OpCode::Query);
        message.metadata = self.header;
        message.add_query(self.question.clone());
        message.edns = self.edns.clone();
        message
    }

    /// Returns an empty answer with this code.
    pub(crate) fn reply(&self, code: ResponseCode) -> Message {
        let mut reply = Message::response(self.header.id, self.header.op_code);
        reply.metadata.recursion_desired = self.header.recursion_desired;
        reply.metadata.checking_disabled = self.header.checking_disabled;
        reply.metadata.recursion_available = true;
        reply.metadata.response_code = code;
        reply.add_query(self.question.clone());
        reply
    }

    /// Returns an authoritative answer with these records.
    pub(crate) fn authoritative(&self, code: ResponseCode, answers: Vec<Record>) -> Message {
        let mut reply = self.reply(code);
        reply.metadata.authoritative = true;
        reply.answers = answers;
        reply
    }
}

/// A stage of the chain.
pub(crate) trait Plugin: Debug + Send + Sync {
    /// Answers a request, or passes it on. A plugin that changes the request for the next one restores it afterwards.
    fn answer<'a>(&'a self, request: &'a mut Request, next: Next<'a>) -> BoxFuture<'a, Answer>;

    /// Does the periodic work of the plugin, such as rereading its files, until the Corefile changes.
    fn maintain(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Returns the records of a zone for a transfer, beginning and ending with its SOA record; `None` without the zone.
    fn transfer(&self, _zone: &Name, _context: &Context) -> Option<Vec<Record>> {
        None
    }

    /// Returns the SOA record of a zone that the plugin can transfer.
    fn transfer_soa(&self, _zone: &Name, _context: &Context) -> Option<Record> {
        None
    }

    /// Returns the search path of a client for the plugin `autopath`.
    fn search_path(&self, _client: std::net::IpAddr, _context: &Context) -> Option<Vec<Name>> {
        None
    }

    /// Returns the value of a label of the plugin `metadata`.
    fn metadata(&self, _label: &str, _request: &Request, _context: &Context) -> Option<String> {
        None
    }
}

/// The state that outlives a Corefile.
#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) index: Arc<RwLock<Index>>,
    pub(crate) is_synced: Arc<dyn Fn() -> bool + Send + Sync>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) tasks: rt::Tasks,
    refreshes: Arc<Semaphore>,
}

impl Context {
    pub(crate) fn new(
        index: Arc<RwLock<Index>>,
        is_synced: Arc<dyn Fn() -> bool + Send + Sync>,
        metrics: Arc<Metrics>,
        tasks: rt::Tasks,
    ) -> Self {
        Self { index, is_synced, metrics, tasks, refreshes: Arc::new(Semaphore::new(REFRESHES)) }
    }

    pub(crate) fn index(&self) -> RwLockReadGuard<'_, Index> {
        self.index.read()
    }
}

/// The server of a chain, with which plugins resolve other names.
pub(crate) trait Server: Send + Sync {
    fn context(&self) -> &Context;

    /// Answers a request with the chain of its zone.
    fn resolve<'a>(self: Arc<Self>, request: &'a mut Request) -> BoxFuture<'a, Answer>;
}

/// The plugins of a server block.
pub(crate) type Chain = Arc<[Arc<dyn Plugin>]>;

/// The rest of a chain.
#[derive(Clone, Copy)]
pub(crate) struct Next<'a> {
    chain: &'a Chain,
    /// The position of the next plugin.
    at: usize,
    server: &'a Arc<dyn Server>,
}

impl<'a> Next<'a> {
    pub(crate) fn new(chain: &'a Chain, server: &'a Arc<dyn Server>) -> Self {
        Self { chain, at: 0, server }
    }

    pub(crate) fn context(&self) -> &'a Context {
        self.server.context()
    }

    /// Returns the next plugins.
    pub(crate) fn plugins(&self) -> &'a [Arc<dyn Plugin>] {
        self.chain.get(self.at..).unwrap_or_default()
    }

    /// Returns the value of a label of the plugin `metadata`, which any plugin of the chain may have.
    pub(crate) fn metadata(&self, label: &str, request: &Request) -> Option<String> {
        self.chain.iter().find_map(|plugin| plugin.metadata(label, request, self.context()))
    }

    /// Answers with the next plugin.
    pub(crate) fn answer<'b>(self, request: &'b mut Request) -> BoxFuture<'b, Answer>
    where
        'a: 'b,
    {
        match self.chain.get(self.at) {
            Some(plugin) => plugin.answer(request, Next { at: self.at + 1, ..self }),
            None => {
                Box::pin(std::future::ready(Err(Failure::new(ResponseCode::ServFail, NoPlugin))))
            }
        }
    }

    /// Looks up another name on behalf of the request, from the start. Returns `None` if that fails.
    pub(crate) async fn look_up(
        &self,
        request: &Request,
        name: Name,
        kind: RecordType,
    ) -> Option<Message> {
        if request.depth >= MAX_DEPTH {
            return None;
        }
        let mut other = request.clone();
        other.question = Query::query(name, kind);
        other.depth += 1;
        // Nothing is truncated.
        other.tcp = true;
        self.server.clone().resolve(&mut other).await.ok().flatten()
    }

    /// Answers with the plugin before this position again, in a task of its own. Returns `false` if there are too many.
    pub(crate) fn refresh(&self, request: &Request) -> bool {
        let context = self.context();
        let Ok(slot) = context.refreshes.clone().try_acquire_owned() else { return false };
        let mut request = Request { is_refresh: true, ..request.clone() };
        let (chain, at, server) =
            (self.chain.clone(), self.at.saturating_sub(1), self.server.clone());
        context.tasks.spawn_until_shutdown("cache refresh", async move {
            let _slot = slot;
            let next = Next { chain: &chain, at, server: &server };
            // Failures are logged by the next client's query.
            let _ = next.answer(&mut request).await;
        });
        true
    }
}
