//! Scans plain, quoted and block scalars.

use super::{Mark, Result, Scanner, Token};

/// The white space between the words of a scalar. Line breaks in it are folded.
#[derive(Default)]
struct Gap {
    blanks: String,
    /// `true` after a line break.
    broken: bool,
    first: String,
    rest: String,
}

impl Gap {
    fn join(&mut self, out: &mut String) {
        if !self.broken {
            out.push_str(&self.blanks);
        } else if self.first != "\n" {
            out.push_str(&self.first);
            out.push_str(&self.rest);
        } else if self.rest.is_empty() {
            out.push(' ');
        } else {
            out.push_str(&self.rest);
        }
        self.blanks.clear();
        self.first.clear();
        self.rest.clear();
        self.broken = false;
    }
}

impl Scanner<'_> {
    pub(super) fn plain(&mut self) -> Result<()> {
        self.save_key()?;
        self.key_allowed = false;
        let (start, indent) = (self.mark, self.indent + 1);
        let (mut text, mut gap) = (String::new(), Gap::default());
        while !self.is_at_document_indicator() && self.byte(0) != b'#' {
            let from = self.at;
            while !self.is_space(0) && !self.ends_plain() {
                self.skip();
            }
            if self.at > from {
                gap.join(&mut text);
                text.push_str(&self.text[from..self.at]);
            }
            if self.is_end() || !self.is_space(0) {
                break;
            }
            self.gap(&mut gap, Some((indent, start)))?;
            if !self.is_in_flow() && self.mark.column < indent {
                break;
            }
        }
        self.key_allowed |= gap.broken;
        self.push(Token::Scalar { text, plain: true }, start);
        Ok(())
    }

    fn ends_plain(&self) -> bool {
        match self.byte(0) {
            b':' => self.is_space(1),
            b',' | b'?' | b'[' | b']' | b'{' | b'}' => self.is_in_flow(),
            _ => false,
        }
    }

    /// Skips blanks and line breaks. `indent` is the column below which tabs are not allowed.
    fn gap(&mut self, gap: &mut Gap, indent: Option<(i64, Mark)>) -> Result<()> {
        loop {
            if self.line_break(0) > 0 {
                if gap.broken {
                    self.read_line_break(&mut gap.rest);
                } else {
                    gap.blanks.clear();
                    gap.broken = true;
                    self.read_line_break(&mut gap.first);
                }
            } else if !self.is_blank(0) {
                return Ok(());
            } else if !gap.broken {
                gap.blanks.push(char::from(self.byte(0)));
                self.skip_ascii(1);
            } else {
                if let Some((indent, start)) = indent
                    && self.mark.column < indent
                    && self.byte(0) == b'\t'
                {
                    let problem = "found a tab character that violates indentation";
                    return Err(self.error(problem, start));
                }
                self.skip_ascii(1);
            }
        }
    }

    pub(super) fn scan_quoted(&mut self, single: bool) -> Result<()> {
        self.save_key()?;
        self.key_allowed = false;
        let (start, quote) = (self.mark, self.byte(0));
        self.skip_ascii(1);
        let mut text = String::new();
        loop {
            if self.is_at_document_indicator() {
                return Err(self.error("found unexpected document indicator", start));
            }
            if self.is_end() {
                return Err(self.error("found unexpected end of stream", start));
            }
            let mut gap = Gap::default();
            while !self.is_space(0) {
                let from = self.at;
                while !self.is_space(0)
                    && self.byte(0) != quote
                    && (single || self.byte(0) != b'\\')
                {
                    self.skip();
                }
                text.push_str(&self.text[from..self.at]);
                match self.byte(0) {
                    b'\'' if single && self.byte(1) == b'\'' => {
                        text.push('\'');
                        self.skip_ascii(2);
                    }
                    b'\\' if !single && self.line_break(1) > 0 => {
                        self.skip_ascii(1);
                        self.skip_line_break();
                        gap.broken = true;
                        break;
                    }
                    b'\\' if !single => self.escape(&mut text, start)?,
                    _ => break,
                }
            }
            if !gap.broken && self.byte(0) == quote {
                break;
            }
            self.gap(&mut gap, None)?;
            gap.join(&mut text);
        }
        self.skip_ascii(1);
        self.push(Token::Scalar { text, plain: false }, start);
        Ok(())
    }

    fn escape(&mut self, text: &mut String, start: Mark) -> Result<()> {
        let (plain, digits) = match self.byte(1) {
            b'0' => ('\0', 0),
            b'a' => ('\x07', 0),
            b'b' => ('\x08', 0),
            b't' | b'\t' => ('\t', 0),
            b'n' => ('\n', 0),
            b'v' => ('\x0B', 0),
            b'f' => ('\x0C', 0),
            b'r' => ('\r', 0),
            b'e' => ('\x1B', 0),
            byte @ (b' ' | b'"' | b'\'' | b'\\') => (char::from(byte), 0),
            b'N' => ('\u{85}', 0),
            b'_' => ('\u{A0}', 0),
            b'L' => ('\u{2028}', 0),
            b'P' => ('\u{2029}', 0),
            b'x' => ('\0', 2),
            b'u' => ('\0', 4),
            b'U' => ('\0', 8),
            _ => return Err(self.error("found unknown escape character", start)),
        };
        self.skip_ascii(2);
        if digits == 0 {
            text.push(plain);
            return Ok(());
        }
        let hex = self.text.get(self.at..self.at + digits);
        let hex = hex.filter(|hex| hex.bytes().all(|b| b.is_ascii_hexdigit()));
        let Some(value) = hex.and_then(|hex| u32::from_str_radix(hex, 16).ok()) else {
            return Err(self.error("did not find expected hexdecimal number", start));
        };
        // Halves of surrogate pairs are not characters.
        let Some(character) = char::from_u32(value) else {
            return Err(self.error("found invalid Unicode character escape code", start));
        };
        text.push(character);
        self.skip_ascii(digits);
        Ok(())
    }

    pub(super) fn block_scalar(&mut self, literal: bool) -> Result<()> {
        self.remove_key()?;
        self.key_allowed = true;
        let start = self.mark;
        self.skip_ascii(1);
        let header = self.block_header(start)?;
        let mut indent = match header.indent {
            0 => 0,
            indent => self.indent.max(0) + indent,
        };
        let (mut text, mut first, mut rest) = (String::new(), String::new(), String::new());
        let (mut blank_before, mut blank_after);
        self.block_breaks(&mut indent, &mut rest, start)?;
        blank_before = false;
        while self.mark.column == indent && !self.is_end() {
            blank_after = self.is_blank(0);
            if !literal && first.starts_with('\n') && !blank_before && !blank_after {
                if rest.is_empty() {
                    text.push(' ');
                }
            } else {
                text.push_str(&first);
            }
            first.clear();
            text.push_str(&rest);
            rest.clear();
            blank_before = blank_after;
            let from = self.at;
            while !self.ends_line(0) {
                self.skip();
            }
            text.push_str(&self.text[from..self.at]);
            self.read_line_break(&mut first);
            self.block_breaks(&mut indent, &mut rest, start)?;
        }
        if header.chomp != Chomp::Strip {
            text.push_str(&first);
        }
        if header.chomp == Chomp::Keep {
            text.push_str(&rest);
        }
        self.push(Token::Scalar { text, plain: false }, start);
        Ok(())
    }

    fn block_header(&mut self, start: Mark) -> Result<Header> {
        let mut header = Header { chomp: Chomp::Clip, indent: 0 };
        let mut chomps = false;
        loop {
            match self.byte(0) {
                sign @ (b'+' | b'-') if !chomps => {
                    header.chomp = if sign == b'+' { Chomp::Keep } else { Chomp::Strip };
                    chomps = true;
                }
                b'0' if header.indent == 0 => {
                    let problem = "found an indentation indicator equal to 0";
                    return Err(self.error(problem, start));
                }
                digit @ b'1'..=b'9' if header.indent == 0 => {
                    header.indent = i64::from(digit - b'0')
                }
                _ => break,
            }
            self.skip_ascii(1);
        }
        self.skip_blanks();
        self.skip_comment();
        if !self.ends_line(0) {
            return Err(self.error("did not find expected comment or line break", start));
        }
        self.skip_line_break();
        Ok(header)
    }

    /// Skips empty lines and indentation. An `indent` of zero is detected from the first line with text.
    fn block_breaks(&mut self, indent: &mut i64, breaks: &mut String, start: Mark) -> Result<()> {
        let mut most = 0;
        loop {
            while (*indent == 0 || self.mark.column < *indent) && self.byte(0) == b' ' {
                self.skip_ascii(1);
            }
            most = most.max(self.mark.column);
            if (*indent == 0 || self.mark.column < *indent) && self.byte(0) == b'\t' {
                let problem = "found a tab character where an indentation space is expected";
                return Err(self.error(problem, start));
            }
            if self.line_break(0) == 0 {
                break;
            }
            self.read_line_break(breaks);
        }
        if *indent == 0 {
            *indent = most.max(self.indent + 1).max(1);
        }
        Ok(())
    }
}

struct Header {
    chomp: Chomp,
    /// The indentation relative to the parent's; zero if not given.
    indent: i64,
}

/// The treatment of the line breaks at the end of a block scalar.
#[derive(PartialEq)]
enum Chomp {
    Clip,
    Strip,
    Keep,
}
