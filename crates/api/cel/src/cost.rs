//! Estimates the minimum and maximum cost of an expression from the bounds of its variables.
//!
//! The numbers decide which rules a CustomResourceDefinition may have, so they are upstream's, with all peculiarities:
//! the size of a number field is zero, and the items of a list that does not come from a variable have the size of the
//! variable.

use crate::{
    ast::{Comprehension, Expr, Kind, Literal, Macro},
    charges::{CHECK, LIST, MAP, REGEX, STRUCT, TRAVERSAL, scaled},
    checker::{CheckResult, Reference},
    env::Env,
    parser::ParsedExpr,
    types::{Decl, Type},
};

/// A range of costs or sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// The minimum.
    pub min: u64,
    /// The maximum; `u64::MAX` if unbounded.
    pub max: u64,
}

const UNKNOWN: Cost = Cost { min: 0, max: u64::MAX };
const ONE: Cost = Cost::exactly(1);

impl Cost {
    const fn exactly(value: u64) -> Self {
        Self { min: value, max: value }
    }

    fn add(self, other: Self) -> Self {
        Self { min: self.min.saturating_add(other.min), max: self.max.saturating_add(other.max) }
    }

    fn times(self, other: Self) -> Self {
        Self { min: self.min.saturating_mul(other.min), max: self.max.saturating_mul(other.max) }
    }

    fn scaled(self, by: f64) -> Self {
        Self { min: scaled(self.min, by), max: scaled(self.max, by) }
    }

    fn union(self, other: Self) -> Self {
        Self { min: self.min.min(other.min), max: self.max.max(other.max) }
    }
}

pub(crate) fn estimate(env: &Env, checked: &CheckResult, parsed: &ParsedExpr) -> Cost {
    let mut estimator = Estimator {
        env,
        checked,
        sizes: vec![None; parsed.count],
        entries: vec![None; parsed.count],
        paths: vec![Path::None; parsed.count],
        locals: Vec::new(),
    };
    estimator.cost(&parsed.root)
}

/// The origin of a value.
#[derive(Clone, Copy)]
enum Path<'e> {
    /// A value that does not come from a variable.
    None,
    /// A part of a variable with this declaration in its schema.
    At(&'e Decl),
    /// A part of a variable without a declaration.
    Lost,
}

/// The sizes of the keys and values of a list or map.
#[derive(Clone, Copy)]
struct Entry {
    key: Cost,
    value: Cost,
}

impl Entry {
    fn union(self, other: Self) -> Self {
        Self { key: self.key.union(other.key), value: self.value.union(other.value) }
    }
}

#[derive(Clone, Copy)]
struct Local<'e> {
    path: Path<'e>,
    size: Option<Cost>,
    entry: Option<Entry>,
}

struct Estimator<'e> {
    env: &'e Env,
    checked: &'e CheckResult,
    sizes: Vec<Option<Cost>>,
    entries: Vec<Option<Entry>>,
    paths: Vec<Path<'e>>,
    locals: Vec<Local<'e>>,
}

/// The estimate of a call: its cost without the arguments, and the size of the result.
struct Call {
    cost: Cost,
    size: Option<Cost>,
}

impl From<Cost> for Call {
    fn from(cost: Cost) -> Self {
        Self { cost, size: None }
    }
}

impl<'e> Estimator<'e> {
    fn cost(&mut self, expr: &'e Expr) -> Cost {
        match self.checked.reference(expr) {
            Reference::Variable(at) => {
                let decl = self.env.variables[*at].decl.as_ref();
                self.paths[expr.id] = decl.map_or(Path::Lost, Path::At);
                return ONE;
            }
            Reference::Local(at) => {
                self.paths[expr.id] = self.locals[*at].path;
                return ONE;
            }
            Reference::Type(_) if !matches!(expr.kind, Kind::Struct { .. }) => {
                self.paths[expr.id] = self.below(Path::None, "");
                return ONE;
            }
            _ => {}
        }
        match &expr.kind {
            Kind::Literal(_) => Cost::exactly(0),
            Kind::Ident(_) => ONE,
            Kind::Select { operand, field, test } => self.select(expr, operand, field, *test),
            Kind::Call { function, target, args } => {
                self.call(expr, function, target.as_deref(), args)
            }
            Kind::List(elements) => {
                let mut sum = Cost::exactly(LIST);
                let mut item: Option<Cost> = None;
                for element in elements {
                    sum = sum.add(self.cost(&element.value));
                    let size = self.size_or_unknown(&element.value);
                    item = Some(item.map_or(size, |item| item.union(size)));
                }
                let value = item.unwrap_or(Cost::exactly(0));
                self.entries[expr.id] = Some(Entry { key: ONE, value });
                sum
            }
            Kind::Map(entries) => {
                let mut sum = Cost::exactly(MAP);
                let mut sizes: Option<Entry> = None;
                for entry in entries {
                    sum = sum.add(self.cost(&entry.key)).add(self.cost(&entry.value));
                    let key = self.size_or_unknown(&entry.key);
                    let entry = Entry { key, value: self.size_or_unknown(&entry.value) };
                    sizes = Some(sizes.map_or(entry, |sizes| sizes.union(entry)));
                }
                let none = Entry { key: Cost::exactly(0), value: Cost::exactly(0) };
                self.entries[expr.id] = Some(sizes.unwrap_or(none));
                sum
            }
            Kind::Struct { fields, .. } => fields
                .iter()
                .fold(Cost::exactly(STRUCT), |sum, field| sum.add(self.cost(&field.value))),
            Kind::Comprehension(comprehension) => self.comprehension(expr, comprehension),
        }
    }

    fn select(&mut self, expr: &'e Expr, operand: &'e Expr, field: &str, test: bool) -> Cost {
        let sum = self.cost(operand);
        if test {
            return sum;
        }
        self.paths[expr.id] = self.below(self.paths[operand.id], field);
        match self.checked.ty(operand) {
            Type::Map(_) | Type::Object(_) => sum.add(ONE),
            _ => sum,
        }
    }

    /// Returns the path after one more step. As upstream, a step without a path starts at the first variable, because
    /// upstream takes the first step for the variable's name.
    fn below(&self, path: Path<'e>, step: &str) -> Path<'e> {
        match path {
            Path::At(decl) => decl.below(step).map_or(Path::Lost, Path::At),
            Path::Lost => Path::Lost,
            Path::None => match self.env.variables.first().and_then(|v| v.decl.as_ref()) {
                Some(root) => Path::At(root),
                None => Path::Lost,
            },
        }
    }

    fn size(&self, expr: &Expr) -> Option<Cost> {
        if let Some(size) = self.sizes[expr.id] {
            return Some(size);
        }
        let size = match &expr.kind {
            Kind::Literal(Literal::String(text)) => Some(text.chars().count()),
            Kind::Literal(Literal::Bytes(bytes)) => Some(bytes.len()),
            Kind::Literal(_) => Some(1),
            Kind::List(elements) => Some(elements.len()),
            Kind::Map(entries) => Some(entries.len()),
            _ => None,
        };
        if let Some(size) = size {
            return Some(Cost::exactly(size as u64));
        }
        if let Path::At(decl) = self.paths[expr.id] {
            return Some(Cost { min: 0, max: decl.max_size });
        }
        if self.checked.ty(expr).is_scalar() {
            return Some(ONE);
        }
        match self.checked.reference(expr) {
            Reference::Local(at) => self.locals.get(*at).and_then(|local| local.size),
            _ => None,
        }
    }

    fn size_or_unknown(&self, expr: &Expr) -> Cost {
        self.size(expr).unwrap_or(UNKNOWN)
    }

    fn entry(&self, expr: &Expr) -> Option<Entry> {
        self.entries[expr.id].or_else(|| match self.checked.reference(expr) {
            Reference::Local(at) => self.locals.get(*at).and_then(|local| local.entry),
            _ => None,
        })
    }

    fn call(
        &mut self,
        expr: &'e Expr,
        function: &str,
        target: Option<&'e Expr>,
        args: &'e [Expr],
    ) -> Cost {
        let costs: Vec<Cost> = args.iter().map(|arg| self.cost(arg)).collect();
        let sum = costs.iter().fold(Cost::exactly(0), |sum, cost| sum.add(*cost));
        match (function, args) {
            ("dyn", [arg]) if target.is_none() => {
                self.sizes[expr.id] = self.size(arg);
                self.entries[expr.id] = self.entry(arg);
                return sum.add(ONE);
            }
            // Evaluation may stop after the first operand.
            ("_&&_" | "_||_", _) => {
                return Cost { min: costs.first().map_or(0, |cost| cost.min), max: sum.max };
            }
            ("_?_:_", [_, then, otherwise]) => {
                let size = self.size_or_unknown(then).union(self.size_or_unknown(otherwise));
                self.sizes[expr.id] = Some(size);
                self.entries[expr.id] = both(self.entry(then), self.entry(otherwise));
                return costs[0].add(costs[1].union(costs[2]));
            }
            ("_?._", _) => return sum.add(ONE),
            _ => {}
        }
        let Reference::Overloads { found, qualified } = self.checked.reference(expr) else {
            return sum;
        };
        let target = target.filter(|_| !qualified);
        let receiver = target.map_or(Cost::exactly(0), |target| self.cost(target));
        let mut cost: Option<Cost> = None;
        let mut size: Option<Cost> = None;
        for overload in found {
            let call = self.overload(expr, overload.name, overload.id, target, args);
            cost = Some(cost.map_or(call.cost, |cost| cost.union(call.cost)));
            if let Some(given) = call.size {
                size = Some(size.map_or(given, |size| size.union(given)));
            }
            if let ("index_list" | "index_map", [of, _]) = (overload.id, args) {
                let step = if overload.id == "index_list" { "@items" } else { "@values" };
                size = self.entry(of).map(|entry| entry.value);
                self.paths[expr.id] = self.below(self.paths[of.id], step);
            }
            if size.is_none() {
                size = self.size(expr);
            }
        }
        self.sizes[expr.id] = size.or(self.sizes[expr.id]);
        sum.add(receiver).add(cost.unwrap_or(Cost::exactly(0)))
    }

    /// Estimates one overload of a call.
    fn overload(
        &mut self,
        expr: &Expr,
        name: &str,
        id: &str,
        target: Option<&Expr>,
        args: &[Expr],
    ) -> Call {
        if let Some(call) = self.list_function(id, target, args) {
            return call;
        }
        if let Some(call) = self.kubernetes(name, id, target, args) {
            return call;
        }
        let size = |at: usize| args.get(at).map_or(UNKNOWN, |arg| self.size_or_unknown(arg));
        let traversal = |size: Cost| size.scaled(TRAVERSAL);
        match id {
            "string_format" => {
                traversal(target.map_or(UNKNOWN, |t| self.size_or_unknown(t))).into()
            }
            "string_to_bytes" => {
                let (cost, size) = (traversal(size(0)), size(0));
                Call { cost, size: Some(Cost { min: size.min, max: size.max.saturating_mul(4) }) }
            }
            "bytes_to_string" => {
                let (cost, size) = (traversal(size(0)), size(0));
                Call { cost, size: Some(Cost { min: size.min / 4, max: size.max }) }
            }
            "strings_quote" => {
                let given = size(0);
                let most = given.max.saturating_mul(2).saturating_add(2);
                Call {
                    cost: traversal(given),
                    size: Some(Cost { min: given.min.saturating_add(2), max: most }),
                }
            }
            "starts_with_string" | "ends_with_string" => traversal(size(0)).into(),
            "in_list" => size(1).into(),
            "matches_string" => self.pattern(target, args).into(),
            "contains_string" => {
                let text = traversal(target.map_or(UNKNOWN, |t| self.size_or_unknown(t)));
                text.times(traversal(size(0))).into()
            }
            "add_string" | "add_bytes" | "add_list" => {
                let total = size(0).add(size(1));
                if let [a, b] = args {
                    self.entries[expr.id] = both(self.entry(a), self.entry(b));
                }
                let cost = if id == "add_list" { ONE } else { traversal(total) };
                Call { cost, size: Some(total) }
            }
            "equals" | "not_equals" => shorter(size(0), size(1)).into(),
            _ if compares_texts(id) => shorter(size(0), size(1)).into(),
            _ => ONE.into(),
        }
    }

    /// Returns the cost of a regular expression search, which is proportional to the sizes of text and pattern.
    fn pattern(&self, target: Option<&Expr>, args: &[Expr]) -> Cost {
        let text = target.map_or(UNKNOWN, |target| self.size_or_unknown(target));
        let pattern = args.first().map_or(UNKNOWN, |arg| self.size_or_unknown(arg));
        text.add(ONE).scaled(TRAVERSAL).times(pattern.scaled(REGEX))
    }

    /// Estimates functions of the lists and sets extensions.
    fn list_function(&self, id: &str, target: Option<&Expr>, args: &[Expr]) -> Option<Call> {
        let size = |expr: Option<&Expr>| expr.map_or(UNKNOWN, |expr| self.size_or_unknown(expr));
        let allocating = |factor: f64, size: Cost| Call {
            cost: size.scaled(factor).add(Cost::exactly(1 + LIST)),
            size: Some(size),
        };
        let number = |expr: Option<&Expr>, otherwise: u64| match expr.map(|expr| &expr.kind) {
            Some(Kind::Literal(Literal::Int(value))) => u64::try_from(*value).unwrap_or(0),
            _ => otherwise,
        };
        Some(match id {
            "list_sets_contains_list" | "list_sets_intersects_list" => {
                size(args.first()).times(size(args.get(1))).add(ONE).into()
            }
            "list_sets_equivalent_list" => {
                size(args.first()).times(size(args.get(1))).scaled(2.0).add(ONE).into()
            }
            "list_slice" => {
                let end = number(args.get(1), size(target).max);
                let length = end.wrapping_sub(number(args.first(), 0));
                allocating(1.0, Cost::exactly(length))
            }
            "lists_range" => allocating(1.0, Cost::exactly(number(args.first(), u64::MAX))),
            "list_reverse" => allocating(1.0, size(target)),
            "list_flatten" => allocating(1.0, size(target)),
            "list_flatten_int" => allocating(number(args.first(), u64::MAX) as f64, size(target)),
            "list_distinct" => allocating(2.0, size(target).times(size(target))),
            _ if id.ends_with("_sort") => {
                let texts = matches!(id, "list_string_sort" | "list_bytes_sort");
                let factor = if texts { 2.0 + TRAVERSAL } else { 2.0 };
                allocating(factor, size(target).times(size(target)))
            }
            _ => return None,
        })
    }

    /// Estimates functions of Kubernetes and of the strings extension.
    fn kubernetes(
        &self,
        name: &str,
        id: &str,
        target: Option<&Expr>,
        args: &[Expr],
    ) -> Option<Call> {
        let arg = |at: usize| args.get(at).map_or(UNKNOWN, |arg| self.size_or_unknown(arg));
        let given = target.map(|target| self.size_or_unknown(target));
        Some(match name {
            "check" => Cost::exactly(CHECK).into(),
            "serviceAccount"
            | "path"
            | "group"
            | "resource"
            | "subresource"
            | "namespace"
            | "name"
            | "allowed"
            | "reason"
            | "error"
            | "errored"
            | "masked"
            | "prefixLength"
            | "family"
            | "isUnspecified"
            | "isLoopback"
            | "isLinkLocalMulticast"
            | "isLinkLocalUnicast"
            | "isGlobalUnicast"
            | "format.named"
            | "sign"
            | "asInteger"
            | "isInteger"
            | "asApproximateFloat"
            | "isGreaterThan"
            | "isLessThan"
            | "compareTo"
            | "add"
            | "sub"
            | "major"
            | "minor"
            | "patch"
            | "getScheme"
            | "getHostname"
            | "getHost"
            | "getPort"
            | "getEscapedPath"
            | "getQuery" => ONE.into(),
            "fieldSelector" | "labelSelector" => {
                let requirements = arg(0).scaled(0.5).scaled((LIST + STRUCT) as f64);
                Cost::exactly(LIST).add(arg(0).scaled(TRAVERSAL)).add(requirements).into()
            }
            "isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf" => {
                self.walk(target?).into()
            }
            "url" | "jsonpatch.escapeKey" => {
                Call { cost: arg(0).scaled(TRAVERSAL), size: Some(arg(0)) }
            }
            "lowerAscii" | "upperAscii" | "substring" | "trim" => {
                Call { cost: given?.scaled(TRAVERSAL), size: given }
            }
            "replace" => Call {
                cost: given?.scaled(2.0 * TRAVERSAL),
                size: Some(replaced_size(given?, arg(0), arg(1))),
            },
            "split" => {
                let most = match args.get(1).map(|arg| &arg.kind) {
                    // A negative number means all, and so does its wrapped value.
                    Some(Kind::Literal(Literal::Int(most))) => *most as u64,
                    _ => given?.max,
                };
                Call {
                    cost: given?.scaled(2.0 * TRAVERSAL),
                    size: Some(Cost { min: 0, max: most }),
                }
            }
            "join" => {
                let size = self.joined(target?, args.first());
                Call { cost: size.scaled(TRAVERSAL), size: Some(size) }
            }
            "find" | "findAll" => Call {
                cost: self.pattern(target, args),
                size: Some(Cost { min: 0, max: given?.max }),
            },
            "ip" if id == "cidr_ip" => ONE.into(),
            "cidr" | "isIP" | "isCIDR" | "ip" | "quantity" | "isQuantity" | "semver"
            | "isSemver" => arg(0).scaled(TRAVERSAL).into(),
            "ip.isCanonical" => arg(0).scaled(2.0 * TRAVERSAL).into(),
            "containsIP" | "containsCIDR" => network(id, arg(0)).into(),
            "validate" => arg(0).scaled(TRAVERSAL).scaled(128.0 * REGEX).into(),
            "_==_" => self.equality(args)?.into(),
            _ => return None,
        })
    }

    fn equality(&self, args: &[Expr]) -> Option<Cost> {
        let [a, b] = args else { return None };
        match (self.checked.ty(a), self.checked.ty(b)) {
            (Type::Opaque(a_name), Type::Opaque(b_name)) if a_name == b_name => {
                Some(match *a_name {
                    "kubernetes.NamedFormat" => Cost { min: 1, max: 64 }.scaled(TRAVERSAL),
                    "kubernetes.URL" => {
                        let size = self.size(b).unwrap_or(ONE);
                        Cost { min: 1, max: size.max }.scaled(TRAVERSAL)
                    }
                    _ => ONE,
                })
            }
            _ => None,
        }
    }

    /// Returns the cost of traversing a list, including its string items, or a string.
    fn walk(&self, target: &Expr) -> Cost {
        let size = self.size_or_unknown(target);
        match self.checked.ty(target) {
            Type::List(of) if matches!(**of, Type::String | Type::Bytes) => {
                size.times(ONE.add(self.item(target).scaled(TRAVERSAL)))
            }
            Type::List(_) => size,
            _ => size.scaled(TRAVERSAL),
        }
    }

    /// Returns the size of a list's items according to its schema.
    fn item(&self, list: &Expr) -> Cost {
        match self.paths[list.id] {
            Path::None => UNKNOWN,
            path => match self.below(path, "@items") {
                Path::At(decl) => Cost { min: 0, max: decl.max_size },
                _ => UNKNOWN,
            },
        }
    }

    fn joined(&self, list: &Expr, separator: Option<&Expr>) -> Cost {
        let length = self.size_or_unknown(list);
        let texts = length.times(self.item(list));
        let Some(separator) = separator else { return texts };
        let between = Cost { min: length.min.saturating_sub(1), max: length.max.saturating_sub(1) };
        texts.add(self.size_or_unknown(separator).times(between))
    }

    fn comprehension(&mut self, expr: &'e Expr, comprehension: &'e Comprehension) -> Cost {
        match comprehension.what {
            Macro::OptMap | Macro::OptFlatMap => return self.optional_map(comprehension),
            Macro::SortBy => return self.sort_by(expr, comprehension),
            Macro::Bind => return self.bound(expr, comprehension),
            _ => {}
        }
        let range = self.cost(&comprehension.range);
        let (looped, entry) = self.turn(comprehension);
        let turns = self.size_or_unknown(&comprehension.range);
        let (initial, size, result) = match comprehension.what {
            Macro::All | Macro::Exists => (0, ONE, 1),
            Macro::ExistsOne => (0, ONE, 2),
            Macro::TransformMap | Macro::TransformMapEntry => (MAP, turns, 1),
            _ => (LIST, turns, 1),
        };
        self.sizes[expr.id] = Some(size);
        self.entries[expr.id] = entry;
        range.add(Cost::exactly(initial + result)).add(turns.times(looped))
    }

    /// Returns the cost of one iteration with its condition, and the sizes of the elements that it adds to a list.
    fn turn(&mut self, comprehension: &'e Comprehension) -> (Cost, Option<Entry>) {
        let depth = self.locals.len();
        self.bind(comprehension);
        let filter = comprehension.filter.as_ref().map(|filter| self.cost(filter));
        let body = self.cost(&comprehension.body);
        let looped = match comprehension.what {
            // The condition, and the cost of `accumulator && body`.
            Macro::All => Cost::exactly(2).add(Cost { min: 1, max: body.max.saturating_add(1) }),
            Macro::Exists => Cost::exactly(3).add(Cost { min: 1, max: body.max.saturating_add(1) }),
            Macro::ExistsOne => body.add(Cost { min: 1, max: 2 }),
            Macro::Filter => body.add(Cost { min: 1, max: LIST + 3 }),
            what => {
                let step = match what {
                    Macro::TransformMap => 3,
                    Macro::TransformMapEntry => 2,
                    _ => LIST + 2,
                };
                let step = body.add(Cost::exactly(step));
                filter.map_or(step, |filter| filter.add(step.union(ONE)))
            }
        };
        let added = match comprehension.what {
            Macro::Map => Some(self.size_or_unknown(&comprehension.body)),
            Macro::Filter => Some(self.local_size(depth, comprehension)),
            _ => None,
        };
        self.locals.truncate(depth);
        let entry = added.map(|size| Entry { key: ONE, value: Cost { min: 0, max: size.max } });
        (looped, entry)
    }

    /// Returns the size of a loop variable as a reference to it is estimated.
    fn local_size(&self, at: usize, comprehension: &Comprehension) -> Cost {
        let local = self.locals[at];
        let scalar = match self.checked.ty(&comprehension.range) {
            Type::List(of) => of.is_scalar(),
            Type::Map(entry) => entry.0.is_scalar(),
            _ => false,
        };
        match local.path {
            Path::At(decl) => Cost { min: 0, max: decl.max_size },
            _ if scalar => ONE,
            _ => local.size.unwrap_or(UNKNOWN),
        }
    }

    /// Binds the variables of a loop.
    fn bind(&mut self, comprehension: &'e Comprehension) {
        let range = &comprehension.range;
        let entry = self.entry(range);
        let list = matches!(self.checked.ty(range), Type::List(_));
        let path = self.paths[range.id];
        let local = |this: &Self, step: &str, size: Option<Cost>| Local {
            path: this.below(path, step),
            size,
            entry: None,
        };
        let (key, value) = (entry.map(|e| e.key), entry.map(|e| e.value));
        let item = if list { "@items" } else { "@values" };
        if comprehension.second.is_some() {
            let key = local(self, if list { "@indices" } else { "@keys" }, key);
            let value = local(self, item, value);
            self.locals.extend([key, value]);
        } else if list {
            let item = local(self, item, value);
            self.locals.push(item);
        } else {
            let key = local(self, "@keys", key);
            self.locals.push(key);
        }
    }

    /// Estimates `target.hasValue() ? optional.of(body) : optional.none()`, where the body refers to the target's
    /// value.
    fn optional_map(&mut self, comprehension: &'e Comprehension) -> Cost {
        let target = self.cost(&comprehension.range);
        let size = match self.checked.ty(&comprehension.range) {
            Type::Optional(of) if of.is_scalar() => Some(ONE),
            _ => None,
        };
        self.locals.push(Local { path: Path::None, size, entry: None });
        let body = self.cost(&comprehension.body);
        self.locals.pop();
        let bound = Cost::exactly(LIST + 1).add(target).add(body);
        let then = if comprehension.what == Macro::OptMap { bound.add(ONE) } else { bound };
        target.add(ONE).add(then.union(ONE))
    }

    /// Estimates `cel.bind`. A reference to the name has the size of the bound value.
    fn bound(&mut self, expr: &'e Expr, comprehension: &'e Comprehension) -> Cost {
        let range = &comprehension.range;
        let value = self.cost(range);
        let (path, entry) = (self.paths[range.id], self.entry(range));
        self.locals.push(Local { path, size: self.sizes[range.id], entry });
        let body = self.cost(&comprehension.body);
        self.locals.pop();
        self.sizes[expr.id] = self.sizes[comprehension.body.id];
        Cost::exactly(LIST + 1).add(value).add(body)
    }

    /// Estimates `sortBy`: the bound target is sorted by a list of computed keys.
    fn sort_by(&mut self, expr: &'e Expr, comprehension: &'e Comprehension) -> Cost {
        let target = self.cost(&comprehension.range);
        let (looped, _) = self.turn(comprehension);
        let turns = self.size_or_unknown(&comprehension.range);
        let texts = matches!(self.checked.ty(&comprehension.body), Type::String | Type::Bytes);
        let keys = Cost::exactly(LIST + 2).add(turns.times(looped));
        let squared = turns.times(turns);
        let sort = squared.scaled(if texts { 2.0 + TRAVERSAL } else { 2.0 });
        self.sizes[expr.id] = Some(squared);
        Cost::exactly(LIST).add(target).add(keys).add(sort).add(Cost::exactly(1 + LIST + 1))
    }
}

fn both(a: Option<Entry>, b: Option<Entry>) -> Option<Entry> {
    Some(a?.union(b?))
}

/// Returns the cost of a comparison, which stops at the end of the shorter operand.
fn shorter(a: Cost, b: Cost) -> Cost {
    let most = a.max.min(b.max);
    Cost { min: u64::from(most > 0), max: most }.scaled(TRAVERSAL)
}

fn compares_texts(id: &str) -> bool {
    (id.starts_with("less_") || id.starts_with("greater_"))
        && (id.ends_with("_string") || id.ends_with("_bytes"))
}

/// Returns the cost of an operation on IP addresses, which have 4 or 16 bytes. A string argument is parsed in addition.
fn network(id: &str, text: Cost) -> Cost {
    let bytes = Cost { min: 4, max: 16 };
    let mut cost = bytes.add(bytes).scaled(TRAVERSAL);
    if id.starts_with("cidr_contains_cidr") {
        cost = cost.add(bytes.scaled(TRAVERSAL)).add(ONE);
    }
    if id.ends_with("_string") {
        cost = cost.add(text.scaled(TRAVERSAL));
    }
    cost
}

/// Returns the length of a string after replacements.
fn replaced_size(text: Cost, from: Cost, to: Cost) -> Cost {
    let often = |text: u64, from: u64| (text as f64 / from as f64).ceil() as u64;
    let (most, kept) = match from.min {
        // An empty string matches around each character.
        0 => (text.max.saturating_add(1), text.max),
        least if to.max <= least => (0, text.max),
        least => (often(text.max, least), 0),
    };
    let (fewest, left) = match from.max {
        0 => (text.min.saturating_add(1), text.min),
        longest if longest <= to.min => (0, text.min),
        longest => (often(text.min, longest), 0),
    };
    let count = Cost { min: fewest, max: most };
    count.times(to).add(Cost { min: left, max: kept })
}
