use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A port or count that is a number, a name or a percentage.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum IntOrString {
    Int(i32),
    String(String),
}

/// The error for a string that is not a percentage.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid value for IntOrString: {0}")]
pub struct PercentError(String);

impl IntOrString {
    /// Returns the number itself, or the percentage of `total`, rounded up or down.
    pub fn scaled(&self, total: i64, round_up: bool) -> Result<i64, PercentError> {
        let text = match self {
            Self::Int(n) => return Ok(i64::from(*n)),
            Self::String(text) => text,
        };
        let Some(number) = text.strip_suffix('%') else {
            return Err(PercentError("invalid type: string is not a percentage".into()));
        };
        let percent: i64 = number
            .parse()
            .map_err(|_| PercentError(format!("invalid value {}", crate::quote::go_quote(text))))?;
        let product = i128::from(percent) * i128::from(total);
        let scaled = if round_up { -(-product).div_euclid(100) } else { product.div_euclid(100) };
        Ok(scaled.clamp(i64::MIN.into(), i64::MAX.into()) as i64)
    }
}

impl fmt::Display for IntOrString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int(n) => n.fmt(f),
            Self::String(text) => f.write_str(text),
        }
    }
}

impl From<i32> for IntOrString {
    fn from(n: i32) -> Self {
        Self::Int(n)
    }
}

impl From<&str> for IntOrString {
    fn from(text: &str) -> Self {
        Self::String(text.to_owned())
    }
}

impl Serialize for IntOrString {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Int(n) => serializer.serialize_i32(*n),
            Self::String(text) => serializer.serialize_str(text),
        }
    }
}

impl<'de> Deserialize<'de> for IntOrString {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl de::Visitor<'_> for Visitor {
            type Value = IntOrString;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a 32-bit integer or a string")
            }

            fn visit_i64<E: de::Error>(self, n: i64) -> Result<IntOrString, E> {
                i32::try_from(n)
                    .map(IntOrString::Int)
                    .map_err(|_| E::invalid_value(de::Unexpected::Signed(n), &self))
            }

            fn visit_u64<E: de::Error>(self, n: u64) -> Result<IntOrString, E> {
                i32::try_from(n)
                    .map(IntOrString::Int)
                    .map_err(|_| E::invalid_value(de::Unexpected::Unsigned(n), &self))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<IntOrString, E> {
                Ok(IntOrString::String(text.to_owned()))
            }
        }

        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_percentages_with_rounding() {
        let cases = [
            ("25%", 10, true, 3),
            ("25%", 10, false, 2),
            ("0%", 10, true, 0),
            ("100%", 7, false, 7),
        ];
        for (text, total, up, want) in cases {
            assert_eq!(IntOrString::from(text).scaled(total, up), Ok(want), "{text} of {total}");
        }
        assert_eq!(IntOrString::Int(4).scaled(10, true), Ok(4));
        assert!(IntOrString::from("4").scaled(10, true).is_err());
        assert!(IntOrString::from("x%").scaled(10, true).is_err());
    }

    #[test]
    fn round_trips_json() {
        for json in ["80", "\"http\"", "\"25%\"", "-1"] {
            let value: IntOrString = serde_json::from_str(json).unwrap();
            assert_eq!(serde_json::to_string(&value).unwrap(), json);
        }
        assert!(serde_json::from_str::<IntOrString>("4294967296").is_err());
        assert!(serde_json::from_str::<IntOrString>("true").is_err());
    }
}
