//! DNS server for machines with reserved addresses and for host records.
//!
//! It is not a recursive resolver. Unknown names in its domain do not exist (NXDOMAIN). All other names are refused, so
//! that a client asks its next server.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::IpAddr,
    sync::Arc,
};

use hickory_proto::{
    op::{Edns, Message, MessageType, OpCode, Query, ResponseCode},
    rr::{
        DNSClass, Name, RData, Record, RecordType,
        rdata::{A, AAAA, PTR},
    },
};
use tokio::net::UdpSocket;

use crate::interface::Interface;

const PORT: u16 = 53;
/// The time to live, zero as in dnsmasq, because names may change.
const TTL: u32 = 0;
/// The maximum size of a UDP reply without EDNS, and with it. Larger packets would be fragmented.
const PLAIN: u16 = 512;
const UDP_LIMIT: u16 = 1232;
const CONNECTIONS: usize = 64;

/// The error for a name that DNS cannot serve.
#[derive(Debug, thiserror::Error)]
#[error("{name:?} is not a host name: {reason}")]
pub struct NameError {
    name: String,
    reason: String,
}

/// The names and addresses to serve, in both directions.
#[derive(Debug, Default)]
pub struct Names {
    domain: Option<Name>,
    addresses: BTreeMap<Name, BTreeSet<IpAddr>>,
    names: BTreeMap<IpAddr, Name>,
}

fn name(text: &str) -> Result<Name, NameError> {
    let mut name = Name::from_ascii(text.to_ascii_lowercase())
        .map_err(|error| NameError { name: text.to_owned(), reason: error.to_string() })?;
    name.set_fqdn(true);
    Ok(name)
}

impl Names {
    /// Creates an empty set that is authoritative for `domain`. An invalid `domain` is an error.
    pub fn new(domain: Option<&str>) -> Result<Self, NameError> {
        Ok(Self { domain: domain.map(name).transpose()?, ..Self::default() })
    }

    /// Adds a host by its bare name. If there is a domain and the name has no dot, the full name is added too.
    pub fn add(&mut self, host: &str, address: IpAddr) -> Result<(), NameError> {
        let bare = name(host)?;
        let mut names = vec![bare.clone()];
        if let Some(domain) = &self.domain
            && bare.num_labels() == 1
        {
            let full = bare
                .append_domain(domain)
                .map_err(|error| NameError { name: host.to_owned(), reason: error.to_string() })?;
            names.insert(0, full);
        }
        if let Some(first) = names.first() {
            self.names.entry(address).or_insert_with(|| first.clone());
        }
        for name in names {
            self.addresses.entry(name).or_default().insert(address);
        }
        Ok(())
    }

    /// Answers a packet, truncated to the UDP size that the client accepts; `None` for a packet that is not a query.
    pub fn answer(&self, packet: &[u8], tcp: bool) -> Option<Vec<u8>> {
        let request = Message::from_vec(packet).ok()?;
        let metadata = &request.metadata;
        if metadata.message_type != MessageType::Query {
            return None;
        }
        let mut reply = Message::response(metadata.id, metadata.op_code);
        reply.metadata.recursion_desired = metadata.recursion_desired;
        let (code, answers) = match request.queries.as_slice() {
            _ if metadata.op_code != OpCode::Query => (ResponseCode::NotImp, Vec::new()),
            [query] => self.resolve(query),
            _ => (ResponseCode::FormErr, Vec::new()),
        };
        reply.metadata.authoritative = code != ResponseCode::Refused;
        reply.metadata.response_code = code;
        reply.add_queries(request.queries);
        reply.add_answers(answers);
        let room = request.edns.as_ref().map_or(PLAIN, Edns::max_payload).clamp(PLAIN, UDP_LIMIT);
        if request.edns.is_some() {
            let mut edns = Edns::new();
            edns.set_max_payload(UDP_LIMIT);
            reply.set_edns(edns);
        }
        let bytes = reply.to_vec().ok()?;
        if tcp || bytes.len() <= room.into() {
            return Some(bytes);
        }
        reply.answers.clear();
        reply.metadata.truncation = true;
        reply.to_vec().ok()
    }

    fn resolve(&self, query: &Query) -> (ResponseCode, Vec<Record>) {
        if query.query_class() != DNSClass::IN {
            return (ResponseCode::Refused, Vec::new());
        }
        let name = query.name().to_lowercase();
        let record = |data| Record::from_rdata(query.name().clone(), TTL, data);
        if let Some(addresses) = self.addresses.get(&name) {
            let data = addresses.iter().filter_map(|address| match (address, query.query_type()) {
                (IpAddr::V4(address), RecordType::A) => Some(RData::A(A(*address))),
                (IpAddr::V6(address), RecordType::AAAA) => Some(RData::AAAA(AAAA(*address))),
                _ => None,
            });
            return (ResponseCode::NoError, data.map(record).collect());
        }
        if query.query_type() == RecordType::PTR
            && let Ok(network) = name.parse_arpa_name()
            && let Some(host) = self.names.get(&network.addr())
            && network.prefix_len() == network.max_prefix_len()
        {
            return (ResponseCode::NoError, vec![record(RData::PTR(PTR(host.clone())))]);
        }
        match &self.domain {
            Some(domain) if *domain == name => (ResponseCode::NoError, Vec::new()),
            Some(domain) if domain.zone_of(&name) => (ResponseCode::NXDomain, Vec::new()),
            _ => (ResponseCode::Refused, Vec::new()),
        }
    }
}

/// Opens the port on one interface and serves it until shutdown.
pub fn start(names: Arc<Names>, interface: &Interface, tasks: &rt::Tasks) -> io::Result<()> {
    let socket = interface.udp(interface.address, PORT)?;
    let listener = interface.tcp(interface.address, PORT)?;
    let tcp_names = names.clone();
    let answer = move |packet: Vec<u8>, _| std::future::ready(tcp_names.answer(&packet, true));
    let limits = serve::dns::Limits::connections(CONNECTIONS);
    let connections = serve::dns::serve(listener, limits, tasks.clone(), answer);
    tasks.essential(&format!("dns {} by TCP", interface.name), connections);
    let socket = Arc::new(socket);
    tasks.keep(&format!("dns {}", interface.name), move || run(names.clone(), socket.clone()));
    Ok(())
}

async fn run(names: Arc<Names>, socket: Arc<UdpSocket>) {
    let mut buffer = [0; UDP_LIMIT as usize];
    loop {
        match socket.recv_from(&mut buffer).await {
            Ok((length, client)) => {
                let answer = || names.answer(&buffer[..length], false);
                if let Ok(Some(answer)) = rt::catch_sync("dns query", client, answer)
                    && let Err(error) = socket.send_to(&answer, client).await
                {
                    tracing::debug!(%client, %error, "answering DNS");
                }
            }
            Err(error) => {
                tracing::warn!(%error, "receiving DNS");
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Names {
        let mut names = Names::new(Some("example.test")).unwrap();
        names.add("node1", "10.0.0.5".parse().unwrap()).unwrap();
        names.add("Matchbox.other.test", "fd00::1".parse().unwrap()).unwrap();
        names
    }

    fn ask(name: &str, kind: RecordType) -> (ResponseCode, Vec<String>) {
        let mut query = Message::query();
        query.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
        let answer = names().answer(&query.to_vec().unwrap(), false).unwrap();
        let answer = Message::from_vec(&answer).unwrap();
        assert_eq!(answer.metadata.id, query.metadata.id);
        let data = answer.answers.iter().map(|record| record.data.to_string()).collect();
        (answer.metadata.response_code, data)
    }

    #[test]
    fn answers_known_names_only() {
        use RecordType as T;
        use ResponseCode as R;
        for (name, kind, code, data) in [
            ("node1.example.test.", T::A, R::NoError, Some("10.0.0.5")),
            ("NODE1.", T::A, R::NoError, Some("10.0.0.5")),
            ("node1.example.test.", T::AAAA, R::NoError, None),
            ("matchbox.other.test.", T::AAAA, R::NoError, Some("fd00::1")),
            ("5.0.0.10.in-addr.arpa.", T::PTR, R::NoError, Some("node1.example.test.")),
            ("6.0.0.10.in-addr.arpa.", T::PTR, R::Refused, None),
            ("node2.example.test.", T::A, R::NXDomain, None),
            ("example.test.", T::A, R::NoError, None),
            ("example.com.", T::A, R::Refused, None),
        ] {
            let want: Vec<String> = data.into_iter().map(str::to_owned).collect();
            assert_eq!(ask(name, kind), (code, want), "{name} {kind}");
        }
    }

    #[test]
    fn truncates_large_answers_over_udp() {
        let mut names = names();
        for last in 1..=60 {
            names.add("many", IpAddr::from([10, 0, 0, last])).unwrap();
        }
        for (payload, tcp, whole) in [
            (None, false, false),
            (None, true, true),
            (Some(700), false, false),
            (Some(4096), false, true),
        ] {
            let mut query = Message::query();
            let name = Name::from_ascii("many.example.test.").unwrap();
            query.add_query(Query::query(name, RecordType::A));
            if let Some(payload) = payload {
                let mut edns = Edns::new();
                edns.set_max_payload(payload);
                query.set_edns(edns);
            }
            let bytes = names.answer(&query.to_vec().unwrap(), tcp).unwrap();
            let answer = Message::from_vec(&bytes).unwrap();
            let found = (answer.answers.len(), answer.metadata.truncation);
            assert_eq!(found, if whole { (60, false) } else { (0, true) }, "{payload:?} {tcp}");
            assert!(tcp || bytes.len() <= payload.unwrap_or(512).into());
        }
    }

    #[test]
    fn ignores_responses() {
        let reply = Message::response(1, OpCode::Query).to_vec().unwrap();
        assert_eq!(names().answer(&reply, false), None);
        assert_eq!(names().answer(&[1, 2, 3], true), None);
    }

    proptest::proptest! {
        #[test]
        fn no_packet_panics(bytes in proptest::collection::vec(0u8..=255, 0..100)) {
            names().answer(&bytes, false);
        }
    }
}
