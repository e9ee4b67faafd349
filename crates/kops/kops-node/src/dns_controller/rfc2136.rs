//! The provider `rfc2136`: dynamic updates of a DNS server (RFC 2136), signed with TSIG.
//!
//! An update is one message, which the server applies as a whole. Short messages are sent by UDP, and by TCP if no
//! usable answer arrives. Answers without a valid signature are ignored on UDP, because anyone can send them.

use std::{io, net::SocketAddr, path::PathBuf, time::Duration};

use hickory_proto::{
    ProtoError,
    op::{Message, MessageType, OpCode, Query, ResponseCode, UpdateMessage as _},
    rr::{
        DNSClass, Name, RData, Record, RecordType,
        rdata::{A, AAAA, CNAME},
    },
};
use kops_core::dns::{Change, TTL, Zone};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpStream, UdpSocket, lookup_host},
    time::{Instant, timeout, timeout_at},
};

use super::{
    provider::{Effect, Provider, ProviderError, Reply},
    tsig::{KeyFileError, SignatureError, TsigKey},
};

/// The port of servers without one.
pub(super) const PORT: u16 = 53;
/// The longest message that is sent by UDP in bytes (RFC 1035).
const LONGEST_UDP: usize = 512;
const UDP_ATTEMPTS: usize = 2;
/// The types that a name has only by this controller.
const TYPES: [RecordType; 3] = [RecordType::A, RecordType::AAAA, RecordType::CNAME];

/// The time limits of an update.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimeLimits {
    /// The limit of one attempt by UDP.
    pub(super) udp: Duration,
    /// The limit of the attempt by TCP.
    pub(super) tcp: Duration,
}

impl Default for TimeLimits {
    fn default() -> Self {
        Self { udp: Duration::from_secs(2), tcp: Duration::from_secs(10) }
    }
}

/// A DNS server that accepts updates.
pub(super) struct Rfc2136 {
    /// The server as `HOST:PORT`.
    pub(super) server: String,
    /// The file with the key; without it, updates are not signed.
    pub(super) key_file: Option<PathBuf>,
    /// The zones of the server that may be changed.
    pub(super) zones: Vec<Zone>,
    pub(super) limits: TimeLimits,
}

/// The error of an update.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UpdateError {
    #[error("encoding the update of zone {zone}: {source}")]
    Encoding { zone: String, source: ProtoError },
    #[error("finding the DNS server {server}: {cause}; check --rfc2136-server")]
    Lookup { server: String, cause: String },
    #[error(
        "sending the update of zone {zone} to the DNS server {server}: {source}; check that it can be reached"
    )]
    Io { zone: String, server: String, source: io::Error },
    #[error(
        "the DNS server {server} did not answer the update of zone {zone} in time; check that it can be reached"
    )]
    Timeout { zone: String, server: String },
    #[error(
        "the answer of the DNS server {server} to the update of zone {zone} cannot be used: {cause}"
    )]
    Answer { zone: String, server: String, cause: AnswerError },
    #[error(
        "the DNS server {server} rejected the update of zone {zone}: {code} ({code:?}); check the zone's \
         name, and that the server allows updates by the key"
    )]
    Refused { zone: String, server: String, code: ResponseCode },
}

/// The reason why an answer cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AnswerError {
    #[error("it is not a DNS message: {0}")]
    Malformed(String),
    #[error("it belongs to another request")]
    OtherRequest,
    #[error("it is truncated")]
    Truncated,
    #[error(transparent)]
    Signature(#[from] SignatureError),
}

impl UpdateError {
    /// Returns the effect of the update that failed.
    fn effect(&self) -> Effect {
        match self {
            Self::Encoding { .. } => Effect::Rejected,
            Self::Lookup { .. } => Effect::Refused,
            Self::Io { .. } | Self::Timeout { .. } => Effect::Unknown,
            Self::Answer { cause: AnswerError::Signature(SignatureError::Rejected(_)), .. } => {
                Effect::Refused
            }
            Self::Answer { .. } => Effect::Unknown,
            Self::Refused { code, .. } => match *code {
                ResponseCode::FormErr | ResponseCode::NotZone | ResponseCode::YXDomain => {
                    Effect::Rejected
                }
                // The server may have failed after it wrote its journal.
                ResponseCode::ServFail => Effect::Unknown,
                _ => Effect::Refused,
            },
        }
    }
}

impl From<UpdateError> for ProviderError {
    fn from(error: UpdateError) -> Self {
        Self::new(error.effect(), error)
    }
}

impl From<KeyFileError> for ProviderError {
    fn from(error: KeyFileError) -> Self {
        Self::new(Effect::Refused, error)
    }
}

impl Provider for Rfc2136 {
    fn zones(&self) -> Reply<'_, Vec<Zone>> {
        Box::pin(async { Ok(self.zones.clone()) })
    }

    fn apply<'a>(&'a self, zone: &'a Zone, changes: &'a [Change]) -> Reply<'a, ()> {
        Box::pin(async move {
            // The key may have been renewed.
            let key = self.key_file.as_deref().map(TsigKey::read).transpose()?;
            let request = Request::new(zone, changes, key, rt::random())?;
            Ok(self.send(&request).await?)
        })
    }
}

/// An encoded update, and what its answer must match.
pub(super) struct Request {
    zone: String,
    id: u16,
    bytes: Vec<u8>,
    key: Option<TsigKey>,
    mac: Vec<u8>,
}

impl Request {
    /// Encodes an update that gives each name exactly its records, and signs it with the key.
    pub(super) fn new(
        zone: &Zone,
        changes: &[Change],
        key: Option<TsigKey>,
        id: u16,
    ) -> Result<Self, UpdateError> {
        let failed = |source| UpdateError::Encoding { zone: zone.name.clone(), source };
        let mut message = update(zone, changes, id).map_err(failed)?;
        let (bytes, mac) = match &key {
            Some(key) => key.sign(&mut message, seconds()).map_err(failed)?,
            None => (message.to_vec().map_err(failed)?, Vec::new()),
        };
        Ok(Self { zone: zone.name.clone(), id, bytes, key, mac })
    }

    /// Returns the answer's code, or the reason why it is not an answer to this request.
    pub(super) fn check(&self, answer: &[u8]) -> Result<ResponseCode, AnswerError> {
        let message =
            Message::from_vec(answer).map_err(|error| AnswerError::Malformed(error.to_string()))?;
        let metadata = &message.metadata;
        if metadata.id != self.id
            || metadata.message_type != MessageType::Response
            || metadata.op_code != OpCode::Update
        {
            return Err(AnswerError::OtherRequest);
        }
        if metadata.truncation {
            return Err(AnswerError::Truncated);
        }
        if let Some(key) = &self.key {
            key.verify(answer, &self.mac, seconds())?;
        }
        Ok(metadata.response_code)
    }
}

/// Returns the time in seconds since 1970.
fn seconds() -> u64 {
    rt::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Returns the message of an update.
fn update(zone: &Zone, changes: &[Change], id: u16) -> Result<Message, ProtoError> {
    let name = |text: &str| {
        let mut name = Name::from_ascii(text)?;
        name.set_fqdn(true);
        Ok::<_, ProtoError>(name)
    };
    let mut message = Message::new(id, MessageType::Query, OpCode::Update);
    let mut section = Query::query(name(&zone.name)?, RecordType::SOA);
    section.set_query_class(DNSClass::IN);
    message.add_zone(section);
    for change in changes {
        let owner = name(&change.name)?;
        for kind in TYPES {
            let mut deletion = Record::update0(owner.clone(), 0, kind);
            deletion.dns_class = DNSClass::ANY;
            message.add_update(deletion);
        }
        let records = &change.records;
        let host = records.host.as_deref().map(name).transpose()?;
        let all = (records.ipv4.iter().map(|&ip| RData::A(A(ip))))
            .chain(records.ipv6.iter().map(|&ip| RData::AAAA(AAAA(ip))))
            .chain(host.map(|host| RData::CNAME(CNAME(host))));
        for data in all {
            message.add_update(Record::from_rdata(owner.clone(), TTL, data));
        }
    }
    Ok(message)
}

impl Rfc2136 {
    async fn send(&self, request: &Request) -> Result<(), UpdateError> {
        let address = self.address().await?;
        if request.bytes.len() <= LONGEST_UDP {
            for _ in 0..UDP_ATTEMPTS {
                match self.exchange_udp(address, request).await {
                    Ok(Some(code)) => return self.judge(request, code),
                    // An answer that cannot be used decides nothing: TCP does.
                    Ok(None) => break,
                    Err(UpdateError::Timeout { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        let answer = timeout(self.limits.tcp, exchange_tcp(address, &request.bytes)).await;
        let answer = answer.map_err(|_| self.timeout(request))?.map_err(self.io(request))?;
        match request.check(&answer) {
            Ok(code) => self.judge(request, code),
            Err(cause) => {
                let (zone, server) = (request.zone.clone(), self.server.clone());
                Err(UpdateError::Answer { zone, server, cause })
            }
        }
    }

    async fn address(&self) -> Result<SocketAddr, UpdateError> {
        let failed = |cause: String| UpdateError::Lookup { server: self.server.clone(), cause };
        let mut found = lookup_host(&self.server).await.map_err(|e| failed(e.to_string()))?;
        found.next().ok_or_else(|| failed("it has no address".to_owned()))
    }

    /// Sends a request by UDP once, and returns the code of the valid answer. Other answers are ignored; `None` if only
    /// such ones arrived.
    async fn exchange_udp(
        &self,
        address: SocketAddr,
        request: &Request,
    ) -> Result<Option<ResponseCode>, UpdateError> {
        let deadline = Instant::now() + self.limits.udp;
        let own: SocketAddr = match address {
            SocketAddr::V4(_) => ([0_u8; 4], 0).into(),
            SocketAddr::V6(_) => ([0_u16; 8], 0).into(),
        };
        let socket = UdpSocket::bind(own).await.map_err(self.io(request))?;
        socket.connect(address).await.map_err(self.io(request))?;
        socket.send(&request.bytes).await.map_err(self.io(request))?;
        let (mut buffer, mut received) = (vec![0; usize::from(u16::MAX)], false);
        loop {
            let Ok(length) = timeout_at(deadline, socket.recv(&mut buffer)).await else {
                return if received { Ok(None) } else { Err(self.timeout(request)) };
            };
            // A closed port is reported as an error.
            let length = length.map_err(self.io(request))?;
            match request.check(buffer.get(..length).unwrap_or_default()) {
                Ok(code) => return Ok(Some(code)),
                Err(AnswerError::Truncated) => return Ok(None),
                Err(error) => {
                    tracing::debug!(%error, server = self.server, "ignored an answer");
                    received = true;
                }
            }
        }
    }

    fn judge(&self, request: &Request, code: ResponseCode) -> Result<(), UpdateError> {
        if code == ResponseCode::NoError {
            return Ok(());
        }
        let (zone, server) = (request.zone.clone(), self.server.clone());
        Err(UpdateError::Refused { zone, server, code })
    }

    fn timeout(&self, request: &Request) -> UpdateError {
        UpdateError::Timeout { zone: request.zone.clone(), server: self.server.clone() }
    }

    fn io(&self, request: &Request) -> impl FnOnce(io::Error) -> UpdateError {
        let (zone, server) = (request.zone.clone(), self.server.clone());
        move |source| UpdateError::Io { zone, server, source }
    }
}

/// Sends a message by TCP, and returns the answer.
async fn exchange_tcp(address: SocketAddr, message: &[u8]) -> io::Result<Vec<u8>> {
    let length = u16::try_from(message.len())
        .map_err(|_| io::Error::other("the message is longer than 65535 bytes"))?;
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(&[&length.to_be_bytes()[..], message].concat()).await?;
    let mut answer = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut answer).await?;
    Ok(answer)
}

#[cfg(test)]
mod tests;
