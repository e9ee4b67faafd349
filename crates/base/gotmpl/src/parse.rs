//! Parses tokens into trees.

mod pipeline;

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    ast::{Branch, Call, Node},
    error::{Error, ErrorKind},
    lex::{Kind, Token, lex},
    number,
    options::{Functions, Limits, MissingKey},
    template::{Definition, Template},
};

/// The maximum nesting of actions and parentheses; real templates need much less.
const MAX_NESTING: usize = 100;

type Trees = BTreeMap<String, Vec<Node>>;
type Result<T> = std::result::Result<T, Error>;

impl Template {
    /// Parses a template with Go's built-in functions.
    pub fn parse(name: &str, text: &str) -> Result<Self> {
        Self::parse_with(name, text, Functions::new())
    }

    /// Parses a template that may also call these functions. An unknown function is a parse error, as in Go.
    pub fn parse_with(name: &str, text: &str, functions: Functions) -> Result<Self> {
        let mut template = Self::empty(name, functions);
        template.define(name, text)?;
        Ok(template)
    }

    /// Parses a template with snippets, by name. `{{template "name" data}}` writes a snippet's output, and the function
    /// `include "name" data` returns it. Snippets share the limits of the template.
    pub fn parse_set(
        name: &str,
        text: &str,
        snippets: &BTreeMap<String, String>,
        functions: Functions,
    ) -> Result<Self> {
        let mut template = Self { includes: true, ..Self::empty(name, functions) };
        template.define(name, text)?;
        for (name, text) in snippets {
            template.define(name, text)?;
        }
        Ok(template)
    }

    fn empty(name: &str, functions: Functions) -> Self {
        Self {
            name: name.to_owned(),
            trees: BTreeMap::new(),
            functions,
            includes: false,
            missing_key: MissingKey::default(),
            limits: Limits::default(),
        }
    }

    /// Adds the templates of a text. As in Go, they replace older ones of the same name, unless they are empty.
    fn define(&mut self, name: &str, text: &str) -> Result<()> {
        let trees = self.trees_of(name, text)?;
        let (source, text): (Arc<str>, Arc<str>) = (name.into(), text.into());
        for (name, nodes) in trees {
            if !self.trees.contains_key(&name) || !is_blank(&nodes) {
                let (source, text) = (Arc::clone(&source), Arc::clone(&text));
                self.trees.insert(name, Definition { nodes, source, text });
            }
        }
        Ok(())
    }

    fn trees_of(&self, name: &str, text: &str) -> Result<Trees> {
        let mut parser = Parser {
            name,
            functions: &self.functions,
            includes: self.includes,
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
}

struct Parser<'a> {
    name: &'a str,
    functions: &'a Functions,
    /// `true` if `include` is a function.
    includes: bool,
    tokens: Vec<Token>,
    next: usize,
    /// The variables in scope.
    variables: Vec<String>,
    /// The number of surrounding `range` actions.
    loops: usize,
    nesting: usize,
    action_line: usize,
    trees: Trees,
}

/// The action that ended a list of nodes.
enum ListEnd {
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

    /// Returns the next token. The last one (`Eof` or `Error`) repeats.
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
                Err(ListEnd::End) => return self.error("unexpected {{end}}"),
                Err(ListEnd::Else) => return self.error("unexpected {{else}}"),
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
            ListEnd::End => self.add(&name, nodes),
            ListEnd::Else => self.error("unexpected {{else}} in define clause"),
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

    /// Parses nodes up to an `{{end}}` or `{{else}}`.
    fn list(&mut self) -> Result<(Vec<Node>, ListEnd)> {
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

    fn text_or_action(&mut self) -> Result<std::result::Result<Node, ListEnd>> {
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

    fn action(&mut self) -> Result<std::result::Result<Node, ListEnd>> {
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
                    return Ok(Err(ListEnd::End));
                }
                "else" => {
                    let word = self.peek_non_space();
                    let chained = word.kind == Kind::Keyword;
                    if !(chained && matches!(word.text.as_str(), "if" | "with")) {
                        self.expect(Kind::Right, "else")?;
                    }
                    return Ok(Err(ListEnd::Else));
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
        if let ListEnd::Else = ended {
            let word = self.peek().text.clone();
            if self.peek().kind == Kind::Keyword && word == context && context != "range" {
                // `{{else if}}` is an `{{if}}` within the else, and shares its `{{end}}`.
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
                if let ListEnd::Else = ended {
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
        if let ListEnd::Else = ended {
            return self.error("unexpected {{else}} in block clause");
        }
        self.add(&name, nodes)?;
        Ok(Node::Template(Call { pos: token.pos, name, pipe: Some(pipe) }))
    }
}
