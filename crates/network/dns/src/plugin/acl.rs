//! The plugin `acl`: allows, blocks, filters or drops queries by zone, type and client.

use api_meta::Cidr;
use futures_util::future::BoxFuture;
use hickory_proto::{
    op::ResponseCode,
    rr::{Name, RecordType},
};

use crate::{
    chain::{Answer, Next, Plugin, Request},
    directive::{CorefileError, Directive, any_contains, longest},
};

#[derive(Debug)]
pub(crate) struct Acl {
    zones: Vec<Name>,
    rules: Vec<Rule>,
}

#[derive(Debug)]
struct Rule {
    action: Action,
    /// The types; empty for all.
    kinds: Vec<RecordType>,
    /// The clients; empty for all.
    clients: Vec<Cidr>,
}

#[derive(Clone, Copy, Debug)]
enum Action {
    Allow,
    Block,
    Filter,
    Drop,
}

const RULE: &str = "allow|block|filter|drop [type QTYPE...] [net SOURCE...]";

impl Acl {
    pub(crate) fn parse(directive: &Directive, zones: &[Name]) -> Result<Self, CorefileError> {
        let rules: Result<_, _> = directive.body.iter().map(Rule::parse).collect();
        Ok(Self { zones: directive.zones_or(directive.arguments(), zones)?, rules: rules? })
    }

    fn action(&self, request: &Request) -> Action {
        let client = request.client.ip();
        let is_match = |rule: &&Rule| {
            (rule.kinds.is_empty() || rule.kinds.contains(&request.kind()))
                && (rule.clients.is_empty() || any_contains(&rule.clients, client))
        };
        if longest(&self.zones, request.name()).is_none() {
            return Action::Allow;
        }
        self.rules.iter().find(is_match).map_or(Action::Allow, |rule| rule.action)
    }
}

impl Rule {
    fn parse(option: &Directive) -> Result<Self, CorefileError> {
        let action = match option.name() {
            "allow" => Action::Allow,
            "block" => Action::Block,
            "filter" => Action::Filter,
            "drop" => Action::Drop,
            _ => return option.unknown("acl", RULE),
        };
        option.limit(usize::MAX, false)?;
        let (mut kinds, mut clients) = (Vec::new(), Vec::new());
        let mut arguments = option.arguments().iter().peekable();
        while let Some(section) = arguments.next() {
            let mut all = false;
            let mut values = 0;
            while let Some(value) =
                arguments.next_if(|value| !matches!(value.as_str(), "type" | "net"))
            {
                values += 1;
                match (section.as_str(), value.as_str()) {
                    ("type" | "net", "*") => all = true,
                    ("type", kind) => kinds.push(option.record_type(kind)?),
                    ("net", network) => clients.push(option.network(network)?),
                    _ => return option.unknown("acl", RULE),
                }
            }
            match section.as_str() {
                "type" | "net" if values == 0 => {
                    return option.fail(format!("{section} needs values"));
                }
                "type" if all => kinds.clear(),
                "net" if all => clients.clear(),
                "type" | "net" => {}
                _ => return option.unknown("acl", RULE),
            }
        }
        Ok(Self { action, kinds, clients })
    }
}

impl Plugin for Acl {
    fn answer<'a>(&'a self, request: &'a mut Request, next: Next<'a>) -> BoxFuture<'a, Answer> {
        let reply = match self.action(request) {
            Action::Allow => return next.answer(request),
            Action::Block => Some(request.reply(ResponseCode::Refused)),
            Action::Filter => Some(request.reply(ResponseCode::NoError)),
            Action::Drop => None,
        };
        Box::pin(async move { Ok(reply) })
    }
}
