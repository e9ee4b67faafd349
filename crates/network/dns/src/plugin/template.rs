//! The plugin `template`: answers with records that Go templates write.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use gotmpl::{Function, Functions, Limits, MissingKey, Template};
use hickory_proto::{
    op::{Edns, Message, ResponseCode},
    rr::{DNSClass, Name, RData, Record, RecordType, rdata::opt::EdnsOption},
};
use regex::Regex;
use serde_json::{Map, Value, json};

use crate::{
    chain::{Answer, Failure, Next, Plugin, Request},
    directive::{CorefileError, Directive, Fallthrough, longest},
    zonefile::{ZoneFileError, parse_record},
};

/// The bounds of one record's template.
const LIMITS: Limits = Limits { steps: 10_000, output: 64 << 10, depth: 16 };
/// The EDNS option of extended errors (RFC 8914).
const EXTENDED_ERROR: u16 = 15;

#[derive(Debug)]
pub(crate) struct TemplatePlugin {
    class: DNSClass,
    kind: RecordType,
    zones: Vec<Name>,
    /// The expressions for names; the first match counts. Empty for all names.
    matches: Vec<Regex>,
    answers: Vec<Template>,
    additionals: Vec<Template>,
    authorities: Vec<Template>,
    code: ResponseCode,
    error: Option<Vec<u8>>,
    fallthrough: Fallthrough,
}

/// The error of a template that writes no record.
#[derive(Debug, thiserror::Error)]
enum RecordError {
    #[error("executing the template: {0}")]
    Template(#[from] gotmpl::Error),
    #[error("the template wrote {text:?}, which is not a record: {source}")]
    Record { text: String, source: ZoneFileError },
}

impl TemplatePlugin {
    pub(crate) fn parse(directive: &Directive, zones: &[Name]) -> Result<Self, CorefileError> {
        let [class, kind, named @ ..] = directive.arguments() else {
            return directive
                .fail("it needs a class and a type, as in \"template IN A example.org\"");
        };
        let mut parsed = Self {
            class: directive.class(class)?,
            kind: directive.record_type(kind)?,
            zones: directive.zones_or(named, zones)?,
            matches: Vec::new(),
            answers: Vec::new(),
            additionals: Vec::new(),
            authorities: Vec::new(),
            code: ResponseCode::NoError,
            error: None,
            fallthrough: Fallthrough::None,
        };
        directive.body.iter().try_for_each(|option| parsed.set(option))?;
        Ok(parsed)
    }

    fn set(&mut self, option: &Directive) -> Result<(), CorefileError> {
        match (option.name(), option.arguments()) {
            ("match", expressions @ [_, ..]) => {
                for text in expressions {
                    self.matches.push(option.regex(text)?);
                }
            }
            ("answer", texts @ [_, ..]) => self.answers.extend(templates(option, texts)?),
            ("additional", texts @ [_, ..]) => self.additionals.extend(templates(option, texts)?),
            ("authority", texts @ [_, ..]) => self.authorities.extend(templates(option, texts)?),
            ("rcode", [code]) => self.code = option.response_code(code)?,
            ("ederror", [code, reason @ ..]) if reason.len() < 2 => {
                let mut data = option.number::<u16>(code)?.to_be_bytes().to_vec();
                data.extend(reason.iter().flat_map(|text| text.bytes()));
                self.error = Some(data);
            }
            ("fallthrough", _) => self.fallthrough = Fallthrough::parse(option)?,
            ("expr" | "var", _) => return option.fail("expressions are not supported"),
            _ => {
                return option.unknown(
                    "template",
                    "match, answer, additional, authority, rcode, ederror and fallthrough",
                );
            }
        }
        Ok(())
    }

    /// Returns the data of the templates; `None` if no expression matches the name.
    fn data(&self, request: &Request, zone: &Name) -> Option<Value> {
        let name = request.name().to_lowercase().to_ascii();
        let (mut groups, mut matches) = (Map::new(), vec![Value::from(name.as_str())]);
        if !self.matches.is_empty() {
            let (expression, captures) =
                self.matches.iter().find_map(|regex| Some((regex, regex.captures(&name)?)))?;
            let texts = captures.iter().map(|found| found.map_or("", |found| found.as_str()));
            matches = texts.map(Value::from).collect();
            let names = expression.capture_names().enumerate();
            for (index, group) in names {
                let value = matches.get(index).cloned().unwrap_or_default();
                groups.insert(index.to_string(), value.clone());
                groups.extend(group.map(|group| (group.to_owned(), value)));
            }
        }
        let (class, kind) = (request.question.query_class(), request.kind());
        Some(json!({
            "Zone": zone.to_ascii(),
            "Name": name,
            "Class": if class == DNSClass::ANY { self.class } else { class }.to_string(),
            "Type": if kind == RecordType::ANY { self.kind } else { kind }.to_string(),
            "Match": matches,
            "Group": groups,
            "Remote": request.client.ip().to_canonical().to_string(),
            "Question": {"Name": request.name().to_ascii(), "Qtype": u16::from(kind), "Qclass": u16::from(class)},
        }))
    }

    async fn reply(
        &self,
        request: &Request,
        next: Next<'_>,
        data: &Value,
    ) -> Result<Message, Failure> {
        let failed = |error: RecordError| Failure::new(ResponseCode::ServFail, error);
        let mut reply = request.authoritative(self.code, Vec::new());
        for template in &self.answers {
            let answer = record(template, data).map_err(failed)?;
            let target = match &answer.data {
                RData::CNAME(target)
                    if matches!(request.kind(), RecordType::A | RecordType::AAAA) =>
                {
                    Some(target.0.clone())
                }
                _ => None,
            };
            reply.add_answer(answer);
            if let Some(target) = target
                && let Some(found) = next.look_up(request, target, request.kind()).await
            {
                reply.answers.extend(found.answers);
            }
        }
        for template in &self.additionals {
            reply.add_additional(record(template, data).map_err(failed)?);
        }
        for template in &self.authorities {
            reply.add_authority(record(template, data).map_err(failed)?);
        }
        if let Some(error) = &self.error {
            let mut edns = Edns::new();
            edns.options_mut().insert(EdnsOption::Unknown(EXTENDED_ERROR, error.clone()));
            reply.set_edns(edns);
        }
        Ok(reply)
    }
}

impl Plugin for TemplatePlugin {
    fn answer<'a>(&'a self, request: &'a mut Request, next: Next<'a>) -> BoxFuture<'a, Answer> {
        let (class, kind) = (request.question.query_class(), request.kind());
        let is_class = self.class == DNSClass::ANY || class == DNSClass::ANY || class == self.class;
        let is_kind = self.kind == RecordType::ANY || kind == RecordType::ANY || kind == self.kind;
        let zone = longest(&self.zones, request.name()).filter(|_| is_class && is_kind);
        let Some(zone) = zone else { return next.answer(request) };
        match self.data(request, zone) {
            Some(data) => Box::pin(async move { self.reply(request, next, &data).await.map(Some) }),
            None if self.fallthrough.covers(request.name()) => next.answer(request),
            None => {
                let reply = request.reply(ResponseCode::ServFail);
                Box::pin(async move { Ok(Some(reply)) })
            }
        }
    }
}

fn templates(option: &Directive, texts: &[String]) -> Result<Vec<Template>, CorefileError> {
    let parse_int: Function = Arc::new(|arguments| match arguments {
        [Value::String(digits), base, bits] => parse_int(digits, base.as_u64(), bits.as_u64()),
        _ => Err("parseInt needs a string, a base and a number of bits".into()),
    });
    let functions = Functions::from([("parseInt".to_owned(), parse_int)]);
    let parse = |text: &String| {
        // Data that this server does not provide.
        let unknown = [".Message", ".Meta", ".Var"].into_iter().find(|field| text.contains(field));
        if let Some(field) = unknown {
            return option.fail(format!("the data {field} is not supported"));
        }
        match Template::parse_with(option.name(), text, functions.clone()) {
            Ok(template) => Ok(template.missing_key(MissingKey::Error).limits(LIMITS)),
            Err(error) => option.fail(error.to_string()),
        }
    };
    texts.iter().map(parse).collect()
}

/// Parses an unsigned number of a base; 0 stands for the base that its prefix names.
fn parse_int(
    digits: &str,
    base: Option<u64>,
    bits: Option<u64>,
) -> Result<Value, Box<dyn std::error::Error + Send + Sync>> {
    let (digits, base) = match (base, digits.get(..2)) {
        (Some(0), Some("0x" | "0X")) => (&digits[2..], 16),
        (Some(0), Some("0b" | "0B")) => (&digits[2..], 2),
        (Some(0), Some("0o" | "0O")) => (&digits[2..], 8),
        (Some(0), _) => (digits, 10),
        (Some(base @ 2..=36), _) => (digits, base as u32),
        _ => return Err("parseInt: invalid base".into()),
    };
    let bits = bits.filter(|bits| *bits <= 64).ok_or("parseInt: invalid bit size")?;
    let value = u64::from_str_radix(digits, base)?;
    if bits > 0 && bits < 64 && value >> bits != 0 {
        return Err(format!("parseInt: parsing {digits:?}: value out of range").into());
    }
    // A template's numbers are signed.
    Ok(i64::try_from(value)?.into())
}

fn record(template: &Template, data: &Value) -> Result<Record, RecordError> {
    let text = template.execute(data)?;
    parse_record(&text, &Name::root()).map_err(|source| RecordError::Record { text, source })
}
