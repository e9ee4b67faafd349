//! Functions for URLs, quantities, semantic versions, named formats and JSON patch keys.

use std::cmp::Ordering;

use api_meta::{Quantity, QuantityFormat};

use super::{Native, mistyped};
use crate::{
    error::EvalError,
    formats::{self, Format},
    opaque::Opaque,
    semver::Version,
    url::Url,
    value::{Entries, Eval, Map, Value, Work},
};

pub(super) fn native(name: &str) -> Option<Native> {
    Some(match name {
        "url" => |work, args| {
            let text = args[0].as_str()?;
            work.spend(text.len() as u64)?;
            let url = Url::parse(text).map_err(|why| {
                EvalError::Failed(format!("URL parse error during conversion from string: {why}"))
            })?;
            Ok(Value::opaque(Opaque::Url(url)))
        },
        "isURL" => |_, args| Ok(Value::Bool(Url::parse(args[0].as_str()?).is_ok())),
        "getScheme" => |_, args| of_url(args, |url| &url.scheme),
        "getHost" => |_, args| of_url(args, |url| &url.host),
        "getHostname" => |_, args| of_url(args, Url::hostname),
        "getPort" => |_, args| of_url(args, Url::port),
        "getEscapedPath" => |_, args| of_url(args, |url| &url.escaped_path),
        "getQuery" => query,
        "quantity" => |_, args| {
            let text = args[0].as_str()?;
            let quantity =
                Quantity::parse(text).map_err(|why| EvalError::Failed(why.to_string()))?;
            Ok(Value::opaque(Opaque::Quantity(quantity)))
        },
        "isQuantity" => |_, args| Ok(Value::Bool(Quantity::parse(args[0].as_str()?).is_ok())),
        "sign" => |_, args| {
            let order = quantity(&args[0])?.cmp(&Quantity::ZERO);
            Ok(Value::Int(order as i64))
        },
        "asInteger" => |_, args| {
            as_integer(quantity(&args[0])?)
                .map(Value::Int)
                .ok_or_else(|| EvalError::new("cannot convert value to integer"))
        },
        "isInteger" => |_, args| Ok(Value::Bool(as_integer(quantity(&args[0])?).is_some())),
        "asApproximateFloat" => |_, args| Ok(Value::Double(quantity(&args[0])?.as_f64())),
        "add" => |_, args| Ok(sum(quantity(&args[0])? + operand(&args[1])?)),
        "sub" => |_, args| Ok(sum(quantity(&args[0])? - operand(&args[1])?)),
        "compareTo" => |_, args| Ok(Value::Int(ordered(args)? as i64)),
        "isLessThan" => |_, args| Ok(Value::Bool(ordered(args)?.is_lt())),
        "isGreaterThan" => |_, args| Ok(Value::Bool(ordered(args)?.is_gt())),
        "semver" => |_, args| {
            let version = parse_version(args)?.map_err(EvalError::Failed)?;
            Ok(Value::opaque(Opaque::Semver(version)))
        },
        "isSemver" => |_, args| Ok(Value::Bool(parse_version(args)?.is_ok())),
        "major" => |_, args| number(version(&args[0])?.major),
        "minor" => |_, args| number(version(&args[0])?.minor),
        "patch" => |_, args| number(version(&args[0])?.patch),
        "validate" => validate,
        "format.named" => {
            |_, args| Ok(Value::optional(formats::named(args[0].as_str()?).map(shown)))
        }
        "jsonpatch.escapeKey" => |work, args| {
            let text = args[0].as_str()?;
            work.spend(text.len() as u64)?;
            Ok(Value::string(text.replace('~', "~0").replace('/', "~1")))
        },
        _ => return named_format(name),
    })
}

/// Returns a function without arguments for a named format, such as `format.uri()`.
fn named_format(name: &str) -> Option<Native> {
    macro_rules! formats {
        ($($name:literal),*) => {
            Some(match name.strip_prefix("format.")? {
                $($name => |_, _| formats::named($name).map(shown).map_or_else(mistyped, Ok),)*
                _ => return None,
            })
        };
    }
    formats!(
        "dns1123Label",
        "dns1123Subdomain",
        "dns1035Label",
        "qualifiedName",
        "dns1123LabelPrefix",
        "dns1123SubdomainPrefix",
        "dns1035LabelPrefix",
        "labelValue",
        "uri",
        "uuid",
        "byte",
        "date",
        "datetime"
    )
}

fn shown<'a>(format: &'static Format) -> Value<'a> {
    Value::opaque(Opaque::Format(format))
}

fn opaque<'v>(value: &'v Value<'_>) -> Result<&'v Opaque, EvalError> {
    match value {
        Value::Opaque(opaque) => Ok(opaque),
        _ => mistyped(),
    }
}

fn of_url<'a>(args: &[Value<'a>], part: for<'u> fn(&'u Url) -> &'u str) -> Eval<'a> {
    match opaque(&args[0])? {
        Opaque::Url(url) => Ok(Value::string(part(url))),
        _ => mistyped(),
    }
}

fn query<'a>(_: &mut Work, args: &[Value<'a>]) -> Eval<'a> {
    let Opaque::Url(url) = opaque(&args[0])? else { return mistyped() };
    let mut entries = Entries::default();
    for (key, values) in url.pairs() {
        let values = Value::list(values.into_iter().map(Value::string).collect());
        entries.insert(Value::string(key), values)?;
    }
    Ok(Value::Map(Map::Entries(entries.into())))
}

fn quantity(value: &Value<'_>) -> Result<Quantity, EvalError> {
    match opaque(value)? {
        Opaque::Quantity(quantity) => Ok(*quantity),
        _ => mistyped(),
    }
}

fn operand(value: &Value<'_>) -> Result<Quantity, EvalError> {
    match value {
        Value::Int(value) => Ok(Quantity::new(*value, QuantityFormat::DecimalSi)),
        other => quantity(other),
    }
}

fn sum<'a>(quantity: Quantity) -> Value<'a> {
    Value::opaque(Opaque::Quantity(quantity))
}

fn as_integer(quantity: Quantity) -> Option<i64> {
    let value = quantity.value();
    // `value` is rounded and saturated. Only an exact value is an integer.
    (Quantity::new(value, QuantityFormat::DecimalSi) == quantity).then_some(value)
}

fn ordered(args: &[Value<'_>]) -> Result<Ordering, EvalError> {
    match (opaque(&args[0])?, opaque(&args[1])?) {
        (Opaque::Quantity(a), Opaque::Quantity(b)) => Ok(a.cmp(b)),
        (Opaque::Semver(a), Opaque::Semver(b)) => Ok(a.cmp(b)),
        _ => mistyped(),
    }
}

fn parse_version(args: &[Value<'_>]) -> Result<Result<Version, String>, EvalError> {
    let text = args[0].as_str()?;
    Ok(match args.get(1) {
        Some(Value::Bool(true)) => Version::normalized(text),
        Some(Value::Bool(false)) | None => Version::parse(text),
        Some(_) => return mistyped(),
    })
}

fn version<'v>(value: &'v Value<'_>) -> Result<&'v Version, EvalError> {
    match opaque(value)? {
        Opaque::Semver(version) => Ok(version),
        _ => mistyped(),
    }
}

fn number<'a>(value: u64) -> Eval<'a> {
    i64::try_from(value).map(Value::Int).map_err(|_| EvalError::new("integer overflow"))
}

fn validate<'a>(work: &mut Work, args: &[Value<'a>]) -> Eval<'a> {
    let Opaque::Format(format) = opaque(&args[0])? else { return mistyped() };
    let text = args[1].as_str()?;
    work.spend(16 * text.len() as u64)?;
    let errors = format.errors(text);
    let list = Value::list(errors.iter().map(|error| Value::string(error.as_str())).collect());
    Ok(Value::optional((!errors.is_empty()).then_some(list)))
}
