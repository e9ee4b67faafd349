//! The plugin `forward`: forwards queries to other servers.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use client::TlsMaterial;
use futures_util::future::{BoxFuture, join_all};
use hickory_proto::{
    op::{Message, MessageType, OpCode, Query, ResponseCode},
    rr::{Name, RecordType},
};
use rustls::{ClientConfig, pki_types::ServerName};
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout},
};

use super::upstream::{Connecting, Tls, Upstream};
use crate::{
    chain::{Answer, Failure, Next, Plugin, Request},
    directive::{CorefileError, Directive, longest},
};

/// The time limit for all attempts together.
const ALL: Duration = Duration::from_secs(5);
/// The number of concurrent queries without `max_concurrent`.
const MAX_CONCURRENT: usize = 4096;
/// The number of servers, as in CoreDNS.
const MAX_SERVERS: usize = 15;
const SYSTEM_AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";

#[derive(Debug, thiserror::Error)]
pub(crate) enum ForwardError {
    #[error("forward: too many queries are being forwarded already")]
    Busy,
    #[error(
        "forward: a query sent to the servers comes back here: there is a loop; check /etc/resolv.conf for loopback \
         addresses"
    )]
    Loop,
    #[error(
        "forward: there is no server to ask; name one in the Corefile or in the file that it refers to"
    )]
    NoServer,
    #[error("forward: all servers are unhealthy")]
    Unhealthy,
    #[error("forward: no server answered in time; the last, {server}: {reason}")]
    NoAnswer { server: SocketAddr, reason: String },
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Policy {
    Random,
    RoundRobin,
    Sequential,
}

#[derive(Debug)]
pub(crate) struct Forward {
    from: Name,
    except: Vec<Name>,
    servers: Vec<Arc<Upstream>>,
    policy: Policy,
    turn: AtomicUsize,
    force_tcp: bool,
    prefer_udp: bool,
    read_timeout: Duration,
    max_fails: u32,
    max_attempts: Option<usize>,
    failfast: bool,
    /// The response codes after which the next server is queried.
    failover: Vec<ResponseCode>,
    /// The response codes after which the next plugin is called, if it is another `forward`.
    next: Vec<ResponseCode>,
    next_on_nodata: bool,
    /// `true` if another `forward` follows in the server block.
    pub(crate) has_next: bool,
    check: HealthCheck,
    slots: Semaphore,
    /// `true` if a loop was found; forwarding stops until a later probe finds none.
    pub(crate) looped: AtomicBool,
}

/// The last answer with a code of `failover`.
struct Failover {
    /// The number of servers with such an answer.
    tried: usize,
    answer: Message,
}

#[derive(Debug)]
struct HealthCheck {
    interval: Duration,
    recursion: bool,
    name: Name,
}

/// The options that all servers share.
#[derive(Debug)]
struct Options {
    connecting: Connecting,
    tls: Vec<String>,
    server_name: Option<String>,
}

impl Forward {
    pub(crate) fn parse(directive: &Directive) -> Result<Self, CorefileError> {
        let Some((from, to)) = directive.arguments().split_first().filter(|(_, to)| !to.is_empty())
        else {
            return directive
                .fail("it needs a zone and at least one server, as in \"forward . 192.0.2.1\"");
        };
        let from = directive.zones(std::slice::from_ref(from))?.swap_remove(0);
        let check = HealthCheck {
            interval: Duration::from_millis(500),
            recursion: true,
            name: Name::root(),
        };
        let mut parsed = Self {
            from,
            except: Vec::new(),
            servers: Vec::new(),
            policy: Policy::Random,
            turn: AtomicUsize::new(0),
            force_tcp: false,
            prefer_udp: false,
            read_timeout: Duration::from_secs(2),
            max_fails: 2,
            max_attempts: None,
            failfast: false,
            failover: Vec::new(),
            next: Vec::new(),
            next_on_nodata: false,
            has_next: false,
            check,
            slots: Semaphore::new(MAX_CONCURRENT),
            looped: AtomicBool::new(false),
        };
        let connecting = Connecting { expire: Duration::from_secs(10), max_idle: 0, source: None };
        let mut options = Options { connecting, tls: Vec::new(), server_name: None };
        directive.body.iter().try_for_each(|option| parsed.set(option, &mut options))?;
        for text in to {
            parsed.servers.extend(servers(directive, text, &options)?.into_iter().map(Arc::new));
        }
        match parsed.servers.len() {
            0..=MAX_SERVERS => Ok(parsed),
            _ => directive.fail(format!("there are more than {MAX_SERVERS} servers")),
        }
    }

    fn set(&mut self, option: &Directive, options: &mut Options) -> Result<(), CorefileError> {
        let codes = |texts: &[String]| {
            texts.iter().map(|text| option.response_code(text)).collect::<Result<Vec<_>, _>>()
        };
        match (option.name(), option.arguments()) {
            ("except", zones @ [_, ..]) => self.except.extend(option.zones(zones)?),
            ("force_tcp", []) => self.force_tcp = true,
            ("prefer_udp", []) => self.prefer_udp = true,
            ("expire", [text]) => options.connecting.expire = option.duration(text)?,
            ("max_idle_conns", [text]) => options.connecting.max_idle = option.number(text)?,
            ("read_timeout", [text]) => self.read_timeout = option.duration(text)?,
            ("max_fails", [text]) => self.max_fails = option.number(text)?,
            ("max_connect_attempts", [text]) => self.max_attempts = Some(option.number(text)?),
            ("tls", files) if files.len() <= 3 => options.tls = files.to_vec(),
            ("tls_servername", [name]) => options.server_name = Some(name.clone()),
            ("policy", [policy]) => {
                self.policy = match policy.as_str() {
                    "random" => Policy::Random,
                    "round_robin" => Policy::RoundRobin,
                    "sequential" => Policy::Sequential,
                    _ => return option.fail("it is random, round_robin or sequential"),
                }
            }
            ("health_check", [interval, rest @ ..]) => {
                self.check = health_check(option, interval, rest)?
            }
            ("max_concurrent", [text]) => match option.number(text)? {
                0 => self.slots = Semaphore::new(MAX_CONCURRENT),
                most if most <= Semaphore::MAX_PERMITS => self.slots = Semaphore::new(most),
                _ => return option.fail("the number is too large"),
            },
            ("next", texts @ [_, ..]) => self.next.extend(codes(texts)?),
            ("next_on_nodata", []) => self.next_on_nodata = true,
            ("failover", texts @ [_, ..]) => {
                self.failover.extend(codes(texts)?);
                if self.failover.contains(&ResponseCode::NoError) {
                    return option.fail("NOERROR is no reason to ask another server");
                }
            }
            ("failfast_all_unhealthy_upstreams", []) => self.failfast = true,
            ("source_address", [text]) => match text.parse() {
                Ok(ip) => options.connecting.source = Some(ip),
                Err(_) => return option.fail(format!("{text:?} is not an IP address")),
            },
            _ => {
                return option.unknown(
                    "forward",
                    "except, force_tcp, prefer_udp, expire, max_idle_conns, read_timeout, max_fails, \
                     max_connect_attempts, tls, tls_servername, policy, health_check, max_concurrent, next, \
                     next_on_nodata, failover, failfast_all_unhealthy_upstreams and source_address",
                );
            }
        }
        Ok(())
    }

    pub(crate) fn covers(&self, name: &Name) -> bool {
        self.from.zone_of(name) && longest(&self.except, name).is_none()
    }

    pub(crate) fn from(&self) -> &Name {
        &self.from
    }

    async fn send(&self, query: &Message, over_tcp: bool) -> Result<Message, ForwardError> {
        if self.looped.load(Ordering::Relaxed) {
            return Err(ForwardError::Loop);
        }
        let _slot = self.slots.try_acquire().map_err(|_| ForwardError::Busy)?;
        let all_down = self.servers.iter().all(|server| server.is_down(self.max_fails));
        if self.failfast && all_down && !self.servers.is_empty() {
            return Err(ForwardError::Unhealthy);
        }
        let deadline = Instant::now() + ALL.max(self.read_timeout);
        let mut failure: Result<Failover, ForwardError> = Err(ForwardError::NoServer);
        let order = self.order();
        let attempts = self.max_attempts.unwrap_or(2 * order.len());
        let attempts = if attempts == 0 { usize::MAX } else { attempts };
        for server in order.iter().cycle().take(attempts) {
            let wait = self.read_timeout.min(deadline.saturating_duration_since(Instant::now()));
            if wait.is_zero() {
                break;
            }
            let udp = !self.force_tcp && (self.prefer_udp || !over_tcp);
            let attempt = async {
                let answer = server.exchange(query, !udp).await?;
                // A client over TCP does not expect an answer that is cut off.
                if answer.metadata.truncation && udp && over_tcp {
                    server.exchange(query, true).await
                } else {
                    Ok(answer)
                }
            };
            let reason = match timeout(wait, attempt).await {
                Ok(Ok(answer)) if self.failover.contains(&answer.metadata.response_code) => {
                    let tried = failure.map_or(1, |failover| failover.tried + 1);
                    if tried >= order.len() {
                        return Ok(answer);
                    }
                    failure = Ok(Failover { tried, answer });
                    continue;
                }
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(error)) => error.to_string(),
                Err(_) => format!("no answer within {} ms", wait.as_millis()),
            };
            server.suspect();
            if failure.is_err() {
                failure = Err(ForwardError::NoAnswer { server: server.address, reason });
            }
            if attempts == usize::MAX {
                // Without a limit, a server that refuses connections would be queried without a pause.
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
        failure.map(|failover| failover.answer)
    }

    /// Returns the servers in the order of attempts: by policy, without those that are down unless all are.
    fn order(&self) -> Vec<Arc<Upstream>> {
        let mut order = self.servers.clone();
        let start = match self.policy {
            Policy::Sequential => 0,
            Policy::Random if order.len() > 1 => rt::random_in(0..order.len()),
            Policy::Random => 0,
            Policy::RoundRobin => self.turn.fetch_add(1, Ordering::Relaxed) % order.len().max(1),
        };
        order.rotate_left(start);
        let healthy: Vec<_> =
            order.iter().filter(|server| !server.is_down(self.max_fails)).cloned().collect();
        if healthy.is_empty() { order } else { healthy }
    }

    /// Sends `query` to every server to find out whether it comes back; answers are ignored.
    pub(crate) async fn probe(&self, query: &Message) {
        for server in &self.servers {
            let _ = timeout(self.read_timeout, server.exchange(query, self.force_tcp)).await;
        }
    }

    async fn check(&self, server: &Upstream) {
        let mut query = Message::new(0, MessageType::Query, OpCode::Query);
        query.metadata.recursion_desired = self.check.recursion;
        query.add_query(Query::query(self.check.name.clone(), RecordType::NS));
        let answer = timeout(self.read_timeout, server.exchange(&query, self.force_tcp)).await;
        server.record_health(matches!(answer, Ok(Ok(_))));
    }

    /// Reports whether the next `forward` is called despite the answer of a server.
    fn passes_on(&self, answer: &Message) -> bool {
        let code = answer.metadata.response_code;
        let is_nodata = code == ResponseCode::NoError && answer.answers.is_empty();
        self.has_next && (self.next.contains(&code) || (self.next_on_nodata && is_nodata))
    }
}

impl Plugin for Forward {
    fn answer<'a>(&'a self, request: &'a mut Request, next: Next<'a>) -> BoxFuture<'a, Answer> {
        if !self.covers(request.name()) || request.is_transfer() {
            return next.answer(request);
        }
        Box::pin(async move {
            match self.send(&request.message(), request.tcp).await {
                Ok(answer) if self.passes_on(&answer) => next.answer(request).await,
                Ok(answer) => Ok(Some(answer)),
                Err(error) => {
                    next.context().metrics.forward_failed();
                    let code = match error {
                        ForwardError::Busy => ResponseCode::Refused,
                        _ => ResponseCode::ServFail,
                    };
                    Err(Failure::new(code, error))
                }
            }
        })
    }

    fn maintain(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            while self.max_fails > 0 && !self.check.interval.is_zero() {
                tokio::time::sleep(self.check.interval).await;
                let suspects = self.servers.iter().filter(|server| server.is_suspect());
                join_all(suspects.map(|server| self.check(server))).await;
            }
        })
    }
}

fn health_check(
    option: &Directive,
    interval: &str,
    words: &[String],
) -> Result<HealthCheck, CorefileError> {
    let mut check =
        HealthCheck { interval: option.duration(interval)?, recursion: true, name: Name::root() };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match (word.as_str(), words.clone().next()) {
            ("no_rec", _) => check.recursion = false,
            ("domain", Some(name)) => {
                check.name = option.zone(name)?;
                words.next();
            }
            _ => return option.fail("health_check has a duration, no_rec and domain FQDN"),
        }
    }
    Ok(check)
}

/// Returns the servers that one argument stands for: an address with or without protocol, or a file.
fn servers(
    directive: &Directive,
    text: &str,
    options: &Options,
) -> Result<Vec<Upstream>, CorefileError> {
    let server = |address, tls| Upstream::new(address, tls, options.connecting.clone());
    if let Some(rest) = text.strip_prefix("tls://") {
        let (bare, own_name) = split_server_name(rest);
        let Some(address) = socket_address(&bare, 853) else {
            return directive.fail(format!("{text:?} has no IP address"));
        };
        if own_name.is_some() && options.server_name.is_some() {
            return directive
                .fail("the server's name is given twice, by tls_servername and after %");
        }
        let name = own_name.as_deref().or(options.server_name.as_deref());
        let name = name.map_or_else(|| address.ip().to_string(), str::to_owned);
        if let Err(error) = ServerName::try_from(name.as_str()) {
            return directive.fail(format!("the name {name:?} of the server: {error}"));
        }
        let config = tls_config(directive, &options.tls)?;
        return Ok(vec![server(address, Some(Tls { config, name }))]);
    }
    let bare = text.strip_prefix("dns://").unwrap_or(text);
    if let Some(address) = socket_address(bare, 53) {
        return Ok(vec![server(address, None)]);
    }
    if text.contains("://") {
        return directive
            .fail(format!("{text:?}: there are servers over dns:// and tls://, by IP address"));
    }
    match std::fs::read_to_string(text) {
        Ok(file) => {
            Ok(name_servers(&file).map(|ip| server(SocketAddr::new(ip, 53), None)).collect())
        }
        Err(error) => {
            let form = "is neither an address nor a readable file in the form of resolv.conf";
            directive.fail(format!("{text:?} {form}: {error}"))
        }
    }
}

/// Splits `9.9.9.9%dns.quad9.net:853` into the address with its port, and the name.
fn split_server_name(text: &str) -> (String, Option<String>) {
    match text.split_once('%') {
        None => (text.to_owned(), None),
        Some((ip, rest)) => {
            let (name, port) =
                rest.rsplit_once(':').map_or((rest, None), |(name, port)| (name, Some(port)));
            let ip = match port {
                Some(port) if ip.contains(':') && !ip.starts_with('[') => format!("[{ip}]:{port}"),
                Some(port) => format!("{ip}:{port}"),
                None => ip.to_owned(),
            };
            (ip, Some(name.to_owned()))
        }
    }
}

fn socket_address(text: &str, port: u16) -> Option<SocketAddr> {
    let ip = || text.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    text.parse().ok().or_else(|| Some(SocketAddr::new(ip().ok()?, port)))
}

fn name_servers(file: &str) -> impl Iterator<Item = IpAddr> {
    let servers = file.lines().filter_map(|line| line.trim().strip_prefix("nameserver"));
    // A zone after % names an interface of this machine and is dropped.
    servers.filter_map(|server| server.trim().split(['%', ' ', '\t']).next()?.parse().ok())
}

/// Returns the TLS settings of the files: none, the CA, the certificate and key, or all three.
fn tls_config(directive: &Directive, files: &[String]) -> Result<Arc<ClientConfig>, CorefileError> {
    let (ca, identity) = match files {
        [ca] => (ca.as_str(), None),
        [certificate, key] => (SYSTEM_AUTHORITIES, Some((certificate, key))),
        [certificate, key, ca] => (ca.as_str(), Some((certificate, key))),
        _ => (SYSTEM_AUTHORITIES, None),
    };
    let read = |path: &str| {
        std::fs::read(path).or_else(|error| directive.fail(format!("reading {path}: {error}")))
    };
    let mut material = TlsMaterial { ca: Some(read(ca)?), ..TlsMaterial::default() };
    if let Some((certificate, key)) = identity {
        (material.certificate, material.key) = (Some(read(certificate)?), Some(read(key)?));
    }
    match material.client_config() {
        Ok(config) => Ok(Arc::new(config)),
        Err(error) => directive.fail(format!("TLS: {error}")),
    }
}

#[cfg(test)]
mod tests;
