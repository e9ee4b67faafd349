//! The syntax tree, and its output in Go's messages.

use std::fmt::{self, Display, Formatter, Write};

/// A byte offset in the template's text.
pub(crate) type Pos = usize;

#[derive(Clone, Debug)]
pub(crate) enum Node {
    Text(String),
    Action(Pipe),
    If(Branch),
    With(Branch),
    Range(Branch),
    Template(Call),
    Break,
    Continue,
}

#[derive(Clone, Debug)]
pub(crate) struct Branch {
    pub(crate) pipe: Pipe,
    pub(crate) list: Vec<Node>,
    pub(crate) otherwise: Vec<Node>,
}

/// A call `{{template "name" pipeline}}`.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) pos: Pos,
    pub(crate) name: String,
    pub(crate) pipe: Option<Pipe>,
}

#[derive(Clone, Debug)]
pub(crate) struct Pipe {
    pub(crate) pos: Pos,
    /// `true` for `=`, `false` for `:=`.
    pub(crate) assign: bool,
    pub(crate) variables: Vec<String>,
    pub(crate) commands: Vec<Command>,
}

#[derive(Clone, Debug)]
pub(crate) struct Command {
    pub(crate) pos: Pos,
    /// Never empty.
    pub(crate) args: Vec<Arg>,
}

#[derive(Clone, Debug)]
pub(crate) struct Arg {
    pub(crate) pos: Pos,
    pub(crate) kind: ArgKind,
}

#[derive(Clone, Debug)]
pub(crate) enum ArgKind {
    Dot,
    Nil,
    Bool(bool),
    Int {
        value: i64,
        text: String,
    },
    Float {
        value: f64,
        text: String,
    },
    /// A whole number that only fits into an unsigned type. Its evaluation is an error.
    Unsigned(String),
    Text {
        value: String,
        quoted: String,
    },
    Function(String),
    Field(Vec<String>),
    /// The variable's name with its `$`, then the fields.
    Variable(String, Vec<String>),
    Chain(Box<Arg>, Vec<String>),
    Pipe(Box<Pipe>),
}

fn fields(f: &mut Formatter<'_>, names: &[String]) -> fmt::Result {
    names.iter().try_for_each(|name| write!(f, ".{name}"))
}

impl Arg {
    /// Formats the argument as in the template, without surrounding parentheses.
    pub(crate) fn bare(&self) -> String {
        match &self.kind {
            ArgKind::Pipe(pipe) => pipe.to_string(),
            _ => self.to_string(),
        }
    }
}

impl Display for Arg {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match &self.kind {
            ArgKind::Dot => f.write_char('.'),
            ArgKind::Nil => f.write_str("nil"),
            ArgKind::Bool(value) => write!(f, "{value}"),
            ArgKind::Int { text, .. }
            | ArgKind::Float { text, .. }
            | ArgKind::Unsigned(text)
            | ArgKind::Text { quoted: text, .. } => f.write_str(text),
            ArgKind::Function(name) => f.write_str(name),
            ArgKind::Field(names) => fields(f, names),
            ArgKind::Variable(name, names) => {
                f.write_str(name)?;
                fields(f, names)
            }
            ArgKind::Chain(start, names) => {
                match start.kind {
                    ArgKind::Pipe(_) => write!(f, "{start}")?,
                    _ => write!(f, "({start})")?,
                }
                fields(f, names)
            }
            ArgKind::Pipe(pipe) => write!(f, "({pipe})"),
        }
    }
}

impl Display for Command {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (i, arg) in self.args.iter().enumerate() {
            if i > 0 {
                f.write_char(' ')?;
            }
            write!(f, "{arg}")?;
        }
        Ok(())
    }
}

impl Display for Pipe {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if !self.variables.is_empty() {
            f.write_str(&self.variables.join(", "))?;
            f.write_str(if self.assign { " = " } else { " := " })?;
        }
        for (i, command) in self.commands.iter().enumerate() {
            if i > 0 {
                f.write_str(" | ")?;
            }
            write!(f, "{command}")?;
        }
        Ok(())
    }
}

impl Display for Call {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{{{{template {}", crate::format::quote(&self.name))?;
        if let Some(pipe) = &self.pipe {
            write!(f, " {pipe}")?;
        }
        f.write_str("}}")
    }
}
