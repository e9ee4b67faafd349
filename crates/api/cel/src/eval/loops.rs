//! Evaluation of macros that bind variables.

use std::sync::Arc;

use super::Frame;
use crate::{
    ast::Macro,
    cost::{charges, units},
    error::EvalError,
    natives::lists,
    program::{Loop, Node},
    value::{Entries, Eval, Map, Value},
};

/// The number of loop iterations between two checks of the deadline.
const CHECK_FREQUENCY: u32 = 100;

impl<'a> Frame<'a, '_> {
    #[inline(never)]
    pub(super) fn comprehension(&mut self, comprehension: &'a Loop) -> Eval<'a> {
        let before = self.cost;
        let range = self.eval(&comprehension.range)?;
        if let Macro::OptMap | Macro::OptFlatMap = comprehension.kind {
            let cost = self.cost - before;
            return self.optional_map(comprehension, range, cost);
        }
        self.locals.truncate(comprehension.depth);
        if comprehension.kind == Macro::Bind {
            self.locals.push(range);
            let body = self.eval(&comprehension.body);
            self.locals.truncate(comprehension.depth);
            return body;
        }
        let mut turns = LoopState::new(comprehension);
        let result = self.turns(comprehension, &range, &mut turns);
        self.locals.truncate(comprehension.depth);
        result?;
        self.finish(comprehension, range, turns)
    }

    fn turns(
        &mut self,
        comprehension: &'a Loop,
        range: &Value<'a>,
        turns: &mut LoopState<'a>,
    ) -> Result<(), EvalError> {
        match range {
            Value::List(list) => {
                for at in 0..list.len() {
                    let item = list.get(at)?;
                    let second = if comprehension.two { Some(item.clone()) } else { None };
                    let first = if comprehension.two { Value::Int(at as i64) } else { item };
                    if !self.turn(comprehension, turns, first, second)? {
                        break;
                    }
                }
                Ok(())
            }
            Value::Map(map) if comprehension.two => {
                for entry in map.entries() {
                    let (key, value) = entry?;
                    if !self.turn(comprehension, turns, key, Some(value))? {
                        break;
                    }
                }
                Ok(())
            }
            Value::Map(map) => {
                self.work.spend(map.len() as u64)?;
                for key in map.keys() {
                    if !self.turn(comprehension, turns, key, None)? {
                        break;
                    }
                }
                Ok(())
            }
            _ => Err(EvalError::no_such_overload()),
        }
    }

    /// Runs one iteration of a loop and returns whether to continue.
    fn turn(
        &mut self,
        comprehension: &'a Loop,
        turns: &mut LoopState<'a>,
        first: Value<'a>,
        second: Option<Value<'a>>,
    ) -> Result<bool, EvalError> {
        self.turns += 1;
        if self.turns.is_multiple_of(CHECK_FREQUENCY)
            && self.limits.cancelled.is_some_and(|cancelled| cancelled())
        {
            return Err(EvalError::Interrupted);
        }
        self.work.spend(1)?;
        // The loop condition is evaluated before each iteration.
        self.charge(turns.condition)?;
        if turns.settled {
            return Ok(false);
        }
        self.locals.truncate(comprehension.depth);
        let key = first.clone();
        self.locals.push(first);
        self.locals.extend(second);
        if let Some(filter) = &comprehension.filter
            && !self.boolean(filter)?
        {
            return Ok(true);
        }
        self.step(comprehension, turns, key)?;
        Ok(true)
    }

    fn step(
        &mut self,
        comprehension: &'a Loop,
        turns: &mut LoopState<'a>,
        key: Value<'a>,
    ) -> Result<(), EvalError> {
        let body = &comprehension.body;
        match comprehension.kind {
            Macro::All | Macro::Exists => {
                let settles = comprehension.kind == Macro::Exists;
                self.charge(1)?;
                match self.boolean(body) {
                    Ok(value) => turns.settled = value == settles,
                    Err(error) if error.is_absorbable() => turns.failed = Some(error),
                    Err(error) => return Err(error),
                }
            }
            Macro::ExistsOne => {
                if self.boolean(body)? {
                    self.charge(2)?;
                    turns.count += 1;
                }
            }
            Macro::Map | Macro::SortBy => {
                let constant = matches!(body, Node::Const(_));
                let value = self.eval(body)?;
                self.charge(2 + if constant { 0 } else { units::LIST })?;
                turns.items.push(value);
            }
            Macro::Filter => {
                if self.boolean(body)? {
                    self.charge(3 + units::LIST)?;
                    turns.items.push(key);
                }
            }
            Macro::TransformMap => {
                let value = self.eval(body)?;
                self.charge(3)?;
                turns.entries.insert(key, value)?;
            }
            Macro::TransformMapEntry => {
                let value = self.eval(body)?;
                self.charge(2)?;
                let Value::Map(map) = value else { return Err(EvalError::no_such_overload()) };
                for entry in map.entries() {
                    self.work.spend(1)?;
                    let (key, value) = entry?;
                    turns.entries.insert(key, value)?;
                }
            }
            Macro::OptMap | Macro::OptFlatMap | Macro::Bind => {}
        }
        Ok(())
    }

    fn finish(
        &mut self,
        comprehension: &'a Loop,
        range: Value<'a>,
        turns: LoopState<'a>,
    ) -> Eval<'a> {
        self.charge(1)?;
        match comprehension.kind {
            Macro::All | Macro::Exists => {
                let exists = comprehension.kind == Macro::Exists;
                match turns.failed {
                    Some(error) if !turns.settled => Err(error),
                    _ => Ok(Value::Bool(turns.settled == exists)),
                }
            }
            Macro::ExistsOne => {
                self.charge(1)?;
                Ok(Value::Bool(turns.count == 1))
            }
            Macro::TransformMap | Macro::TransformMapEntry => {
                Ok(Value::Map(Map::Entries(Arc::new(turns.entries))))
            }
            Macro::SortBy => {
                let args = [range, Value::list(turns.items)];
                // The range occurs twice in upstream's expansion.
                self.charge(2 + charges::sort_by_keys(&args))?;
                lists::sort_by_keys(&mut self.work, &args)
            }
            _ => Ok(Value::list(turns.items)),
        }
    }

    /// Evaluates `optMap` and `optFlatMap`. Upstream's expansion evaluates the target twice: for `hasValue` and for
    /// `value`.
    fn optional_map(&mut self, comprehension: &'a Loop, range: Value<'a>, cost: u64) -> Eval<'a> {
        self.charge(1)?;
        match range {
            Value::Optional(None) => {
                self.charge(1)?;
                Ok(Value::Optional(None))
            }
            Value::Optional(Some(value)) => {
                self.charge(cost + 1)?;
                self.locals.truncate(comprehension.depth);
                self.locals.push((*value).clone());
                let body = self.eval(&comprehension.body);
                self.locals.truncate(comprehension.depth);
                let body = body?;
                if comprehension.kind == Macro::OptMap {
                    self.charge(1)?;
                    return Ok(Value::optional(Some(body)));
                }
                match body {
                    Value::Optional(_) => Ok(body),
                    _ => Err(EvalError::no_such_overload()),
                }
            }
            _ => Err(EvalError::no_such_overload()),
        }
    }
}

/// The state of a loop.
struct LoopState<'a> {
    condition: u64,
    settled: bool,
    failed: Option<EvalError>,
    count: u64,
    items: Vec<Value<'a>>,
    entries: Entries<'a>,
}

impl LoopState<'_> {
    fn new(comprehension: &Loop) -> Self {
        let condition = match comprehension.kind {
            Macro::All => 2,
            Macro::Exists => 3,
            _ => 0,
        };
        Self {
            condition,
            settled: false,
            failed: None,
            count: 0,
            items: Vec::new(),
            entries: Entries::default(),
        }
    }
}
