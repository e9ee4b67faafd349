//! The strings extension. Positions are counted in code points.

use super::lists;
use crate::{
    cost::{charges, estimates},
    error::EvalError,
    format,
    function::{Function, Library, mistyped},
    value::{Eval, Text, Value, Work},
};

/// The strings extension, the string functions of the language, and the searches in lists with the same names.
pub(super) static LIBRARY: Library = Library::since(
    0,
    &[
        Function::new("contains", "string#(string) bool", |work, args| {
            test(work, args, |text, other| text.contains(other))
        })
        .costs(charges::contains_text, estimates::contains_text),
        Function::new("startsWith", "string#(string) bool", |work, args| {
            test(work, args, |text, other| text.starts_with(other))
        })
        .costs(charges::read, estimates::read_second),
        Function::new("endsWith", "string#(string) bool", |work, args| {
            test(work, args, |text, other| text.ends_with(other))
        })
        .costs(charges::read, estimates::read_second),
        Function::new("charAt", "string#(int) string", char_at),
        Function::new(
            "indexOf",
            "list(A)#(A) int; string#(string) int; string#(string, int) int",
            index_of,
        )
        .costs(charges::walk, estimates::walk),
        Function::new(
            "lastIndexOf",
            "list(A)#(A) int; string#(string) int; string#(string, int) int",
            last_index_of,
        )
        .costs(charges::walk, estimates::walk),
        Function::new("lowerAscii", "string#() string", |work, args| {
            map_text(work, args, str::to_ascii_lowercase)
        })
        .costs(charges::read, estimates::copy),
        Function::new("upperAscii", "string#() string", |work, args| {
            map_text(work, args, str::to_ascii_uppercase)
        })
        .costs(charges::read, estimates::copy),
        Function::new(
            "replace",
            "string#(string, string) string; string#(string, string, int) string",
            replace,
        )
        .costs(charges::read_twice, estimates::replace),
        Function::new(
            "split",
            "string#(string) list(string); string#(string, int) list(string)",
            split,
        )
        .costs(charges::read_twice, estimates::split),
        Function::new("substring", "string#(int) string; string#(int, int) string", substring)
            .costs(charges::read, estimates::copy),
        Function::new("trim", "string#() string", trim).costs(charges::read, estimates::copy),
        Function::new("format", "string#(list(dyn)) string", |work, args| {
            format::format(work, args[0].as_str()?, args[1].as_list()?).map(Value::string)
        })
        .costs(charges::read, estimates::read),
        Function::new("strings.quote", "(string) string", |work, args| {
            map_text(work, args, format::quote)
        })
        .costs(charges::read, estimates::quote),
        Function::new("join", "list(string)#() string; list(string)#(string) string", join)
            .costs(charges::join, estimates::join),
    ],
);

fn text<'v, 'a>(value: &'v Value<'a>) -> Result<&'v Text<'a>, EvalError> {
    match value {
        Value::String(text) => Ok(text),
        _ => mistyped(),
    }
}

fn test<'a>(work: &mut Work, args: &[Value<'a>], test: fn(&str, &str) -> bool) -> Eval<'a> {
    let (text, other) = (args[0].as_str()?, args[1].as_str()?);
    work.spend(text.len() as u64 / 4)?;
    Ok(Value::Bool(test(text, other)))
}

fn map_text<'a>(work: &mut Work, args: &[Value<'a>], map: fn(&str) -> String) -> Eval<'a> {
    let text = args[0].as_str()?;
    work.spend(text.len() as u64)?;
    Ok(Value::string(map(text)))
}

fn out_of_range(at: i64) -> EvalError {
    EvalError::Failed(format!("index out of range: {at}"))
}

/// Returns the byte offset of a code point. The end of the string is a valid position.
fn offset(text: &str, at: i64) -> Result<usize, EvalError> {
    let needle = usize::try_from(at).map_err(|_| out_of_range(at))?;
    let mut places = text.char_indices().map(|(offset, _)| offset).chain([text.len()]);
    places.nth(needle).ok_or_else(|| out_of_range(at))
}

fn char_at<'a>(work: &mut Work, args: &[Value<'a>]) -> Eval<'a> {
    let text = text(&args[0])?;
    work.spend(text.len() as u64 / 4)?;
    let start = offset(text, args[1].as_int()?)?;
    let length = text[start..].chars().next().map_or(0, char::len_utf8);
    Ok(Value::String(text.part(start..start + length)))
}

fn count_characters(text: &str, bytes: Option<usize>) -> i64 {
    bytes.map_or(-1, |bytes| text[..bytes].chars().count() as i64)
}

fn index_of<'a>(work: &mut Work, args: &[Value<'a>]) -> Eval<'a> {
    if let Value::List(list) = &args[0] {
        return lists::index_of(work, list, &args[1]);
    }
    let (text, needle) = (text(&args[0])?, args[1].as_str()?);
    work.spend(text.len() as u64)?;
    let from = args.get(2).map_or(Ok(0), Value::as_int)?;
    let start = offset(text, from)?;
    let found = text[start..].find(needle).map(|at| start + at);
    Ok(Value::Int(count_characters(text, found)))
}

fn last_index_of<'a>(work: &mut Work, args: &[Value<'a>]) -> Eval<'a> {
    if let Value::List(list) = &args[0] {
        return lists::last_index_of(work, list, &args[1]);
    }
    let (text, needle) = (text(&args[0])?, args[1].as_str()?);
    work.spend(text.len() as u64)?;
    let end = match args.get(2) {
        Some(last) => (offset(text, last.as_int()?)? + needle.len()).min(text.len()),
        None => text.len(),
    };
    let found = text.as_bytes()[..end]
        .windows(needle.len().max(1))
        .rposition(|window| window == needle.as_bytes());
    // The empty string is found at the end.
    let found = if needle.is_empty() { Some(end.min(text.len())) } else { found };
    Ok(Value::Int(count_characters(text, found)))
}

fn replace<'a>(work: &mut Work, args: &[Value<'a>]) -> Eval<'a> {
    let (text, from, to) = (args[0].as_str()?, args[1].as_str()?, args[2].as_str()?);
    let most = args.get(3).map_or(Ok(-1), Value::as_int)?;
    // The empty string is found before each character and at the end.
    let count = if from.is_empty() { text.len() + 1 } else { text.len() / from.len() };
    let count = usize::try_from(most).map_or(count, |most| count.min(most));
    work.spend(text.len() as u64 + (count as u64).saturating_mul(to.len() as u64))?;
    Ok(Value::string(text.replacen(from, to, count)))
}

fn split<'a>(work: &mut Work, args: &[Value<'a>]) -> Eval<'a> {
    let (text, by) = (text(&args[0])?, args[1].as_str()?);
    let most = args.get(2).map_or(Ok(-1), Value::as_int)?;
    work.spend(text.len() as u64 + 1)?;
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let mut parts = Vec::new();
    if most == 0 {
        return Ok(Value::list(parts));
    }
    let mut start = 0;
    let piece = |range| Value::String(text.part(range));
    let ends: Box<dyn Iterator<Item = usize>> = if by.is_empty() {
        // Split between all characters.
        Box::new(text.char_indices().map(|(at, _)| at).skip(1))
    } else {
        Box::new(text.match_indices(by).map(|(at, _)| at))
    };
    for end in ends {
        if parts.len() + 1 >= most {
            break;
        }
        parts.push(piece(start..end));
        start = end + by.len();
    }
    if !by.is_empty() || !text.is_empty() {
        parts.push(piece(start..text.len()));
    }
    Ok(Value::list(parts))
}

fn substring<'a>(work: &mut Work, args: &[Value<'a>]) -> Eval<'a> {
    let text = text(&args[0])?;
    work.spend(text.len() as u64)?;
    let start = args[1].as_int()?;
    let end = args.get(2).map(Value::as_int).transpose()?;
    if let Some(end) = end.filter(|end| *end < start) {
        return Err(EvalError::Failed(format!(
            "invalid substring range. start: {start}, end: {end}"
        )));
    }
    let from = offset(text, start)?;
    let to = end.map_or(Ok(text.len()), |end| offset(text, end))?;
    Ok(Value::String(text.part(from..to)))
}

fn trim<'a>(work: &mut Work, args: &[Value<'a>]) -> Eval<'a> {
    let text = text(&args[0])?;
    work.spend(text.len() as u64)?;
    let start = text.len() - text.trim_start().len();
    let end = text.trim_end().len().max(start);
    Ok(Value::String(text.part(start..end)))
}

fn join<'a>(work: &mut Work, args: &[Value<'a>]) -> Eval<'a> {
    let list = args[0].as_list()?;
    let separator = args.get(1).map_or(Ok(""), Value::as_str)?;
    let mut out = String::new();
    for (at, item) in list.iter().enumerate() {
        let item = item?;
        let Value::String(text) = &item else {
            let shown = format::show(&item);
            return Err(EvalError::Failed(format!("join: invalid input: {shown}")));
        };
        work.spend((text.len() + separator.len()) as u64 + 1)?;
        if at > 0 {
            out.push_str(separator);
        }
        out.push_str(text);
    }
    Ok(Value::string(out))
}
