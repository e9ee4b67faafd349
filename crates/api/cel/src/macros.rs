//! Expands macro calls, which bind variables or test the presence of a field.

use crate::{
    ast::{Comprehension, Expr, Kind, Macro},
    error::Issue,
};

/// The macros of an environment besides the standard ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Macros {
    /// `optMap`, `optFlatMap` and the optional syntax.
    pub(crate) optionals: bool,
    /// The two-variable macros, such as `all(i, v, …)` and `transformList`.
    pub(crate) two_variables: bool,
    /// `sortBy`.
    pub(crate) sort_by: bool,
    /// `cel.bind`.
    pub(crate) bind: bool,
}

/// The arguments of a macro.
struct Layout {
    kind: Macro,
    variables: usize,
    filtered: bool,
}

/// The accumulator variable in upstream's expansion, whose name no variable may have.
const ACCUMULATOR: &str = "__result__";

impl Macros {
    fn layout(self, name: &str, args: usize) -> Option<Layout> {
        use Macro::*;
        let of = |kind, variables, filtered| Some(Layout { kind, variables, filtered });
        match (name, args) {
            ("all", 2) => of(All, 1, false),
            ("exists", 2) => of(Exists, 1, false),
            ("exists_one" | "existsOne", 2) => of(ExistsOne, 1, false),
            ("map", 2) => of(Map, 1, false),
            ("map", 3) => of(Map, 1, true),
            ("filter", 2) => of(Filter, 1, false),
            ("all", 3) if self.two_variables => of(All, 2, false),
            ("exists", 3) if self.two_variables => of(Exists, 2, false),
            ("existsOne" | "exists_one", 3) if self.two_variables => of(ExistsOne, 2, false),
            ("transformList", 3) if self.two_variables => of(Map, 2, false),
            ("transformList", 4) if self.two_variables => of(Map, 2, true),
            ("transformMap", 3) if self.two_variables => of(TransformMap, 2, false),
            ("transformMap", 4) if self.two_variables => of(TransformMap, 2, true),
            ("transformMapEntry", 3) if self.two_variables => of(TransformMapEntry, 2, false),
            ("transformMapEntry", 4) if self.two_variables => of(TransformMapEntry, 2, true),
            ("sortBy", 2) if self.sort_by => of(SortBy, 1, false),
            ("optMap", 2) if self.optionals => of(OptMap, 1, false),
            ("optFlatMap", 2) if self.optionals => of(OptFlatMap, 1, false),
            _ => None,
        }
    }
}

/// Builds `target.name(args)`, a macro or a method call.
pub(crate) fn member(
    macros: Macros,
    at: u32,
    target: Expr,
    name: String,
    args: Vec<Expr>,
) -> Result<Kind, Issue> {
    if macros.bind && args.len() == 3 && name == "bind" && target.is_named("cel") {
        return bind(at, args);
    }
    let Some(layout) = macros.layout(&name, args.len()) else {
        return Ok(Kind::Call { function: name, target: Some(Box::new(target)), args });
    };
    let mut args = args.into_iter();
    let mut names = Vec::new();
    for arg in args.by_ref().take(layout.variables) {
        names.push(variable(&layout, &name, &arg)?);
    }
    if names.len() == 2 && names[0] == names[1] {
        return Err(Issue::new(at, format!("duplicate variable name: {}", names[0])));
    }
    let filter = args.by_ref().take(usize::from(layout.filtered)).next();
    let (mut names, body) = (names.into_iter(), args.next());
    let (Some(variable), Some(body)) = (names.next(), body) else {
        return Err(Issue::new(at, format!("{name}() takes a variable and an expression")));
    };
    let second = names.next();
    let comprehension =
        Comprehension { kind: layout.kind, range: target, variable, second, filter, body };
    Ok(Kind::Comprehension(Box::new(comprehension)))
}

/// Builds `cel.bind(variable, value, body)`.
fn bind(at: u32, args: Vec<Expr>) -> Result<Kind, Issue> {
    let Ok([variable, range, body]) = <[Expr; 3]>::try_from(args) else {
        return Err(Issue::new(at, "cel.bind() takes a variable and two expressions"));
    };
    let variable = match variable.kind {
        Kind::Ident(name) if !name.starts_with('.') => name,
        _ => {
            let message = "cel.bind() variable names must be simple identifiers";
            return Err(Issue::new(variable.at, message));
        }
    };
    let kind = Macro::Bind;
    let comprehension = Comprehension { kind, range, variable, second: None, filter: None, body };
    Ok(Kind::Comprehension(Box::new(comprehension)))
}

fn variable(layout: &Layout, name: &str, arg: &Expr) -> Result<String, Issue> {
    match &arg.kind {
        Kind::Ident(variable) if variable == ACCUMULATOR => {
            Err(Issue::new(arg.at, "iteration variable overwrites accumulator variable"))
        }
        Kind::Ident(variable) if !variable.starts_with('.') => Ok(variable.clone()),
        _ => Err(Issue::new(
            arg.at,
            match layout.kind {
                Macro::OptMap | Macro::OptFlatMap => {
                    format!("{name}() variable name must be a simple identifier")
                }
                Macro::Map | Macro::Filter if layout.variables == 1 => {
                    "argument is not an identifier".to_owned()
                }
                _ => "argument must be a simple name".to_owned(),
            },
        )),
    }
}

/// Builds `name(args)` and its position. Only `has` is a macro.
pub(crate) fn global(at: u32, name: String, mut args: Vec<Expr>) -> Result<(u32, Kind), Issue> {
    if name != "has" || args.len() != 1 {
        return Ok((at, Kind::Call { function: name, target: None, args }));
    }
    match args.pop() {
        Some(Expr { kind: Kind::Select { operand, field, test: false }, at, .. }) => {
            Ok((at, Kind::Select { operand, field, test: true }))
        }
        other => {
            let at = other.map_or(at, |arg| arg.at);
            Err(Issue::new(at, "invalid argument to has() macro"))
        }
    }
}
