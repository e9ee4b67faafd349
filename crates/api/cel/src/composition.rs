//! Named expressions that other expressions refer to: `variables.NAME` of admission policies.
//!
//! They are compiled in order, each with the types of the earlier ones. They are evaluated on first use, once per
//! [`Activation`].

use std::{
    cell::{Cell, OnceCell},
    collections::{BTreeMap, HashMap},
    fmt,
    sync::{Arc, LazyLock},
};

use crate::{
    env::Env,
    error::EvalError,
    limits::{Limits, PER_CALL_LIMIT},
    program::Program,
    types::{Decl, Field, Object, Shape, Type, is_reserved},
    value::{Eval, Record, Value},
};

/// The name of the type of `variables`, as in upstream.
const TYPE: &str = "kubernetes.variables";
/// The type of the value of `variables`. The activation evaluates its fields by name, so it lists none.
static COMPOSED: LazyLock<Arc<Object>> = LazyLock::new(|| Object::new(TYPE, Vec::new()));
/// The maximum nesting of variables. Evaluations nest on the stack, and upstream has no limit.
const MAX_DEPTH: usize = 32;

/// The composed variables of a policy. Using one that does not compile is an evaluation error.
#[derive(Debug, Default)]
pub struct Composition {
    named: Vec<(Arc<str>, Result<Program, EvalError>)>,
    /// The index by name. Of several variables with one name, the last one wins.
    indexes: HashMap<Arc<str>, usize>,
}

impl Composition {
    /// Adds a variable for the expressions that are compiled later.
    pub fn add(&mut self, name: &str, program: Result<Program, impl fmt::Display>) {
        let program = program.map_err(|error| {
            EvalError::Failed(format!("composited variable {name:?} fails to compile: {error}"))
        });
        let name: Arc<str> = name.into();
        self.indexes.insert(Arc::clone(&name), self.named.len());
        self.named.push((name, program));
    }

    /// Reports whether there are no variables.
    pub fn is_empty(&self) -> bool {
        self.named.is_empty()
    }

    /// Adds `variables` to the environment in which `text` is compiled. Its type has only the fields that `text` can
    /// name, so that compiling n expressions beside n variables does not take n² steps.
    #[must_use]
    pub fn declared_in(&self, env: Env, text: &str) -> Env {
        let mut fields = BTreeMap::new();
        for word in text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
            let escaped = is_reserved(word).then(|| format!("__{word}__"));
            for name in [Some(word), escaped.as_deref()].into_iter().flatten() {
                fields.extend(self.indexes.get_key_value(name));
            }
        }
        let field = |(name, at): (&Arc<str>, &usize)| {
            let ty = self.named.get(*at).and_then(|(_, program)| program.as_ref().ok());
            let ty = ty.map_or(Type::Dyn, |program| declared_type(program.result()));
            let decl = Decl::new(Shape::Computed(ty), u64::MAX, 1);
            Field { name: Arc::clone(name), key: Arc::clone(name), decl }
        };
        let object = Object::new(TYPE, fields.into_iter().map(field).collect());
        env.typed("variables", Type::Object(object))
    }
}

/// Returns the type that other expressions see: element types that are not scalar become `dyn`.
fn declared_type(ty: &Type) -> Type {
    match ty {
        Type::List(_) | Type::Map(_) => ty.rebuilt(&mut declared_type),
        Type::Object(_) | Type::Opaque(_) | Type::Optional(_) | Type::Type(_) => Type::Dyn,
        Type::Param(_) | Type::Error => Type::Dyn,
        scalar => scalar.clone(),
    }
}

/// The input of an evaluation: a value for each variable of the environment, and the composed variables, each evaluated
/// at most once.
pub struct Activation<'a> {
    values: Vec<Option<Value<'a>>>,
    composition: Option<&'a Composition>,
    cached: Vec<OnceCell<Eval<'a>>>,
    cost: Cell<u64>,
    depth: Cell<usize>,
}

impl<'a> Activation<'a> {
    /// Creates an activation. `values` are in the order of the environment's variables.
    pub fn new(values: Vec<Option<Value<'a>>>) -> Self {
        let (cost, depth) = (Cell::new(0), Cell::new(0));
        Self { values, composition: None, cached: Vec::new(), cost, depth }
    }

    /// Adds composed variables. `variables` is the index of the environment's variable with this name.
    #[must_use]
    pub fn with_composition(mut self, composition: &'a Composition, variables: usize) -> Self {
        if let Some(value) = self.values.get_mut(variables) {
            *value = Some(Value::Object(Record::Composed(Arc::clone(&COMPOSED))));
        }
        self.cached = composition.named.iter().map(|_| OnceCell::new()).collect();
        self.composition = Some(composition);
        self
    }

    pub(crate) fn values(&self) -> &[Option<Value<'a>>] {
        &self.values
    }

    /// Returns and resets the cost of composed variables. It is not part of the cost of the expressions that use them.
    pub fn take_cost(&self) -> u64 {
        self.cost.take()
    }

    /// Returns the value of a composed variable.
    pub(crate) fn composed(&self, name: &str) -> Option<Eval<'a>> {
        let composition = self.composition?;
        let at = *composition.indexes.get(name)?;
        let (cached, (_, program)) = (self.cached.get(at)?, composition.named.get(at)?);
        if let Some(cached) = cached.get() {
            return Some(cached.clone());
        }
        if self.depth.get() >= MAX_DEPTH {
            return Some(Err(EvalError::Failed(format!(
                "composited variable {name:?} fails to evaluate: variables are nested more than {MAX_DEPTH} levels deep"
            ))));
        }
        self.depth.set(self.depth.get() + 1);
        let value = self.evaluate_variable(name, program);
        self.depth.set(self.depth.get() - 1);
        // A variable that refers to itself has already failed with the nesting error.
        Some(cached.get_or_init(|| value).clone())
    }

    fn evaluate_variable(&self, name: &str, program: &'a Result<Program, EvalError>) -> Eval<'a> {
        let program = program.as_ref().map_err(EvalError::clone)?;
        let limits = Limits { cost: PER_CALL_LIMIT, cancelled: None };
        let outcome = program.evaluate_in(self, limits);
        self.cost.set(self.cost.get().saturating_add(outcome.cost));
        outcome.value.map_err(|error| {
            EvalError::Failed(format!("composited variable {name:?} fails to evaluate: {error}"))
        })
    }
}
