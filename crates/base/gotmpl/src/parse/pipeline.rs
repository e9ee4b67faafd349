//! Parses the contents of actions: pipelines, commands and operands.

use super::{Parser, Result};
use crate::{
    ast::{Arg, ArgKind, Command, Pipe},
    funcs,
    lex::{Kind, Token},
    number::{self, Number},
};

impl Parser<'_> {
    pub(super) fn pipeline(&mut self, context: &str, end: Kind) -> Result<Pipe> {
        let pos = self.peek_non_space().pos;
        let mut pipe = Pipe { pos, assign: false, variables: Vec::new(), commands: Vec::new() };
        self.declarations(context, &mut pipe)?;
        loop {
            let token = self.take_non_space();
            match token.kind {
                kind if kind == end => {
                    self.check(&pipe, context)?;
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
                    let command = self.command()?;
                    pipe.commands.push(command);
                }
                _ => return self.unexpected(&token, context),
            }
        }
    }

    /// Parses `$x :=`, `$x =` or `$i, $x :=` before a pipeline. The variables count as declared from here on. An access
    /// to a variable without a value fails at execution.
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
                    self.declare(variable, pipe);
                    return Ok(());
                }
                Kind::Char if next.text == "," => {
                    self.take();
                    self.declare(variable, pipe);
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

    fn declare(&mut self, variable: Token, pipe: &mut Pipe) {
        self.variables.push(variable.text.clone());
        pipe.variables.push(variable.text);
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
                    | ArgKind::Unsigned(_)
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
                // The next command may be missing.
                Kind::Pipe => {}
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
            | ArgKind::Unsigned(_)
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
                let name = token.text.as_str();
                let is_include = self.includes && name == funcs::INCLUDE;
                if !funcs::is_builtin(name) && !self.functions.contains_key(name) && !is_include {
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
                    let name = crate::format::quote(&token.text);
                    return self.error(format_args!("undefined variable {name}"));
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
            let unquoted = number::unquote(&text).unwrap_or_default();
            let mut chars = unquoted.chars();
            return match (chars.next(), chars.next()) {
                (Some(c), None) => Ok(ArgKind::Int { value: u32::from(c).into(), text }),
                (None, _) => self.error("invalid syntax"),
                _ => self.error(format_args!("malformed character constant: {text}")),
            };
        }
        match number::parse(&text) {
            Ok(Number::Int(value)) => Ok(ArgKind::Int { value, text }),
            Ok(Number::Float(value)) => Ok(ArgKind::Float { value, text }),
            Ok(Number::Unsigned) => Ok(ArgKind::Unsigned(text)),
            Err(wrong) => {
                self.error(format_args!("{}: {}", wrong.text(), crate::format::quote(&text)))
            }
        }
    }
}
