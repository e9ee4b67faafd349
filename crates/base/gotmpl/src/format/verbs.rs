//! Interprets the format string of `printf`.

use super::{
    flags::Flags,
    print::{bad_verb, print},
};
use crate::value::Val;

/// The maximum width in Go.
const MAX_WIDTH: usize = 1_000_000;

struct State<'s, 'a> {
    rest: &'s str,
    args: &'s [Val<'a>],
    next: usize,
    reordered: bool,
    /// `true` if the last `[n]` was the number of an argument.
    good_index: bool,
    out: String,
}

/// Formats like Go's `fmt.Sprintf`. It stops early once the text is longer than `limit`.
pub(crate) fn sprintf(format: &str, args: &[Val<'_>], limit: usize) -> String {
    let mut state = State {
        rest: format,
        args,
        next: 0,
        reordered: false,
        good_index: true,
        out: String::new(),
    };
    while let Some(at) = state.rest.find('%') {
        state.out.push_str(&state.rest[..at]);
        state.rest = &state.rest[at + 1..];
        if state.out.len() > limit {
            return state.out;
        }
        state.good_index = true;
        state.verb();
    }
    state.out.push_str(state.rest);
    state.extra();
    state.out
}

impl State<'_, '_> {
    fn eat(&mut self, c: char) -> bool {
        match self.rest.strip_prefix(c) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn flags(&mut self) -> Flags {
        let mut flags = Flags::default();
        while let Some(c) = self.rest.chars().next() {
            match c {
                '#' => flags.sharp = true,
                '0' => flags.zero = true,
                '+' => flags.plus = true,
                '-' => flags.minus = true,
                ' ' => flags.space = true,
                _ => break,
            }
            self.rest = &self.rest[1..];
        }
        flags
    }

    fn verb(&mut self) {
        let mut flags = self.flags();
        let mut after_index = self.index();
        if self.eat('*') {
            match self.star() {
                Some(width) => {
                    flags.minus |= width < 0;
                    flags.width = usize::try_from(width.unsigned_abs()).ok();
                }
                None => self.out.push_str("%!(BADWIDTH)"),
            }
            after_index = false;
        } else {
            flags.width = self.digits();
            if after_index && flags.width.is_some() {
                self.good_index = false;
            }
        }
        if self.rest.starts_with('.') {
            self.rest = &self.rest[1..];
            if after_index {
                self.good_index = false;
            }
            after_index = self.index();
            if self.eat('*') {
                match self.star() {
                    Some(precision) if precision >= 0 => {
                        flags.precision = usize::try_from(precision).ok();
                    }
                    Some(_) => {}
                    None => self.out.push_str("%!(BADPREC)"),
                }
                after_index = false;
            } else {
                flags.precision = Some(self.digits().unwrap_or(0));
            }
        }
        if !after_index {
            self.index();
        }
        let Some(verb) = self.rest.chars().next() else {
            self.out.push_str("%!(NOVERB)");
            return;
        };
        self.rest = &self.rest[verb.len_utf8()..];
        self.operand(verb, flags);
    }

    fn operand(&mut self, verb: char, mut flags: Flags) {
        if verb == 'v' {
            // Both flags select another format of the value here, and JSON values have none for `+`.
            flags = Flags { go_syntax: flags.sharp, sharp: false, plus: false, ..flags };
        }
        if verb == '%' {
            self.out.push('%');
        } else if !self.good_index {
            self.out.extend(["%!", verb.encode_utf8(&mut [0; 4]), "(BADINDEX)"]);
        } else if let Some(value) = self.args.get(self.next) {
            self.next += 1;
            match value {
                value if value.is_nothing() && verb != 'v' && verb != 'T' => {
                    bad_verb(&mut self.out, value, verb, flags);
                }
                value => print(&mut self.out, value, verb, flags, 0),
            }
        } else {
            self.out.extend(["%!", verb.encode_utf8(&mut [0; 4]), "(MISSING)"]);
        }
    }

    /// Reads `[n]`: the next operand is the n-th.
    fn index(&mut self) -> bool {
        let Some(inner) = self.rest.strip_prefix('[') else { return false };
        self.reordered = true;
        let Some((number, rest)) = inner.split_once(']') else {
            self.good_index = false;
            self.rest = inner;
            return false;
        };
        self.rest = rest;
        match number.parse::<usize>() {
            Ok(n) if n >= 1 && n <= self.args.len() => self.next = n - 1,
            _ => self.good_index = false,
        }
        true
    }

    fn digits(&mut self) -> Option<usize> {
        let end = self.rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(self.rest.len());
        let (digits, rest) = self.rest.split_at(end);
        self.rest = rest;
        digits.parse::<usize>().ok().filter(|width| *width <= MAX_WIDTH)
    }

    fn star(&mut self) -> Option<i64> {
        let value = self.args.get(self.next)?;
        self.next += 1;
        match value {
            Val::Int(n) if n.unsigned_abs() <= MAX_WIDTH as u64 => Some(*n),
            _ => None,
        }
    }

    fn extra(&mut self) {
        if self.reordered || self.next >= self.args.len() {
            return;
        }
        self.out.push_str("%!(EXTRA ");
        for (i, value) in self.args[self.next..].iter().enumerate() {
            if i > 0 {
                self.out.push_str(", ");
            }
            if !value.is_nothing() {
                self.out.push_str(value.type_name());
                self.out.push('=');
            }
            print(&mut self.out, value, 'v', Flags::default(), 0);
        }
        self.out.push(')');
    }
}
