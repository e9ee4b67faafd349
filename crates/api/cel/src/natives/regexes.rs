//! The functions `matches`, `find` and `findAll` in Go's dialect. Constant patterns are compiled with their expression.

use api_meta::goregex;
use regex::Regex;

use crate::{
    cost::{charges, estimates},
    error::EvalError,
    function::{Function, Library, mistyped},
    value::{Eval, Text, Value, Work},
};

/// The functions of the language and of Kubernetes.
pub(super) static LIBRARY: Library = Library::since(
    0,
    &[
        Function::new("matches", "string#(string) bool", |work, args| {
            with_pattern(Search::Matches, work, args)
        })
        .costs(charges::matches, estimates::matches),
        Function::new("matches", "(string, string) bool", |work, args| {
            with_pattern(Search::Matches, work, args)
        }),
        Function::new("find", "string#(string) string", |work, args| {
            with_pattern(Search::Find, work, args)
        })
        .costs(charges::matches, estimates::find),
        Function::new(
            "findAll",
            "string#(string) list(string); string#(string, int) list(string)",
            |work, args| with_pattern(Search::FindAll, work, args),
        )
        .costs(charges::matches, estimates::find),
    ],
);

#[derive(Clone, Copy, Debug)]
pub(crate) enum Search {
    Matches,
    Find,
    FindAll,
}

impl Search {
    pub(crate) fn named(name: &str) -> Option<Self> {
        match name {
            "matches" => Some(Self::Matches),
            "find" => Some(Self::Find),
            "findAll" => Some(Self::FindAll),
            _ => None,
        }
    }
}

fn with_pattern<'a>(search: Search, work: &mut Work, args: &[Value<'a>]) -> Eval<'a> {
    let pattern = args[1].as_str()?;
    // Compiling takes about as long as some thousand steps.
    work.spend(4096 + 64 * pattern.len() as u64)?;
    run(search, work, args, &compile(pattern)?)
}

pub(crate) fn compile(pattern: &str) -> Result<Regex, EvalError> {
    goregex::compile(pattern).map_err(|error| EvalError::new(error.to_string()))
}

pub(crate) fn run<'a>(
    search: Search,
    work: &mut Work,
    args: &[Value<'a>],
    regex: &Regex,
) -> Eval<'a> {
    let Value::String(text) = &args[0] else { return mistyped() };
    work.spend(text.len() as u64)?;
    match search {
        Search::Matches => Ok(Value::Bool(regex.is_match(text))),
        Search::Find => {
            let found = regex.find(text).map(|found| text.part(found.range()));
            Ok(Value::String(found.unwrap_or(Text::Borrowed(""))))
        }
        Search::FindAll => {
            let most = args.get(2).map_or(Ok(-1), Value::as_int)?;
            // A negative number means no limit.
            let most = usize::try_from(most).unwrap_or(usize::MAX);
            let found = regex.find_iter(text).take(most);
            Ok(Value::list(found.map(|found| Value::String(text.part(found.range()))).collect()))
        }
    }
}
