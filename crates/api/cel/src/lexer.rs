//! Splits the text of an expression into tokens.

use crate::{ast::Literal, error::Issue};

/// Upstream's limit on the length of an expression, in code points.
pub(crate) const MAX_CODE_POINTS: usize = 100_000;

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Token {
    Literal(Literal),
    /// The digits of an integer. A preceding minus may make it the smallest integer.
    Int(String),
    Ident(String),
    /// A backtick-quoted field name, such as `` `name with.dots` ``.
    Escaped(String),
    Symbol(&'static str),
    In,
    End,
}

#[derive(Clone, Debug)]
pub(crate) struct Lexeme {
    pub(crate) token: Token,
    pub(crate) at: u32,
    /// The source text, for messages.
    pub(crate) text: String,
}

/// The operators and punctuation. Longer ones come first, so that they match first.
const SYMBOLS: [&str; 24] = [
    "==", "!=", "<=", ">=", "&&", "||", "<", ">", "[", "]", "{", "}", "(", ")", ".", ",", "-", "!",
    "?", ":", "+", "*", "/", "%",
];

pub(crate) fn lex(text: &str) -> Result<Vec<Lexeme>, Issue> {
    let chars: Vec<char> = text.chars().collect();
    if chars.len() > MAX_CODE_POINTS {
        return Err(Issue::new(
            0,
            format!(
                "expression code point size exceeds limit: size: {}, limit {MAX_CODE_POINTS}",
                chars.len()
            ),
        ));
    }
    let mut lexer = Lexer { chars: &chars, at: 0 };
    let mut lexemes = Vec::new();
    loop {
        lexer.skip_blank();
        let at = lexer.at;
        let token = lexer.token()?;
        let end = token == Token::End;
        let text = if end { "<EOF>".to_owned() } else { chars[at..lexer.at].iter().collect() };
        lexemes.push(Lexeme { token, at: at as u32, text });
        if end {
            return Ok(lexemes);
        }
    }
}

struct Lexer<'c> {
    chars: &'c [char],
    at: usize,
}

impl Lexer<'_> {
    fn peek(&self, ahead: usize) -> Option<char> {
        self.chars.get(self.at + ahead).copied()
    }

    fn starts(&self, text: &str) -> bool {
        text.chars().enumerate().all(|(i, c)| self.peek(i) == Some(c))
    }

    fn skip_blank(&mut self) {
        while let Some(c) = self.peek(0) {
            if matches!(c, ' ' | '\t' | '\r' | '\n' | '\u{c}') {
                self.at += 1;
            } else if self.starts("//") {
                while self.peek(0).is_some_and(|c| c != '\n') {
                    self.at += 1;
                }
            } else {
                return;
            }
        }
    }

    fn take_while(&mut self, is_part: impl Fn(char) -> bool) -> String {
        let start = self.at;
        while self.peek(0).is_some_and(&is_part) {
            self.at += 1;
        }
        self.chars[start..self.at].iter().collect()
    }

    fn unknown(&self, at: usize) -> Issue {
        let end = (self.at + 1).clamp(at, self.chars.len());
        let text: String = self.chars[at..end].iter().take(64).collect();
        Issue::new(at as u32, format!("Syntax error: token recognition error at: '{text}'"))
    }

    fn token(&mut self) -> Result<Token, Issue> {
        let Some(first) = self.peek(0) else { return Ok(Token::End) };
        if let Some(prefix) = self.string_prefix() {
            return self.string(prefix);
        }
        if first.is_ascii_digit()
            || first == '.' && self.peek(1).is_some_and(|c| c.is_ascii_digit())
        {
            return self.number();
        }
        if first.is_ascii_alphabetic() || first == '_' {
            let word = self.take_while(|c| c.is_ascii_alphanumeric() || c == '_');
            return Ok(match word.as_str() {
                "true" => Token::Literal(Literal::Bool(true)),
                "false" => Token::Literal(Literal::Bool(false)),
                "null" => Token::Literal(Literal::Null),
                "in" => Token::In,
                _ => Token::Ident(word),
            });
        }
        if first == '`' {
            let start = self.at;
            self.at += 1;
            let name = self.take_while(|c| c.is_ascii_alphanumeric() || "_.-/ ".contains(c));
            if name.is_empty() || self.peek(0) != Some('`') {
                return Err(self.unknown(start));
            }
            self.at += 1;
            return Ok(Token::Escaped(name));
        }
        match SYMBOLS.iter().find(|symbol| self.starts(symbol)) {
            Some(symbol) => {
                self.at += symbol.len();
                Ok(Token::Symbol(symbol))
            }
            None => Err(self.unknown(self.at)),
        }
    }

    fn number(&mut self) -> Result<Token, Issue> {
        let start = self.at;
        let unsigned = |this: &mut Self| {
            let found = matches!(this.peek(0), Some('u' | 'U'));
            this.at += usize::from(found);
            found
        };
        if self.starts("0x") && self.peek(2).is_some_and(|c| c.is_ascii_hexdigit()) {
            self.at += 2;
            let digits = self.take_while(|c| c.is_ascii_hexdigit());
            if unsigned(self) {
                return u64::from_str_radix(&digits, 16)
                    .map(|value| Token::Literal(Literal::Uint(value)))
                    .map_err(|_| Issue::new(start as u32, "invalid uint literal"));
            }
            return Ok(Token::Int(format!("0x{digits}")));
        }
        let mut text = self.take_while(|c| c.is_ascii_digit());
        let mut float = false;
        if self.peek(0) == Some('.') && self.peek(1).is_some_and(|c| c.is_ascii_digit()) {
            float = true;
            self.at += 1;
            text.push('.');
            text.push_str(&self.take_while(|c| c.is_ascii_digit()));
        }
        let sign = usize::from(matches!(self.peek(1), Some('+' | '-')));
        if matches!(self.peek(0), Some('e' | 'E'))
            && self.peek(1 + sign).is_some_and(|c| c.is_ascii_digit())
        {
            float = true;
            text.extend(&self.chars[self.at..=self.at + sign]);
            self.at += 1 + sign;
            text.push_str(&self.take_while(|c| c.is_ascii_digit()));
        }
        if float {
            return match text.parse::<f64>() {
                Ok(value) if value.is_finite() => Ok(Token::Literal(Literal::Double(value))),
                _ => Err(Issue::new(start as u32, "invalid double literal")),
            };
        }
        if unsigned(self) {
            return text
                .parse()
                .map(|value| Token::Literal(Literal::Uint(value)))
                .map_err(|_| Issue::new(start as u32, "invalid uint literal"));
        }
        Ok(Token::Int(text))
    }

    /// Returns the length of the prefix (`r`, `b`) before a quote, or `None` if no string starts here.
    fn string_prefix(&self) -> Option<usize> {
        (0..=2).find(|&n| {
            let letters: String =
                (0..n).filter_map(|i| self.peek(i)).collect::<String>().to_ascii_lowercase();
            matches!(letters.as_str(), "" | "r" | "b" | "br")
                && letters.len() == n
                && matches!(self.peek(n), Some('"' | '\''))
        })
    }

    fn string(&mut self, prefix: usize) -> Result<Token, Issue> {
        let start = self.at;
        let letters: String =
            self.chars[start..start + prefix].iter().collect::<String>().to_ascii_lowercase();
        let (bytes, raw) = (letters.contains('b'), letters.contains('r'));
        self.at += prefix;
        let quote = self.chars[self.at];
        let triple = (0..3).all(|i| self.peek(i) == Some(quote));
        let length = if triple { 3 } else { 1 };
        self.at += length;
        let mut out = Text { bytes, buffer: Vec::new() };
        loop {
            let Some(c) = self.peek(0) else { return Err(self.unknown(start)) };
            if (0..length).all(|i| self.peek(i) == Some(quote)) {
                self.at += length;
                break;
            }
            if !triple && matches!(c, '\n' | '\r') {
                return Err(self.unknown(start));
            }
            self.at += 1;
            if c == '\\' && !raw {
                self.escape(&mut out).map_err(|message| match message {
                    "" => self.unknown(start),
                    message => Issue::new(start as u32, message),
                })?;
            } else {
                out.character(c);
            }
        }
        let literal = if bytes {
            Literal::Bytes(out.buffer)
        } else {
            // The buffer contains only whole characters.
            Literal::String(String::from_utf8_lossy(&out.buffer).into_owned())
        };
        Ok(Token::Literal(literal))
    }

    fn escape(&mut self, out: &mut Text) -> Result<(), &'static str> {
        let Some(c) = self.peek(0) else { return Err("") };
        self.at += 1;
        match c {
            'a' => out.character('\u{7}'),
            'b' => out.character('\u{8}'),
            'f' => out.character('\u{c}'),
            'n' => out.character('\n'),
            'r' => out.character('\r'),
            't' => out.character('\t'),
            'v' => out.character('\u{b}'),
            '"' | '\'' | '\\' | '?' | '`' => out.character(c),
            'x' | 'X' => out.code(self.digits(2, 16)?)?,
            'u' if !out.bytes => out.code(self.digits(4, 16)?)?,
            'U' if !out.bytes => out.code(self.digits(8, 16)?)?,
            'u' | 'U' => return Err("unable to unescape string"),
            '0'..='3' => {
                self.at -= 1;
                out.code(self.digits(3, 8)?)?;
            }
            _ => return Err(""),
        }
        Ok(())
    }

    fn digits(&mut self, count: usize, radix: u32) -> Result<u32, &'static str> {
        let mut value = 0_u32;
        for _ in 0..count {
            let digit = self.peek(0).and_then(|c| c.to_digit(radix)).ok_or("")?;
            value = value.wrapping_mul(radix) | digit;
            self.at += 1;
        }
        Ok(value)
    }
}

struct Text {
    /// `true` if numeric escapes are bytes instead of characters.
    bytes: bool,
    buffer: Vec<u8>,
}

impl Text {
    fn character(&mut self, c: char) {
        self.buffer.extend(c.encode_utf8(&mut [0; 4]).as_bytes());
    }

    fn code(&mut self, code: u32) -> Result<(), &'static str> {
        match u8::try_from(code) {
            Ok(byte) if self.bytes => self.buffer.push(byte),
            _ => self.character(char::from_u32(code).ok_or("unable to unescape string")?),
        }
        Ok(())
    }
}
