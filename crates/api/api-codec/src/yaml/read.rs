//! Builds a JSON tree from YAML tokens, like sigs.k8s.io/yaml.
//!
//! Only the first document of a text is read. A [`Budget`] limits depth and memory; each alias counts with its whole
//! tree.

use std::collections::HashMap;

use api_meta::Budget;
use serde_json::{Map, Value};

use super::{
    error::YamlError,
    resolve::{self, Scalar},
    scan::{Mark, Scanner, Token},
};

type Result<T> = std::result::Result<T, YamlError>;

/// A document's tree, and the duplicate keys of its mappings.
#[derive(Debug, Default)]
pub struct YamlDocument {
    /// The tree.
    pub value: Value,
    /// A message for each duplicate key, as Go's YAML prints it: `line 3: key "a" already set in map`.
    pub duplicates: Vec<String>,
}

/// Reads the first document. With `strict`, duplicate keys are listed.
pub(super) fn read(text: &str, strict: bool) -> Result<YamlDocument> {
    let mut reader = Reader {
        scanner: Scanner::new(text),
        budget: Budget::object(),
        anchors: HashMap::new(),
        prefixes: Vec::new(),
        counted: 0,
        aliased: 0,
        strict,
        duplicates: Vec::new(),
    };
    let value = reader.document()?;
    Ok(YamlDocument { value, duplicates: reader.duplicates })
}

struct Reader<'t> {
    scanner: Scanner<'t>,
    budget: Budget,
    anchors: HashMap<String, AnchorState>,
    /// The tag handles and their prefixes.
    prefixes: Vec<(String, String)>,
    /// The number of nodes, including those that aliases repeat.
    counted: usize,
    /// The number of nodes that aliases repeat.
    aliased: usize,
    strict: bool,
    duplicates: Vec<String>,
}

/// The state of an anchor.
enum AnchorState {
    /// The node is incomplete, so an alias here would contain itself.
    Open,
    Node(Data),
}

#[derive(Clone)]
enum Data {
    Scalar(Scalar),
    Tree(Value),
}

struct Node {
    data: Data,
    line: usize,
    /// `true` for `<<`.
    merges: bool,
}

/// The anchor and the tag in front of a node.
#[derive(Default)]
struct Properties {
    anchor: Option<String>,
    tag: Option<String>,
}

/// The position of a node, which determines the allowed tokens.
#[derive(Clone, Copy, PartialEq)]
enum Position {
    Block,
    /// A member of a block mapping, whose sequence need not be indented.
    Member,
    Flow,
}

impl Node {
    fn empty(line: usize) -> Self {
        Self { data: Data::Scalar(Scalar::Null), line, merges: false }
    }
}

impl Data {
    fn into_value(self) -> Result<Value> {
        match self {
            Self::Scalar(scalar) => scalar.into_value(),
            Self::Tree(value) => Ok(value),
        }
    }
}

impl Reader<'_> {
    fn document(&mut self) -> Result<Value> {
        let (token, mark) = self.scanner.peek()?;
        let explicit =
            matches!(token, Token::Version { .. } | Token::TagPrefix { .. } | Token::DocumentStart);
        if *token == Token::StreamEnd {
            return Ok(Value::Null);
        }
        if explicit {
            self.directives()?;
            let (token, mark) = self.scanner.next()?;
            if token != Token::DocumentStart {
                return Err(problem("did not find expected <document start>", mark, None));
            }
        }
        for (handle, prefix) in [("!", "!"), ("!!", resolve::PREFIX)] {
            if self.prefixes.iter().all(|(known, _)| known != handle) {
                self.prefixes.push((handle.to_owned(), prefix.to_owned()));
            }
        }
        let node = match self.scanner.peek()?.0 {
            Token::Version { .. }
            | Token::TagPrefix { .. }
            | Token::DocumentStart
            | Token::DocumentEnd
            | Token::StreamEnd
                if explicit =>
            {
                Node::empty(mark.line)
            }
            _ => self.node(Position::Block)?,
        };
        // Checks the end of the document; a following document is ignored.
        self.scanner.peek()?;
        node.data.into_value()
    }

    fn directives(&mut self) -> Result<()> {
        let mut versioned = false;
        loop {
            match self.scanner.peek()? {
                (Token::Version { major, minor }, mark) => {
                    if versioned {
                        return Err(problem("found duplicate %YAML directive", mark, None));
                    }
                    if (*major, *minor) != (1, 1) {
                        return Err(problem("found incompatible YAML document", mark, None));
                    }
                    versioned = true;
                }
                (Token::TagPrefix { handle, prefix }, mark) => {
                    if self.prefixes.iter().any(|(known, _)| known == handle) {
                        return Err(problem("found duplicate %TAG directive", mark, None));
                    }
                    self.prefixes.push((handle.clone(), prefix.clone()));
                }
                _ => return Ok(()),
            }
            self.scanner.next()?;
        }
    }

    fn node(&mut self, place: Position) -> Result<Node> {
        self.counted += 1;
        let (token, start) = self.scanner.peek()?;
        if let Token::Alias(name) = token {
            let name = name.clone();
            self.scanner.next()?;
            return self.alias(&name, start);
        }
        let properties = self.properties()?;
        if let Some(anchor) = &properties.anchor {
            self.budget.text(anchor)?;
            self.anchors.insert(anchor.clone(), AnchorState::Open);
        }
        let (data, merges) = self.content(place, &properties, start)?;
        if let Some(anchor) = properties.anchor {
            if let Data::Tree(value) = &data {
                self.budget.tree(value)?;
            }
            self.anchors.insert(anchor, AnchorState::Node(data.clone()));
        }
        Ok(Node { data, line: start.line, merges })
    }

    fn alias(&mut self, name: &str, start: Mark) -> Result<Node> {
        let data = match self.anchors.get(name) {
            None => return Err(YamlError::new(format!("unknown anchor '{name}' referenced"))),
            Some(AnchorState::Open) => {
                return Err(YamlError::new(format!("anchor '{name}' value contains itself")));
            }
            Some(AnchorState::Node(data)) => data,
        };
        let nodes = match data {
            Data::Scalar(Scalar::Text(text)) => {
                self.budget.text(text)?;
                1
            }
            Data::Scalar(_) => 1,
            Data::Tree(value) => {
                self.budget.tree(value)?;
                nodes(value)
            }
        };
        self.counted += nodes;
        self.aliased += nodes;
        if is_excessive(self.counted, self.aliased) {
            return Err(YamlError::new("document contains excessive aliasing".to_owned()));
        }
        Ok(Node { data: data.clone(), line: start.line, merges: false })
    }

    fn properties(&mut self) -> Result<Properties> {
        let mut found = Properties::default();
        loop {
            match self.scanner.peek()?.0 {
                Token::Anchor(_) if found.anchor.is_none() => {
                    if let (Token::Anchor(name), _) = self.scanner.next()? {
                        found.anchor = Some(name);
                    }
                }
                Token::Tag { .. } if found.tag.is_none() => {
                    if let (Token::Tag { handle, suffix }, mark) = self.scanner.next()? {
                        found.tag = Some(self.tag(&handle, suffix, mark)?);
                    }
                }
                _ => return Ok(found),
            }
        }
    }

    fn tag(&self, handle: &str, suffix: String, mark: Mark) -> Result<String> {
        if handle.is_empty() {
            return Ok(suffix);
        }
        let known = self.prefixes.iter().find(|(known, _)| known == handle);
        match known {
            Some((_, prefix)) => Ok(format!("{prefix}{suffix}")),
            None => Err(problem("found undefined tag handle", mark, Some(mark))),
        }
    }

    fn content(
        &mut self,
        place: Position,
        properties: &Properties,
        start: Mark,
    ) -> Result<(Data, bool)> {
        let block = place != Position::Flow;
        let tag = properties.tag.as_deref();
        let (token, mark) = self.scanner.peek()?;
        let tree = match token {
            Token::BlockEntry if place == Position::Member => {
                self.nested(|this| this.entries(None))?
            }
            Token::Scalar { .. } => {
                let (Token::Scalar { text, plain }, _) = self.scanner.next()? else {
                    return Err(YamlError::new("a token was lost".to_owned()));
                };
                self.budget.text(&text)?;
                let plain = plain && tag.is_none();
                let merges = text == "<<" && (plain || tag == Some(resolve::MERGE));
                return Ok((Data::Scalar(resolve::scalar(tag, plain, text)?), merges));
            }
            Token::FlowSequenceStart => self.nested(|this| this.flow_sequence(start))?,
            Token::FlowMappingStart => self.nested(|this| this.flow_mapping(start))?,
            Token::BlockSequenceStart if block => {
                self.scanner.next()?;
                self.nested(|this| this.entries(Some(mark)))?
            }
            Token::BlockMappingStart if block => self.nested(Self::block_mapping)?,
            _ if properties.anchor.is_some() || tag.is_some() => {
                let scalar = resolve::scalar(tag, tag.is_none(), String::new())?;
                return Ok((Data::Scalar(scalar), false));
            }
            _ => return Err(problem("did not find expected node content", mark, Some(start))),
        };
        Ok((Data::Tree(tree), false))
    }

    fn nested(&mut self, read: impl FnOnce(&mut Self) -> Result<Value>) -> Result<Value> {
        self.budget.enter()?;
        let value = read(self)?;
        self.budget.leave();
        Ok(value)
    }

    /// Reads a node, or an empty one if the next token ends it.
    fn node_unless(&mut self, place: Position, ends: impl Fn(&Token) -> bool) -> Result<Node> {
        match self.scanner.peek()? {
            (token, mark) if ends(token) => Ok(Node::empty(mark.line)),
            _ => self.node(place),
        }
    }

    fn item(&mut self, items: &mut Vec<Value>, node: Node) -> Result<()> {
        self.budget.item()?;
        items.push(node.data.into_value()?);
        Ok(())
    }

    /// Reads the entries of a block sequence. `start` is `None` for an unindented one, which ends after its entries.
    fn entries(&mut self, start: Option<Mark>) -> Result<Value> {
        let mut items = Vec::new();
        while *self.scanner.peek()?.0 == Token::BlockEntry {
            self.scanner.next()?;
            let node = self.node_unless(Position::Block, |token| match token {
                Token::BlockEntry | Token::BlockEnd => true,
                Token::Key | Token::Value => start.is_none(),
                _ => false,
            })?;
            self.item(&mut items, node)?;
        }
        if start.is_some() {
            let (token, mark) = self.scanner.peek()?;
            if *token != Token::BlockEnd {
                return Err(problem("did not find expected '-' indicator", mark, start));
            }
            self.scanner.next()?;
        }
        Ok(Value::Array(items))
    }

    fn block_mapping(&mut self) -> Result<Value> {
        let (_, start) = self.scanner.next()?;
        let ends = |token: &Token| matches!(token, Token::Key | Token::Value | Token::BlockEnd);
        let mut members = Map::new();
        loop {
            match self.scanner.next()? {
                (Token::Key, _) => {}
                (Token::BlockEnd, _) => return Ok(Value::Object(members)),
                (_, mark) => {
                    return Err(problem("did not find expected key", mark, Some(start)));
                }
            }
            let key = self.node_unless(Position::Member, ends)?;
            let value = match self.scanner.peek()? {
                (Token::Value, _) => {
                    self.scanner.next()?;
                    self.node_unless(Position::Member, ends)?
                }
                (_, mark) => Node::empty(mark.line),
            };
            self.member(&mut members, key, value)?;
        }
    }

    fn flow_sequence(&mut self, start: Mark) -> Result<Value> {
        self.scanner.next()?;
        let mut items = Vec::new();
        loop {
            if self.flow_ends(&Token::FlowSequenceEnd, items.is_empty(), start)? {
                return Ok(Value::Array(items));
            }
            let (token, mark) = self.scanner.peek()?;
            let node = if *token == Token::Key {
                let tree = self.nested(Self::pair)?;
                Node { data: Data::Tree(tree), line: mark.line, merges: false }
            } else {
                self.node(Position::Flow)?
            };
            self.item(&mut items, node)?;
        }
    }

    /// Skips the `,` between entries, and the end of a flow collection. Returns `true` at the end.
    fn flow_ends(&mut self, end: &Token, first: bool, start: Mark) -> Result<bool> {
        let (token, mark) = self.scanner.peek()?;
        if token != end && !first {
            if *token != Token::FlowEntry {
                let closing = if *end == Token::FlowSequenceEnd { ']' } else { '}' };
                let text = format!("did not find expected ',' or '{closing}'");
                return Err(problem(&text, mark, Some(start)));
            }
            self.scanner.next()?;
        }
        let ends = self.scanner.peek()?.0 == end;
        if ends {
            self.scanner.next()?;
        }
        Ok(ends)
    }

    /// Reads a mapping of one pair, which may be in a flow sequence without braces.
    fn pair(&mut self) -> Result<Value> {
        self.scanner.next()?;
        let mut members = Map::new();
        let key = self.node_unless(Position::Flow, |token| {
            matches!(token, Token::Value | Token::FlowEntry | Token::FlowSequenceEnd)
        })?;
        let value = self.flow_value(&Token::FlowSequenceEnd)?;
        self.member(&mut members, key, value)?;
        Ok(Value::Object(members))
    }

    fn flow_value(&mut self, end: &Token) -> Result<Node> {
        match self.scanner.peek()? {
            (Token::Value, _) => {
                self.scanner.next()?;
                self.node_unless(Position::Flow, |token| *token == Token::FlowEntry || token == end)
            }
            (_, mark) => Ok(Node::empty(mark.line)),
        }
    }

    fn flow_mapping(&mut self, start: Mark) -> Result<Value> {
        self.scanner.next()?;
        let mut members = Map::new();
        let mut first = true;
        while !self.flow_ends(&Token::FlowMappingEnd, first, start)? {
            first = false;
            let (token, mark) = self.scanner.peek()?;
            let (key, value) = if *token == Token::Key {
                self.scanner.next()?;
                let key = self.node_unless(Position::Flow, |token| {
                    matches!(token, Token::Value | Token::FlowEntry | Token::FlowMappingEnd)
                })?;
                (key, self.flow_value(&Token::FlowMappingEnd)?)
            } else {
                (self.node(Position::Flow)?, Node::empty(mark.line))
            };
            self.member(&mut members, key, value)?;
        }
        Ok(Value::Object(members))
    }

    fn member(&mut self, members: &mut Map<String, Value>, key: Node, value: Node) -> Result<()> {
        if key.merges {
            return self.merge(members, value);
        }
        let (name, label) = match key.data {
            Data::Scalar(scalar) => scalar.into_key()?,
            Data::Tree(value) => {
                return Err(YamlError::new(format!("invalid map key: {value}")));
            }
        };
        let (line, value) = (value.line, value.data.into_value()?);
        self.put(members, name, &label, value, line)
    }

    fn put(
        &mut self,
        members: &mut Map<String, Value>,
        name: String,
        label: &str,
        value: Value,
        line: usize,
    ) -> Result<()> {
        // The text of the key was counted when it was read.
        self.budget.member("", members.is_empty())?;
        if members.insert(name, value).is_some() && self.strict {
            self.budget.text(label)?;
            let line = line + 1;
            self.duplicates.push(format!("line {line}: key {label} already set in map"));
        }
        Ok(())
    }

    /// Merges the mappings that `<<` names. The first of several wins.
    fn merge(&mut self, members: &mut Map<String, Value>, node: Node) -> Result<()> {
        let line = node.line;
        let sources = match node.data {
            Data::Tree(Value::Array(items)) => items,
            Data::Tree(value) => vec![value],
            Data::Scalar(_) => Vec::new(),
        };
        if sources.is_empty() || !sources.iter().all(Value::is_object) {
            let problem = "map merge requires map or sequence of maps as the value";
            return Err(YamlError::new(problem.to_owned()));
        }
        for value in sources.into_iter().rev() {
            let Value::Object(merged) = value else { continue };
            for (name, value) in merged {
                let label = api_meta::go_quote(&name);
                self.put(members, name, &label, value, line)?;
            }
        }
        Ok(())
    }
}

/// Returns the number of nodes in a tree. Keys are nodes too.
fn nodes(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(nodes).sum::<usize>(),
        Value::Object(members) => 1 + members.values().map(|value| 1 + nodes(value)).sum::<usize>(),
        _ => 1,
    }
}

/// Reports whether too many of a document's nodes come from aliases. Go allows 99 of 100 in a small document, and one
/// of ten in a large one.
fn is_excessive(counted: usize, aliased: usize) -> bool {
    const SMALL: f64 = 400_000.0;
    const LARGE: f64 = 4_000_000.0;
    let size = (counted as f64).clamp(SMALL, LARGE);
    let allowed = 0.99 - 0.89 * (size - SMALL) / (LARGE - SMALL);
    aliased > 100 && counted > 1000 && aliased as f64 / counted as f64 > allowed
}

/// Returns the error for an unexpected token. `start` is the beginning of the surrounding construct.
fn problem(text: &str, mark: Mark, start: Option<Mark>) -> YamlError {
    // Here Go counts lines from zero.
    let line = if mark.line > 0 { mark.line } else { start.map_or(0, |start| start.line) };
    YamlError::at(line, text)
}
