//! The plugin `autopath`: follows a client's search path in the server, which saves the client's further queries.

use std::path::PathBuf;

use futures_util::future::BoxFuture;
use hickory_proto::{
    op::ResponseCode,
    rr::{Name, RData, Record, RecordType, rdata::CNAME},
};

use crate::{
    chain::{Answer, Next, Plugin, Request},
    directive::{CorefileError, Directive, longest, parse_name},
};

/// The length of a search path that is followed.
const MAX_SEARCH: usize = 12;

#[derive(Debug)]
pub(crate) struct AutoPath {
    zones: Vec<Name>,
    /// The search path of a file; `None` for that of the plugin `kubernetes`.
    search: Option<Vec<Name>>,
}

impl AutoPath {
    pub(crate) fn parse(directive: &Directive, zones: &[Name]) -> Result<Self, CorefileError> {
        directive.limit(usize::MAX, false)?;
        let Some((source, named)) = directive.arguments().split_last() else {
            return directive.fail("it needs @kubernetes or a file in the form of resolv.conf");
        };
        let search = match source.as_str() {
            "@kubernetes" => None,
            source if source.starts_with('@') => {
                return directive
                    .fail(format!("{source:?} has no search path; there is @kubernetes"));
            }
            file => Some(
                read_search(&PathBuf::from(file))
                    .or_else(|error| directive.fail(format!("reading {file}: {error}")))?,
            ),
        };
        Ok(Self { zones: directive.zones_or(named, zones)?, search })
    }

    /// Reports whether the search paths are those of the cluster's Pods.
    pub(crate) fn needs_pods(&self) -> bool {
        self.search.is_none()
    }

    /// Returns the search path if the query is for addresses and its name begins a walk through the path.
    fn search(&self, request: &Request, next: Next<'_>) -> Option<Vec<Name>> {
        if !matches!(request.kind(), RecordType::A | RecordType::AAAA) {
            return None;
        }
        longest(&self.zones, request.name())?;
        let client = request.client.ip().to_canonical();
        let found =
            || next.plugins().iter().find_map(|plugin| plugin.search_path(client, next.context()));
        let search = self.search.clone().or_else(found)?;
        search
            .first()
            .is_some_and(|first| {
                first.zone_of(request.name()) && first.num_labels() < request.name().num_labels()
            })
            .then_some(search)
    }
}

fn read_search(file: &std::path::Path) -> std::io::Result<Vec<Name>> {
    let text = std::fs::read_to_string(file)?;
    let mut lines: Vec<_> =
        text.lines().filter_map(|line| line.trim().strip_prefix("search")).collect();
    let words = lines.pop().unwrap_or_default().split_whitespace();
    let mut search: Vec<Name> =
        words.filter_map(|word| parse_name(word).ok()).take(MAX_SEARCH).collect();
    search.push(Name::root());
    Ok(search)
}

impl Plugin for AutoPath {
    fn answer<'a>(&'a self, request: &'a mut Request, next: Next<'a>) -> BoxFuture<'a, Answer> {
        let Some(search) = self.search(request, next) else {
            return next.answer(request);
        };
        Box::pin(async move {
            let asked = request.name().clone();
            let above = search.first().map_or(0, Name::num_labels);
            let base: Vec<_> = asked.iter().take(usize::from(asked.num_labels() - above)).collect();
            let mut first = None;
            for domain in &search {
                let joined =
                    Name::from_labels(base.clone()).and_then(|base| base.append_domain(domain));
                let Ok(mut name) = joined else { continue };
                name.set_fqdn(true);
                request.question.set_name(name.clone());
                let answer = next.answer(request).await;
                request.question.set_name(asked.clone());
                match answer {
                    Ok(Some(mut reply))
                        if reply.metadata.response_code == ResponseCode::NoError =>
                    {
                        add_alias(&mut reply, &asked, name);
                        return Ok(Some(reply));
                    }
                    Ok(Some(reply)) if reply.metadata.response_code == ResponseCode::NXDomain => {
                        first.get_or_insert(reply);
                    }
                    // A failure is not taken for the absence of the name.
                    failed => return first.map_or(failed, |reply| Ok(Some(reply))),
                }
            }
            Ok(first)
        })
    }
}

/// Adds the alias from the name of the question to the name that was found.
fn add_alias(reply: &mut hickory_proto::op::Message, asked: &Name, found: Name) {
    if let [question] = reply.queries.as_mut_slice() {
        question.set_name(asked.clone());
    }
    if *asked != found {
        let ttl = reply.answers.iter().map(|record| record.ttl).min().unwrap_or_default();
        reply.answers.insert(0, Record::from_rdata(asked.clone(), ttl, RData::CNAME(CNAME(found))));
    }
}
