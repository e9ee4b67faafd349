//! The plugin `transfer`: sends whole zones (AXFR) to listed servers. It sends no notifications of changes (NOTIFY).

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
};

use futures_util::future::BoxFuture;
use hickory_proto::{
    op::ResponseCode,
    rr::{Name, RecordType},
};

use crate::{
    chain::{Answer, Next, Plugin, Request},
    directive::{CorefileError, Directive},
};

#[derive(Debug, Default)]
pub(crate) struct Transfer {
    /// The servers that may have a zone; those of all directives for it.
    zones: HashMap<Name, Vec<Receiver>>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Receiver {
    Everyone,
    Server(IpAddr),
}

impl Transfer {
    pub(crate) fn is_empty(&self) -> bool {
        self.zones.is_empty()
    }

    pub(crate) fn add(
        &mut self,
        directive: &Directive,
        zones: &[Name],
    ) -> Result<(), CorefileError> {
        let zones = directive.zones_or(directive.arguments(), zones)?;
        let mut receivers = Vec::new();
        for option in &directive.body {
            match (option.name(), option.arguments()) {
                ("to", addresses @ [_, ..]) => {
                    for text in addresses {
                        receivers.push(receiver(option, text)?);
                    }
                }
                _ => return option.unknown("transfer", "to ADDRESS..."),
            }
        }
        if receivers.is_empty() {
            return directive
                .fail("it needs the servers that may have the zone, as in \"to 192.0.2.1\"");
        }
        for zone in zones {
            self.zones.entry(zone).or_default().extend(&receivers);
        }
        Ok(())
    }

    fn is_allowed(&self, zone: &Name, client: IpAddr) -> bool {
        let receivers = self.zones.get(zone).into_iter().flatten();
        receivers.into_iter().any(|receiver| {
            *receiver == Receiver::Everyone || *receiver == Receiver::Server(client)
        })
    }
}

fn receiver(option: &Directive, text: &str) -> Result<Receiver, CorefileError> {
    let address = text.parse().or_else(|_| text.parse::<SocketAddr>().map(|address| address.ip()));
    match address {
        _ if text == "*" => Ok(Receiver::Everyone),
        Ok(ip) => Ok(Receiver::Server(ip.to_canonical())),
        Err(_) => option.fail(format!("{text:?} is not an address")),
    }
}

impl Plugin for Transfer {
    fn answer<'a>(&'a self, request: &'a mut Request, next: Next<'a>) -> BoxFuture<'a, Answer> {
        if !request.is_transfer() {
            return next.answer(request);
        }
        // Over UDP, an IXFR is answered with the current SOA record (RFC 1995, section 2), and an AXFR is refused.
        let is_possible = request.tcp || request.kind() == RecordType::IXFR;
        let (zone, client) = (request.name(), request.client.ip().to_canonical());
        let records = || {
            if !is_possible || !self.is_allowed(zone, client) {
                return None;
            }
            let (mut plugins, context) = (next.plugins().iter(), next.context());
            if request.tcp {
                return plugins.find_map(|plugin| plugin.transfer(zone, context));
            }
            plugins.find_map(|plugin| plugin.transfer_soa(zone, context)).map(|soa| vec![soa])
        };
        let reply = match records() {
            Some(records) => {
                if request.tcp {
                    tracing::info!(zone = %request.name(), %client, records = records.len(), "zone transfer");
                }
                request.authoritative(ResponseCode::NoError, records)
            }
            None => request.reply(ResponseCode::Refused),
        };
        Box::pin(async move { Ok(Some(reply)) })
    }
}
