//! Plugins with few options: `any`, `bufsize`, `chaos`, `erratic`, `header`, `loadbalance`, `minimal` and `whoami`.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use api_meta::Cidr;
use futures_util::future::BoxFuture;
use hickory_proto::{
    op::{Message, Metadata, ResponseCode},
    rr::{
        DNSClass, Name, RData, Record, RecordType,
        rdata::{HINFO, SRV, TXT},
    },
};

use crate::{
    chain::{Answer, Next, Plugin, Request},
    directive::{CorefileError, Directive, any_contains},
    records::address_data,
};

/// Answers queries for all types with a short record (RFC 8482).
#[derive(Debug)]
pub(crate) struct Any;

impl Plugin for Any {
    fn answer<'a>(&'a self, request: &'a mut Request, next: Next<'a>) -> BoxFuture<'a, Answer> {
        if request.kind() != RecordType::ANY {
            return next.answer(request);
        }
        let data = RData::HINFO(HINFO::new("ANY obsoleted".to_owned(), "See RFC 8482".to_owned()));
        let record = Record::from_rdata(request.name().clone(), 8482, data);
        let reply = request.authoritative(ResponseCode::NoError, vec![record]);
        Box::pin(async move { Ok(Some(reply)) })
    }
}

/// Limits the size of answers over UDP that a client may request.
#[derive(Debug)]
pub(crate) struct BufSize(u16);

impl BufSize {
    pub(crate) fn parse(directive: &Directive) -> Result<Self, CorefileError> {
        directive.limit(1, false)?;
        let size = directive.arguments().first().map_or(Ok(1232), |text| directive.number(text))?;
        if !(512..=4096).contains(&size) {
            return directive.fail("the size is within 512 and 4096");
        }
        Ok(Self(size))
    }
}

impl Plugin for BufSize {
    fn answer<'a>(&'a self, request: &'a mut Request, next: Next<'a>) -> BoxFuture<'a, Answer> {
        if let Some(edns) = &mut request.edns {
            // Not restored, because the answer to the client is limited, too.
            edns.set_max_payload(edns.max_payload().min(self.0));
        }
        next.answer(request)
    }
}

/// Answers queries of the class CH about this server.
#[derive(Debug)]
pub(crate) struct Chaos {
    version: String,
    authors: Vec<String>,
}

impl Chaos {
    pub(crate) fn parse(directive: &Directive) -> Result<Self, CorefileError> {
        directive.limit(usize::MAX, false)?;
        let (version, authors) = match directive.arguments() {
            [] => (format!("CoreDNS-{}", env!("CARGO_PKG_VERSION")), Vec::new()),
            [version, authors @ ..] => (version.clone(), authors.to_vec()),
        };
        match directive.arguments().iter().find(|text| text.len() > 255) {
            Some(text) => directive.fail(format!("{text:?} has more than 255 bytes")),
            None => Ok(Self { version, authors }),
        }
    }
}

impl Plugin for Chaos {
    fn answer<'a>(&'a self, request: &'a mut Request, next: Next<'a>) -> BoxFuture<'a, Answer> {
        if request.question.query_class() != DNSClass::CH || request.kind() != RecordType::TXT {
            return next.answer(request);
        }
        let texts = match request.name().to_lowercase().to_ascii().as_str() {
            "version.bind." | "version.server." => vec![self.version.clone()],
            "hostname.bind." | "id.server." => vec![rt::hostname()],
            "authors.bind." => {
                let mut authors = self.authors.clone();
                rt::shuffle(&mut authors);
                authors
            }
            _ => return next.answer(request),
        };
        let record = |text| {
            let mut record =
                Record::from_rdata(request.name().clone(), 0, RData::TXT(TXT::new(vec![text])));
            record.dns_class = DNSClass::CH;
            record
        };
        let mut reply = request.reply(ResponseCode::NoError);
        reply.answers = texts.into_iter().map(record).collect();
        Box::pin(async move { Ok(Some(reply)) })
    }
}

/// Answers tests of clients, now and then late, truncated or not at all.
#[derive(Debug, Default)]
pub(crate) struct Erratic {
    drop: u64,
    truncate: u64,
    delay: u64,
    pause: Duration,
    queries: AtomicU64,
}

impl Erratic {
    pub(crate) fn parse(directive: &Directive) -> Result<Self, CorefileError> {
        directive.limit(0, true)?;
        let mut parsed = Self { pause: Duration::from_millis(100), ..Self::default() };
        if directive.body.is_empty() {
            parsed.drop = 2;
        }
        for option in &directive.body {
            let amount = option.arguments().first().map_or(Ok(2), |text| option.number(text))?;
            match (option.name(), option.arguments()) {
                ("drop", [] | [_]) => parsed.drop = amount,
                ("truncate", [] | [_]) => parsed.truncate = amount,
                ("delay", [] | [_]) => parsed.delay = amount,
                ("delay", [_, pause]) => {
                    (parsed.delay, parsed.pause) = (amount, option.duration(pause)?)
                }
                _ => return option.unknown("erratic", "drop, truncate and delay"),
            }
        }
        Ok(parsed)
    }
}

impl Plugin for Erratic {
    fn answer<'a>(&'a self, request: &'a mut Request, _next: Next<'a>) -> BoxFuture<'a, Answer> {
        let count = self.queries.fetch_add(1, Ordering::Relaxed) + 1;
        let is_turn = move |every: u64| every > 0 && count.is_multiple_of(every);
        Box::pin(async move {
            if is_turn(self.drop) {
                return Ok(None);
            }
            if is_turn(self.delay) {
                tokio::time::sleep(self.pause).await;
            }
            let ip: IpAddr = match request.kind() {
                RecordType::A => Ipv4Addr::new(192, 0, 2, 53).into(),
                RecordType::AAAA => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x53).into(),
                _ => return Ok(Some(request.reply(ResponseCode::ServFail))),
            };
            let record = Record::from_rdata(request.name().clone(), 0, address_data(ip));
            let mut reply = request.authoritative(ResponseCode::NoError, vec![record]);
            reply.metadata.truncation = is_turn(self.truncate);
            Ok(Some(reply))
        })
    }
}

/// Sets and clears flags of queries and answers.
#[derive(Debug, Default)]
pub(crate) struct Header {
    query: Vec<FlagRule>,
    response: Vec<FlagRule>,
}

#[derive(Clone, Copy, Debug)]
struct FlagRule {
    flag: Flag,
    value: bool,
}

#[derive(Clone, Copy, Debug)]
enum Flag {
    Authoritative,
    RecursionAvailable,
    RecursionDesired,
}

impl Header {
    pub(crate) fn parse(directive: &Directive) -> Result<Self, CorefileError> {
        directive.limit(0, true)?;
        let mut parsed = Self::default();
        for option in &directive.body {
            let [action, flags @ ..] = option.arguments() else {
                return option.unknown("header", "query|response set|clear FLAGS");
            };
            let rules = match option.name() {
                "query" => &mut parsed.query,
                "response" => &mut parsed.response,
                _ => return option.unknown("header", "query|response set|clear FLAGS"),
            };
            let value = match action.as_str() {
                "set" => true,
                "clear" => false,
                _ => return option.fail("the action is set or clear"),
            };
            if flags.is_empty() {
                return option.fail("it needs flags: aa, ra or rd");
            }
            for flag in flags {
                let flag = match flag.as_str() {
                    "aa" => Flag::Authoritative,
                    "ra" => Flag::RecursionAvailable,
                    "rd" => Flag::RecursionDesired,
                    _ => {
                        return option
                            .fail(format!("{flag:?} is not a flag; there are aa, ra and rd"));
                    }
                };
                rules.push(FlagRule { flag, value });
            }
        }
        if parsed.query.is_empty() && parsed.response.is_empty() {
            return directive.fail("it needs at least one rule");
        }
        Ok(parsed)
    }
}

fn apply(rules: &[FlagRule], header: &mut Metadata) {
    for FlagRule { flag, value } in rules {
        match flag {
            Flag::Authoritative => header.authoritative = *value,
            Flag::RecursionAvailable => header.recursion_available = *value,
            Flag::RecursionDesired => header.recursion_desired = *value,
        }
    }
}

impl Plugin for Header {
    fn answer<'a>(&'a self, request: &'a mut Request, next: Next<'a>) -> BoxFuture<'a, Answer> {
        Box::pin(async move {
            let before = request.header;
            apply(&self.query, &mut request.header);
            let mut answer = next.answer(request).await;
            request.header = before;
            if let Ok(Some(reply)) = &mut answer {
                reply.metadata.recursion_desired = before.recursion_desired;
                apply(&self.response, &mut reply.metadata);
            }
            answer
        })
    }
}

/// Shuffles the addresses of answers, because clients use the first one.
#[derive(Debug, Default)]
pub(crate) struct LoadBalance {
    /// The networks whose addresses come first.
    preferred: Vec<Cidr>,
}

impl LoadBalance {
    pub(crate) fn parse(directive: &Directive) -> Result<Self, CorefileError> {
        if let Some(policy) =
            directive.arguments().first().filter(|policy| *policy != "round_robin")
        {
            return directive.fail(format!("the argument {policy:?} is not supported"));
        }
        directive.limit(1, true)?;
        let mut preferred = Vec::new();
        for option in &directive.body {
            match (option.name(), option.arguments()) {
                ("prefer", networks @ [_, ..]) => {
                    for network in networks {
                        preferred.push(option.network(network)?);
                    }
                }
                _ => return option.unknown("loadbalance", "prefer CIDR"),
            }
        }
        Ok(Self { preferred })
    }

    /// Shuffles addresses and mail servers, which follow the other records.
    fn shuffle(&self, reply: &mut Message) {
        let is_shuffled =
            |record: &Record| matches!(record.data, RData::A(_) | RData::AAAA(_) | RData::MX(_));
        let (mut shuffled, mut answers): (Vec<_>, Vec<_>) =
            std::mem::take(&mut reply.answers).into_iter().partition(is_shuffled);
        rt::shuffle(&mut shuffled);
        shuffled.sort_by_key(|record| {
            !record.data.ip_addr().is_some_and(|ip| any_contains(&self.preferred, ip))
        });
        answers.append(&mut shuffled);
        reply.answers = answers;
    }
}

impl Plugin for LoadBalance {
    fn answer<'a>(&'a self, request: &'a mut Request, next: Next<'a>) -> BoxFuture<'a, Answer> {
        Box::pin(async move {
            let mut answer = next.answer(request).await;
            if let Ok(Some(reply)) = &mut answer
                && !request.is_transfer()
            {
                self.shuffle(reply);
            }
            answer
        })
    }
}

/// Removes the records that a client did not request.
#[derive(Debug)]
pub(crate) struct Minimal;

impl Plugin for Minimal {
    fn answer<'a>(&'a self, request: &'a mut Request, next: Next<'a>) -> BoxFuture<'a, Answer> {
        Box::pin(async move {
            let mut answer = next.answer(request).await;
            if let Ok(Some(reply)) = &mut answer
                && reply.metadata.response_code == ResponseCode::NoError
                && !reply.answers.is_empty()
            {
                reply.authorities.clear();
                reply.additionals.clear();
            }
            answer
        })
    }
}

/// Answers with the client's address, port and transport.
#[derive(Debug)]
pub(crate) struct Whoami;

impl Plugin for Whoami {
    fn answer<'a>(&'a self, request: &'a mut Request, _next: Next<'a>) -> BoxFuture<'a, Answer> {
        let mut reply = request.authoritative(ResponseCode::NoError, Vec::new());
        let ip = request.client.ip().to_canonical();
        reply.add_additional(Record::from_rdata(request.name().clone(), 0, address_data(ip)));
        let transport = if request.tcp { "_tcp" } else { "_udp" };
        if let Ok(name) = request.name().prepend_label(transport) {
            let data = RData::SRV(SRV::new(0, 0, request.client.port(), Name::root()));
            reply.add_additional(Record::from_rdata(name, 0, data));
        }
        Box::pin(async move { Ok(Some(reply)) })
    }
}
