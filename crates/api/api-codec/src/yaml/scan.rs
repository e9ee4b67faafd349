//! Splits a YAML 1.1 text into tokens.
//!
//! The rules are those of libyaml, on which Go's YAML packages are based: allowed indentation, positions of keys,
//! characters that end a plain scalar. [`super::read`] builds nodes from the tokens.

mod scalars;

use std::collections::VecDeque;

use super::error::YamlError;

/// A position in the text.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mark {
    /// The number of preceding characters.
    index: usize,
    pub(super) line: usize,
    column: i64,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    StreamEnd,
    Version { major: u32, minor: u32 },
    TagPrefix { handle: String, prefix: String },
    DocumentStart,
    DocumentEnd,
    BlockSequenceStart,
    BlockMappingStart,
    BlockEnd,
    FlowSequenceStart,
    FlowSequenceEnd,
    FlowMappingStart,
    FlowMappingEnd,
    BlockEntry,
    FlowEntry,
    Key,
    Value,
    Alias(String),
    Anchor(String),
    Tag { handle: String, suffix: String },
    Scalar { text: String, plain: bool },
}

/// A possible key without `?`: a position where a later `:` would make the scanned token a key.
#[derive(Clone, Copy, Default)]
struct SimpleKey {
    possible: bool,
    /// `true` if the line is at the indentation of a mapping, so that only a key is allowed here.
    required: bool,
    /// The number of the token that the key begins with.
    token: usize,
    mark: Mark,
}

/// The maximum length of a simple key, in characters.
const MAX_KEY_LENGTH: usize = 1024;

pub(super) struct Scanner<'t> {
    text: &'t str,
    at: usize,
    mark: Mark,
    queue: VecDeque<(Token, Mark)>,
    /// The number of tokens that were removed from the queue.
    consumed: usize,
    indent: i64,
    indents: Vec<i64>,
    key_allowed: bool,
    /// The possible keys: that of the surrounding block, then one for each level of flow collections.
    keys: Vec<SimpleKey>,
}

type Result<T> = std::result::Result<T, YamlError>;

impl<'t> Scanner<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        Self {
            text,
            at: 0,
            mark: Mark::default(),
            queue: VecDeque::new(),
            consumed: 0,
            indent: -1,
            indents: Vec::new(),
            key_allowed: true,
            keys: vec![SimpleKey::default()],
        }
    }

    /// Returns the next token without removing it.
    pub(super) fn peek(&mut self) -> Result<(&Token, Mark)> {
        while self.needs_more()? {
            self.fetch()?;
        }
        match self.queue.front() {
            Some((token, mark)) => Ok((token, *mark)),
            None => Ok((&Token::StreamEnd, self.mark)),
        }
    }

    /// Removes and returns the next token.
    pub(super) fn next(&mut self) -> Result<(Token, Mark)> {
        self.peek()?;
        let token = self.queue.pop_front();
        self.consumed += usize::from(token.is_some());
        Ok(token.unwrap_or((Token::StreamEnd, self.mark)))
    }

    /// Returns `true` if the head of the queue may still change: it is missing, or a `:` may make it a key.
    fn needs_more(&mut self) -> Result<bool> {
        if self.queue.is_empty() {
            return Ok(true);
        }
        let consumed = self.consumed;
        let Some(key) = self.keys.iter().position(|key| key.possible && key.token == consumed)
        else {
            return Ok(false);
        };
        self.is_valid(key)
    }

    fn is_valid(&mut self, at: usize) -> Result<bool> {
        let here = self.mark;
        let Some(key) = self.keys.get_mut(at).filter(|key| key.possible) else { return Ok(false) };
        if key.mark.line == here.line && key.mark.index + MAX_KEY_LENGTH >= here.index {
            return Ok(true);
        }
        key.possible = false;
        if key.required {
            return Err(self.error("could not find expected ':'", key_mark(&self.keys, at)));
        }
        Ok(false)
    }

    /// Returns an error at the current position, in a construct that begins at `start`.
    fn error(&self, problem: &str, start: Mark) -> YamlError {
        // Go counts this line from one and omits the first.
        let line = if self.mark.line > 0 { self.mark.line + 1 } else { start.line };
        YamlError::at(line, problem)
    }

    fn byte(&self, ahead: usize) -> u8 {
        self.text.as_bytes().get(self.at + ahead).copied().unwrap_or(0)
    }

    /// Returns the length of the line break at this position, in bytes; zero if there is none.
    fn line_break(&self, ahead: usize) -> usize {
        match (self.byte(ahead), self.byte(ahead + 1), self.byte(ahead + 2)) {
            (b'\r', b'\n', _) | (0xC2, 0x85, _) => 2,
            (b'\r' | b'\n', ..) => 1,
            (0xE2, 0x80, 0xA8 | 0xA9) => 3,
            _ => 0,
        }
    }

    fn is_blank(&self, ahead: usize) -> bool {
        matches!(self.byte(ahead), b' ' | b'\t')
    }

    fn is_end(&self) -> bool {
        self.at >= self.text.len()
    }

    /// Returns `true` at the end of a line or of the text.
    fn ends_line(&self, ahead: usize) -> bool {
        self.line_break(ahead) > 0 || self.byte(ahead) == 0
    }

    fn is_space(&self, ahead: usize) -> bool {
        self.is_blank(ahead) || self.ends_line(ahead)
    }

    /// Skips one character, which must not be a line break.
    fn skip(&mut self) {
        let width = self.text[self.at..].chars().next().map_or(0, char::len_utf8);
        self.at += width;
        self.mark.index += 1;
        self.mark.column += 1;
    }

    fn skip_ascii(&mut self, count: usize) {
        self.at += count;
        self.mark.index += count;
        self.mark.column += count as i64;
    }

    /// Skips a line break and appends its normalized form to `out`.
    fn read_line_break(&mut self, out: &mut String) {
        match self.line_break(0) {
            0 => return,
            3 => out.push_str(&self.text[self.at..self.at + 3]),
            _ => out.push('\n'),
        }
        self.skip_line_break();
    }

    fn skip_line_break(&mut self) {
        let width = self.line_break(0);
        if width == 0 {
            return;
        }
        self.mark.index += if self.byte(0) == b'\r' { width } else { 1 };
        self.mark.line += 1;
        self.mark.column = 0;
        self.at += width;
    }

    fn skip_comment(&mut self) {
        if self.byte(0) == b'#' {
            while !self.ends_line(0) {
                self.skip();
            }
        }
    }

    fn is_in_flow(&self) -> bool {
        self.keys.len() > 1
    }

    fn push(&mut self, token: Token, mark: Mark) {
        self.queue.push_back((token, mark));
    }

    fn fetch(&mut self) -> Result<()> {
        self.skip_to_token();
        self.unroll(self.mark.column);
        if self.is_end() {
            return self.stream_end();
        }
        let first_column = self.mark.column == 0;
        if first_column && self.byte(0) == b'%' {
            return self.directive();
        }
        if self.is_at_document_indicator() {
            let token =
                if self.byte(0) == b'-' { Token::DocumentStart } else { Token::DocumentEnd };
            self.unroll(-1);
            self.remove_key()?;
            self.key_allowed = false;
            self.push(token, self.mark);
            self.skip_ascii(3);
            return Ok(());
        }
        let flow = self.is_in_flow();
        match self.byte(0) {
            b'[' => self.flow_start(Token::FlowSequenceStart),
            b'{' => self.flow_start(Token::FlowMappingStart),
            b']' => self.flow_end(Token::FlowSequenceEnd),
            b'}' => self.flow_end(Token::FlowMappingEnd),
            b',' => self.indicator(Token::FlowEntry, true),
            b'-' if self.is_space(1) => self.block_entry(),
            b'?' if flow || self.is_space(1) => self.key(),
            b':' if flow || self.is_space(1) => self.value(),
            b'*' => self.anchor(true),
            b'&' => self.anchor(false),
            b'!' => self.tag(),
            b'|' if !flow => self.block_scalar(true),
            b'>' if !flow => self.block_scalar(false),
            b'\'' => self.scan_quoted(true),
            b'"' => self.scan_quoted(false),
            b'-' if !self.is_blank(1) => self.plain(),
            b'?' | b':' if !flow => self.plain(),
            b'-' | b'?' | b':' | b'|' | b'>' | b'#' | b'%' | b'@' | b'`' | b'\t' => {
                Err(self.error("found character that cannot start any token", self.mark))
            }
            _ => self.plain(),
        }
    }

    fn skip_to_token(&mut self) {
        loop {
            let tabs = self.is_in_flow() || !self.key_allowed;
            while self.byte(0) == b' ' || tabs && self.byte(0) == b'\t' {
                self.skip_ascii(1);
            }
            self.skip_comment();
            if self.line_break(0) == 0 {
                return;
            }
            self.skip_line_break();
            self.key_allowed |= !self.is_in_flow();
        }
    }

    /// Returns `true` at `---` or `...` at the beginning of a line.
    fn is_at_document_indicator(&self) -> bool {
        let rest = &self.text.as_bytes()[self.at..];
        self.mark.column == 0
            && (rest.starts_with(b"---") || rest.starts_with(b"..."))
            && self.is_space(3)
    }

    fn stream_end(&mut self) -> Result<()> {
        if self.mark.column != 0 {
            self.mark.column = 0;
            self.mark.line += 1;
        }
        self.unroll(-1);
        self.remove_key()?;
        self.key_allowed = false;
        self.push(Token::StreamEnd, self.mark);
        Ok(())
    }

    /// Records that a simple key may begin here.
    fn save_key(&mut self) -> Result<()> {
        if !self.key_allowed {
            return Ok(());
        }
        let required = !self.is_in_flow() && self.indent == self.mark.column;
        let token = self.consumed + self.queue.len();
        self.remove_key()?;
        if let Some(key) = self.keys.last_mut() {
            *key = SimpleKey { possible: true, required, token, mark: self.mark };
        }
        Ok(())
    }

    /// Discards the simple key of this level. Returns an error if only a key is allowed there.
    fn remove_key(&mut self) -> Result<()> {
        let at = self.keys.len() - 1;
        if self.keys[at].possible && self.keys[at].required {
            return Err(self.error("could not find expected ':'", key_mark(&self.keys, at)));
        }
        self.keys[at].possible = false;
        Ok(())
    }

    /// Starts a block collection if the column is greater than the current indentation. `token` is the position of its
    /// first token.
    fn roll(&mut self, column: i64, token: Option<usize>, start: Token, mark: Mark) {
        if self.is_in_flow() || self.indent >= column {
            return;
        }
        self.indents.push(self.indent);
        self.indent = column;
        match token {
            Some(at) => self.queue.insert(at.saturating_sub(self.consumed), (start, mark)),
            None => self.push(start, mark),
        }
    }

    /// Ends the block collections that are indented further than a column.
    fn unroll(&mut self, column: i64) {
        while !self.is_in_flow() && self.indent > column {
            self.push(Token::BlockEnd, self.mark);
            self.indent = self.indents.pop().unwrap_or(-1);
        }
    }

    fn flow_start(&mut self, token: Token) -> Result<()> {
        self.save_key()?;
        self.keys.push(SimpleKey::default());
        self.key_allowed = true;
        self.push(token, self.mark);
        self.skip_ascii(1);
        Ok(())
    }

    fn flow_end(&mut self, token: Token) -> Result<()> {
        self.remove_key()?;
        if self.is_in_flow() {
            self.keys.pop();
        }
        self.key_allowed = false;
        self.push(token, self.mark);
        self.skip_ascii(1);
        Ok(())
    }

    fn indicator(&mut self, token: Token, key_allowed: bool) -> Result<()> {
        self.remove_key()?;
        self.key_allowed = key_allowed;
        self.push(token, self.mark);
        self.skip_ascii(1);
        Ok(())
    }

    fn block_entry(&mut self) -> Result<()> {
        if !self.is_in_flow() {
            if !self.key_allowed {
                let problem = "block sequence entries are not allowed in this context";
                return Err(self.error(problem, self.mark));
            }
            self.roll(self.mark.column, None, Token::BlockSequenceStart, self.mark);
        }
        self.indicator(Token::BlockEntry, true)
    }

    fn key(&mut self) -> Result<()> {
        if !self.is_in_flow() {
            if !self.key_allowed {
                return Err(self.error("mapping keys are not allowed in this context", self.mark));
            }
            self.roll(self.mark.column, None, Token::BlockMappingStart, self.mark);
        }
        self.indicator(Token::Key, !self.is_in_flow())
    }

    fn value(&mut self) -> Result<()> {
        let at = self.keys.len() - 1;
        if self.is_valid(at)? {
            let key = self.keys[at];
            self.queue.insert(key.token.saturating_sub(self.consumed), (Token::Key, key.mark));
            self.roll(key.mark.column, Some(key.token), Token::BlockMappingStart, key.mark);
            self.keys[at].possible = false;
            self.key_allowed = false;
        } else {
            if !self.is_in_flow() {
                if !self.key_allowed {
                    let problem = "mapping values are not allowed in this context";
                    return Err(self.error(problem, self.mark));
                }
                self.roll(self.mark.column, None, Token::BlockMappingStart, self.mark);
            }
            self.key_allowed = !self.is_in_flow();
        }
        self.push(Token::Value, self.mark);
        self.skip_ascii(1);
        Ok(())
    }

    fn anchor(&mut self, alias: bool) -> Result<()> {
        self.save_key()?;
        self.key_allowed = false;
        let start = self.mark;
        self.skip_ascii(1);
        let name = self.word();
        let ends = self.is_space(0)
            || matches!(self.byte(0), b'?' | b':' | b',' | b']' | b'}' | b'%' | b'@' | b'`');
        if name.is_empty() || !ends {
            let problem = "did not find expected alphabetic or numeric character";
            return Err(self.error(problem, start));
        }
        self.push(if alias { Token::Alias(name) } else { Token::Anchor(name) }, start);
        Ok(())
    }

    /// Reads letters, digits, `_` and `-`.
    fn word(&mut self) -> String {
        let rest = &self.text[self.at..];
        let is_word = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-');
        let length = rest.bytes().take_while(is_word).count();
        let word = rest[..length].to_owned();
        self.skip_ascii(length);
        word
    }

    fn tag(&mut self) -> Result<()> {
        self.save_key()?;
        self.key_allowed = false;
        let start = self.mark;
        let (handle, suffix) = if self.byte(1) == b'<' {
            self.skip_ascii(2);
            let uri = self.tag_uri("", start)?;
            if self.byte(0) != b'>' {
                return Err(self.error("did not find the expected '>'", start));
            }
            self.skip_ascii(1);
            (String::new(), uri)
        } else {
            let handle = self.tag_handle(start)?;
            if handle.len() > 1 && handle.ends_with('!') {
                let suffix = self.tag_uri("", start)?;
                (handle, suffix)
            } else {
                match self.tag_uri(&handle, start)? {
                    suffix if suffix.is_empty() => (suffix, "!".to_owned()),
                    suffix => ("!".to_owned(), suffix),
                }
            }
        };
        if !self.is_space(0) {
            return Err(self.error("did not find expected whitespace or line break", start));
        }
        self.push(Token::Tag { handle, suffix }, start);
        Ok(())
    }

    /// Reads `!`, `!!` or `!name!`, or the beginning of `!name`.
    fn tag_handle(&mut self, start: Mark) -> Result<String> {
        if self.byte(0) != b'!' {
            return Err(self.error("did not find expected '!'", start));
        }
        self.skip_ascii(1);
        let mut handle = format!("!{}", self.word());
        if self.byte(0) == b'!' {
            self.skip_ascii(1);
            handle.push('!');
        }
        Ok(handle)
    }

    /// Reads a tag's URI. `head` is the part that was read as a handle.
    fn tag_uri(&mut self, head: &str, start: Mark) -> Result<String> {
        let mut uri: Vec<u8> = head.bytes().skip(1).collect();
        let from = self.at;
        loop {
            match self.byte(0) {
                b'%' => {
                    let digits = self.text.get(self.at + 1..self.at + 3);
                    let octet = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
                    let Some(octet) = octet else {
                        return Err(self.error("did not find URI escaped octet", start));
                    };
                    uri.push(octet);
                    self.skip_ascii(3);
                }
                byte if byte.is_ascii_alphanumeric()
                    || b"_-;/?:@&=+$,.!~*'()[]".contains(&byte) =>
                {
                    uri.push(byte);
                    self.skip_ascii(1);
                }
                _ => break,
            }
        }
        if head.is_empty() && self.at == from {
            return Err(self.error("did not find expected tag URI", start));
        }
        String::from_utf8(uri)
            .map_err(|_| self.error("found an incorrect leading UTF-8 octet", start))
    }

    fn directive(&mut self) -> Result<()> {
        self.unroll(-1);
        self.remove_key()?;
        self.key_allowed = false;
        let start = self.mark;
        self.skip_ascii(1);
        let name = self.word();
        if !name.is_empty() && !self.is_space(0) {
            return Err(self.error("found unexpected non-alphabetical character", start));
        }
        let token = match name.as_str() {
            "" => return Err(self.error("could not find expected directive name", start)),
            "YAML" => self.version(start)?,
            "TAG" => {
                self.skip_blanks();
                let handle = self.tag_handle(start)?;
                if handle != "!" && (handle.len() < 2 || !handle.ends_with('!')) {
                    return Err(self.error("did not find expected '!'", start));
                }
                if !self.is_blank(0) {
                    return Err(self.error("did not find expected whitespace", start));
                }
                self.skip_blanks();
                let prefix = self.tag_uri("", start)?;
                Token::TagPrefix { handle, prefix }
            }
            _ => return Err(self.error("found unknown directive name", start)),
        };
        self.skip_blanks();
        self.skip_comment();
        if !self.ends_line(0) {
            return Err(self.error("did not find expected comment or line break", start));
        }
        self.skip_line_break();
        self.push(token, start);
        Ok(())
    }

    fn version(&mut self, start: Mark) -> Result<Token> {
        self.skip_blanks();
        let major = self.number(start)?;
        if self.byte(0) != b'.' {
            return Err(self.error("did not find expected digit or '.' character", start));
        }
        self.skip_ascii(1);
        let minor = self.number(start)?;
        Ok(Token::Version { major, minor })
    }

    fn number(&mut self, start: Mark) -> Result<u32> {
        let rest = &self.text[self.at..];
        let digits = &rest[..rest.bytes().take_while(u8::is_ascii_digit).count()];
        let number = digits.parse().ok().filter(|_| digits.len() <= 2);
        self.skip_ascii(digits.len());
        number.ok_or_else(|| self.error("did not find expected version number", start))
    }

    fn skip_blanks(&mut self) {
        while self.is_blank(0) {
            self.skip_ascii(1);
        }
    }
}

fn key_mark(keys: &[SimpleKey], at: usize) -> Mark {
    keys.get(at).map(|key| key.mark).unwrap_or_default()
}
