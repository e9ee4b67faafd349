//! Splits a template into tokens.

use crate::error::Message;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Text,
    Left,
    Right,
    Field,
    Variable,
    Identifier,
    Keyword,
    Dot,
    Nil,
    Bool,
    Char,
    CharConstant,
    Quoted,
    Raw,
    Number,
    LeftParen,
    RightParen,
    Pipe,
    Assign,
    Declare,
    Space,
    Error,
    Eof,
}

#[derive(Clone, Debug)]
pub(crate) struct Token {
    pub(crate) kind: Kind,
    pub(crate) pos: usize,
    pub(crate) line: usize,
    pub(crate) text: String,
}

impl std::fmt::Display for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.kind {
            Kind::Eof => f.write_str("EOF"),
            Kind::Error => f.write_str(&self.text),
            Kind::Keyword | Kind::Nil | Kind::Dot => write!(f, "<{}>", self.text),
            _ if self.text.len() > 10 => {
                let head: String = self.text.chars().take(10).collect();
                write!(f, "{}...", crate::format::quote(&head))
            }
            _ => f.write_str(&crate::format::quote(&self.text)),
        }
    }
}

const KEYWORDS: [&str; 10] =
    ["block", "break", "continue", "define", "else", "end", "if", "range", "template", "with"];

/// Returns all tokens of `input`. The last one is `Eof` or `Error`.
pub(crate) fn lex(input: &str) -> Vec<Token> {
    let mut lexer = Lexer { input, pos: 0, line: 1, parens: 0, tokens: Vec::new() };
    if let Err(message) = lexer.text() {
        let (pos, line) = (lexer.pos, lexer.line);
        lexer.tokens.push(Token { kind: Kind::Error, pos, line, text: message.to_string() });
    }
    lexer.tokens
}

struct Lexer<'a> {
    input: &'a str,
    pos: usize,
    line: usize,
    parens: usize,
    tokens: Vec<Token>,
}

fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\r' | '\n')
}

fn is_word(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}

impl<'a> Lexer<'a> {
    fn rest(&self) -> &'a str {
        &self.input[self.pos..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    /// Moves to `end` and counts lines.
    fn skip(&mut self, end: usize) {
        self.line += self.input[self.pos..end].matches('\n').count();
        self.pos = end;
    }

    fn emit(&mut self, kind: Kind, end: usize) {
        let text = self.input[self.pos..end].to_owned();
        self.tokens.push(Token { kind, pos: self.pos, line: self.line, text });
        self.skip(end);
    }

    /// Scans plain text and actions, alternating, to the end of the input.
    fn text(&mut self) -> Result<(), Message> {
        loop {
            let Some(found) = self.rest().find("{{") else {
                if !self.rest().is_empty() {
                    self.emit(Kind::Text, self.input.len());
                }
                self.emit(Kind::Eof, self.input.len());
                return Ok(());
            };
            let left = self.pos + found;
            let trims = self.trims_before(left + 2);
            let text_end = if trims {
                self.pos + self.input[self.pos..left].trim_end_matches(is_space).len()
            } else {
                left
            };
            if text_end > self.pos {
                self.emit(Kind::Text, text_end);
            }
            self.skip(left);
            let body = left + 2 + if trims { 2 } else { 0 };
            if self.input[body..].starts_with("/*") {
                self.comment(body)?;
            } else {
                self.emit(Kind::Left, left + 2);
                self.skip(body);
                self.parens = 0;
                self.action()?;
            }
        }
    }

    /// Returns `true` at the trim marker of `{{- `, which must be followed by a space.
    fn trims_before(&self, pos: usize) -> bool {
        let mut chars = self.input[pos..].chars();
        chars.next() == Some('-') && chars.next().is_some_and(is_space)
    }

    fn comment(&mut self, body: usize) -> Result<(), Message> {
        self.skip(body);
        let Some(end) = self.rest()[2..].find("*/").map(|end| end + 2) else {
            return Err("unclosed comment".into());
        };
        self.skip(self.pos + end + 2);
        match self.right_delimiter() {
            Some((len, trims)) => self.leave(len, trims),
            None => return Err("comment ends before closing delimiter".into()),
        }
        Ok(())
    }

    /// Returns the length of the right delimiter at this position and its trimming; `None` if there is no delimiter.
    fn right_delimiter(&self) -> Option<(usize, bool)> {
        let rest = self.rest();
        if rest.starts_with("}}") {
            return Some((2, false));
        }
        let mut chars = rest.chars();
        (chars.next().is_some_and(is_space) && chars.as_str().starts_with("-}}"))
            .then_some((4, true))
    }

    fn leave(&mut self, len: usize, trims: bool) {
        self.skip(self.pos + len);
        if trims {
            let left = self.rest().trim_start_matches(is_space).len();
            self.skip(self.input.len() - left);
        }
    }

    /// Scans the tokens up to the right delimiter.
    fn action(&mut self) -> Result<(), Message> {
        loop {
            if let Some((len, trims)) = self.right_delimiter() {
                if self.parens > 0 {
                    return Err("unclosed left paren".into());
                }
                let end = self.pos + len;
                let text = "}}".to_owned();
                self.tokens.push(Token { kind: Kind::Right, pos: self.pos, line: self.line, text });
                self.pos = end - len;
                self.leave(len, trims);
                return Ok(());
            }
            let Some(c) = self.peek() else { return Err("unclosed action".into()) };
            self.token(c)?;
        }
    }

    fn token(&mut self, c: char) -> Result<(), Message> {
        let next = self.rest()[c.len_utf8()..].chars().next();
        let after = self.pos + c.len_utf8();
        match c {
            c if is_space(c) => self.space(),
            '=' => self.emit(Kind::Assign, after),
            ':' if next == Some('=') => self.emit(Kind::Declare, after + 1),
            ':' => return Err("expected :=".into()),
            '|' => self.emit(Kind::Pipe, after),
            '"' => self.quoted('"', Kind::Quoted, "unterminated quoted string")?,
            '\'' => self.quoted('\'', Kind::CharConstant, "unterminated character constant")?,
            '`' => match self.input[after..].find('`') {
                Some(len) => self.emit(Kind::Raw, after + len + 1),
                None => return Err("unterminated raw quoted string".into()),
            },
            '$' => self.word(Kind::Variable, after)?,
            '.' if !next.is_some_and(|n| n.is_ascii_digit()) => self.word(Kind::Field, after)?,
            '.' | '+' | '-' | '0'..='9' => self.number()?,
            '(' => {
                self.parens += 1;
                self.emit(Kind::LeftParen, after);
            }
            ')' => {
                self.parens = self.parens.checked_sub(1).ok_or("unexpected right paren")?;
                self.emit(Kind::RightParen, after);
            }
            c if is_word(c) => self.word(Kind::Identifier, self.pos)?,
            c if c.is_ascii() && !c.is_ascii_control() => self.emit(Kind::Char, after),
            c => return Err(format!("unrecognized character in action: {}", unicode(c)).into()),
        }
        Ok(())
    }

    /// Scans spaces, except the one that belongs to a trimming right delimiter.
    fn space(&mut self) {
        let mut end = self.pos;
        for c in self.rest().chars().take_while(|c| is_space(*c)) {
            if self.input[end + 1..].starts_with("-}}") {
                break;
            }
            end += c.len_utf8();
        }
        if end > self.pos {
            self.emit(Kind::Space, end);
        }
    }

    fn quoted(&mut self, quote: char, kind: Kind, unterminated: &str) -> Result<(), Message> {
        let mut escaped = false;
        for (i, c) in self.rest().char_indices().skip(1) {
            match c {
                '\n' => break,
                _ if escaped => escaped = false,
                '\\' => escaped = true,
                c if c == quote => {
                    self.emit(kind, self.pos + i + 1);
                    return Ok(());
                }
                _ => {}
            }
        }
        Err(unterminated.into())
    }

    /// Scans an identifier, a field or a variable, whose letters begin at `from`.
    fn word(&mut self, kind: Kind, from: usize) -> Result<(), Message> {
        let rest = &self.input[from..];
        let end = from + rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        if let Some(c) = self.input[end..].chars().next()
            && !is_space(c)
            && !matches!(c, '.' | ',' | '|' | ':' | ')' | '(')
            && !self.input[end..].starts_with("}}")
        {
            // Go ends a word at `=` only after a variable, where `$x=1` is an assignment.
            if !(c == '=' && kind == Kind::Variable) {
                return Err(format!("bad character {}", unicode(c)).into());
            }
        }
        let kind = match (kind, &self.input[self.pos..end]) {
            (Kind::Field, ".") => Kind::Dot,
            (Kind::Identifier, "true" | "false") => Kind::Bool,
            (Kind::Identifier, "nil") => Kind::Nil,
            (Kind::Identifier, word) if KEYWORDS.contains(&word) => Kind::Keyword,
            (kind, _) => kind,
        };
        self.emit(kind, end);
        Ok(())
    }

    /// Scans a number. The parser validates it.
    fn number(&mut self) -> Result<(), Message> {
        let rest = self.rest();
        let end = scan_number(rest);
        let wrong = match rest[end..].chars().next() {
            Some(c) if is_word(c) => end + c.len_utf8(),
            Some('+' | '-') => end + scan_number(&rest[end..]),
            _ => {
                self.emit(Kind::Number, self.pos + end);
                return Ok(());
            }
        };
        Err(format!("bad number syntax: {}", crate::format::quote(&rest[..wrong])).into())
    }
}

/// Returns the length of the number at the start of a text: sign, prefix, digits, fraction, exponent, `i`.
fn scan_number(text: &str) -> usize {
    let digits = |text: &str, radix: u32| {
        let other = |c: char| !(c == '_' || c.is_digit(radix));
        text.find(other).unwrap_or(text.len())
    };
    let sign = |text: &str| usize::from(text.starts_with(['+', '-']));
    let mut end = sign(text);
    let lower: Vec<u8> =
        text[end..].bytes().take(2).map(|byte| byte.to_ascii_lowercase()).collect();
    let (prefix, radix, exponent) = match lower.as_slice() {
        b"0x" => (2, 16, ['p', 'P']),
        b"0o" => (2, 8, ['\0'; 2]),
        b"0b" => (2, 2, ['\0'; 2]),
        _ => (0, 10, ['e', 'E']),
    };
    end += prefix;
    end += digits(&text[end..], radix);
    if text[end..].starts_with('.') {
        end += 1;
        end += digits(&text[end..], radix);
    }
    if radix != 8 && radix != 2 && text[end..].starts_with(exponent) {
        end += 1;
        end += sign(&text[end..]);
        end += digits(&text[end..], 10);
    }
    end + usize::from(text[end..].starts_with('i'))
}

/// Formats a character like Go's `%#U`.
fn unicode(c: char) -> String {
    format!("U+{:04X} '{c}'", u32::from(c))
}
