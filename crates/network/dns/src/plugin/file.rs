//! The plugin `file`: answers from zone files.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use futures_util::future::BoxFuture;
use hickory_proto::{
    op::{Message, ResponseCode},
    rr::{Name, Record},
};
use parking_lot::RwLock;

use super::files::watch;
use crate::{
    chain::{Answer, Context, Failure, Next, Plugin, Request},
    directive::{CorefileError, Directive, Fallthrough},
    zonefile::{LookupResult, ZoneData},
};

#[derive(Debug)]
pub(crate) struct File {
    file: PathBuf,
    zones: Vec<Zone>,
    reload: Duration,
    by_time: bool,
    fallthrough: Fallthrough,
}

#[derive(Debug)]
struct Zone {
    origin: Name,
    /// The records; `None` until the file can be read.
    data: RwLock<Option<Arc<ZoneData>>>,
}

/// The error for a zone whose file could not be read yet.
#[derive(Debug, thiserror::Error)]
#[error("file: the zone {0} could not be read yet from {file}", file = .1.display())]
struct NotLoaded(Name, PathBuf);

impl File {
    pub(crate) fn parse(
        directive: &Directive,
        zones: &[Name],
        root: Option<&Path>,
    ) -> Result<Self, CorefileError> {
        let Some((file, named)) = directive.arguments().split_first() else {
            return directive.fail("it needs a zone file");
        };
        let zones = directive.zones_or(named, zones)?;
        let zone = |origin| Zone { origin, data: RwLock::default() };
        let mut parsed = Self {
            file: root.map_or(PathBuf::from(file), |root| root.join(file)),
            zones: zones.into_iter().map(zone).collect(),
            reload: Duration::from_secs(60),
            by_time: false,
            fallthrough: Fallthrough::None,
        };
        for option in &directive.body {
            match (option.name(), option.arguments()) {
                ("reload", [text]) => parsed.reload = option.duration(text)?,
                ("reload_by_mtime", []) => parsed.by_time = true,
                ("fallthrough", _) => parsed.fallthrough = Fallthrough::parse(option)?,
                _ => return option.unknown("file", "reload, reload_by_mtime and fallthrough"),
            }
        }
        // A file that is not there yet is tried again. A wrong one is an error.
        let is_missing = !parsed.file.exists() && !parsed.reload.is_zero();
        if is_missing {
            tracing::warn!(file = %parsed.file.display(), "the zone file is missing; it is tried again");
            return Ok(parsed);
        }
        for zone in &parsed.zones {
            let data = ZoneData::read(&parsed.file, &zone.origin)
                .or_else(|error| directive.fail(error.to_string()))?;
            zone.set(data);
        }
        Ok(parsed)
    }

    /// Reads the zones again if the file has changed. Unless `by_time`, a zone needs another serial number.
    fn reread(&self) {
        for zone in &self.zones {
            match ZoneData::read(&self.file, &zone.origin) {
                Ok(new) => {
                    let serial = zone.data().map(|data| data.serial());
                    if self.by_time || serial != Some(new.serial()) {
                        zone.set(new);
                    }
                }
                Err(error) => {
                    tracing::error!(zone = %zone.origin, %error, "the zone file is not used")
                }
            }
        }
    }

    fn zone(&self, name: &Name) -> Option<&Zone> {
        let zones = self.zones.iter().filter(|zone| zone.origin.zone_of(name));
        zones.max_by_key(|zone| zone.origin.num_labels())
    }
}

impl Zone {
    fn data(&self) -> Option<Arc<ZoneData>> {
        self.data.read().clone()
    }

    fn set(&self, data: ZoneData) {
        *self.data.write() = Some(Arc::new(data));
    }
}

/// Returns the answer of a zone, and the alias whose target is in another zone.
fn reply(request: &Request, data: &ZoneData, found: LookupResult) -> (Message, Option<Name>) {
    let mut reply = request.authoritative(ResponseCode::NoError, Vec::new());
    let mut target = None;
    match found {
        LookupResult::Records(records) => {
            reply.authorities = data.name_servers();
            reply.additionals = data.addresses(&records);
            reply.answers = records;
        }
        LookupResult::Alias { records, target: other } => {
            reply.answers = records;
            target = Some(other);
        }
        LookupResult::NoData(records) => {
            reply.answers = records;
            reply.add_authority(data.negative_soa());
        }
        LookupResult::NoName(records) => {
            reply.answers = records;
            reply.add_authority(data.negative_soa());
            reply.metadata.response_code = ResponseCode::NXDomain;
        }
        LookupResult::Delegation(servers) => {
            reply.metadata.authoritative = false;
            reply.additionals = data.addresses(&servers);
            reply.authorities = servers;
        }
    }
    (reply, target)
}

impl Plugin for File {
    fn answer<'a>(&'a self, request: &'a mut Request, next: Next<'a>) -> BoxFuture<'a, Answer> {
        let Some(zone) = self.zone(request.name()).filter(|_| request.is_internet()) else {
            return next.answer(request);
        };
        let Some(data) = zone.data() else {
            let error = NotLoaded(zone.origin.clone(), self.file.clone());
            return Box::pin(async move { Err(Failure::new(ResponseCode::ServFail, error)) });
        };
        let found = data.find(request.name(), request.kind());
        let is_unknown = matches!(&found, LookupResult::NoName(aliases) if aliases.is_empty());
        if is_unknown && self.fallthrough.covers(request.name()) {
            return next.answer(request);
        }
        Box::pin(async move {
            let (mut reply, target) = reply(request, &data, found);
            if let Some(target) = target {
                match next.look_up(request, target, request.kind()).await {
                    Some(found) => {
                        // The code is that of the last name (RFC 6604).
                        reply.metadata.response_code = found.metadata.response_code;
                        reply.answers.extend(found.answers);
                    }
                    None => reply.metadata.response_code = ResponseCode::ServFail,
                }
            }
            Ok(Some(reply))
        })
    }

    fn maintain(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let is_unread = || self.zones.iter().any(|zone| zone.data().is_none());
            watch(&self.file, self.reload, is_unread, || self.reread()).await;
        })
    }

    fn transfer(&self, zone: &Name, _context: &Context) -> Option<Vec<Record>> {
        let zone = self.zones.iter().find(|served| served.origin == *zone)?;
        Some(zone.data()?.transfer())
    }

    fn transfer_soa(&self, zone: &Name, _context: &Context) -> Option<Record> {
        let zone = self.zones.iter().find(|served| served.origin == *zone)?;
        Some(zone.data()?.soa())
    }
}
