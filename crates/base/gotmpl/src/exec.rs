//! Executes a template by walking its tree.

use std::fmt::Display;

use serde_json::Value;

use crate::{
    ast::{Arg, ArgKind, Branch, Call, Command, Node, Pipe},
    error::{Error, ErrorKind, Message},
    format, funcs,
    options::MissingKey,
    template::Template,
    value::Val,
};

type Result<T> = std::result::Result<T, Error>;

impl Template {
    /// Executes the template. The output of a failed execution is dropped.
    pub fn execute(&self, data: &Value) -> Result<String> {
        execute(self, &self.name, data)
    }
}

fn execute(template: &Template, name: &str, data: &Value) -> Result<String> {
    let mut state = State {
        template,
        name,
        at: Location::Nowhere,
        variables: Vec::new(),
        out: String::new(),
        steps: 0,
        depth: 0,
    };
    let Some(tree) = template.trees.get(name) else {
        let message =
            format!("template: {name}: {} is an incomplete or empty template", format::quote(name));
        return Err(Error { kind: ErrorKind::Execute, line: 1, message });
    };
    state.variables.push(("$", Val::from(data)));
    state.list(&Val::from(data), tree)?;
    Ok(state.out)
}

/// The part of the template that is being evaluated, for messages.
#[derive(Clone, Copy)]
enum Location<'t> {
    Nowhere,
    Arg(&'t Arg),
    Command(&'t Command),
    Pipe(&'t Pipe),
    Call(&'t Call),
}

/// The way in which a list of nodes ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flow {
    On,
    Break,
    Continue,
}

struct State<'t, 'd> {
    template: &'t Template,
    /// The name of the current template, which is another one within `{{template}}`.
    name: &'t str,
    at: Location<'t>,
    variables: Vec<(&'t str, Val<'d>)>,
    out: String,
    steps: usize,
    depth: usize,
}

impl<'t, 'd> State<'t, 'd> {
    fn fail<T>(&self, kind: ErrorKind, message: impl Display) -> Result<T> {
        let (pos, context) = match self.at {
            Location::Nowhere => (None, String::new()),
            Location::Arg(arg) => (Some(arg.pos), arg.to_string()),
            Location::Command(command) => (Some(command.pos), command.to_string()),
            Location::Pipe(pipe) => (Some(pipe.pos), pipe.to_string()),
            Location::Call(call) => (Some(call.pos), call.to_string()),
        };
        let Some(pos) = pos else {
            let message = format!("template: {}: {message}", self.name);
            return Err(Error { kind, line: 1, message });
        };
        let before = &self.template.text[..pos];
        let line = 1 + before.matches('\n').count();
        let column = before.rfind('\n').map_or(pos, |newline| pos - newline - 1);
        let message = format!(
            "template: {}:{line}:{column}: executing {} at <{context}>: {message}",
            self.template.name,
            format::quote(self.name),
        );
        Err(Error { kind, line, message })
    }

    fn error<T>(&self, message: impl Display) -> Result<T> {
        self.fail(ErrorKind::Execute, message)
    }

    fn spend(&mut self, steps: usize) -> Result<()> {
        self.steps += steps;
        if self.steps > self.template.limits.steps {
            let limit = self.template.limits.steps;
            return self.fail(
                ErrorKind::Limit,
                format_args!("stopped after {limit} steps; does the template loop?"),
            );
        }
        Ok(())
    }

    fn write(&mut self, text: &str) -> Result<()> {
        if self.out.len() + text.len() > self.template.limits.output {
            let limit = self.template.limits.output;
            return self
                .fail(ErrorKind::Limit, format_args!("output is longer than {limit} bytes"));
        }
        self.out.push_str(text);
        Ok(())
    }

    fn list(&mut self, dot: &Val<'d>, nodes: &'t [Node]) -> Result<Flow> {
        let limit = self.template.limits.depth;
        if self.depth == limit {
            return self
                .fail(ErrorKind::Limit, format_args!("exceeded maximum template depth ({limit})"));
        }
        self.depth += 1;
        let mut flow = Flow::On;
        for node in nodes {
            flow = self.node(dot, node)?;
            if flow != Flow::On {
                break;
            }
        }
        self.depth -= 1;
        Ok(flow)
    }

    fn node(&mut self, dot: &Val<'d>, node: &'t Node) -> Result<Flow> {
        self.spend(1)?;
        match node {
            Node::Text(text) => self.write(text)?,
            Node::Action(pipe) => {
                let value = self.pipe(dot, pipe)?;
                if pipe.variables.is_empty() {
                    self.print(&value)?;
                }
            }
            Node::If(branch) => return self.branch(dot, branch, false),
            Node::With(branch) => return self.branch(dot, branch, true),
            Node::Range(branch) => return self.range(dot, branch),
            Node::Template(call) => self.call_template(dot, call)?,
            Node::Break => return Ok(Flow::Break),
            Node::Continue => return Ok(Flow::Continue),
        }
        Ok(Flow::On)
    }

    fn print(&mut self, value: &Val<'d>) -> Result<()> {
        match value {
            Val::Missing | Val::Nil => self.write("<no value>"),
            Val::Text(text) => self.write(text),
            value => {
                let text = format::plain(value);
                self.spend(text.len() / 16)?;
                self.write(&text)
            }
        }
    }

    fn branch(&mut self, dot: &Val<'d>, branch: &'t Branch, with: bool) -> Result<Flow> {
        let scope = self.variables.len();
        let value = self.pipe(dot, &branch.pipe)?;
        let flow = if value.truth() {
            self.list(if with { &value } else { dot }, &branch.list)
        } else {
            self.list(dot, &branch.otherwise)
        };
        self.variables.truncate(scope);
        flow
    }

    fn range(&mut self, dot: &Val<'d>, branch: &'t Branch) -> Result<Flow> {
        let scope = self.variables.len();
        let value = self.pipe(dot, &branch.pipe)?;
        let inner = self.variables.len();
        let mut ran = false;
        match &value {
            Val::List(items) => {
                for (i, item) in items.iter().enumerate() {
                    ran = true;
                    let index = Val::Int(i64::try_from(i).unwrap_or(i64::MAX));
                    if self.iteration(branch, inner, index, Val::from(item))? == Flow::Break {
                        break;
                    }
                }
            }
            Val::Map(map) => {
                for (key, item) in *map {
                    ran = true;
                    let key = Val::Text(key.as_str().into());
                    if self.iteration(branch, inner, key, Val::from(item))? == Flow::Break {
                        break;
                    }
                }
            }
            Val::Int(count) => {
                for i in 0..*count {
                    ran = true;
                    if self.iteration(branch, inner, Val::Int(i), Val::Int(i))? == Flow::Break {
                        break;
                    }
                }
            }
            Val::Missing | Val::Nil => {}
            other => {
                return self
                    .error(format_args!("range can't iterate over {}", format::plain(other)));
            }
        }
        let flow = if ran { Ok(Flow::On) } else { self.list(dot, &branch.otherwise) };
        self.variables.truncate(scope);
        flow
    }

    /// Runs one iteration of a range.
    fn iteration(
        &mut self,
        branch: &'t Branch,
        scope: usize,
        index: Val<'d>,
        item: Val<'d>,
    ) -> Result<Flow> {
        self.spend(1)?;
        let values = match branch.pipe.variables.len() {
            0 => vec![],
            1 => vec![item.clone()],
            _ => vec![index, item.clone()],
        };
        for (name, value) in branch.pipe.variables.iter().zip(values) {
            self.set(name, value)?;
        }
        let flow = self.list(&item, &branch.list)?;
        self.variables.truncate(scope);
        Ok(flow)
    }

    fn call_template(&mut self, dot: &Val<'d>, call: &'t Call) -> Result<()> {
        self.at = Location::Call(call);
        let template = self.template;
        let Some((name, tree)) = template.trees.get_key_value(&call.name) else {
            return self.error(format_args!("template {} not defined", format::quote(&call.name)));
        };
        let dot = match &call.pipe {
            Some(pipe) => self.pipe(dot, pipe)?,
            None => Val::Missing,
        };
        let caller = std::mem::replace(&mut self.name, name);
        let variables = std::mem::replace(&mut self.variables, vec![("$", dot.clone())]);
        self.list(&dot, tree)?;
        self.variables = variables;
        self.name = caller;
        Ok(())
    }

    fn set(&mut self, name: &str, value: Val<'d>) -> Result<()> {
        match self.variables.iter_mut().rev().find(|(known, _)| *known == name) {
            Some((_, place)) => {
                *place = value;
                Ok(())
            }
            None => self.error(format_args!("undefined variable: {name}")),
        }
    }

    fn pipe(&mut self, dot: &Val<'d>, pipe: &'t Pipe) -> Result<Val<'d>> {
        self.spend(1)?;
        self.at = Location::Pipe(pipe);
        let mut value = None;
        for command in &pipe.commands {
            value = Some(self.command(dot, command, value)?.unwrapped());
        }
        let value = value.unwrap_or(Val::Missing);
        for name in &pipe.variables {
            if pipe.assign {
                self.set(name, value.clone())?;
            } else {
                self.variables.push((name, value.clone()));
            }
        }
        Ok(value)
    }

    /// Evaluates one command. `last` is the value that the pipeline passes as its last argument.
    fn command(
        &mut self,
        dot: &Val<'d>,
        command: &'t Command,
        last: Option<Val<'d>>,
    ) -> Result<Val<'d>> {
        let first = &command.args[0];
        let has_args = command.args.len() > 1 || last.is_some();
        match &first.kind {
            ArgKind::Function(name) => return self.function(dot, first, name, command, last),
            ArgKind::Field(_) | ArgKind::Chain(..) => return self.fields(dot, first, has_args),
            ArgKind::Variable(_, names) if !names.is_empty() => {
                return self.fields(dot, first, has_args);
            }
            _ => {}
        }
        if !matches!(first.kind, ArgKind::Pipe(_)) {
            self.at = Location::Arg(first);
        }
        if has_args {
            return self
                .error(format_args!("can't give argument to non-function {}", first.bare()));
        }
        match first.kind {
            ArgKind::Nil => self.error("nil is not a command"),
            _ => self.arg(dot, first),
        }
    }

    /// Evaluates an operand.
    fn arg(&mut self, dot: &Val<'d>, arg: &'t Arg) -> Result<Val<'d>> {
        self.spend(1)?;
        if !matches!(arg.kind, ArgKind::Pipe(_)) {
            self.at = Location::Arg(arg);
        }
        Ok(match &arg.kind {
            ArgKind::Dot => dot.clone(),
            ArgKind::Nil => Val::Missing,
            ArgKind::Bool(value) => Val::Bool(*value),
            ArgKind::Int { value, .. } => Val::Int(*value),
            ArgKind::Float { value, .. } => Val::Float(*value),
            ArgKind::Unsigned(text) => return self.error(format_args!("{text} overflows int")),
            ArgKind::Text { value, .. } => Val::text(value.as_str()),
            ArgKind::Function(name) => {
                // A function as an operand is called without arguments.
                return self.invoke(Location::Arg(arg), name, Vec::new(), "");
            }
            ArgKind::Pipe(pipe) => return self.pipe(dot, pipe),
            ArgKind::Field(_) | ArgKind::Variable(..) | ArgKind::Chain(..) => {
                return self.fields(dot, arg, false);
            }
        })
    }

    fn fields(&mut self, dot: &Val<'d>, arg: &'t Arg, has_args: bool) -> Result<Val<'d>> {
        self.at = Location::Arg(arg);
        let (mut value, names) = match &arg.kind {
            ArgKind::Field(names) => (dot.clone(), names),
            ArgKind::Variable(name, names) => {
                let known = self.variables.iter().rev().find(|(known, _)| known == name);
                match known.cloned() {
                    Some((_, value)) => (value, names),
                    None => return self.error(format_args!("undefined variable: {name}")),
                }
            }
            ArgKind::Chain(start, names) => {
                // An error in a field is reported at the origin of its map.
                (self.arg(dot, start)?.unwrapped(), names)
            }
            _ => return self.arg(dot, arg),
        };
        for (i, name) in names.iter().enumerate() {
            let with_args = has_args && i + 1 == names.len();
            value = self.field(value, name, with_args, i > 0)?;
        }
        Ok(value)
    }

    fn field(&self, value: Val<'d>, name: &str, args: bool, inner: bool) -> Result<Val<'d>> {
        let strict = self.template.missing_key == MissingKey::Error;
        match value {
            Val::Missing if strict => {
                self.error(format_args!("nil data; no entry for key {}", format::quote(name)))
            }
            Val::Missing => Ok(Val::Missing),
            Val::Nil => self.error(format_args!("nil pointer evaluating interface {{}}.{name}")),
            Val::Map(_) if args => {
                self.error(format_args!("{name} is not a method but has arguments"))
            }
            Val::Map(map) => match map.get(name) {
                Some(value) => Ok(value.into()),
                None if strict => {
                    self.error(format_args!("map has no entry for key {}", format::quote(name)))
                }
                None if self.template.missing_key == MissingKey::Zero => Ok(Val::Nil),
                None => Ok(Val::Missing),
            },
            other => {
                let type_name = if inner { "interface {}" } else { other.type_name() };
                self.error(format_args!("can't evaluate field {name} in type {type_name}"))
            }
        }
    }

    fn function(
        &mut self,
        dot: &Val<'d>,
        node: &'t Arg,
        name: &str,
        command: &'t Command,
        last: Option<Val<'d>>,
    ) -> Result<Val<'d>> {
        self.at = Location::Arg(node);
        let operands = &command.args[1..];
        self.check_arity(name, operands.len() + usize::from(last.is_some()), operands.len())?;
        if matches!(name, "and" | "or") {
            let mut value = Val::Missing;
            for operand in operands {
                value = self.arg(dot, operand)?;
                if value.truth() == (name == "or") {
                    return Ok(value);
                }
            }
            return Ok(last.unwrap_or(value));
        }
        let mut args = Vec::with_capacity(operands.len() + 1);
        for (i, operand) in operands.iter().enumerate() {
            let value = self.arg(dot, operand)?;
            let wants_string = i == 0 && funcs::arity(name).is_some_and(|arity| arity.wants_string);
            args.push(if wants_string { self.string(operand, value)? } else { value });
        }
        args.extend(last);
        let first = operands.first().map(Arg::bare).unwrap_or_default();
        self.invoke(Location::Command(command), name, args, &first)
    }

    fn check_arity(&self, name: &str, given: usize, written: usize) -> Result<()> {
        let Some(arity) = funcs::arity(name) else { return Ok(()) };
        if arity.variadic && given < arity.least {
            let least = arity.least;
            return self.error(format_args!(
                "wrong number of args for {name}: want at least {least} got {written}"
            ));
        }
        if !arity.variadic && given != arity.least {
            let want = arity.least;
            return self
                .error(format_args!("wrong number of args for {name}: want {want} got {given}"));
        }
        Ok(())
    }

    fn string(&self, operand: &Arg, value: Val<'d>) -> Result<Val<'d>> {
        match (&value, &operand.kind) {
            (Val::Text(_), _) => Ok(value),
            (_, ArgKind::Bool(_) | ArgKind::Int { .. } | ArgKind::Float { .. } | ArgKind::Nil) => {
                self.error(format_args!("expected string; found {operand}"))
            }
            (Val::Missing | Val::Nil, _) => self.error("invalid value; expected string"),
            (other, _) => self.error(format_args!(
                "wrong type for value; expected string; got {}",
                other.type_name()
            )),
        }
    }

    /// Calls a function. `at` is the location of errors, and `first` the text of the first argument.
    fn invoke(
        &mut self,
        at: Location<'t>,
        name: &str,
        args: Vec<Val<'d>>,
        first: &str,
    ) -> Result<Val<'d>> {
        if funcs::is_builtin(name) {
            self.check_arity(name, args.len(), args.len())?;
        }
        let template = self.template;
        let outcome = match template.functions.get(name) {
            Some(function) => {
                let args: Vec<Value> = args.iter().map(Val::to_json).collect();
                let value = function(&args).map_err(|error| Message::from(error.to_string()));
                value.and_then(|value| {
                    Val::scalar(value).ok_or_else(|| "result is not a scalar".into())
                })
            }
            None => funcs::call(name, &args, template.limits.output, first),
        };
        match outcome {
            Ok(value) => {
                if let Val::Text(text) = &value {
                    if text.len() > template.limits.output {
                        let limit = template.limits.output;
                        return self.fail(
                            ErrorKind::Limit,
                            format_args!("text longer than {limit} bytes"),
                        );
                    }
                    self.spend(text.len() / 16)?;
                }
                Ok(value)
            }
            Err(message) => {
                self.at = at;
                self.error(format_args!("error calling {name}: {message}"))
            }
        }
    }
}
