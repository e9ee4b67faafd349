//! A precedence climbing parser with limits on length, nesting and tree height.
//!
//! The height bounds all later passes, which recurse over the tree.

use crate::{
    ast::{Element, Entry, Expr, Kind, Literal, StructField},
    error::{Issue, Issues, Source},
    lexer::{Lexeme, Token, lex},
    macros::{self, Macros},
    types::is_reserved,
};

/// Upstream's recursion limit.
const MAX_DEPTH: u32 = 250;

const OPERANDS: &str = "{'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, \
    NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}";

const OPERATORS: &str = "{<EOF>, '==', '!=', 'in', '<', '<=', '>=', '>', '&&', '||', '[', '.', \
    '-', '?', '+', '*', '/', '%'}";

/// A parsed expression.
#[derive(Clone, Debug)]
pub(crate) struct ParsedExpr {
    pub(crate) source: Source,
    pub(crate) root: Expr,
    /// The number of expression IDs.
    pub(crate) count: usize,
}

pub(crate) fn parse(text: &str, macros: Macros) -> Result<ParsedExpr, Issues> {
    let source = Source::new(text);
    let failed = |issue| Issues::new(Source::new(text), vec![issue]);
    let lexemes = lex(text).map_err(failed)?;
    let mut parser = Parser { lexemes, at: 0, nesting: 0, heights: Vec::new(), macros };
    let root = parser.expr().and_then(|root| {
        let left = parser.here();
        if left.token == Token::End {
            return Ok(root);
        }
        // A single extra token has another message than several.
        let last = parser.lexemes.get(parser.at + 1).is_some_and(|l| l.token == Token::End);
        if !last {
            return Err(parser.mismatch(OPERATORS));
        }
        let message = format!("Syntax error: extraneous input '{}' expecting <EOF>", left.text);
        Err(Issue::new(left.at, message))
    });
    let root = root.map_err(failed)?;
    Ok(ParsedExpr { source, root, count: parser.heights.len() })
}

struct Parser {
    lexemes: Vec<Lexeme>,
    at: usize,
    nesting: u32,
    /// The height of each expression, by ID.
    heights: Vec<u32>,
    macros: Macros,
}

type Result_<T> = Result<T, Issue>;

/// Returns the precedence of a binary operator, and the function that it calls.
fn binary(token: &Token) -> Option<(u8, &'static str)> {
    Some(match token {
        Token::In => (3, "@in"),
        Token::Symbol(symbol) => match *symbol {
            "||" => (1, "_||_"),
            "&&" => (2, "_&&_"),
            "<" => (3, "_<_"),
            "<=" => (3, "_<=_"),
            ">=" => (3, "_>=_"),
            ">" => (3, "_>_"),
            "==" => (3, "_==_"),
            "!=" => (3, "_!=_"),
            "+" => (4, "_+_"),
            "-" => (4, "_-_"),
            "*" => (5, "_*_"),
            "/" => (5, "_/_"),
            "%" => (5, "_%_"),
            _ => return None,
        },
        _ => return None,
    })
}

fn too_deep(at: u32) -> Issue {
    Issue::new(at, format!("expression recursion limit exceeded: {MAX_DEPTH}"))
}

impl Parser {
    fn here(&self) -> &Lexeme {
        // The last lexeme is the end, which is never consumed.
        &self.lexemes[self.at]
    }

    fn advance(&mut self) -> Lexeme {
        let lexeme = self.here().clone();
        if lexeme.token != Token::End {
            self.at += 1;
        }
        lexeme
    }

    fn is(&self, symbol: &str) -> bool {
        matches!(self.here().token, Token::Symbol(s) if s == symbol)
    }

    fn take(&mut self, symbol: &str) -> Option<u32> {
        self.is(symbol).then(|| self.advance().at)
    }

    fn expect(&mut self, symbol: &str) -> Result_<u32> {
        self.take(symbol).ok_or_else(|| self.mismatch(&format!("'{symbol}'")))
    }

    fn mismatch(&self, expected: &str) -> Issue {
        let Lexeme { text, at, .. } = self.here();
        Issue::new(*at, format!("Syntax error: mismatched input '{text}' expecting {expected}"))
    }

    fn make(&mut self, at: u32, kind: Kind) -> Result_<Expr> {
        let id = self.heights.len();
        let expr = Expr { id, at, kind };
        let mut below = 0;
        expr.children(&mut |child| below = below.max(self.heights[child.id]));
        if below >= MAX_DEPTH {
            return Err(too_deep(at));
        }
        self.heights.push(below + 1);
        Ok(expr)
    }

    fn call(&mut self, at: u32, function: &str, args: Vec<Expr>) -> Result_<Expr> {
        self.make(at, Kind::Call { function: function.to_owned(), target: None, args })
    }

    fn expr(&mut self) -> Result_<Expr> {
        self.nesting += 1;
        if self.nesting > MAX_DEPTH {
            return Err(too_deep(self.here().at));
        }
        let mut result = self.operators(1)?;
        if let Some(at) = self.take("?") {
            let then = self.operators(1)?;
            self.expect(":")?;
            let otherwise = self.expr()?;
            result = self.call(at, "_?_:_", vec![result, then, otherwise])?;
        }
        self.nesting -= 1;
        Ok(result)
    }

    fn operators(&mut self, least: u8) -> Result_<Expr> {
        let mut left = self.unary()?;
        while let Some((binds, function)) =
            binary(&self.here().token).filter(|(binds, _)| *binds >= least)
        {
            let at = self.advance().at;
            let right = self.operators(binds + 1)?;
            left = if binds <= 2 {
                self.logical(at, function, left, right)?
            } else {
                self.call(at, function, vec![left, right])?
            };
        }
        Ok(left)
    }

    /// Builds a chain of `&&` or `||` as one call, so that its length is not depth. A parenthesized inner chain is
    /// merged, which does not change the result.
    fn logical(&mut self, at: u32, name: &str, left: Expr, right: Expr) -> Result_<Expr> {
        match left {
            Expr { at, kind: Kind::Call { function, target: None, mut args }, .. }
                if function == name =>
            {
                args.push(right);
                self.call(at, name, args)
            }
            left => self.call(at, name, vec![left, right]),
        }
    }

    fn unary(&mut self) -> Result_<Expr> {
        let number = matches!(
            self.lexemes.get(self.at + 1).map(|l| &l.token),
            Some(Token::Int(_) | Token::Literal(Literal::Double(_)))
        );
        for (symbol, function) in [("!", "!_"), ("-", "-_")] {
            if !self.is(symbol) || symbol == "-" && number {
                continue;
            }
            let (at, mut count) = (self.here().at, 0);
            while self.is(symbol) {
                self.advance();
                count += 1;
            }
            let operand = self.member()?;
            // Two equal operators cancel out.
            return if count % 2 == 0 {
                Ok(operand)
            } else {
                self.call(at, function, vec![operand])
            };
        }
        self.member()
    }

    fn member(&mut self) -> Result_<Expr> {
        let mut operand = self.primary()?;
        loop {
            operand = if let Some(at) = self.take(".") {
                self.select(at, operand)?
            } else if let Some(at) = self.take("[") {
                let optional = self.optional_mark("[?")?;
                let index = self.expr()?;
                self.expect("]")?;
                let function = if optional { "_[?_]" } else { "_[_]" };
                self.call(at, function, vec![operand, index])?
            } else {
                return Ok(operand);
            };
        }
    }

    fn optional_mark(&mut self, syntax: &str) -> Result_<bool> {
        match self.take("?") {
            Some(at) if !self.macros.optionals => {
                Err(Issue::new(at, format!("unsupported syntax '{syntax}'")))
            }
            mark => Ok(mark.is_some()),
        }
    }

    fn select(&mut self, at: u32, operand: Expr) -> Result_<Expr> {
        if self.optional_mark(".?")? {
            let (place, field) = self.field_name()?;
            let name = self.make(place, Kind::Literal(Literal::String(field)))?;
            return self.call(at, "_?._", vec![operand, name]);
        }
        let escaped = matches!(self.here().token, Token::Escaped(_));
        let (_, field) = self.field_name()?;
        match self.take("(").filter(|_| !escaped) {
            None => self.make(at, Kind::Select { operand: Box::new(operand), field, test: false }),
            Some(open) => {
                let args = self.arguments()?;
                let kind = macros::member(self.macros, open, operand, field, args)?;
                self.make(open, kind)
            }
        }
    }

    fn field_name(&mut self) -> Result_<(u32, String)> {
        match &self.here().token {
            Token::Ident(name) | Token::Escaped(name) => {
                let name = name.clone();
                Ok((self.advance().at, name))
            }
            _ => Err(self.mismatch("IDENTIFIER")),
        }
    }

    fn arguments(&mut self) -> Result_<Vec<Expr>> {
        let mut args = Vec::new();
        if self.take(")").is_some() {
            return Ok(args);
        }
        loop {
            args.push(self.expr()?);
            if self.take(",").is_none() {
                self.expect(")")?;
                return Ok(args);
            }
        }
    }

    fn primary(&mut self) -> Result_<Expr> {
        let Lexeme { token, at, .. } = self.here().clone();
        match token {
            Token::Literal(literal) => {
                self.advance();
                self.make(at, Kind::Literal(literal))
            }
            Token::Int(digits) => {
                self.advance();
                self.integer(at, &digits, false)
            }
            Token::Ident(_) => self.identifier(at, ""),
            Token::Symbol("-") => {
                self.advance();
                match self.advance().token {
                    Token::Int(digits) => self.integer(at, &digits, true),
                    Token::Literal(Literal::Double(value)) => {
                        self.make(at, Kind::Literal(Literal::Double(-value)))
                    }
                    _ => {
                        self.at -= 1;
                        Err(self.mismatch(OPERANDS))
                    }
                }
            }
            Token::Symbol(".") => {
                self.advance();
                match self.here().token {
                    Token::Ident(_) => self.identifier(at, "."),
                    _ => Err(self.mismatch("IDENTIFIER")),
                }
            }
            Token::Symbol("(") => {
                self.advance();
                let inner = self.expr()?;
                self.expect(")")?;
                Ok(inner)
            }
            Token::Symbol("[") => {
                self.advance();
                self.list(at)
            }
            Token::Symbol("{") => {
                self.advance();
                self.map(at)
            }
            _ => Err(self.mismatch(OPERANDS)),
        }
    }

    fn integer(&mut self, at: u32, digits: &str, negative: bool) -> Result_<Expr> {
        let sign = if negative { "-" } else { "" };
        let value = match digits.strip_prefix("0x") {
            Some(digits) => i64::from_str_radix(&format!("{sign}{digits}"), 16),
            None => format!("{sign}{digits}").parse(),
        };
        let value = value.map_err(|_| Issue::new(at, "invalid int literal"))?;
        self.make(at, Kind::Literal(Literal::Int(value)))
    }

    /// Parses a variable, a call, or a message literal with a dotted type name.
    fn identifier(&mut self, at: u32, dot: &str) -> Result_<Expr> {
        if let Some(message) = self.message_name(dot) {
            return self.message(message);
        }
        let (_, name) = self.field_name()?;
        if is_reserved(&name) {
            return Err(Issue::new(at, format!("reserved identifier: {name}")));
        }
        let name = format!("{dot}{name}");
        match self.take("(") {
            None => self.make(at, Kind::Ident(name)),
            Some(open) => {
                let args = self.arguments()?;
                let (at, kind) = macros::global(open, name, args)?;
                self.make(at, kind)
            }
        }
    }

    /// Consumes a dotted name if a brace follows, and returns it.
    fn message_name(&mut self, dot: &str) -> Option<String> {
        let (mut at, mut name) = (self.at, dot.to_owned());
        loop {
            match &self.lexemes.get(at)?.token {
                Token::Ident(part) => name.push_str(part),
                _ => return None,
            }
            match self.lexemes.get(at + 1)?.token {
                Token::Symbol("{") => {
                    self.at = at + 1;
                    return Some(name);
                }
                Token::Symbol(".") => name.push('.'),
                _ => return None,
            }
            at += 2;
        }
    }

    fn message(&mut self, name: String) -> Result_<Expr> {
        let at = self.expect("{")?;
        let mut fields = Vec::new();
        while self.take("}").is_none() {
            let optional = self.optional_mark("?")?;
            let (place, field) = self.field_name()?;
            self.expect(":")?;
            let value = self.expr()?;
            fields.push(StructField { at: place, name: field, value, optional });
            if self.take(",").is_none() {
                self.expect("}")?;
                break;
            }
        }
        self.make(at, Kind::Struct { name, fields })
    }

    fn list(&mut self, at: u32) -> Result_<Expr> {
        let mut elements = Vec::new();
        while self.take("]").is_none() {
            let optional = self.optional_mark("?")?;
            elements.push(Element { value: self.expr()?, optional });
            if self.take(",").is_none() {
                self.expect("]")?;
                break;
            }
        }
        self.make(at, Kind::List(elements))
    }

    fn map(&mut self, at: u32) -> Result_<Expr> {
        let mut entries = Vec::new();
        while self.take("}").is_none() {
            let optional = self.optional_mark("?")?;
            let key = self.expr()?;
            self.expect(":")?;
            let value = self.expr()?;
            entries.push(Entry { key, value, optional });
            if self.take(",").is_none() {
                self.expect("}")?;
                break;
            }
        }
        self.make(at, Kind::Map(entries))
    }
}
