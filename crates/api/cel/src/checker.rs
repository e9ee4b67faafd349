//! Type checking: the types of expressions and the resolution of names.

use crate::{
    ast::{Comprehension, Element, Entry, Expr, Kind, Literal, Macro, StructField},
    env::Env,
    error::{Issue, Issues},
    overloads::Overload,
    parser::ParsedExpr,
    types::Type,
    unify::Types,
};

/// The resolution of a name or call.
#[derive(Clone, Debug, Default)]
pub(crate) enum Reference {
    #[default]
    None,
    /// A variable of the environment, by index.
    Variable(usize),
    /// A variable of a macro, by its index in the stack of bound variables.
    Local(usize),
    /// The name of a type.
    Type(Type),
    /// The possible overloads of a call. `qualified` is set if the target is the function's namespace.
    Overloads { overloads: Vec<&'static Overload>, qualified: bool },
}

/// The result of type checking, by expression ID.
#[derive(Debug)]
pub(crate) struct CheckResult {
    pub(crate) types: Vec<Type>,
    pub(crate) references: Vec<Reference>,
}

impl CheckResult {
    pub(crate) fn ty(&self, expr: &Expr) -> &Type {
        &self.types[expr.id]
    }

    pub(crate) fn reference(&self, expr: &Expr) -> &Reference {
        &self.references[expr.id]
    }
}

pub(crate) fn check(env: &Env, parsed: &ParsedExpr) -> Result<CheckResult, Issues> {
    let mut checker = Checker {
        env,
        types: Types::default(),
        expr_types: vec![Type::Error; parsed.count],
        references: vec![Reference::None; parsed.count],
        locals: Vec::new(),
        issues: Vec::new(),
    };
    checker.expr(&parsed.root);
    if !checker.issues.is_empty() {
        return Err(Issues::new(parsed.source.clone(), checker.issues));
    }
    let types = checker.expr_types.iter().map(|ty| checker.types.settle(ty)).collect();
    Ok(CheckResult { types, references: checker.references })
}

struct Checker<'e> {
    env: &'e Env,
    types: Types,
    expr_types: Vec<Type>,
    references: Vec<Reference>,
    locals: Vec<(String, Type)>,
    issues: Vec<Issue>,
}

fn literal(literal: &Literal) -> Type {
    match literal {
        Literal::Null => Type::Null,
        Literal::Bool(_) => Type::Bool,
        Literal::Int(_) => Type::Int,
        Literal::Uint(_) => Type::Uint,
        Literal::Double(_) => Type::Double,
        Literal::String(_) => Type::String,
        Literal::Bytes(_) => Type::Bytes,
    }
}

impl Checker<'_> {
    fn issue(&mut self, at: u32, message: String) -> Type {
        self.issues.push(Issue::new(at, message));
        Type::Error
    }

    fn undeclared(&mut self, at: u32, name: &str) -> Type {
        let container = self.env.container();
        let name = name.strip_prefix('.').unwrap_or(name);
        let message = format!("undeclared reference to '{name}' (in container '{container}')");
        self.issue(at, message)
    }

    fn expr(&mut self, expr: &Expr) -> Type {
        let ty = match &expr.kind {
            Kind::Literal(value) => literal(value),
            Kind::Ident(name) => match self.name(expr.id, name) {
                Some(ty) => ty,
                None => self.undeclared(expr.at, name),
            },
            Kind::Select { operand, field, test } => self.select(expr, operand, field, *test),
            Kind::Call { function, target, args } => {
                self.call(expr, function, target.as_deref(), args)
            }
            Kind::List(elements) => self.list(elements),
            Kind::Map(entries) => self.map(entries),
            Kind::Struct { name, fields } => self.message(expr, name, fields),
            Kind::Comprehension(comprehension) => self.comprehension(expr.at, comprehension),
        };
        self.expr_types[expr.id] = ty.clone();
        ty
    }

    /// Resolves a name to a macro's variable, a variable of the environment, or a type.
    fn name(&mut self, id: usize, name: &str) -> Option<Type> {
        if let Some(at) = self.locals.iter().rposition(|(local, _)| local == name) {
            self.references[id] = Reference::Local(at);
            return Some(self.locals[at].1.clone());
        }
        let env = self.env;
        for candidate in env.candidates(name) {
            if let Some(at) = env.variables.iter().position(|v| v.name == candidate) {
                self.references[id] = Reference::Variable(at);
                return Some(env.variables[at].ty.clone());
            }
            if let Some(ty) = env.named_type(&candidate) {
                self.references[id] = Reference::Type(ty.clone());
                return Some(Type::type_of(ty));
            }
        }
        None
    }

    /// Reports whether a dotted name starts with a macro's variable, so that it selects fields of it.
    fn is_local(&self, name: &str) -> bool {
        let first = name.split('.').next().unwrap_or_default();
        self.locals.iter().any(|(local, _)| local == first)
    }

    fn select(&mut self, expr: &Expr, operand: &Expr, field: &str, test: bool) -> Type {
        if let Some(name) = expr.qualified_name().filter(|_| !test)
            && !self.is_local(&name)
            && let Some(ty) = self.name(expr.id, &name)
        {
            return ty;
        }
        let operand = self.expr(operand);
        let ty = self.field(expr.at, &operand, field);
        if test && ty != Type::Error { Type::Bool } else { ty }
    }

    fn field(&mut self, at: u32, operand: &Type, field: &str) -> Type {
        match self.types.resolve(operand) {
            Type::Dyn => Type::Dyn,
            Type::Error => Type::Error,
            Type::Param(_) => {
                self.types.assign(&Type::Dyn, operand);
                Type::Dyn
            }
            Type::Map(entry) => entry.1.clone(),
            Type::Optional(of) => match self.field(at, &of, field) {
                Type::Error => Type::Error,
                ty => Type::optional(ty),
            },
            Type::Object(object) => match object.position(field) {
                Some(at) => object.fields[at].decl.cel_type(),
                None => self.issue(at, format!("undefined field '{field}'")),
            },
            other => {
                let message = format!("type '{other}' does not support field selection");
                self.issue(at, message)
            }
        }
    }

    fn call(&mut self, expr: &Expr, function: &str, target: Option<&Expr>, args: &[Expr]) -> Type {
        if function == "_?._" {
            return self.optional_select(expr, args);
        }
        if let (None, "_&&_" | "_||_") = (target, function) {
            return self.logical(expr, function, args);
        }
        let (mut overloads, mut qualified, mut types) = (Vec::new(), false, Vec::new());
        if let Some(target) = target {
            if let Some(name) = target.qualified_name().filter(|name| !self.is_local(name)) {
                overloads = self.functions(&format!("{name}.{function}"), false);
                qualified = !overloads.is_empty();
            }
            if !qualified {
                types.push(self.expr(target));
                overloads = self.functions(function, true);
            }
        } else {
            overloads = self.functions(function, false);
        }
        types.extend(args.iter().map(|arg| self.expr(arg)));
        if overloads.is_empty() {
            return self.undeclared(expr.at, function);
        }
        self.resolve(expr, function, overloads, qualified, types)
    }

    /// Returns the overloads for a call as a function or as a method.
    fn functions(&self, name: &str, member: bool) -> Vec<&'static Overload> {
        self.env
            .candidates(name)
            .map(|candidate| self.env.overloads(&candidate))
            .find(|overloads| !overloads.is_empty())
            .unwrap_or_default()
            .into_iter()
            .filter(|overload| overload.member == member)
            .collect()
    }

    fn resolve(
        &mut self,
        expr: &Expr,
        function: &str,
        overloads: Vec<&'static Overload>,
        qualified: bool,
        args: Vec<Type>,
    ) -> Type {
        let member = overloads.iter().any(|overload| overload.member);
        let mut matching = Vec::new();
        let mut result: Option<Type> = None;
        for overload in overloads {
            let mut variables = Vec::new();
            let expected: Vec<Type> = overload
                .args
                .iter()
                .map(|arg| self.types.instantiate(arg, &mut variables))
                .collect();
            let result_type = self.types.instantiate(&overload.result, &mut variables);
            if !self.types.assign_all(&args, &expected) {
                continue;
            }
            matching.push(overload);
            let result_type = self.types.resolve(&result_type);
            result = Some(match result {
                None => result_type,
                Some(known) if known == result_type => known,
                Some(_) => Type::Dyn,
            });
        }
        match result {
            Some(result) => {
                self.references[expr.id] = Reference::Overloads { overloads: matching, qualified };
                result
            }
            None if args.contains(&Type::Error) => Type::Error,
            None => self.no_overload(expr.at, function, member, &args),
        }
    }

    fn no_overload(&mut self, at: u32, function: &str, member: bool, args: &[Type]) -> Type {
        let mut shown: Vec<String> =
            args.iter().map(|arg| self.types.settle(arg).to_string()).collect();
        let receiver = if member && !shown.is_empty() {
            format!("{}.", shown.remove(0))
        } else {
            String::new()
        };
        self.issue(
            at,
            format!(
                "found no matching overload for '{function}' applied to '{receiver}({})'",
                shown.join(", ")
            ),
        )
    }

    fn logical(&mut self, expr: &Expr, function: &str, args: &[Expr]) -> Type {
        let types: Vec<Type> = args.iter().map(|arg| self.expr(arg)).collect();
        for (at, ty) in types.iter().enumerate() {
            if !self.types.assign(ty, &Type::Bool) {
                let pair =
                    if at == 0 { [ty.clone(), types[1].clone()] } else { [Type::Bool, ty.clone()] };
                return self.no_overload(expr.at, function, false, &pair);
            }
        }
        let overloads = self.functions(function, false);
        self.references[expr.id] = Reference::Overloads { overloads, qualified: false };
        Type::Bool
    }

    fn optional_select(&mut self, expr: &Expr, args: &[Expr]) -> Type {
        let [operand, name] = args else { return Type::Error };
        let Kind::Literal(Literal::String(field)) = &name.kind else { return Type::Error };
        self.expr_types[name.id] = Type::String;
        let operand = self.expr(operand);
        match self.field(expr.at, &operand, field) {
            Type::Error => Type::Error,
            already @ Type::Optional(_)
                if matches!(self.types.resolve(&operand), Type::Optional(_)) =>
            {
                already
            }
            ty => Type::optional(ty),
        }
    }

    /// Returns the type of an element's value. An optional element must have an optional type.
    fn present(&mut self, expr: &Expr, optional: bool) -> Type {
        let ty = self.expr(expr);
        if !optional {
            return ty;
        }
        let inner = self.types.fresh();
        if self.types.assign(&ty, &Type::optional(inner.clone())) {
            return self.types.resolve(&inner);
        }
        let shown = self.types.settle(&ty);
        self.issue(expr.at, format!("expected type 'optional_type({shown})' but found '{shown}'"))
    }

    fn list(&mut self, elements: &[Element]) -> Type {
        let mut item: Option<Type> = None;
        for element in elements {
            let ty = self.present(&element.value, element.optional);
            item = Some(match item {
                None => ty,
                Some(known) => self.types.join(&known, &ty),
            });
        }
        Type::list(item.unwrap_or_else(|| self.types.fresh()))
    }

    fn map(&mut self, entries: &[Entry]) -> Type {
        let mut types: Option<(Type, Type)> = None;
        for entry in entries {
            let key = self.expr(&entry.key);
            let value = self.present(&entry.value, entry.optional);
            types = Some(match types {
                None => (key, value),
                Some((keys, values)) => {
                    (self.types.join(&keys, &key), self.types.join(&values, &value))
                }
            });
        }
        let (key, value) = types.unwrap_or_else(|| (self.types.fresh(), self.types.fresh()));
        // Only scalars are keys. Otherwise types could grow without bound.
        let compound = self.types.resolve(&key).parameters().next().is_some();
        Type::map(if compound { Type::Dyn } else { key }, value)
    }

    fn message(&mut self, expr: &Expr, name: &str, fields: &[StructField]) -> Type {
        let env = self.env;
        let named = |name: String| env.message(&name, fields.iter().map(|f| f.name.as_str()));
        let Some(object) = env.candidates(name).find_map(named) else {
            for field in fields {
                self.expr(&field.value);
            }
            return self.undeclared(expr.at, name);
        };
        self.references[expr.id] = Reference::Type(Type::Object(object.clone()));
        for field in fields {
            let actual = self.present(&field.value, field.optional);
            let Some(at) = object.position(&field.name) else {
                self.issue(field.at, format!("undefined field '{}'", field.name));
                continue;
            };
            let expected = object.fields[at].decl.cel_type();
            if !self.types.assign(&actual, &expected) {
                let actual = self.types.settle(&actual);
                let message = format!(
                    "expected type of field '{}' is '{expected}' but provided type is '{actual}'",
                    field.name
                );
                self.issue(field.at, message);
            }
        }
        Type::Object(object.clone())
    }

    fn comprehension(&mut self, at: u32, comprehension: &Comprehension) -> Type {
        let range = self.expr(&comprehension.range);
        let range = self.types.resolve(&range);
        if matches!(comprehension.kind, Macro::OptMap | Macro::OptFlatMap) {
            return self.optional_map(at, comprehension, &range);
        }
        if comprehension.kind == Macro::Bind {
            self.locals.push((comprehension.variable.clone(), range));
            let body = self.expr(&comprehension.body);
            self.locals.pop();
            return body;
        }
        let (first, second) = match &range {
            Type::List(of) if comprehension.second.is_some() => (Type::Int, (**of).clone()),
            Type::List(of) => ((**of).clone(), Type::Dyn),
            Type::Map(entry) => (**entry).clone(),
            Type::Dyn | Type::Error => (Type::Dyn, Type::Dyn),
            Type::Param(_) => {
                self.types.assign(&Type::Dyn, &range);
                (Type::Dyn, Type::Dyn)
            }
            other => {
                let message = format!(
                    "expression of type '{other}' cannot be range of a comprehension (must be list, map, or dynamic)"
                );
                self.issue(comprehension.range.at, message);
                (Type::Error, Type::Error)
            }
        };
        let depth = self.locals.len();
        self.locals.push((comprehension.variable.clone(), first.clone()));
        if let Some(name) = &comprehension.second {
            self.locals.push((name.clone(), second));
        }
        if let Some(filter) = &comprehension.filter {
            self.condition(at, filter, "_?_:_");
        }
        let result = self.body(at, comprehension, &range, first);
        self.locals.truncate(depth);
        result
    }

    fn condition(&mut self, at: u32, expr: &Expr, operator: &str) {
        let ty = self.expr(expr);
        if !self.types.assign(&ty, &Type::Bool) {
            let pair = [Type::Bool, ty];
            self.no_overload(at, operator, false, &pair);
        }
    }

    fn body(&mut self, at: u32, comprehension: &Comprehension, range: &Type, first: Type) -> Type {
        let body = &comprehension.body;
        match comprehension.kind {
            Macro::All => self.condition(at, body, "_&&_"),
            Macro::Exists => self.condition(at, body, "_||_"),
            Macro::ExistsOne => self.condition(at, body, "_?_:_"),
            Macro::Map => return Type::list(self.expr(body)),
            Macro::Filter => {
                self.condition(at, body, "_?_:_");
                return Type::list(first);
            }
            Macro::TransformMap => {
                let key = if matches!(range, Type::List(_)) { Type::Int } else { first };
                let value = self.expr(body);
                return Type::map(key, value);
            }
            Macro::TransformMapEntry => {
                let entry = self.expr(body);
                let (key, value) = (self.types.fresh(), self.types.fresh());
                let expected = Type::map(key, value);
                if !self.types.assign(&entry, &expected) {
                    let args = [expected, entry];
                    return self.no_overload(at, "cel.@mapInsert", false, &args);
                }
                return self.types.resolve(&expected);
            }
            Macro::SortBy => {
                let keys = Type::list(self.expr(body));
                let overloads = self.functions("@sortByAssociatedKeys", true);
                let args = [range.clone(), keys];
                let sorts = overloads.iter().any(|overload| {
                    self.types.assign(&args[1], &overload.args[1])
                        && matches!(range, Type::List(_) | Type::Dyn | Type::Error)
                });
                if !sorts {
                    return self.no_overload(at, "@sortByAssociatedKeys", true, &args);
                }
                return range.clone();
            }
            Macro::OptMap | Macro::OptFlatMap | Macro::Bind => {}
        }
        Type::Bool
    }

    fn optional_map(&mut self, at: u32, comprehension: &Comprehension, range: &Type) -> Type {
        let inner = self.types.fresh();
        if !self.types.assign(range, &Type::optional(inner.clone())) {
            self.no_overload(at, "hasValue", true, std::slice::from_ref(range));
        }
        let inner = self.types.resolve(&inner);
        self.locals.push((comprehension.variable.clone(), inner));
        let body = self.expr(&comprehension.body);
        self.locals.pop();
        if comprehension.kind == Macro::OptMap {
            return Type::optional(body);
        }
        let result = Type::optional(self.types.fresh());
        if !self.types.assign(&body, &result) {
            let args = [Type::Bool, body, result];
            return self.no_overload(at, "_?_:_", false, &args);
        }
        self.types.resolve(&result)
    }
}
