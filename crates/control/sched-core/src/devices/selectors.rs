//! Device selectors: CEL expressions over the variable `device`.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use api_rules::expressions::devices;
use cel::{EvalError, Limits, Opaque, Program, Value};
use parking_lot::Mutex;

use crate::devices::view::{DeviceAttributeView, DeviceView};

/// The number of compiled expressions that are cached.
const MAX_CACHED: usize = 256;

/// A device that has no CEL value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DeviceError {
    #[error("attribute {name}: parse semantic version: {source}")]
    Version { name: Box<str>, source: EvalError },
    #[error("attribute {name}: unsupported attribute value")]
    Attribute { name: Box<str> },
    #[error(transparent)]
    Value(#[from] EvalError),
}

/// A selector that cannot be evaluated for a device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SelectorError {
    #[error("CEL compile error: {0}")]
    Compile(String),
    #[error("CEL runtime error: CEL result of type {0} could not be converted to bool")]
    NotBool(String),
    #[error("CEL runtime error: {0}")]
    Runtime(#[source] EvalError),
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// Returns the CEL value of a device, or the reason why it is invalid. A domain without attributes is an empty map.
pub(super) fn cel_value(driver: &str, device: &DeviceView) -> Result<Value<'static>, DeviceError> {
    let attributes = device.attributes.iter();
    let attributes = attributes.map(|(name, view)| Ok((&**name, attribute(name, view)?)));
    let attributes: Vec<_> = attributes.collect::<Result<_, DeviceError>>()?;
    let capacity = device.capacity.iter();
    let capacity = capacity.map(|(name, c)| (&**name, Value::opaque(Opaque::Quantity(c.value))));
    let shareable = device.allow_multiple_allocations == Some(true);
    let fields = vec![
        ("driver", Value::string(driver)),
        ("allowMultipleAllocations", Value::Bool(shareable)),
        ("attributes", by_domain(driver, attributes.into_iter())?),
        ("capacity", by_domain(driver, capacity)?),
    ];
    Ok(Value::record(devices::device(), fields))
}

fn attribute(name: &str, view: &DeviceAttributeView) -> Result<Value<'static>, DeviceError> {
    match view {
        DeviceAttributeView { int: Some(int), .. } => Ok(Value::Int(*int)),
        DeviceAttributeView { bool: Some(bool), .. } => Ok(Value::Bool(*bool)),
        DeviceAttributeView { string: Some(text), .. } => Ok(Value::string(&**text)),
        DeviceAttributeView { version: Some(text), .. } => {
            Value::semver(text).map_err(|source| DeviceError::Version { name: name.into(), source })
        }
        _ => Err(DeviceError::Attribute { name: name.into() }),
    }
}

/// Groups values by domain. A name without a domain belongs to the driver's domain.
fn by_domain<'v>(
    driver: &str,
    values: impl Iterator<Item = (&'v str, Value<'static>)>,
) -> Result<Value<'static>, EvalError> {
    let mut domains: BTreeMap<&str, Vec<(Value<'static>, Value<'static>)>> = BTreeMap::new();
    for (name, value) in values {
        let (domain, id) = name.split_once('/').unwrap_or((driver, name));
        domains.entry(domain).or_default().push((Value::string(id), value));
    }
    let domains = domains
        .into_iter()
        .map(|(domain, values)| Ok((Value::string(domain), Value::map(values)?)))
        .collect::<Result<Vec<_>, EvalError>>()?;
    Value::map_or(domains, Value::map([])?)
}

/// A compiled expression, or the compile error.
pub(super) struct Selector {
    program: Result<Program, SelectorError>,
}

impl Selector {
    pub(super) fn new(text: &str) -> Self {
        let program = devices::compile(text);
        Self { program: program.map_err(|error| SelectorError::Compile(error.to_string())) }
    }

    /// Reports whether a device matches, and returns the cost of the evaluation.
    pub(super) fn matches(&self, device: &Value<'static>) -> (Result<bool, SelectorError>, u64) {
        let program = match &self.program {
            Ok(program) => program,
            Err(error) => return (Err(error.clone()), 0),
        };
        let limits = Limits { cost: devices::MAX_COST, cancelled: None };
        let outcome = program.evaluate(&[Some(device.clone())], limits);
        let matches = match outcome.value {
            Ok(Value::Bool(matches)) => Ok(matches),
            Ok(other) => Err(SelectorError::NotBool(other.type_of().name().to_string())),
            Err(error) => Err(SelectorError::Runtime(error)),
        };
        (matches, outcome.cost)
    }
}

/// A cache of compiled expressions, because many Pods use the same ones.
#[derive(Default)]
pub(super) struct SelectorCache(Mutex<HashMap<Box<str>, Arc<Selector>>>);

impl SelectorCache {
    pub(super) fn get(&self, text: &str) -> Arc<Selector> {
        let mut cache = self.0.lock();
        if let Some(selector) = cache.get(text) {
            return selector.clone();
        }
        if cache.len() >= MAX_CACHED {
            cache.clear();
        }
        let selector = Arc::new(Selector::new(text));
        cache.insert(text.into(), selector.clone());
        selector
    }
}
