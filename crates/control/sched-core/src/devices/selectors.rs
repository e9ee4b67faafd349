//! Device selectors: CEL expressions over the variable `device`.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, PoisonError},
};

use api_rules::expressions::{ExpressionError, devices};
use cel::{Limits, Opaque, Program, Value};

use crate::devices::view::{DeviceAttributeView, DeviceView};

/// The number of compiled expressions that are cached.
const MAX_CACHED: usize = 256;

/// Returns the CEL value of a device, or the reason why it is invalid. A domain without attributes is an empty map.
pub(super) fn cel_value(driver: &str, device: &DeviceView) -> Result<Value<'static>, String> {
    let attributes = device.attributes.iter().map(|(name, attribute)| {
        let value = value(attribute).map_err(|why| format!("attribute {name}: {why}"))?;
        Ok((&**name, value))
    });
    let attributes: Vec<_> = attributes.collect::<Result<_, String>>()?;
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

fn value(attribute: &DeviceAttributeView) -> Result<Value<'static>, String> {
    match attribute {
        DeviceAttributeView { int: Some(int), .. } => Ok(Value::Int(*int)),
        DeviceAttributeView { bool: Some(bool), .. } => Ok(Value::Bool(*bool)),
        DeviceAttributeView { string: Some(text), .. } => Ok(Value::string(&**text)),
        DeviceAttributeView { version: Some(text), .. } => {
            Value::semver(text).map_err(|error| format!("parse semantic version: {error}"))
        }
        _ => Err("unsupported attribute value".to_owned()),
    }
}

/// Groups values by domain. A name without a domain belongs to the driver's domain.
fn by_domain<'v>(
    driver: &str,
    values: impl Iterator<Item = (&'v str, Value<'static>)>,
) -> Result<Value<'static>, String> {
    let mut domains: BTreeMap<&str, Vec<(Value<'static>, Value<'static>)>> = BTreeMap::new();
    for (name, value) in values {
        let (domain, id) = name.split_once('/').unwrap_or((driver, name));
        domains.entry(domain).or_default().push((Value::string(id), value));
    }
    let domains: Result<Vec<_>, _> = domains
        .into_iter()
        .map(|(domain, values)| Ok((Value::string(domain), Value::map(values)?)))
        .collect();
    let none = Value::map([]);
    let all = domains.and_then(|domains| Value::map_or(domains, none?));
    all.map_err(|error: cel::EvalError| error.to_string())
}

/// A compiled expression, or the compile error.
pub(super) struct Selector {
    program: Result<Program, ExpressionError>,
}

impl Selector {
    pub(super) fn new(text: &str) -> Self {
        Self { program: devices::compile(text) }
    }

    /// Reports whether a device matches, and returns the cost of the evaluation.
    pub(super) fn matches(&self, device: &Value<'static>) -> (Result<bool, String>, u64) {
        let program = match &self.program {
            Ok(program) => program,
            Err(why) => return (Err(format!("CEL compile error: {why}")), 0),
        };
        let limits = Limits { cost: devices::MAX_COST, cancelled: None };
        let outcome = program.evaluate(&[Some(device.clone())], limits);
        let answer = match outcome.value {
            Ok(Value::Bool(answer)) => Ok(answer),
            Ok(other) => Err(format!(
                "CEL result of type {} could not be converted to bool",
                other.type_of().name()
            )),
            Err(error) => Err(error.to_string()),
        };
        (answer.map_err(|why| format!("CEL runtime error: {why}")), outcome.cost)
    }
}

/// A cache of compiled expressions, because many Pods use the same ones.
#[derive(Default)]
pub(super) struct SelectorCache(Mutex<HashMap<Box<str>, Arc<Selector>>>);

impl SelectorCache {
    pub(super) fn get(&self, text: &str) -> Arc<Selector> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(selector) = kept.get(text) {
            return selector.clone();
        }
        if kept.len() >= MAX_CACHED {
            kept.clear();
        }
        let selector = Arc::new(Selector::new(text));
        kept.insert(text.into(), selector.clone());
        selector
    }
}
