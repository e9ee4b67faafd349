//! Compiles checked expressions: names become indexes, functions become pointers, and constants are evaluated.

use std::sync::Arc;

use crate::{
    ast::{Comprehension, Entry, Expr, Kind, Literal, Macro, StructField},
    checker::{CheckResult, Reference, check},
    cost::{Cost, charges::Charge},
    env::Env,
    error::{Issue, Issues},
    estimator::estimate,
    function::{Native, mistyped},
    natives::regexes::{self, Search},
    overloads::{self, Overload},
    parser::parse,
    types::{Object, Type},
    value::{Entries, Eval, List, Value, Work},
};

/// A compiled expression, which can be evaluated repeatedly and by several threads.
#[derive(Debug)]
pub struct Program {
    pub(crate) root: Node,
    estimate: Cost,
    result: Type,
    uses: Vec<bool>,
    fields: Vec<(usize, Arc<str>)>,
}

#[derive(Debug)]
pub(crate) enum Node {
    Const(Value<'static>),
    Variable {
        at: usize,
        name: Arc<str>,
        free: bool,
    },
    Local {
        at: usize,
        free: bool,
    },
    Select(Box<Select>),
    Index(Box<Index>),
    And(Box<[Node]>),
    Or(Box<[Node]>),
    Cond(Box<[Node; 3]>),
    Call(Box<Call>),
    Search(Box<Pattern>),
    /// `x in [constants]`.
    Within(Box<(Node, Entries<'static>)>),
    /// `a.or(b)` and `a.orValue(b)`. The second operand is evaluated only if needed.
    Or2 {
        both: Box<[Node; 2]>,
        value: bool,
    },
    List(Box<[(Node, bool)]>),
    Map(Box<[(Node, Node, bool)]>),
    Make(Box<Make>),
    Comprehension(Box<Loop>),
}

#[derive(Debug)]
pub(crate) struct Select {
    pub(crate) operand: Node,
    pub(crate) name: Value<'static>,
    pub(crate) field: Arc<str>,
    /// The object type and field index, if the operand's type is declared.
    pub(crate) known: Option<(Arc<Object>, usize)>,
    pub(crate) access: Access,
    pub(crate) cost: u64,
}

/// The kind of access to a field or index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Get,
    /// `has(…)`.
    Test,
    /// `.?` and `[?]`.
    Optional,
}

#[derive(Debug)]
pub(crate) struct Index {
    pub(crate) operand: Node,
    pub(crate) index: Node,
    pub(crate) access: Access,
    pub(crate) cost: u64,
}

#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) native: Native,
    pub(crate) args: Box<[Node]>,
    pub(crate) charge: Charge,
    /// The types of the first argument in the matching overloads. Empty if the implementation rejects other types.
    pub(crate) receivers: Box<[Type]>,
}

impl Call {
    /// Calls the implementation.
    pub(crate) fn run<'a>(&self, work: &mut Work, args: &[Value<'a>]) -> Eval<'a> {
        let fits = |first| self.receivers.iter().any(|ty| Value::is_kind_of(first, ty));
        if self.receivers.is_empty() || args.first().is_none_or(fits) {
            (self.native)(work, args)
        } else {
            mistyped()
        }
    }
}

/// Returns the types of the first argument in overloads, if their implementation also has overloads with another number
/// of arguments. It cannot know then which types this number of arguments permits: `indexOf` has a third argument for
/// strings only.
fn receivers(overloads: &[&'static Overload]) -> Box<[Type]> {
    let Some(Overload { function, args, .. }) = overloads.first() else { return Box::default() };
    let others = overloads::find(function.name).iter();
    if others.filter(|o| std::ptr::eq(o.function, *function)).all(|o| o.args.len() == args.len()) {
        return Box::default();
    }
    overloads.iter().filter_map(|overload| overload.args.first().cloned()).collect()
}

#[derive(Debug)]
pub(crate) struct Pattern {
    pub(crate) search: Search,
    pub(crate) regex: regex::Regex,
    pub(crate) args: Box<[Node]>,
    pub(crate) charge: Charge,
}

#[derive(Debug)]
pub(crate) struct Make {
    pub(crate) object: Arc<Object>,
    pub(crate) fields: Box<[(usize, Node, bool)]>,
}

#[derive(Debug)]
pub(crate) struct Loop {
    pub(crate) kind: Macro,
    pub(crate) range: Node,
    pub(crate) two: bool,
    pub(crate) filter: Option<Node>,
    pub(crate) body: Node,
    /// The number of variables that are bound outside.
    pub(crate) depth: usize,
}

impl Program {
    /// Compiles an expression in an environment. [`Program::result`] is the type of its values.
    pub fn compile(env: &Env, text: &str) -> Result<Self, Issues> {
        let parsed = parse(text, env.macros())?;
        let checked = check(env, &parsed)?;
        let mut planner = Planner {
            env,
            checked: &checked,
            issues: Vec::new(),
            uses: vec![false; env.variables.len()],
            fields: Vec::new(),
            depth: 0,
        };
        planner.check_literals(&parsed.root);
        let root = planner.node(&parsed.root);
        if !planner.issues.is_empty() {
            return Err(Issues::new(parsed.source, planner.issues));
        }
        let (uses, fields) = (planner.uses, planner.fields);
        let estimate = estimate(env, &checked, &parsed);
        let result = checked.ty(&parsed.root).clone();
        Ok(Self { root, estimate, result, uses, fields })
    }

    /// Returns the type of the program's values.
    pub fn result(&self) -> &Type {
        &self.result
    }

    /// Reports whether the program uses a variable of its environment, by the variable's index.
    pub fn uses(&self, variable: usize) -> bool {
        self.uses.get(variable).copied().unwrap_or_default()
    }

    /// Reports whether the program selects this field of a variable with a dot or `has`. Indexing is not included.
    pub fn selects(&self, variable: usize, field: &str) -> bool {
        self.fields.iter().any(|(at, name)| *at == variable && **name == *field)
    }

    /// Returns the minimum and maximum cost of an evaluation for the bounds of the variables.
    pub fn estimate(&self) -> Cost {
        self.estimate
    }
}

struct Planner<'e> {
    env: &'e Env,
    checked: &'e CheckResult,
    issues: Vec<Issue>,
    uses: Vec<bool>,
    fields: Vec<(usize, Arc<str>)>,
    depth: usize,
}

fn constant(literal: &Literal) -> Value<'static> {
    match literal {
        Literal::Null => Value::Null,
        Literal::Bool(value) => Value::Bool(*value),
        Literal::Int(value) => Value::Int(*value),
        Literal::Uint(value) => Value::Uint(*value),
        Literal::Double(value) => Value::Double(*value),
        Literal::String(text) => Value::string(text.as_str()),
        Literal::Bytes(bytes) => Value::Bytes(bytes.as_slice().into()),
    }
}

impl Planner<'_> {
    fn issue(&mut self, at: u32, message: impl Into<String>) -> Node {
        self.issues.push(Issue::new(at, message));
        Node::Const(Value::Null)
    }

    fn node(&mut self, expr: &Expr) -> Node {
        self.plan(expr, false)
    }

    /// Plans an expression. `free` is set for the branches of a conditional, whose first name is free in upstream.
    fn plan(&mut self, expr: &Expr, free: bool) -> Node {
        match self.checked.reference(expr) {
            Reference::Variable(at) => {
                self.uses[*at] = true;
                let name = Arc::from(self.env.variables[*at].name.as_str());
                return Node::Variable { at: *at, name, free };
            }
            Reference::Local(at) => return Node::Local { at: *at, free },
            Reference::Type(ty) if !matches!(expr.kind, Kind::Struct { .. }) => {
                return Node::Const(Value::Type(ty.clone()));
            }
            _ => {}
        }
        match &expr.kind {
            Kind::Literal(literal) => Node::Const(constant(literal)),
            // The checker has already reported it.
            Kind::Ident(_) => Node::Const(Value::Null),
            Kind::Select { operand, field, test } => {
                let access = if *test { Access::Test } else { Access::Get };
                self.select(operand, field, access, free)
            }
            Kind::Call { function, target, args } => {
                self.call(expr, function, target.as_deref(), args, free)
            }
            Kind::List(elements) => {
                let items: Vec<(Node, bool)> =
                    elements.iter().map(|e| (self.node(&e.value), e.optional)).collect();
                list(items)
            }
            Kind::Map(entries) => self.map(entries),
            Kind::Struct { fields, .. } => self.make(expr, fields),
            Kind::Comprehension(comprehension) => self.comprehension(comprehension),
        }
    }

    /// Plans the operand of a field or index access, and returns its base cost. A path costs each step and its first
    /// name. A path that starts with another expression costs one for it.
    fn operand(&mut self, operand: &Expr, free: bool) -> (Node, u64) {
        let node = self.plan(operand, free);
        let base = !matches!(node, Node::Cond(_)) && !is_attribute(&node) && !free;
        (node, u64::from(base))
    }

    fn select(&mut self, operand: &Expr, field: &str, access: Access, free: bool) -> Node {
        let known = match self.checked.ty(operand) {
            Type::Object(object) => object.position(field).map(|at| (Arc::clone(object), at)),
            _ => None,
        };
        let (operand, base) = self.operand(operand, free);
        if let Node::Variable { at, .. } = &operand {
            self.fields.push((*at, field.into()));
        }
        let cost = base + u64::from(access != Access::Test);
        let name = Value::string(field);
        Node::Select(Box::new(Select { operand, name, field: field.into(), known, access, cost }))
    }

    fn call(
        &mut self,
        expr: &Expr,
        function: &str,
        target: Option<&Expr>,
        args: &[Expr],
        free: bool,
    ) -> Node {
        match (function, args) {
            ("_?._", [operand, name]) => {
                if let Kind::Literal(Literal::String(field)) = &name.kind {
                    return self.select(operand, field, Access::Optional, free);
                }
            }
            ("_[_]" | "_[?_]", [operand, index]) => {
                let access = if function == "_[_]" { Access::Get } else { Access::Optional };
                let (operand, base) = self.operand(operand, free);
                let index = self.node(index);
                // A path as the index costs only its own steps.
                let cost = base + u64::from(!is_attribute(&index));
                return Node::Index(Box::new(Index { operand, index, access, cost }));
            }
            ("_&&_", _) => return Node::And(args.iter().map(|arg| self.node(arg)).collect()),
            ("_||_", _) => return Node::Or(args.iter().map(|arg| self.node(arg)).collect()),
            ("_?:_" | "_?_:_", [condition, then, otherwise]) => {
                let condition = self.node(condition);
                let branches = [condition, self.plan(then, true), self.plan(otherwise, true)];
                return Node::Cond(Box::new(branches));
            }
            _ => {}
        }
        let Reference::Overloads { overloads, qualified } = self.checked.reference(expr) else {
            return Node::Const(Value::Null);
        };
        let target = target.filter(|_| !qualified);
        let nodes: Vec<Node> = target.into_iter().chain(args).map(|arg| self.node(arg)).collect();
        self.plan_call(expr, overloads, nodes, args)
    }

    fn plan_call(
        &mut self,
        expr: &Expr,
        overloads: &[&'static Overload],
        mut nodes: Vec<Node>,
        args: &[Expr],
    ) -> Node {
        let [Overload { function, .. }, others @ ..] = overloads else {
            return Node::Const(Value::Null);
        };
        let (name, unique) = (function.name, others.is_empty());
        let (native, charge) = (function.native, function.charge(unique));
        if let ("or" | "orValue", 2) = (name, nodes.len())
            && let (Some(second), Some(first)) = (nodes.pop(), nodes.pop())
        {
            return Node::Or2 { both: Box::new([first, second]), value: name == "orValue" };
        }
        if let (Some(search), Some(Node::Const(Value::String(pattern)))) =
            (Search::named(name), nodes.get(1))
        {
            let at = args.last().map_or(expr.at, |arg| arg.at);
            return match regexes::compile(pattern) {
                Ok(regex) => {
                    let args = nodes.into();
                    Node::Search(Box::new(Pattern { search, regex, args, charge }))
                }
                Err(_) => self.issue(at, format!("invalid {name} argument")),
            };
        }
        let call = |args: Vec<Node>| {
            let (args, receivers) = (args.into(), receivers(overloads));
            Node::Call(Box::new(Call { native, args, charge, receivers }))
        };
        if let ("@in", true, [_, Node::Const(Value::List(list))]) = (name, unique, nodes.as_slice())
            && let Some(set) = set(list)
        {
            return Node::Within(Box::new((nodes.swap_remove(0), set)));
        }
        if let (true, [Node::Const(value)]) = (is_conversion(name), nodes.as_slice()) {
            return match native(&mut Work(1 << 20), std::slice::from_ref(value)) {
                Ok(value) => Node::Const(value),
                Err(_) if matches!(name, "duration" | "timestamp") => {
                    let at = args.first().map_or(expr.at, |arg| arg.at);
                    self.issue(at, format!("invalid {name} argument"))
                }
                Err(_) => call(nodes),
            };
        }
        call(nodes)
    }

    fn map(&mut self, entries: &[Entry]) -> Node {
        let nodes: Vec<(Node, Node, bool)> = entries
            .iter()
            .map(|entry| (self.node(&entry.key), self.node(&entry.value), entry.optional))
            .collect();
        let mut map = Entries::default();
        for node in &nodes {
            match node {
                (Node::Const(key), Node::Const(value), false)
                    if map.insert(key.clone(), value.clone()).is_ok() => {}
                _ => return Node::Map(nodes.into()),
            }
        }
        Node::Const(Value::Map(crate::value::Map::Entries(Arc::new(map))))
    }

    fn make(&mut self, expr: &Expr, fields: &[StructField]) -> Node {
        let Reference::Type(Type::Object(object)) = self.checked.reference(expr) else {
            return Node::Const(Value::Null);
        };
        let fields = fields
            .iter()
            .filter_map(|field| {
                let at = object.position(&field.name)?;
                Some((at, self.node(&field.value), field.optional))
            })
            .collect();
        Node::Make(Box::new(Make { object: Arc::clone(object), fields }))
    }

    fn comprehension(&mut self, comprehension: &Comprehension) -> Node {
        let range = self.node(&comprehension.range);
        let (depth, two) = (self.depth, comprehension.second.is_some());
        self.depth += 1 + usize::from(two);
        let filter = comprehension.filter.as_ref().map(|filter| self.node(filter));
        let body = self.node(&comprehension.body);
        self.depth = depth;
        Node::Comprehension(Box::new(Loop {
            kind: comprehension.kind,
            range,
            two,
            filter,
            body,
            depth,
        }))
    }

    /// Checks that all elements of list and map literals have one type, except in arguments of `format`.
    fn check_literals(&mut self, expr: &Expr) {
        match &expr.kind {
            Kind::List(elements) => {
                self.check_same_type(elements.iter().map(|e| (&e.value, e.optional)));
            }
            Kind::Map(entries) => {
                self.check_same_type(entries.iter().map(|e| (&e.key, false)));
                self.check_same_type(entries.iter().map(|e| (&e.value, e.optional)));
            }
            Kind::Call { function, target: Some(_), .. } if function == "format" => return,
            _ => {}
        }
        let mut children = Vec::new();
        expr.children(&mut |child| children.push(child));
        children.into_iter().for_each(|child| self.check_literals(child));
    }

    fn check_same_type<'x>(&mut self, items: impl Iterator<Item = (&'x Expr, bool)>) {
        if !self.env.strict() {
            return;
        }
        let mut first: Option<&Type> = None;
        for (item, optional) in items {
            let ty = match self.checked.ty(item) {
                Type::Optional(of) if optional => of,
                ty => ty,
            };
            match first {
                None => first = Some(ty),
                Some(first) if first == ty => {}
                Some(first) => {
                    self.issue(item.at, format!("expected type '{first}' but found '{ty}'"));
                    return;
                }
            }
        }
    }
}

fn is_attribute(node: &Node) -> bool {
    matches!(node, Node::Variable { .. } | Node::Local { .. } | Node::Select(_) | Node::Index(_))
}

/// Plans a list, which is evaluated now if all items are constant.
fn list(items: Vec<(Node, bool)>) -> Node {
    if !items.iter().all(|(node, optional)| matches!(node, Node::Const(_)) && !optional) {
        return Node::List(items.into());
    }
    let values = items.into_iter().filter_map(|(node, _)| match node {
        Node::Const(value) => Some(value),
        _ => None,
    });
    Node::Const(Value::list(values.collect()))
}

/// Reports whether a function is a conversion. Conversions of constants are evaluated at compile time.
fn is_conversion(name: &str) -> bool {
    matches!(
        name,
        "bool" | "bytes" | "double" | "duration" | "dyn" | "int" | "string" | "timestamp" | "uint"
    )
}

/// Builds a lookup table for a constant list. Returns `None` if an item is a double.
fn set(list: &List<'static>) -> Option<Entries<'static>> {
    let mut set = Entries::default();
    for item in list.iter() {
        let item = item.ok()?;
        if matches!(item, Value::Double(_)) {
            return None;
        }
        if set.get(&item).is_none() {
            set.insert(item, Value::Null).ok()?;
        }
    }
    Some(set)
}
