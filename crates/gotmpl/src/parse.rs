//! Tokens into trees.

use std::collections::BTreeMap;

use crate::{
    Error, ErrorKind, Functions,
    ast::{Arg, ArgKind, Branch, Call, Command, Node, Pipe},
    funcs,
    lex::{Kind, Token, lex},
    number::{self, Number},
};

/// Actions and parentheses within one another; more is nobody's template.
const MAX_NESTING: usize = 100;

type Trees = BTreeMap<String, Vec<Node>>;
type Result<T> = std::result::Result<T, Error>;

pub(crate) fn parse(name: &str, text: &str, functions: &Functions) -> Result<Trees> {
    let mut parser = Parser {
        name,
        functions,
        tokens: lex(text),
        next: 0,
        variables: vec!["$".to_owned()],
        loops: 0,
        nesting: 0,
        action_line: 0,
        trees: Trees::new(),
    };
    parser.top()?;
    Ok(parser.trees)
}

struct Parser<'a> {
    name: &'a str,
    functions: &'a Functions,
    tokens: Vec<Token>,
    next: usize,
    /// Variables in scope.
    variables: Vec<String>,
    /// `range` actions around this point.
    loops: usize,
    nesting: usize,
    action_line: usize,
    trees: Trees,
}

/// How a list of nodes ended.
enum Ended {
    End,
    Else,
}

fn is_blank(nodes: &[Node]) -> bool {
    nodes.iter().all(|node| matches!(node, Node::Text(text) if text.trim().is_empty()))
}

impl Parser<'_> {
    fn error<T>(&self, message: impl std::fmt::Display) -> Result<T> {
        let current = self.tokens.get(self.next.saturating_sub(1)).or(self.tokens.last());
        let line = current.map_or(1, |token| token.line);
        let message = format!("template: {}:{line}: {message}", self.name);
        Err(Error { kind: ErrorKind::Parse, line, message })
    }

    fn unexpected<T>(&self, token: &Token, context: &str) -> Result<T> {
        if token.kind != Kind::Error {
            return self.error(format_args!("unexpected {token} in {context}"));
        }
        let mut extra = String::new();
        if self.action_line != 0 && self.action_line != token.line {
            let started = format!(" started at {}:{}", self.name, self.action_line);
            let action = if token.text.ends_with(" action") { "" } else { " in action" };
            extra = format!("{action}{started}");
        }
        self.error(format_args!("{token}{extra}"))
    }

    /// The next token; the last one (`Eof` or `Error`) comes again and again.
    fn take(&mut self) -> Token {
        let token = self.peek().clone();
        self.next = (self.next + 1).min(self.tokens.len());
        token
    }

    fn peek(&self) -> &Token {
        &self.tokens[self.next.min(self.tokens.len() - 1)]
    }

    fn peek_non_space(&mut self) -> &Token {
        while self.peek().kind == Kind::Space {
            self.next += 1;
        }
        self.peek()
    }

    fn take_non_space(&mut self) -> Token {
        self.peek_non_space();
        self.take()
    }

    fn expect(&mut self, kind: Kind, context: &str) -> Result<Token> {
        let token = self.take_non_space();
        if token.kind == kind { Ok(token) } else { self.unexpected(&token, context) }
    }

    fn enter(&mut self) -> Result<()> {
        self.nesting += 1;
        if self.nesting > MAX_NESTING {
            return self.error("max expression depth exceeded");
        }
        Ok(())
    }

    fn add(&mut self, name: &str, nodes: Vec<Node>) -> Result<()> {
        match self.trees.get(name) {
            Some(old) if !is_blank(old) && !is_blank(&nodes) => self.error(format_args!(
                "template: multiple definition of template {}",
                crate::format::quote(name)
            )),
            Some(old) if !is_blank(old) => Ok(()),
            _ => {
                self.trees.insert(name.to_owned(), nodes);
                Ok(())
            }
        }
    }

    fn top(&mut self) -> Result<()> {
        let mut nodes = Vec::new();
        while self.peek().kind != Kind::Eof {
            if self.peek().kind == Kind::Left {
                let start = self.next;
                self.take();
                let word = self.take_non_space();
                if word.kind == Kind::Keyword && word.text == "define" {
                    self.definition()?;
                    continue;
                }
                self.next = start;
            }
            match self.text_or_action()? {
                Ok(node) => nodes.push(node),
                Err(Ended::End) => return self.error("unexpected {{end}}"),
                Err(Ended::Else) => return self.error("unexpected {{else}}"),
            }
        }
        let name = self.name;
        self.add(name, nodes)
    }

    fn definition(&mut self) -> Result<()> {
        let context = "define clause";
        let token = self.take_non_space();
        let name = self.string(&token, context)?;
        self.expect(Kind::Right, context)?;
        let variables = std::mem::replace(&mut self.variables, vec!["$".to_owned()]);
        let (nodes, ended) = self.list()?;
        self.variables = variables;
        match ended {
            Ended::End => self.add(&name, nodes),
            Ended::Else => self.error("unexpected {{else}} in define clause"),
        }
    }

    fn string(&self, token: &Token, context: &str) -> Result<String> {
        if !matches!(token.kind, Kind::Quoted | Kind::Raw) {
            return self.unexpected(token, context);
        }
        match number::unquote(&token.text) {
            Some(text) => Ok(text),
            None => self.error("invalid syntax"),
        }
    }

    /// Nodes up to an `{{end}}` or `{{else}}`.
    fn list(&mut self) -> Result<(Vec<Node>, Ended)> {
        self.enter()?;
        let mut nodes = Vec::new();
        while self.peek_non_space().kind != Kind::Eof {
            match self.text_or_action()? {
                Ok(node) => nodes.push(node),
                Err(ended) => {
                    self.nesting -= 1;
                    return Ok((nodes, ended));
                }
            }
        }
        self.take();
        self.error("unexpected EOF")
    }

    fn text_or_action(&mut self) -> Result<std::result::Result<Node, Ended>> {
        let token = self.take_non_space();
        match token.kind {
            Kind::Text => Ok(Ok(Node::Text(token.text))),
            Kind::Left => {
                self.action_line = token.line;
                let node = self.action();
                if node.is_ok() {
                    self.action_line = 0;
                }
                node
            }
            _ => self.unexpected(&token, "input"),
        }
    }

    fn action(&mut self) -> Result<std::result::Result<Node, Ended>> {
        let start = self.next;
        let token = self.take_non_space();
        if token.kind == Kind::Keyword {
            let node = match token.text.as_str() {
                "if" => Node::If(self.branch("if")?),
                "with" => Node::With(self.branch("with")?),
                "range" => Node::Range(self.branch("range")?),
                "template" => Node::Template(self.call()?),
                "block" => self.block()?,
                "break" => self.leap(Node::Break, "break")?,
                "continue" => self.leap(Node::Continue, "continue")?,
                "end" => {
                    self.expect(Kind::Right, "end")?;
                    return Ok(Err(Ended::End));
                }
                "else" => {
                    let word = self.peek_non_space();
                    let chained = word.kind == Kind::Keyword;
                    if !(chained && matches!(word.text.as_str(), "if" | "with")) {
                        self.expect(Kind::Right, "else")?;
                    }
                    return Ok(Err(Ended::Else));
                }
                _ => return self.unexpected(&token, "command"),
            };
            return Ok(Ok(node));
        }
        self.next = start;
        let pipe = self.pipeline("command", Kind::Right)?;
        Ok(Ok(Node::Action(pipe)))
    }

    fn leap(&mut self, node: Node, word: &str) -> Result<Node> {
        let token = self.take_non_space();
        if token.kind != Kind::Right {
            return self.unexpected(&token, &format!("{{{{{word}}}}}"));
        }
        if self.loops == 0 {
            return self.error(format_args!("{{{{{word}}}}} outside {{{{range}}}}"));
        }
        Ok(node)
    }

    fn branch(&mut self, context: &str) -> Result<Branch> {
        let scope = self.variables.len();
        let pipe = self.pipeline(context, Kind::Right)?;
        let looping = usize::from(context == "range");
        self.loops += looping;
        let (list, ended) = self.list()?;
        self.loops -= looping;
        let mut otherwise = Vec::new();
        if let Ended::Else = ended {
            let word = self.peek().text.clone();
            if self.peek().kind == Kind::Keyword && word == context && context != "range" {
                // `{{else if}}` is an `{{if}}` within the else, sharing its `{{end}}`.
                self.enter()?;
                self.take();
                let inner = self.branch(context)?;
                self.nesting -= 1;
                otherwise.push(if context == "if" { Node::If(inner) } else { Node::With(inner) });
            } else if self.peek().kind == Kind::Keyword {
                let token = self.take();
                return self.unexpected(&token, "else");
            } else {
                let (nodes, ended) = self.list()?;
                if let Ended::Else = ended {
                    return self.error("expected end; found {{else}}");
                }
                otherwise = nodes;
            }
        }
        self.variables.truncate(scope);
        Ok(Branch { pipe, list, otherwise })
    }

    fn call(&mut self) -> Result<Call> {
        let context = "template clause";
        let token = self.take_non_space();
        let name = self.string(&token, context)?;
        let pipe = if self.peek_non_space().kind == Kind::Right {
            self.take();
            None
        } else {
            Some(self.pipeline(context, Kind::Right)?)
        };
        Ok(Call { pos: token.pos, name, pipe })
    }

    fn block(&mut self) -> Result<Node> {
        let context = "block clause";
        let token = self.take_non_space();
        let name = self.string(&token, context)?;
        let pipe = self.pipeline(context, Kind::Right)?;
        let variables = std::mem::replace(&mut self.variables, vec!["$".to_owned()]);
        let loops = std::mem::take(&mut self.loops);
        let (nodes, ended) = self.list()?;
        self.variables = variables;
        self.loops = loops;
        if let Ended::Else = ended {
            return self.error("unexpected {{else}} in block clause");
        }
        self.add(&name, nodes)?;
        Ok(Node::Template(Call { pos: token.pos, name, pipe: Some(pipe) }))
    }

    fn pipeline(&mut self, context: &str, end: Kind) -> Result<Pipe> {
        let pos = self.peek_non_space().pos;
        let mut pipe = Pipe { pos, assign: false, variables: Vec::new(), commands: Vec::new() };
        self.declarations(context, &mut pipe)?;
        loop {
            let token = self.take_non_space();
            match token.kind {
                kind if kind == end => {
                    self.check(&pipe, context)?;
                    self.declare(&pipe);
                    return Ok(pipe);
                }
                Kind::Bool
                | Kind::CharConstant
                | Kind::Dot
                | Kind::Field
                | Kind::Identifier
                | Kind::Number
                | Kind::Nil
                | Kind::Raw
                | Kind::Quoted
                | Kind::Variable
                | Kind::LeftParen => {
                    self.next -= 1;
                    // A range's variables are in scope only after its pipeline, as are all others.
                    let command = self.command()?;
                    pipe.commands.push(command);
                }
                _ => return self.unexpected(&token, context),
            }
        }
    }

    /// `$x :=`, `$x =` or `$i, $x :=` before a pipeline.
    fn declarations(&mut self, context: &str, pipe: &mut Pipe) -> Result<()> {
        loop {
            let start = self.next;
            if self.peek_non_space().kind != Kind::Variable {
                return Ok(());
            }
            let variable = self.take();
            let next = self.peek_non_space().clone();
            match next.kind {
                Kind::Assign | Kind::Declare => {
                    pipe.assign = next.kind == Kind::Assign;
                    self.take();
                    pipe.variables.push(variable.text);
                    return self.known_if_assigned(pipe);
                }
                Kind::Char if next.text == "," => {
                    self.take();
                    pipe.variables.push(variable.text);
                    let room = context == "range" && pipe.variables.len() < 2;
                    let more = self.peek_non_space().kind == Kind::Variable;
                    if context != "range" || !room {
                        return self.error(format_args!("too many declarations in {context}"));
                    }
                    if !more {
                        return self.error("range can only initialize variables");
                    }
                }
                _ => {
                    self.next = start;
                    self.peek_non_space();
                    return Ok(());
                }
            }
        }
    }

    fn known_if_assigned(&self, pipe: &Pipe) -> Result<()> {
        match pipe.variables.iter().find(|name| pipe.assign && !self.variables.contains(name)) {
            Some(name) => self.undefined(name),
            None => Ok(()),
        }
    }

    fn declare(&mut self, pipe: &Pipe) {
        if !pipe.assign {
            self.variables.extend(pipe.variables.iter().cloned());
        }
    }

    fn undefined<T>(&self, name: &str) -> Result<T> {
        self.error(format_args!("undefined variable {}", crate::format::quote(name)))
    }

    fn check(&self, pipe: &Pipe, context: &str) -> Result<()> {
        if pipe.commands.is_empty() {
            return self.error(format_args!("missing value for {context}"));
        }
        for (i, command) in pipe.commands.iter().enumerate().skip(1) {
            let constant = matches!(
                command.args[0].kind,
                ArgKind::Bool(_)
                    | ArgKind::Dot
                    | ArgKind::Nil
                    | ArgKind::Int { .. }
                    | ArgKind::Float { .. }
                    | ArgKind::Text { .. }
            );
            if constant {
                let stage = i + 1;
                return self
                    .error(format_args!("non executable command in pipeline stage {stage}"));
            }
        }
        Ok(())
    }

    fn command(&mut self) -> Result<Command> {
        let pos = self.peek_non_space().pos;
        let mut args = Vec::new();
        loop {
            self.peek_non_space();
            if let Some(arg) = self.operand()? {
                args.push(arg);
            }
            let token = self.take();
            match token.kind {
                Kind::Space => continue,
                Kind::Right | Kind::RightParen => self.next -= 1,
                Kind::Pipe => {
                    let next = self.peek_non_space().clone();
                    if matches!(next.kind, Kind::Right | Kind::RightParen | Kind::Pipe) {
                        return self.error("missing value for command");
                    }
                }
                _ => return self.unexpected(&token, "operand"),
            }
            break;
        }
        if args.is_empty() {
            return self.error("empty command");
        }
        Ok(Command { pos, args })
    }

    fn operand(&mut self) -> Result<Option<Arg>> {
        let Some(arg) = self.term()? else { return Ok(None) };
        if self.peek().kind != Kind::Field {
            return Ok(Some(arg));
        }
        let pos = self.peek().pos;
        let mut more = Vec::new();
        while self.peek().kind == Kind::Field {
            more.push(self.take().text[1..].to_owned());
        }
        let kind = match arg.kind {
            ArgKind::Field(mut names) => {
                names.extend(more);
                ArgKind::Field(names)
            }
            ArgKind::Variable(name, _) => ArgKind::Variable(name, more),
            ArgKind::Bool(_)
            | ArgKind::Int { .. }
            | ArgKind::Float { .. }
            | ArgKind::Text { .. }
            | ArgKind::Nil
            | ArgKind::Dot => {
                return self.error(format_args!(
                    "unexpected . after term {}",
                    crate::format::quote(&arg.to_string())
                ));
            }
            _ => ArgKind::Chain(Box::new(arg), more),
        };
        Ok(Some(Arg { pos, kind }))
    }

    fn term(&mut self) -> Result<Option<Arg>> {
        let token = self.take_non_space();
        let kind = match token.kind {
            Kind::Identifier => {
                if !funcs::is_builtin(&token.text) && !self.functions.contains_key(&token.text) {
                    return self.error(format_args!(
                        "function {} not defined",
                        crate::format::quote(&token.text)
                    ));
                }
                ArgKind::Function(token.text)
            }
            Kind::Dot => ArgKind::Dot,
            Kind::Nil => ArgKind::Nil,
            Kind::Variable => {
                if !self.variables.contains(&token.text) {
                    return self.undefined(&token.text);
                }
                ArgKind::Variable(token.text, Vec::new())
            }
            Kind::Field => ArgKind::Field(vec![token.text[1..].to_owned()]),
            Kind::Bool => ArgKind::Bool(token.text == "true"),
            Kind::CharConstant | Kind::Number => self.number(&token)?,
            Kind::Quoted | Kind::Raw => {
                ArgKind::Text { value: self.string(&token, "operand")?, quoted: token.text }
            }
            Kind::LeftParen => {
                self.enter()?;
                let pipe = self.pipeline("parenthesized pipeline", Kind::RightParen)?;
                self.nesting -= 1;
                ArgKind::Pipe(Box::new(pipe))
            }
            _ => {
                self.next -= 1;
                return Ok(None);
            }
        };
        Ok(Some(Arg { pos: token.pos, kind }))
    }

    fn number(&self, token: &Token) -> Result<ArgKind> {
        let text = token.text.clone();
        if token.kind == Kind::CharConstant {
            return match number::character(&text) {
                Some(c) => Ok(ArgKind::Int { value: u32::from(c).into(), text }),
                None => self.error(format_args!("malformed character constant: {text}")),
            };
        }
        match number::parse(&text) {
            Some(Number::Int(value)) => Ok(ArgKind::Int { value, text }),
            Some(Number::Float(value)) => Ok(ArgKind::Float { value, text }),
            None => self.error(format_args!("illegal number syntax: {text}")),
        }
    }
}
