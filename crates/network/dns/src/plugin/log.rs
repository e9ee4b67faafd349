//! The plugins `log` and `errors`.

use std::net::{IpAddr, SocketAddr};

use futures_util::future::BoxFuture;
use hickory_proto::{
    op::{Message, ResponseCode},
    rr::Name,
};
use tokio::time::Instant;

use super::response::{Class, class};
use crate::{
    chain::{Answer, Next, Plugin, Request},
    directive::{CorefileError, Directive, longest},
};

const COMMON: &str = "{remote}:{port} - {>id} \"{type} {class} {name} {proto} {size} {>do} {>bufsize}\" {rcode} \
                      {>rflags} {rsize} {duration}";
const COMBINED: &str = "{remote}:{port} - {>id} \"{type} {class} {name} {proto} {size} {>do} {>bufsize} {>opcode}\" \
                        {rcode} {>rflags} {rsize} {duration}";

#[derive(Debug, Default)]
pub(crate) struct Log {
    rules: Vec<Rule>,
}

#[derive(Debug)]
struct Rule {
    zones: Vec<Name>,
    format: Vec<Part>,
    /// The classes of answers; empty for all.
    classes: Vec<Class>,
}

/// A part of a format.
#[derive(Debug, PartialEq)]
enum Part {
    Text(String),
    Field(Field),
    Label(String),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Field {
    Type,
    Name,
    Class,
    Proto,
    Remote,
    Size,
    Port,
    Duration,
    Rcode,
    ResponseSize,
    Flags,
    BufferSize,
    DnssecOk,
    Id,
    Opcode,
}

const FIELDS: [(&str, Field); 15] = [
    ("type", Field::Type),
    ("name", Field::Name),
    ("class", Field::Class),
    ("proto", Field::Proto),
    ("remote", Field::Remote),
    ("size", Field::Size),
    ("port", Field::Port),
    ("duration", Field::Duration),
    ("rcode", Field::Rcode),
    ("rsize", Field::ResponseSize),
    (">rflags", Field::Flags),
    (">bufsize", Field::BufferSize),
    (">do", Field::DnssecOk),
    (">id", Field::Id),
    (">opcode", Field::Opcode),
];

impl Log {
    pub(crate) fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    pub(crate) fn add(
        &mut self,
        directive: &Directive,
        zones: &[Name],
    ) -> Result<(), CorefileError> {
        let (named, text) = match directive.arguments().split_last() {
            Some((format, named)) if format.contains('{') => (named, format.as_str()),
            _ => (directive.arguments(), "{common}"),
        };
        let mut rule = Rule {
            zones: directive.zones_or(named, zones)?,
            format: format(directive, text)?,
            classes: Vec::new(),
        };
        let mut all = false;
        for option in &directive.body {
            if option.name() != "class" || option.arguments().is_empty() {
                return option.unknown("log", "class CLASSES...");
            }
            for name in option.arguments() {
                match name.as_str() {
                    "success" => rule.classes.push(Class::Success),
                    "denial" => rule.classes.push(Class::Denial),
                    "error" => rule.classes.push(Class::Error),
                    "all" => all = true,
                    _ => {
                        return option
                            .fail(format!("{name:?} is not success, denial, error or all"));
                    }
                }
            }
        }
        if all {
            rule.classes.clear();
        }
        self.rules.push(rule);
        Ok(())
    }
}

fn format(directive: &Directive, text: &str) -> Result<Vec<Part>, CorefileError> {
    let text = text.replace("{common}", COMMON).replace("{combined}", COMBINED);
    let (mut parts, mut rest) = (Vec::new(), text.as_str());
    while let Some((before, after)) = rest.split_once('{') {
        let Some((name, after)) = after.split_once('}') else {
            return directive.fail("a placeholder of the format is not closed");
        };
        parts.push(Part::Text(before.to_owned()));
        let field = FIELDS.iter().find(|(known, _)| *known == name);
        match (field, name.strip_prefix('/')) {
            (Some((_, field)), _) => parts.push(Part::Field(*field)),
            (None, Some(label)) => parts.push(Part::Label(label.to_owned())),
            (None, None) => {
                return directive.fail(format!("the placeholder {{{name}}} is not supported"));
            }
        }
        rest = after;
    }
    parts.push(Part::Text(rest.to_owned()));
    Ok(parts)
}

impl Plugin for Log {
    fn answer<'a>(&'a self, request: &'a mut Request, next: Next<'a>) -> BoxFuture<'a, Answer> {
        let Some(rule) =
            self.rules.iter().find(|rule| longest(&rule.zones, request.name()).is_some())
        else {
            return next.answer(request);
        };
        Box::pin(async move {
            let start = Instant::now();
            let answer = next.answer(request).await;
            let failed;
            let reply = match &answer {
                Ok(Some(reply)) => reply,
                Ok(None) => return answer,
                Err(failure) => {
                    failed = request.reply(failure.code);
                    &failed
                }
            };
            if rule.classes.is_empty() || rule.classes.contains(&class(reply)) {
                let write = |part: &Part| match part {
                    Part::Text(text) => text.clone(),
                    Part::Field(field) => field.value(request, reply, start),
                    Part::Label(label) => {
                        next.metadata(label, request).unwrap_or_else(|| "-".to_owned())
                    }
                };
                let line: String = rule.format.iter().map(write).collect();
                tracing::info!("{line}");
            }
            answer
        })
    }
}

impl Field {
    fn value(self, request: &Request, reply: &Message, start: Instant) -> String {
        match self {
            Self::Type => request.kind().to_string(),
            Self::Name => request.name().to_ascii(),
            Self::Class => request.question.query_class().to_string(),
            Self::Proto => if request.tcp { "tcp" } else { "udp" }.to_owned(),
            Self::Remote => match request.client.ip().to_canonical() {
                IpAddr::V4(ip) => ip.to_string(),
                IpAddr::V6(ip) => format!("[{ip}]"),
            },
            Self::Size => request.size.to_string(),
            Self::Port => SocketAddr::port(&request.client).to_string(),
            Self::Duration => format!("{:.9}s", start.elapsed().as_secs_f64()),
            Self::Rcode => code(reply.metadata.response_code),
            Self::ResponseSize => reply.to_vec().map_or(0, |bytes| bytes.len()).to_string(),
            Self::Flags => flags(reply),
            Self::BufferSize => {
                request.edns.as_ref().map_or(512, |edns| edns.max_payload()).to_string()
            }
            Self::DnssecOk => request.dnssec_ok().to_string(),
            Self::Id => request.header.id.to_string(),
            Self::Opcode => u8::from(request.header.op_code).to_string(),
        }
    }
}

/// Returns a response code as CoreDNS writes it.
fn code(code: ResponseCode) -> String {
    match crate::directive::code_name(code) {
        Some(name) => name.to_owned(),
        None => u16::from(code).to_string(),
    }
}

fn flags(reply: &Message) -> String {
    let header = &reply.metadata;
    let flags = [
        (true, "qr"),
        (header.authoritative, "aa"),
        (header.truncation, "tc"),
        (header.recursion_desired, "rd"),
        (header.recursion_available, "ra"),
        (header.authentic_data, "ad"),
        (header.checking_disabled, "cd"),
    ];
    let set: Vec<&str> = flags.into_iter().filter(|(set, _)| *set).map(|(_, name)| name).collect();
    set.join(",")
}

/// Logs the reasons of failures.
#[derive(Debug)]
pub(crate) struct Errors;

impl Plugin for Errors {
    fn answer<'a>(&'a self, request: &'a mut Request, next: Next<'a>) -> BoxFuture<'a, Answer> {
        Box::pin(async move {
            let answer = next.answer(request).await;
            if let Err(error) = &answer {
                let code = code(error.code);
                tracing::warn!(name = %request.name(), kind = %request.kind(), code, %error, "answering");
            }
            answer
        })
    }
}
