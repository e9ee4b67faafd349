//! Evaluation with a cost limit.

use std::sync::Arc;

use crate::{
    composition::Activation,
    cost::units,
    error::EvalError,
    limits::Limits,
    natives::regexes,
    program::{Access, Call, Index, Make, Node, Pattern, Program, Select},
    value::{Entries, Eval, List, Map, Record, Value, Work},
};

mod loops;

/// The work in functions that one unit of cost permits.
const WORK_PER_COST: u64 = 64;
/// The work in functions that is permitted at any cost limit.
const LEAST_WORK: u64 = 1 << 20;

/// The result of an evaluation.
#[derive(Debug)]
pub struct Outcome<'a> {
    /// The value, or the error.
    pub value: Result<Value<'a>, EvalError>,
    /// The actual cost. Its last step may exceed the limit.
    pub cost: u64,
}

impl Program {
    /// Evaluates with a value for each variable of the environment. Reading a variable without a value is an error.
    pub fn evaluate<'a>(
        &'a self,
        variables: &[Option<Value<'a>>],
        limits: Limits<'_>,
    ) -> Outcome<'a> {
        self.run(variables, None, limits)
    }

    /// Evaluates with an activation, for an expression that may use composed variables.
    pub fn evaluate_in<'a>(
        &'a self,
        activation: &Activation<'a>,
        limits: Limits<'_>,
    ) -> Outcome<'a> {
        self.run(activation.values(), Some(activation), limits)
    }

    fn run<'a>(
        &'a self,
        variables: &[Option<Value<'a>>],
        activation: Option<&Activation<'a>>,
        limits: Limits<'_>,
    ) -> Outcome<'a> {
        let work = limits.cost.saturating_mul(WORK_PER_COST).saturating_add(LEAST_WORK);
        let mut frame = Frame {
            variables,
            activation,
            locals: Vec::new(),
            cost: 0,
            limits,
            work: Work(work),
            turns: 0,
        };
        let value = frame.eval(&self.root);
        Outcome { value, cost: frame.cost }
    }
}

struct Frame<'a, 'c> {
    variables: &'c [Option<Value<'a>>],
    activation: Option<&'c Activation<'a>>,
    locals: Vec<Value<'a>>,
    cost: u64,
    limits: Limits<'c>,
    work: Work,
    turns: u32,
}

impl<'a> Frame<'a, '_> {
    fn charge(&mut self, cost: u64) -> Result<(), EvalError> {
        self.cost = self.cost.saturating_add(cost);
        if self.cost > self.limits.cost { Err(EvalError::CostLimit) } else { Ok(()) }
    }

    fn eval(&mut self, node: &'a Node) -> Eval<'a> {
        api_meta::steps::spend(1);
        match node {
            Node::Const(value) => Ok(value.clone()),
            Node::Variable { at, name, free } => {
                self.charge(u64::from(!free))?;
                self.variable(*at, name)
            }
            Node::Local { at, free } => {
                self.charge(u64::from(!free))?;
                Ok(self.locals[*at].clone())
            }
            Node::Select(select) => self.select(select),
            Node::Index(index) => self.index(index),
            Node::And(terms) => self.logical(terms, false),
            Node::Or(terms) => self.logical(terms, true),
            Node::Cond(parts) => match self.eval(&parts[0])? {
                Value::Bool(true) => self.eval(&parts[1]),
                Value::Bool(false) => self.eval(&parts[2]),
                _ => Err(EvalError::no_such_overload()),
            },
            Node::Call(call) => self.call(call),
            Node::Search(pattern) => self.search(pattern),
            Node::Within(within) => {
                let value = self.eval(&within.0)?;
                Ok(Value::Bool(within.1.get(&value).is_some()))
            }
            Node::Or2 { both, value } => self.or_else(both, *value),
            Node::List(items) => self.list(items),
            Node::Map(entries) => self.map(entries),
            Node::Make(make) => self.make(make),
            Node::Comprehension(comprehension) => self.comprehension(comprehension),
        }
    }

    fn variable(&self, at: usize, name: &str) -> Eval<'a> {
        let value = self.variables.get(at).and_then(Option::as_ref);
        value.cloned().ok_or_else(|| EvalError::Failed(format!("no such attribute(s): {name}")))
    }

    fn boolean(&mut self, node: &'a Node) -> Result<bool, EvalError> {
        match self.eval(node)? {
            Value::Bool(value) => Ok(value),
            _ => Err(EvalError::no_such_overload()),
        }
    }

    /// Evaluates `&&` and `||`. One operand may decide the result even if the other fails.
    fn logical(&mut self, terms: &'a [Node], settles: bool) -> Eval<'a> {
        let mut failed = None;
        for term in terms {
            match self.boolean(term) {
                Ok(value) if value == settles => return Ok(Value::Bool(settles)),
                Ok(_) => {}
                Err(error) if error.is_absorbable() => failed = failed.or(Some(error)),
                Err(error) => return Err(error),
            }
        }
        failed.map_or(Ok(Value::Bool(!settles)), Err)
    }

    #[inline(never)]
    fn select(&mut self, select: &'a Select) -> Eval<'a> {
        let operand = self.eval(&select.operand)?;
        let result = self.selected(select, operand);
        // An absent field in an optional selection is free.
        let absent =
            select.access == Access::Optional && matches!(result, Ok(Value::Optional(None)));
        self.charge(if absent { select.cost.saturating_sub(1) } else { select.cost })?;
        result
    }

    fn selected(&self, select: &'a Select, operand: Value<'a>) -> Eval<'a> {
        match select.access {
            Access::Get => match operand {
                Value::Optional(None) => Ok(Value::Optional(None)),
                Value::Optional(Some(value)) => {
                    // Selecting a field of a value without fields is an error even here.
                    self.field(&value, select).map(Value::optional)
                }
                operand => self
                    .field(&operand, select)?
                    .ok_or_else(|| EvalError::no_such_key(&select.field)),
            },
            Access::Optional => match operand {
                Value::Optional(None) => Ok(Value::Optional(None)),
                Value::Optional(Some(value)) => self.field(&value, select).map(Value::optional),
                operand => self.field(&operand, select).map(Value::optional),
            },
            Access::Test => match operand {
                Value::Optional(None) => Ok(Value::Bool(false)),
                Value::Optional(Some(value)) => self.has(&value, select).map(Value::Bool),
                operand => self.has(&operand, select).map(Value::Bool),
            },
        }
    }

    /// Reports whether a field is present. As upstream, a composed variable is evaluated for this.
    fn has(&self, value: &Value<'a>, select: &Select) -> Result<bool, EvalError> {
        match (value, self.activation) {
            (Value::Object(Record::Composed(_)), Some(activation)) => {
                Ok(activation.composed(&select.field).transpose()?.is_some())
            }
            _ => has(value, select),
        }
    }

    fn field(&self, value: &Value<'a>, select: &Select) -> Result<Option<Value<'a>>, EvalError> {
        match (value, self.activation) {
            (Value::Object(Record::Composed(_)), Some(activation)) => {
                activation.composed(&select.field).transpose()
            }
            _ => field(value, select),
        }
    }

    #[inline(never)]
    fn index(&mut self, index: &'a Index) -> Eval<'a> {
        let operand = self.eval(&index.operand)?;
        let key = self.eval(&index.index)?;
        let result = self.indexed(index, operand, &key);
        let absent =
            index.access == Access::Optional && matches!(result, Ok(Value::Optional(None)));
        self.charge(if absent { index.cost.saturating_sub(1) } else { index.cost })?;
        result
    }

    fn indexed(&self, index: &'a Index, operand: Value<'a>, key: &Value<'a>) -> Eval<'a> {
        match operand {
            Value::Optional(None) => Ok(Value::Optional(None)),
            Value::Optional(Some(value)) => element(&value, key).map(Value::optional),
            operand => match (element(&operand, key)?, index.access) {
                (found, Access::Optional) => Ok(Value::optional(found)),
                (Some(found), _) => Ok(found),
                (None, _) => Err(missing(&operand, key)),
            },
        }
    }

    #[inline(never)]
    fn call(&mut self, call: &'a Call) -> Eval<'a> {
        // Most calls have at most two arguments.
        match &*call.args {
            [one] => {
                let mut failed = None;
                let args = [self.argument(one, &mut failed)?];
                self.charge((call.charge)(&args))?;
                failed.map_or_else(|| call.run(&mut self.work, &args), Err)
            }
            [one, two] => {
                let mut failed = None;
                let args = [self.argument(one, &mut failed)?, self.argument(two, &mut failed)?];
                self.charge((call.charge)(&args))?;
                failed.map_or_else(|| call.run(&mut self.work, &args), Err)
            }
            many => {
                let args = self.arguments(many)?;
                self.charge((call.charge)(&args))?;
                call.run(&mut self.work, &args)
            }
        }
    }

    /// Evaluates an argument of a call. If it fails, the call and the other arguments are still charged, so `null`
    /// takes its place.
    fn argument(&mut self, node: &'a Node, failed: &mut Option<EvalError>) -> Eval<'a> {
        self.eval(node).or_else(|error| {
            if !error.is_absorbable() {
                return Err(error);
            }
            failed.get_or_insert(error);
            Ok(Value::Null)
        })
    }

    fn arguments(&mut self, nodes: &'a [Node]) -> Result<Vec<Value<'a>>, EvalError> {
        nodes.iter().map(|node| self.eval(node)).collect()
    }

    #[inline(never)]
    fn search(&mut self, pattern: &'a Pattern) -> Eval<'a> {
        let args = self.arguments(&pattern.args)?;
        self.charge((pattern.charge)(&args))?;
        regexes::run(pattern.search, &mut self.work, &args, &pattern.regex)
    }

    fn or_else(&mut self, both: &'a [Node; 2], unwrap: bool) -> Eval<'a> {
        match self.eval(&both[0])? {
            Value::Optional(None) => self.eval(&both[1]),
            Value::Optional(Some(value)) if unwrap => Ok((*value).clone()),
            some @ Value::Optional(Some(_)) => Ok(some),
            _ => Err(EvalError::no_such_overload()),
        }
    }

    #[inline(never)]
    fn list(&mut self, items: &'a [(Node, bool)]) -> Eval<'a> {
        let mut values = Vec::with_capacity(items.len());
        for (node, optional) in items {
            match self.eval(node)? {
                Value::Optional(value) if *optional => values.extend(value.as_deref().cloned()),
                _ if *optional => return Err(EvalError::no_such_overload()),
                value => values.push(value),
            }
        }
        self.charge(units::LIST)?;
        Ok(Value::list(values))
    }

    #[inline(never)]
    fn map(&mut self, entries: &'a [(Node, Node, bool)]) -> Eval<'a> {
        let mut map = Entries::default();
        for (key, value, optional) in entries {
            let key = self.eval(key)?;
            match self.eval(value)? {
                Value::Optional(value) if *optional => {
                    if let Some(value) = value {
                        map.insert(key, (*value).clone())?;
                    }
                }
                _ if *optional => return Err(EvalError::no_such_overload()),
                value => map.insert(key, value)?,
            }
        }
        self.charge(units::MAP)?;
        Ok(Value::Map(Map::Entries(Arc::new(map))))
    }

    #[inline(never)]
    fn make(&mut self, make: &'a Make) -> Eval<'a> {
        let mut fields = vec![None; make.object.fields.len()];
        for (at, node, optional) in &make.fields {
            let value = match self.eval(node)? {
                Value::Optional(value) if *optional => value.map(|value| (*value).clone()),
                value => Some(value),
            };
            fields[*at] = value;
        }
        self.charge(units::STRUCT)?;
        let object = Arc::clone(&make.object);
        Ok(Value::Object(Record::Literal { object, fields: Arc::new(fields) }))
    }
}

/// Returns a field's value, if the field is present.
fn field<'a>(value: &Value<'a>, select: &Select) -> Result<Option<Value<'a>>, EvalError> {
    match value {
        Value::Object(record) => match field_index(record, select) {
            Some(at) => record.field(at),
            None => Ok(None),
        },
        Value::Map(map) => map.get(&select.name),
        _ => Err(EvalError::no_such_key(&select.field)),
    }
}

fn has(value: &Value<'_>, select: &Select) -> Result<bool, EvalError> {
    match value {
        Value::Object(record) => Ok(field_index(record, select).is_some_and(|at| record.has(at))),
        Value::Map(map) => Ok(map.get(&select.name)?.is_some()),
        _ => Err(EvalError::no_such_overload()),
    }
}

/// Returns the index of a field: the checker's, or by name if the type was unknown at compile time.
fn field_index(record: &Record<'_>, select: &Select) -> Option<usize> {
    match &select.known {
        Some((object, at)) if Arc::ptr_eq(object, record.object()) => Some(*at),
        _ => record.object().position(&select.field),
    }
}

fn element<'a>(operand: &Value<'a>, key: &Value<'_>) -> Result<Option<Value<'a>>, EvalError> {
    match operand {
        Value::List(list) => match position(list, key)? {
            Some(at) => list.get(at).map(Some),
            None => Ok(None),
        },
        Value::Map(map) => map.get(key),
        _ => Err(EvalError::no_such_overload()),
    }
}

fn position(list: &List<'_>, key: &Value<'_>) -> Result<Option<usize>, EvalError> {
    let at = match key {
        Value::Int(at) => usize::try_from(*at).ok(),
        Value::Uint(at) => usize::try_from(*at).ok(),
        Value::Double(at) if at.fract() == 0.0 => Some(*at as usize).filter(|_| *at >= 0.0),
        _ => {
            let ty = key.type_of();
            return Err(EvalError::Failed(format!(
                "unsupported index type '{}' in list",
                ty.name()
            )));
        }
    };
    Ok(at.filter(|at| *at < list.len()))
}

fn missing(operand: &Value<'_>, key: &Value<'_>) -> EvalError {
    let key = crate::format::show(key);
    match operand {
        Value::List(_) => EvalError::Failed(format!("index out of bounds: {key}")),
        _ => EvalError::no_such_key(key),
    }
}
