//! Estimates the minimum and maximum cost of an expression from the bounds of its variables.
//!
//! The numbers decide which rules a CustomResourceDefinition may have, so they are upstream's, with all peculiarities.
//! For example, the size of a number field is zero. The items of a list that does not come from a variable have the
//! size of the variable.

use crate::{
    ast::{Comprehension, Expr, Kind, Literal, Macro},
    checker::{CheckResult, Reference},
    cost::{
        Cost,
        estimates::{CallCost, Operand},
        units::{LIST, MAP, STRUCT, TRAVERSAL},
    },
    env::Env,
    parser::ParsedExpr,
    types::{Decl, Type},
};

const UNKNOWN: Cost = Cost::UNKNOWN;
const ONE: Cost = Cost::ONE;

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
            Kind::Literal(_) => Cost::ZERO,
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
                let value = item.unwrap_or(Cost::ZERO);
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
                let none = Entry { key: Cost::ZERO, value: Cost::ZERO };
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
        let sum = costs.iter().fold(Cost::ZERO, |sum, cost| sum.add(*cost));
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
            ("_+_", [a, b]) => self.entries[expr.id] = both(self.entry(a), self.entry(b)),
            _ => {}
        }
        let Reference::Overloads { overloads, qualified } = self.checked.reference(expr) else {
            return sum;
        };
        let target = target.filter(|_| !qualified);
        let receiver = target.map_or(Cost::ZERO, |target| self.cost(target));
        let operands: Vec<Operand<'e>> =
            target.into_iter().chain(args).map(|operand| self.operand(operand)).collect();
        let mut cost: Option<Cost> = None;
        let mut size: Option<Cost> = None;
        for overload in overloads {
            let call: CallCost = (overload.function.estimate)(&operands);
            cost = Some(cost.map_or(call.cost, |cost| cost.union(call.cost)));
            if let Some(known) = call.size {
                size = Some(size.map_or(known, |size| size.union(known)));
            }
            let step = match &overload.args[..] {
                [Type::List(_), _] => Some("@items"),
                [Type::Map(_), _] => Some("@values"),
                _ => None,
            };
            if let ("_[_]", Some(step), [of, _]) = (overload.function.name, step, args) {
                size = self.entry(of).map(|entry| entry.value);
                self.paths[expr.id] = self.below(self.paths[of.id], step);
            }
            if size.is_none() {
                size = self.size(expr);
            }
        }
        self.sizes[expr.id] = size.or(self.sizes[expr.id]);
        sum.add(receiver).add(cost.unwrap_or(Cost::ZERO))
    }

    fn operand(&self, expr: &'e Expr) -> Operand<'e> {
        let int = match &expr.kind {
            Kind::Literal(Literal::Int(value)) => Some(*value),
            _ => None,
        };
        let (ty, size, item) = (self.checked.ty(expr), self.size(expr), self.item(expr));
        Operand { ty, size, item, int }
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

    fn comprehension(&mut self, expr: &'e Expr, comprehension: &'e Comprehension) -> Cost {
        match comprehension.kind {
            Macro::OptMap | Macro::OptFlatMap => return self.optional_map(comprehension),
            Macro::SortBy => return self.sort_by(expr, comprehension),
            Macro::Bind => return self.bind_value(expr, comprehension),
            _ => {}
        }
        let range = self.cost(&comprehension.range);
        let (looped, entry) = self.turn(comprehension);
        let turns = self.size_or_unknown(&comprehension.range);
        let (initial, size, result) = match comprehension.kind {
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
        let looped = match comprehension.kind {
            // The condition, and the cost of `accumulator && body`.
            Macro::All => Cost::exactly(2).add(Cost { min: 1, max: body.max.saturating_add(1) }),
            Macro::Exists => Cost::exactly(3).add(Cost { min: 1, max: body.max.saturating_add(1) }),
            Macro::ExistsOne => body.add(Cost { min: 1, max: 2 }),
            Macro::Filter => body.add(Cost { min: 1, max: LIST + 3 }),
            kind => {
                let step = match kind {
                    Macro::TransformMap => 3,
                    Macro::TransformMapEntry => 2,
                    _ => LIST + 2,
                };
                let step = body.add(Cost::exactly(step));
                filter.map_or(step, |filter| filter.add(step.union(ONE)))
            }
        };
        let added = match comprehension.kind {
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
        let then = if comprehension.kind == Macro::OptMap { bound.add(ONE) } else { bound };
        target.add(ONE).add(then.union(ONE))
    }

    /// Estimates `cel.bind`. A reference to the name has the size of the bound value.
    fn bind_value(&mut self, expr: &'e Expr, comprehension: &'e Comprehension) -> Cost {
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
