//! The plugin `rewrite`: changes queries, and changes the answers back.

use std::borrow::Cow;

use futures_util::future::BoxFuture;
use hickory_proto::{
    op::{Message, Query, ResponseCode},
    rr::{DNSClass, Name, RData, Record, RecordType},
};

use crate::{
    chain::{Answer, Failure, Next, Plugin, Request},
    directive::{CorefileError, Directive, parse_name},
    records::names_mut,
};

use super::{
    edns::EdnsRule,
    pattern::{Pattern, Replacement, normal},
};

/// The number of times that a CNAME record is rewritten in one answer.
const MAX_ALIASES: usize = 8;

#[derive(Debug, Default)]
pub(crate) struct Rewrite {
    rules: Vec<Rule>,
}

#[derive(Debug)]
struct Rule {
    /// `true` if the rules after this one are applied, too.
    continues: bool,
    change: Change,
}

#[derive(Debug)]
enum Change {
    Name { pattern: Pattern, to: String, answers: Vec<AnswerRule> },
    Type { from: RecordType, to: RecordType },
    Class { from: DNSClass, to: DNSClass },
    Edns(EdnsRule),
    Ttl { pattern: Pattern, min: u32, max: u32 },
    Cname { pattern: Pattern, to: String },
    Rcode { pattern: Pattern, from: ResponseCode, to: ResponseCode },
}

/// A change of the names in an answer.
#[derive(Clone, Debug)]
enum AnswerRule {
    /// Names and values as they were before this rule.
    Auto,
    Name(Replacement),
    Value(Replacement),
}

/// A change of the answer to one request.
enum Revert<'r> {
    Names(Cow<'r, Replacement>),
    Values(Cow<'r, Replacement>),
    Ttl { min: u32, max: u32 },
    Cname { pattern: &'r Pattern, to: &'r str },
    Rcode { from: ResponseCode, to: ResponseCode },
}

/// The error of a rule that makes no valid name.
#[derive(Debug, thiserror::Error)]
#[error("rewriting {from} gives {to:?}, which is not a name")]
struct NameError {
    from: Name,
    to: String,
}

impl Rewrite {
    pub(crate) fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Adds the rules of a directive: those in its block, or the one in its line.
    pub(crate) fn add(&mut self, directive: &Directive) -> Result<(), CorefileError> {
        let (mode, words) = match directive.arguments().split_first() {
            Some((mode, words)) if mode == "continue" || mode == "stop" => (mode.as_str(), words),
            _ => ("stop", directive.arguments()),
        };
        let mut words = words.to_vec();
        for option in &directive.body {
            option.limit(usize::MAX, false)?;
            // An answer rule on its own line belongs to the name rule before it.
            if option.name() != "answer" && !words.is_empty() {
                self.rules.push(Rule::parse(directive, mode == "continue", &words)?);
                words.clear();
            }
            words.extend(option.words.iter().cloned());
        }
        self.rules.push(Rule::parse(directive, mode == "continue", &words)?);
        Ok(())
    }
}

impl Rule {
    fn parse(
        directive: &Directive,
        continues: bool,
        words: &[String],
    ) -> Result<Self, CorefileError> {
        let Some((field, rest)) = words.split_first() else {
            return directive.fail("it needs a rule");
        };
        let change = match (field.to_lowercase().as_str(), rest) {
            ("name", rest) => name_rule(directive, rest)?,
            ("type", [from, to]) => {
                Change::Type { from: directive.record_type(from)?, to: directive.record_type(to)? }
            }
            ("class", [from, to]) => {
                Change::Class { from: directive.class(from)?, to: directive.class(to)? }
            }
            ("edns0", rest) => Change::Edns(EdnsRule::parse(directive, rest)?),
            ("ttl", rest) => {
                let (pattern, [range]) = pattern(directive, rest)?;
                let (min, max) = ttl_range(directive, range)?;
                Change::Ttl { pattern, min, max }
            }
            ("cname", rest) => {
                let (pattern, [to]) = pattern(directive, rest)?;
                Change::Cname { to: normal(to, pattern.is_whole()), pattern }
            }
            ("rcode", rest) => {
                let (pattern, [from, to]) = pattern(directive, rest)?;
                Change::Rcode {
                    pattern,
                    from: directive.response_code(from)?,
                    to: directive.response_code(to)?,
                }
            }
            _ => {
                let form = format!(
                    "unknown rule {:?}; there are name, type, class, edns0, ttl, cname and rcode",
                    words.join(" ")
                );
                return directive.fail(form);
            }
        };
        Ok(Self { continues, change })
    }

    /// Changes the request if the rule matches, and adds the changes of its answer. Returns `false` without a match.
    /// `name` is that of the request as patterns compare it.
    fn apply<'r>(
        &'r self,
        request: &mut Request,
        name: &str,
        next: Next<'_>,
        reverts: &mut Vec<Revert<'r>>,
    ) -> Result<bool, NameError> {
        match &self.change {
            Change::Name { pattern, to, answers } => {
                let Some(new) = pattern.rewrite(name, to) else { return Ok(false) };
                let fail = || NameError { from: request.name().clone(), to: new.clone() };
                let renamed = parse_name(&new).map_err(|_| fail())?;
                for answer in answers {
                    let back = || {
                        let back = pattern.revert(to).unwrap_or_else(|| Replacement::Domain {
                            from: normal(&new, true),
                            to: name.to_owned(),
                        });
                        Cow::<Replacement>::Owned(back)
                    };
                    match answer {
                        AnswerRule::Auto => {
                            reverts.extend([Revert::Names(back()), Revert::Values(back())])
                        }
                        AnswerRule::Name(replacement) => {
                            reverts.push(Revert::Names(Cow::Borrowed(replacement)))
                        }
                        AnswerRule::Value(replacement) => {
                            reverts.push(Revert::Values(Cow::Borrowed(replacement)))
                        }
                    }
                }
                request.question.set_name(renamed);
            }
            Change::Type { from, to } if request.kind() == *from => {
                request.question.set_query_type(*to);
            }
            Change::Class { from, to } if request.question.query_class() == *from => {
                request.question.set_query_class(*to);
            }
            Change::Type { .. } | Change::Class { .. } => return Ok(false),
            Change::Edns(rule) => return Ok(rule.apply(request, next)),
            Change::Ttl { pattern, min, max } if pattern.is_match(name) => {
                reverts.push(Revert::Ttl { min: *min, max: *max });
            }
            Change::Rcode { pattern, from, to } if pattern.is_match(name) => {
                reverts.push(Revert::Rcode { from: *from, to: *to });
            }
            Change::Ttl { .. } | Change::Rcode { .. } => return Ok(false),
            Change::Cname { pattern, to } => reverts.push(Revert::Cname { pattern, to }),
        }
        Ok(true)
    }
}

fn name_rule(directive: &Directive, words: &[String]) -> Result<Change, CorefileError> {
    if let [from, to] = words {
        let pattern = Pattern::parse(directive, "exact", from)?;
        return Ok(Change::Name { pattern, to: normal(to, true), answers: vec![AnswerRule::Auto] });
    }
    let [kind, from, to, options @ ..] = words else {
        return directive.fail("a rule for names needs a name and its replacement");
    };
    let pattern = Pattern::parse(directive, kind, from)?;
    // The names of an exact match are always changed back.
    let mut answers: Vec<_> = pattern.is_exact().then_some(AnswerRule::Auto).into_iter().collect();
    let mut options = options.iter();
    if let Some(option) = options.clone().next().filter(|option| *option != "answer") {
        return directive
            .fail(format!("{option:?} is not an option of a rule for names; there is answer"));
    }
    while let Some(option) = options.next() {
        let form = if option == "answer" { options.next() } else { Some(option) };
        match form.map(String::as_str) {
            Some("auto") if pattern.is_exact() => {}
            Some("auto") => answers.push(AnswerRule::Auto),
            // The documentation's example writes it like this, too.
            Some("name") if options.clone().next().is_some_and(|word| word == "auto") => {
                options.next();
                answers.push(AnswerRule::Auto);
            }
            Some(form @ ("name" | "value")) => {
                let (Some(from), Some(to)) = (options.next(), options.next()) else {
                    return directive.fail(format!(
                        "answer {form} needs a regular expression and its replacement"
                    ));
                };
                let replacement =
                    Replacement::Regex { from: directive.regex(from)?, to: normal(to, false) };
                answers.push(if form == "name" {
                    AnswerRule::Name(replacement)
                } else {
                    AnswerRule::Value(replacement)
                });
            }
            _ => return directive.fail("answer needs auto, name FROM TO or value FROM TO"),
        }
    }
    Ok(Change::Name { to: normal(to, pattern.is_whole()), pattern, answers })
}

/// Parses a pattern, which is exact unless its kind comes first, and returns it with the words after it.
fn pattern<'w, const N: usize>(
    directive: &Directive,
    words: &'w [String],
) -> Result<(Pattern, [&'w String; N]), CorefileError> {
    let (kind, words) = match words {
        words if words.len() == N + 1 => ("exact", words),
        [kind, words @ ..] if words.len() == N + 1 => (kind.as_str(), words),
        _ => return directive.fail("the rule has too few or too many words"),
    };
    let rest: Vec<&String> = words[1..].iter().collect();
    match rest.try_into() {
        Ok(rest) => Ok((Pattern::parse(directive, kind, &words[0])?, rest)),
        Err(_) => directive.fail("the rule has too few or too many words"),
    }
}

/// Parses `30`, `30-300`, `-30` or `30-`.
fn ttl_range(directive: &Directive, text: &str) -> Result<(u32, u32), CorefileError> {
    let (min, max) = text.split_once('-').unwrap_or((text, text));
    let min = if min.is_empty() { 0 } else { directive.number(min)? };
    let max = if max.is_empty() { i32::MAX as u32 } else { directive.number(max)? };
    if text == "-" || min > max || max > i32::MAX as u32 {
        return directive.fail(format!("{text:?} is not a TTL or a range of TTLs"));
    }
    Ok((min, max))
}

impl Revert<'_> {
    async fn apply(&self, reply: &mut Message, request: &Request, next: Next<'_>) {
        let sections = [&mut reply.answers, &mut reply.authorities, &mut reply.additionals];
        match self {
            Revert::Names(replacement) => {
                sections
                    .into_iter()
                    .flatten()
                    .for_each(|record| replacement.apply(&mut record.name));
            }
            Revert::Values(replacement) => sections.into_iter().flatten().for_each(|record| {
                names_mut(&mut record.data)
                    .into_iter()
                    .take(1)
                    .for_each(|name| replacement.apply(name));
            }),
            Revert::Ttl { min, max } => {
                sections
                    .into_iter()
                    .flatten()
                    .for_each(|record| record.ttl = record.ttl.clamp(*min, *max));
            }
            Revert::Rcode { from, to } if reply.metadata.response_code == *from => {
                reply.metadata.response_code = *to
            }
            Revert::Rcode { .. } => {}
            Revert::Cname { pattern, to } => rewrite_alias(reply, pattern, to, request, next).await,
        }
    }
}

/// Replaces the target of a CNAME record, and the records after it by those of the new target.
async fn rewrite_alias(
    reply: &mut Message,
    pattern: &Pattern,
    to: &str,
    request: &Request,
    next: Next<'_>,
) {
    let rewritten = |record: &Record| match &record.data {
        RData::CNAME(target) => {
            let name = pattern.rewrite(&target.0.to_lowercase().to_ascii(), to)?;
            parse_name(&name).ok().filter(|name| *name != target.0)
        }
        _ => None,
    };
    let found = reply.answers.iter().take(MAX_ALIASES).enumerate();
    let Some((place, target)) =
        found.filter_map(|(place, record)| Some((place, rewritten(record)?))).next()
    else {
        return;
    };
    reply.answers.truncate(place + 1);
    if let RData::CNAME(alias) = &mut reply.answers[place].data {
        alias.0 = target.clone();
    }
    if request.kind() != RecordType::CNAME
        && let Some(found) = next.look_up(request, target, request.kind()).await
    {
        reply.answers.extend(found.answers);
    }
}

impl Plugin for Rewrite {
    fn answer<'a>(&'a self, request: &'a mut Request, next: Next<'a>) -> BoxFuture<'a, Answer> {
        Box::pin(async move {
            let asked: Query = request.question.clone();
            let edns = request.edns.clone();
            let lower = |request: &Request| request.name().to_lowercase().to_ascii();
            let (mut name, mut reverts) = (lower(request), Vec::new());
            for rule in &self.rules {
                match rule.apply(request, &name, next, &mut reverts) {
                    Ok(true) if !rule.continues => break,
                    Ok(true) => name = lower(request),
                    Ok(false) => {}
                    Err(error) => {
                        (request.question, request.edns) = (asked, edns);
                        return Err(Failure::new(ResponseCode::ServFail, error));
                    }
                }
            }
            let mut answer = next.answer(request).await;
            if let Ok(Some(reply)) = &mut answer {
                // Answers are changed back in the reverse order.
                for revert in reverts.iter().rev() {
                    revert.apply(reply, request, next).await;
                }
                if let [question] = reply.queries.as_mut_slice() {
                    *question = asked.clone();
                }
            }
            (request.question, request.edns) = (asked, edns);
            answer
        })
    }
}
