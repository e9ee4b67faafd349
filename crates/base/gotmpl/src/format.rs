//! Go's `fmt`: the verbs of `printf`, and the default formats of values.

mod flags;
mod float;
mod print;
mod quote;
mod verbs;

use crate::value::Val;

use flags::Flags;
use print::print;
pub(crate) use quote::{is_print, quote};
pub(crate) use verbs::sprintf;

/// Formats a number like `%v`.
pub(crate) fn float(value: f64) -> String {
    float::format(value, 'v', Flags::default()).unwrap_or_default()
}

/// Formats a value like `%v`.
pub(crate) fn plain(value: &Val<'_>) -> String {
    let mut out = String::new();
    print(&mut out, value, 'v', Flags::default(), 0);
    out
}

/// Formats a value like `%s`.
pub(crate) fn text(value: &Val<'_>) -> String {
    let mut out = String::new();
    print(&mut out, value, 's', Flags::default(), 0);
    out
}

/// Formats values like Go's `fmt.Sprint`: a space separates two operands if neither is a string.
pub(crate) fn sprint(args: &[Val<'_>]) -> String {
    let mut out = String::new();
    let mut after_string = true;
    for arg in args {
        let is_string = matches!(arg, Val::Text(_));
        if !is_string && !after_string {
            out.push(' ');
        }
        print(&mut out, arg, 'v', Flags::default(), 0);
        after_string = is_string;
    }
    out
}

/// Formats values like Go's `fmt.Sprintln`.
pub(crate) fn sprintln(args: &[Val<'_>]) -> String {
    let words: Vec<String> = args.iter().map(plain).collect();
    words.join(" ") + "\n"
}
