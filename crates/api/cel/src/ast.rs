//! The syntax tree of an expression: built by the parser, and read by type checking, cost estimation and planning.

/// An expression with its ID, which indexes the checker's results, and its position in the text.
#[derive(Clone, Debug)]
pub(crate) struct Expr {
    pub(crate) id: usize,
    /// The position in code points from the start of the text.
    pub(crate) at: u32,
    pub(crate) kind: Kind,
}

#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Literal(Literal),
    /// An identifier. A leading dot is part of the name.
    Ident(String),
    /// `operand.field`, or `has(operand.field)` if `test` is set.
    Select {
        operand: Box<Expr>,
        field: String,
        test: bool,
    },
    Call {
        function: String,
        target: Option<Box<Expr>>,
        args: Vec<Expr>,
    },
    List(Vec<Element>),
    Map(Vec<Entry>),
    Struct {
        name: String,
        fields: Vec<StructField>,
    },
    Comprehension(Box<Comprehension>),
}

#[derive(Clone, Debug)]
pub(crate) struct Element {
    pub(crate) value: Expr,
    /// `true` for `[?value]`.
    pub(crate) optional: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) key: Expr,
    pub(crate) value: Expr,
    /// `true` for `{?key: value}`.
    pub(crate) optional: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct StructField {
    pub(crate) at: u32,
    pub(crate) name: String,
    pub(crate) value: Expr,
    pub(crate) optional: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Literal {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    String(String),
    Bytes(Vec<u8>),
}

/// A macro that binds variables to the elements of a range or to the value of an optional.
#[derive(Clone, Debug)]
pub(crate) struct Comprehension {
    pub(crate) kind: Macro,
    pub(crate) range: Expr,
    pub(crate) variable: String,
    /// The second variable of two-variable macros. It is the value; `variable` is then the key or index.
    pub(crate) second: Option<String>,
    pub(crate) filter: Option<Expr>,
    pub(crate) body: Expr,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Macro {
    All,
    Exists,
    ExistsOne,
    /// `map` and `transformList`.
    Map,
    Filter,
    TransformMap,
    TransformMapEntry,
    SortBy,
    OptMap,
    OptFlatMap,
    /// `cel.bind`, whose range is the bound value.
    Bind,
}

impl Expr {
    /// Returns the dotted name that the expression spells, such as `a.b.c`, or `None`.
    pub(crate) fn qualified_name(&self) -> Option<String> {
        match &self.kind {
            Kind::Ident(name) => Some(name.clone()),
            Kind::Select { operand, field, test: false } => {
                Some(format!("{}.{field}", operand.qualified_name()?))
            }
            _ => None,
        }
    }

    /// Reports whether the expression is only this name.
    pub(crate) fn is_named(&self, name: &str) -> bool {
        matches!(&self.kind, Kind::Ident(ident) if ident == name)
    }

    /// Visits the direct subexpressions.
    pub(crate) fn children<'e>(&'e self, visit: &mut dyn FnMut(&'e Expr)) {
        match &self.kind {
            Kind::Literal(_) | Kind::Ident(_) => {}
            Kind::Select { operand, .. } => visit(operand),
            Kind::Call { target, args, .. } => {
                target.iter().for_each(|target| visit(target));
                args.iter().for_each(visit);
            }
            Kind::List(elements) => elements.iter().for_each(|e| visit(&e.value)),
            Kind::Map(entries) => entries.iter().for_each(|e| {
                visit(&e.key);
                visit(&e.value);
            }),
            Kind::Struct { fields, .. } => fields.iter().for_each(|f| visit(&f.value)),
            Kind::Comprehension(comprehension) => {
                visit(&comprehension.range);
                comprehension.filter.iter().for_each(&mut *visit);
                visit(&comprehension.body);
            }
        }
    }
}
