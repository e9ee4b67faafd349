//! Functions for URLs, quantities, semantic versions, named formats and JSON patch keys.

use std::cmp::Ordering;

use api_meta::{Quantity, QuantityFormat};

use crate::{
    cost::{charges, estimates},
    error::EvalError,
    formats::{self, Format},
    function::{Availability, Function, Library, mistyped},
    opaque::Opaque,
    semver::Version,
    url::Url,
    value::{Entries, Eval, Map, Value, Work},
};

/// The URL library.
pub(super) static URLS: Library = Library::since(
    0,
    &[
        Function::new("url", "(string) kubernetes.URL", |work, args| {
            let text = args[0].as_str()?;
            work.spend(text.len() as u64)?;
            let url = Url::parse(text).map_err(|error| {
                EvalError::Failed(format!("URL parse error during conversion from string: {error}"))
            })?;
            Ok(Value::opaque(Opaque::Url(url)))
        })
        .costs(charges::read, estimates::copy),
        Function::new("getScheme", "kubernetes.URL#() string", |_, args| {
            url_part(args, |url| &url.scheme)
        }),
        Function::new("getHost", "kubernetes.URL#() string", |_, args| {
            url_part(args, |url| &url.host)
        }),
        Function::new("getHostname", "kubernetes.URL#() string", |_, args| {
            url_part(args, Url::hostname)
        }),
        Function::new("getPort", "kubernetes.URL#() string", |_, args| url_part(args, Url::port)),
        Function::new("getEscapedPath", "kubernetes.URL#() string", |_, args| {
            url_part(args, |url| &url.escaped_path)
        }),
        Function::new("getQuery", "kubernetes.URL#() map(string, list(string))", query),
        Function::new("isURL", "(string) bool", |_, args| {
            Ok(Value::Bool(Url::parse(args[0].as_str()?).is_ok()))
        }),
    ],
)
.with_types(&["kubernetes.URL"]);

/// The quantity library.
pub(super) static QUANTITIES: Library = Library::since(
    28,
    &[
        Function::new("quantity", "(string) kubernetes.Quantity", |_, args| {
            let text = args[0].as_str()?;
            let quantity =
                Quantity::parse(text).map_err(|error| EvalError::Failed(error.to_string()))?;
            Ok(Value::opaque(Opaque::Quantity(quantity)))
        })
        .costs(charges::read, estimates::read),
        Function::new("isQuantity", "(string) bool", |_, args| {
            Ok(Value::Bool(Quantity::parse(args[0].as_str()?).is_ok()))
        })
        .costs(charges::read, estimates::read),
        Function::new("sign", "(kubernetes.Quantity) int", |_, args| {
            Ok(Value::Int(quantity(&args[0])?.cmp(&Quantity::ZERO) as i64))
        }),
        Function::new(
            "isGreaterThan",
            "kubernetes.Quantity#(kubernetes.Quantity) bool",
            is_greater_than,
        ),
        Function::new("isLessThan", "kubernetes.Quantity#(kubernetes.Quantity) bool", is_less_than),
        Function::new("compareTo", "kubernetes.Quantity#(kubernetes.Quantity) int", compare_to),
        Function::new("asApproximateFloat", "kubernetes.Quantity#() double", |_, args| {
            Ok(Value::Double(quantity(&args[0])?.as_f64()))
        }),
        Function::new("asInteger", "kubernetes.Quantity#() int", |_, args| {
            as_integer(quantity(&args[0])?)
                .map(Value::Int)
                .ok_or_else(|| EvalError::new("cannot convert value to integer"))
        }),
        Function::new("isInteger", "kubernetes.Quantity#() bool", |_, args| {
            Ok(Value::Bool(as_integer(quantity(&args[0])?).is_some()))
        }),
        Function::new(
            "add",
            "kubernetes.Quantity#(kubernetes.Quantity) kubernetes.Quantity; \
            kubernetes.Quantity#(int) kubernetes.Quantity",
            |_, args| Ok(sum(quantity(&args[0])? + operand(&args[1])?)),
        ),
        Function::new(
            "sub",
            "kubernetes.Quantity#(kubernetes.Quantity) kubernetes.Quantity; \
            kubernetes.Quantity#(int) kubernetes.Quantity",
            |_, args| Ok(sum(quantity(&args[0])? - operand(&args[1])?)),
        ),
    ],
)
.with_types(&["kubernetes.Quantity"]);

/// The library of semantic versions.
pub(super) static VERSIONS: Library = Library::since(
    33,
    &[
        Function::new(
            "semver",
            "(string) kubernetes.Semver; (string, bool) kubernetes.Semver",
            |_, args| {
                let version = parse_version(args)??;
                Ok(Value::opaque(Opaque::Semver(version)))
            },
        )
        .costs(charges::read, estimates::read),
        Function::new("isSemver", "(string) bool; (string, bool) bool", |_, args| {
            Ok(Value::Bool(parse_version(args)?.is_ok()))
        })
        .costs(charges::read, estimates::read),
        Function::new(
            "isGreaterThan",
            "kubernetes.Semver#(kubernetes.Semver) bool",
            is_greater_than,
        ),
        Function::new("isLessThan", "kubernetes.Semver#(kubernetes.Semver) bool", is_less_than),
        Function::new("compareTo", "kubernetes.Semver#(kubernetes.Semver) int", compare_to),
        Function::new("major", "kubernetes.Semver#() int", |_, args| {
            number(version(&args[0])?.major)
        }),
        Function::new("minor", "kubernetes.Semver#() int", |_, args| {
            number(version(&args[0])?.minor)
        }),
        Function::new("patch", "kubernetes.Semver#() int", |_, args| {
            number(version(&args[0])?.patch)
        }),
    ],
)
.with_types(&["kubernetes.Semver"]);

/// Creates the row of a named format, such as `format.uri()`.
macro_rules! named_format {
    ($name:literal) => {
        Function::new(concat!("format.", $name), "() kubernetes.NamedFormat", |_, _| {
            formats::named($name).map(format_value).map_or_else(mistyped, Ok)
        })
    };
}

/// The library of named formats.
pub(super) static FORMATS: Library = Library::since(
    31,
    &[
        Function::new(
            "validate",
            "kubernetes.NamedFormat#(string) optional(list(string))",
            validate,
        )
        .costs(charges::validate, estimates::validate),
        Function::new("format.named", "(string) optional(kubernetes.NamedFormat)", |_, args| {
            Ok(Value::optional(formats::named(args[0].as_str()?).map(format_value)))
        }),
        named_format!("dns1123Label"),
        named_format!("dns1123Subdomain"),
        named_format!("dns1035Label"),
        named_format!("qualifiedName"),
        named_format!("dns1123LabelPrefix"),
        named_format!("dns1123SubdomainPrefix"),
        named_format!("dns1035LabelPrefix"),
        named_format!("labelValue"),
        named_format!("uri"),
        named_format!("uuid"),
        named_format!("byte"),
        named_format!("date"),
        named_format!("datetime"),
    ],
)
.with_types(&["kubernetes.NamedFormat"]);

/// The library of JSON patches.
pub(super) static JSON_PATCH: Library = Library {
    availability: Availability::Mutation,
    types: &[],
    functions: &[Function::new("jsonpatch.escapeKey", "(string) string", |work, args| {
        let text = args[0].as_str()?;
        work.spend(text.len() as u64)?;
        Ok(Value::string(text.replace('~', "~0").replace('/', "~1")))
    })
    .costs(charges::read, estimates::copy)],
};

fn is_greater_than<'a>(_: &mut Work, args: &[Value<'a>]) -> Eval<'a> {
    Ok(Value::Bool(ordered(args)?.is_gt()))
}

fn is_less_than<'a>(_: &mut Work, args: &[Value<'a>]) -> Eval<'a> {
    Ok(Value::Bool(ordered(args)?.is_lt()))
}

fn compare_to<'a>(_: &mut Work, args: &[Value<'a>]) -> Eval<'a> {
    Ok(Value::Int(ordered(args)? as i64))
}

fn format_value<'a>(format: &'static Format) -> Value<'a> {
    Value::opaque(Opaque::Format(format))
}

fn url_part<'a>(args: &[Value<'a>], part: for<'u> fn(&'u Url) -> &'u str) -> Eval<'a> {
    match args[0].as_opaque()? {
        Opaque::Url(url) => Ok(Value::string(part(url))),
        _ => mistyped(),
    }
}

fn query<'a>(_: &mut Work, args: &[Value<'a>]) -> Eval<'a> {
    let Opaque::Url(url) = args[0].as_opaque()? else { return mistyped() };
    let mut entries = Entries::default();
    for (key, values) in url.pairs() {
        let values = Value::list(values.into_iter().map(Value::string).collect());
        entries.insert(Value::string(key), values)?;
    }
    Ok(Value::Map(Map::Entries(entries.into())))
}

fn quantity(value: &Value<'_>) -> Result<Quantity, EvalError> {
    match value.as_opaque()? {
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
    match (args[0].as_opaque()?, args[1].as_opaque()?) {
        (Opaque::Quantity(a), Opaque::Quantity(b)) => Ok(a.cmp(b)),
        (Opaque::Semver(a), Opaque::Semver(b)) => Ok(a.cmp(b)),
        _ => mistyped(),
    }
}

fn parse_version(args: &[Value<'_>]) -> Result<Result<Version, EvalError>, EvalError> {
    let text = args[0].as_str()?;
    Ok(match args.get(1) {
        Some(Value::Bool(true)) => Version::normalized(text),
        Some(Value::Bool(false)) | None => Version::parse(text),
        Some(_) => return mistyped(),
    })
}

fn version<'v>(value: &'v Value<'_>) -> Result<&'v Version, EvalError> {
    match value.as_opaque()? {
        Opaque::Semver(version) => Ok(version),
        _ => mistyped(),
    }
}

fn number<'a>(value: u64) -> Eval<'a> {
    i64::try_from(value).map(Value::Int).map_err(|_| EvalError::new("integer overflow"))
}

fn validate<'a>(work: &mut Work, args: &[Value<'a>]) -> Eval<'a> {
    let Opaque::Format(format) = args[0].as_opaque()? else { return mistyped() };
    let text = args[1].as_str()?;
    work.spend(16 * text.len() as u64)?;
    let errors = format.errors(text);
    let list = Value::list(errors.iter().map(|error| Value::string(error.as_str())).collect());
    Ok(Value::optional((!errors.is_empty()).then_some(list)))
}
