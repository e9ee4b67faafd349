//! The plugin `hosts`: answers from a file like `/etc/hosts`, and from lines of the Corefile.

use std::{collections::HashMap, net::IpAddr, path::PathBuf, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use hickory_proto::{
    op::ResponseCode,
    rr::{Name, RData, Record, RecordType, rdata::PTR},
};
use parking_lot::RwLock;

use super::files::{Version, watch};
use crate::{
    chain::{Answer, Failure, Next, Plugin, Request},
    directive::{CorefileError, Directive, Fallthrough, longest, parse_name},
    records::{address_data, reversed},
};

/// The size of a hosts file.
const MAX_FILE: u64 = 64 << 20;

#[derive(Debug)]
pub(crate) struct Hosts {
    zones: Vec<Name>,
    file: PathBuf,
    entries: Vec<Entry>,
    ttl: u32,
    reload: Duration,
    has_reverse: bool,
    fallthrough: Fallthrough,
    falls_through_by_type: bool,
    table: RwLock<Arc<Table>>,
}

#[derive(Clone, Debug)]
struct Entry {
    name: Name,
    ip: IpAddr,
}

#[derive(Debug, Default)]
struct Table {
    addresses: HashMap<Name, Vec<IpAddr>>,
    names: HashMap<IpAddr, Vec<Name>>,
}

/// The error for a name that only this plugin could know.
#[derive(Debug, thiserror::Error)]
#[error("hosts: {0} is not in the file; write fallthrough for names of other plugins")]
struct UnknownName(Name);

impl Hosts {
    pub(crate) fn parse(directive: &Directive, zones: &[Name]) -> Result<Self, CorefileError> {
        let (file, named) = match directive.arguments() {
            [] => (None, &[][..]),
            [file, named @ ..] => (Some(PathBuf::from(file)), named),
        };
        let mut parsed = Self {
            zones: directive.zones_or(named, zones)?,
            file: file.unwrap_or_else(|| "/etc/hosts".into()),
            entries: Vec::new(),
            ttl: 3600,
            reload: Duration::from_secs(5),
            has_reverse: true,
            fallthrough: Fallthrough::None,
            falls_through_by_type: false,
            table: RwLock::default(),
        };
        for option in &directive.body {
            match (option.name(), option.arguments()) {
                ("fallthrough", _) => parsed.fallthrough = Fallthrough::parse(option)?,
                ("fallthrough_unsupported", []) => parsed.falls_through_by_type = true,
                ("no_reverse", []) => parsed.has_reverse = false,
                ("reload", [text]) => parsed.reload = option.duration(text)?,
                ("ttl", [text]) => parsed.ttl = option.number(text)?,
                (ip, hosts) => {
                    let Ok(ip) = ip.parse() else {
                        return option.fail("it is neither an option of hosts nor an address");
                    };
                    let names = hosts.iter().map(|host| option.zone(host));
                    for name in names {
                        parsed.entries.push(Entry { name: name?, ip });
                    }
                }
            }
        }
        if parsed.falls_through_by_type && parsed.fallthrough == Fallthrough::None {
            return directive.fail("fallthrough_unsupported requires fallthrough");
        }
        parsed.read();
        Ok(parsed)
    }

    /// Reads the file. An unreadable file has no entries.
    fn read(&self) {
        let version = Version::of(&self.file).filter(|version| version.length <= MAX_FILE);
        let text = match version.map(|_| std::fs::read_to_string(&self.file)) {
            Some(Ok(text)) => text,
            failed => {
                if self.entries.is_empty() {
                    tracing::warn!(file = %self.file.display(), error = ?failed, "reading hosts");
                }
                String::new()
            }
        };
        let parse = |line: &str| {
            let mut words = line.split('#').next()?.split_whitespace();
            let ip: IpAddr = words.next()?.parse().ok()?;
            Some((
                ip,
                words
                    .filter_map(|word| parse_name(word).ok())
                    .map(|name| name.to_lowercase())
                    .collect::<Vec<_>>(),
            ))
        };
        let from_file = text.lines().filter_map(parse);
        let from_file =
            from_file.flat_map(|(ip, names)| names.into_iter().map(move |name| Entry { name, ip }));
        let mut table = Table::default();
        for Entry { name, ip } in self.entries.iter().cloned().chain(from_file) {
            if !name.is_wildcard() {
                table.names.entry(ip).or_default().push(name.clone());
            }
            table.addresses.entry(name).or_default().push(ip);
        }
        *self.table.write() = Arc::new(table);
    }

    fn table(&self) -> Arc<Table> {
        self.table.read().clone()
    }
}

impl Plugin for Hosts {
    fn answer<'a>(&'a self, request: &'a mut Request, next: Next<'a>) -> BoxFuture<'a, Answer> {
        let (name, kind, table) = (request.name(), request.kind(), self.table());
        let record = |data| Record::from_rdata(name.clone(), self.ttl, data);
        if !request.is_internet() {
            return next.answer(request);
        }
        if kind == RecordType::PTR {
            // The zones are those of names, not of addresses.
            let names =
                reversed(name).filter(|_| self.has_reverse).and_then(|ip| table.names.get(&ip));
            let Some(names) = names else { return next.answer(request) };
            let answers = names.iter().map(|host| record(RData::PTR(PTR(host.clone())))).collect();
            let reply = request.authoritative(ResponseCode::NoError, answers);
            return Box::pin(async move { Ok(Some(reply)) });
        }
        if longest(&self.zones, name).is_none() {
            return next.answer(request);
        }
        let lower = name.to_lowercase();
        let wildcard = || table.addresses.get(&lower.clone().into_wildcard());
        match table.addresses.get(&lower).or_else(wildcard) {
            Some(ips) => {
                let is_supported = matches!(kind, RecordType::A | RecordType::AAAA);
                if !is_supported && self.falls_through_by_type && self.fallthrough.covers(name) {
                    return next.answer(request);
                }
                let records = ips.iter().map(|ip| record(address_data(*ip)));
                let answers = records.filter(|record| record.record_type() == kind).collect();
                let reply = request.authoritative(ResponseCode::NoError, answers);
                Box::pin(async move { Ok(Some(reply)) })
            }
            None if self.fallthrough.covers(name) => next.answer(request),
            None => {
                let error = UnknownName(name.clone());
                Box::pin(async move { Err(Failure::new(ResponseCode::ServFail, error)) })
            }
        }
    }

    fn maintain(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            watch(&self.file, self.reload, || false, || self.read()).await;
        })
    }
}
