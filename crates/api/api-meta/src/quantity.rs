use std::{
    cmp::Ordering,
    fmt,
    ops::{Add, AddAssign, Neg, Sub, SubAssign},
    str::FromStr,
};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// An exact amount of a resource.
///
/// The value is stored in billionths, because upstream's smallest suffix is `n`; smaller amounts are rounded away from
/// zero. Only the value is compared, so `1Gi` equals `1024Mi` and `1073741824`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Quantity {
    nanos: i128,
    format: QuantityFormat,
}

/// The suffixes that a quantity was parsed with and is printed with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QuantityFormat {
    /// `12e6`
    DecimalExponent,
    /// `12Mi`
    BinarySi,
    /// `12M`
    #[default]
    DecimalSi,
}

/// The error for a string that is not a quantity, with upstream's message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseQuantityError {
    #[error(
        "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
    )]
    Format,
    #[error("unable to parse quantity's suffix")]
    Suffix,
}

const NANO: i128 = 1_000_000_000;
/// The cap of amounts, except for exact small multiples of a large power.
const MAX: i128 = i64::MAX as i128 * NANO;
const DECIMAL: [(&str, i32); 10] = [
    ("n", -9),
    ("u", -6),
    ("m", -3),
    ("", 0),
    ("k", 3),
    ("M", 6),
    ("G", 9),
    ("T", 12),
    ("P", 15),
    ("E", 18),
];
const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
/// The number of digits that upstream parses without its (capped) big numbers.
const EXACT_DIGITS: usize = 17;

impl Quantity {
    /// Zero, in decimal format.
    pub const ZERO: Self = Self { nanos: 0, format: QuantityFormat::DecimalSi };

    /// Creates a quantity from a whole number, printed in `format`.
    pub fn new(value: i64, format: QuantityFormat) -> Self {
        Self { nanos: i128::from(value) * NANO, format }
    }

    /// Parses a quantity such as `100m`, `1.5Gi` or `1e3`. Fractions below a billionth are rounded away from zero.
    pub fn parse(text: &str) -> Result<Self, ParseQuantityError> {
        text.parse()
    }

    /// Returns the format that the quantity was parsed with and is printed with.
    pub fn format(&self) -> QuantityFormat {
        self.format
    }

    /// Returns `true` for zero.
    pub fn is_zero(&self) -> bool {
        self.nanos == 0
    }

    /// Returns `true` for a negative quantity.
    pub fn is_negative(&self) -> bool {
        self.nanos < 0
    }

    /// Returns the value in whole units, rounded away from zero.
    pub fn value(&self) -> i64 {
        clamp(div_away(self.nanos, NANO))
    }

    /// Returns the value in thousandths, rounded away from zero.
    pub fn milli_value(&self) -> i64 {
        clamp(div_away(self.nanos, NANO / 1000))
    }

    /// Returns `true` if the value is a whole number of units.
    pub fn is_integer(&self) -> bool {
        self.nanos % NANO == 0
    }

    /// Returns the nearest floating-point number, for shares and ratios.
    pub fn as_f64(&self) -> f64 {
        self.nanos as f64 / NANO as f64
    }
}

fn clamp(n: i128) -> i64 {
    n.clamp(i64::MIN.into(), i64::MAX.into()) as i64
}

fn div_away(n: i128, by: i128) -> i128 {
    let (whole, rest) = (n / by, n % by);
    if rest == 0 { whole } else { whole + n.signum() }
}

enum Exponent {
    Ten(i32),
    /// A power of 1024.
    Binary(u32),
}

fn exponent_of(suffix: &str) -> Option<(Exponent, QuantityFormat)> {
    if let Some((_, power)) = DECIMAL.iter().find(|(s, _)| *s == suffix) {
        return Some((Exponent::Ten(*power), QuantityFormat::DecimalSi));
    }
    if let Some(power) = BINARY.iter().position(|s| *s == suffix) {
        return Some((Exponent::Binary(power as u32), QuantityFormat::BinarySi));
    }
    let power = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
    Some((Exponent::Ten(power), QuantityFormat::DecimalExponent))
}

impl FromStr for Quantity {
    type Err = ParseQuantityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (negative, rest) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            _ => (false, text),
        };
        let digits = |t: &str| t.bytes().take_while(u8::is_ascii_digit).count();
        let (whole, rest) = rest.split_at(digits(rest));
        let (fraction, suffix) = match rest.strip_prefix('.') {
            Some(rest) => rest.split_at(digits(rest)),
            None => ("", rest),
        };
        if whole.is_empty() && fraction.is_empty() || !is_suffix(suffix) {
            return Err(ParseQuantityError::Format);
        }
        let (exponent, mut format) = exponent_of(suffix).ok_or(ParseQuantityError::Suffix)?;
        let nanos = nanos_of(whole.trim_start_matches('0'), fraction, &exponent);
        if format == QuantityFormat::BinarySi && nanos < NANO {
            format = QuantityFormat::DecimalSi;
        }
        Ok(Self { nanos: if negative { -nanos } else { nanos }, format })
    }
}

/// Returns `true` if the suffix is letters, then at most one sign, then digits.
fn is_suffix(suffix: &str) -> bool {
    let rest = suffix.trim_start_matches(|c| "eEinumkKMGTP".contains(c));
    let rest = rest.strip_prefix(['-', '+']).unwrap_or(rest);
    rest.bytes().all(|b| b.is_ascii_digit())
}

fn nanos_of(whole: &str, fraction: &str, exponent: &Exponent) -> i128 {
    let fraction = fraction.trim_end_matches('0');
    let (power, factor) = match exponent {
        Exponent::Ten(power) => (i64::from(*power), 1),
        Exponent::Binary(power) => (0, 1024_i128.pow(*power)),
    };
    let Ok(mantissa) = format!("0{whole}{fraction}").parse::<i128>() else {
        return long(whole, power, factor);
    };
    if mantissa == 0 {
        return 0;
    }
    let scaled =
        mantissa.checked_mul(factor).and_then(|m| shift(m, power + 9 - fraction.len() as i64));
    match scaled {
        Some(nanos) if nanos <= MAX || whole.len() + fraction.len() <= EXACT_DIGITS => nanos,
        _ => MAX,
    }
}

/// Computes the value of a number with too many digits. The fraction is dropped: the whole part either fits or is
/// capped.
fn long(whole: &str, power: i64, factor: i128) -> i128 {
    let whole = match whole.parse::<i128>() {
        Ok(n) => n,
        Err(_) if whole.is_empty() => 0,
        Err(_) => return MAX,
    };
    whole
        .checked_mul(factor)
        .and_then(|n| shift(n, power + 9))
        .map_or(MAX, |n| n.saturating_add(1).min(MAX))
}

/// Multiplies by a power of ten, rounding away from zero. Returns `None` if the result does not fit.
fn shift(n: i128, power: i64) -> Option<i128> {
    let by = u32::try_from(power.unsigned_abs()).unwrap_or(u32::MAX);
    match (power >= 0, 10_i128.checked_pow(by)) {
        (true, factor) => n.checked_mul(factor?),
        (false, Some(divisor)) => Some(div_away(n, divisor)),
        (false, None) => Some(n.signum()),
    }
}

impl fmt::Display for Quantity {
    /// Prints the canonical form: the largest suffix that keeps the number whole.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nanos == 0 {
            return f.write_str("0");
        }
        let small = self.nanos.abs() < 1024 * NANO;
        if self.format == QuantityFormat::BinarySi && !small && self.nanos % NANO == 0 {
            let (mut n, mut suffix) = (self.nanos / NANO, 0);
            while n % 1024 == 0 && suffix + 1 < BINARY.len() {
                n /= 1024;
                suffix += 1;
            }
            return write!(f, "{n}{}", BINARY[suffix]);
        }
        let (mut n, mut power) = (self.nanos, -9);
        while n % 1000 == 0 && (power < 18 || self.format == QuantityFormat::DecimalExponent) {
            n /= 1000;
            power += 3;
        }
        match DECIMAL.iter().find(|(_, p)| *p == power) {
            _ if self.format == QuantityFormat::DecimalExponent && power != 0 => {
                write!(f, "{n}e{power}")
            }
            Some((suffix, _)) => write!(f, "{n}{suffix}"),
            None => write!(f, "{n}e{power}"),
        }
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

impl Add for Quantity {
    type Output = Self;

    /// Adds quantities. A zero takes the other's format, so that a sum that starts at zero prints like its terms.
    fn add(self, other: Self) -> Self {
        let format = if self.is_zero() { other.format } else { self.format };
        Self { nanos: self.nanos.saturating_add(other.nanos), format }
    }
}

impl Sub for Quantity {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        self + -other
    }
}

impl Neg for Quantity {
    type Output = Self;

    fn neg(self) -> Self {
        Self { nanos: -self.nanos, ..self }
    }
}

impl AddAssign for Quantity {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl SubAssign for Quantity {
    fn sub_assign(&mut self, other: Self) {
        *self = *self - other;
    }
}

impl std::iter::Sum for Quantity {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self::ZERO, Add::add)
    }
}

impl Serialize for Quantity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl de::Visitor<'_> for Visitor {
            type Value = Quantity;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a quantity, as a string or a number")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Quantity, E> {
                text.trim().parse().map_err(E::custom)
            }

            fn visit_i64<E: de::Error>(self, n: i64) -> Result<Quantity, E> {
                Ok(Quantity::new(n, QuantityFormat::DecimalSi))
            }

            fn visit_u64<E: de::Error>(self, n: u64) -> Result<Quantity, E> {
                self.visit_str(&n.to_string())
            }

            fn visit_f64<E: de::Error>(self, n: f64) -> Result<Quantity, E> {
                self.visit_str(&n.to_string())
            }
        }

        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn q(text: &str) -> Quantity {
        text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
    }

    #[test]
    fn canonicalizes_like_upstream() {
        let cases = [
            ("0", "0"),
            ("0n", "0"),
            ("-0", "0"),
            ("1000m", "1"),
            ("1024Mi", "1Gi"),
            ("0.5", "500m"),
            ("1.5Gi", "1536Mi"),
            ("100m", "100m"),
            ("1500m", "1500m"),
            ("1e3", "1e3"),
            ("1E3", "1e3"),
            ("12e6", "12e6"),
            ("1000e-3", "1"),
            ("1000k", "1M"),
            ("1000Ki", "1000Ki"),
            ("1023Ki", "1023Ki"),
            ("512", "512"),
            ("0.5Ki", "512"),
            ("0.1Mi", "104857600m"),
            ("1.1n", "2n"),
            ("-1.1n", "-2n"),
            ("0.0000000001", "1n"),
            ("9E", "9E"),
            ("10E", "10E"),
            ("100Ei", "100Ei"),
            ("99999999999999999999", "9223372036854775807"),
            ("+5", "5"),
            ("1.", "1"),
            (".5", "500m"),
            ("00120", "120"),
            ("1u", "1u"),
            ("3000u", "3m"),
            ("0.5Mi", "512Ki"),
            ("1e-3", "1e-3"),
            ("123456789123456789", "123456789123456789"),
            ("0.3Ki", "307200m"),
            ("1000000000000000000000000000000000000000000", "9223372036854775807"),
        ];
        for (text, want) in cases {
            assert_eq!(q(text).to_string(), want, "{text}");
        }
    }

    #[test]
    fn rejects_quantities_that_upstream_rejects() {
        for text in [
            "", "-", "+", ".", "1.1.M", "1+1.0M", "aoeu", " 1", "1 ", "1i", ".5i", "-3.01e-",
            "0x1", "1K", "0.1mi", "1ee3",
        ] {
            assert!(text.parse::<Quantity>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn rounds_away_from_zero() {
        let cases = [
            ("1.1", 2, 1100),
            ("-1.1", -2, -1100),
            ("1n", 1, 1),
            ("1Gi", 1 << 30, 1000 << 30),
            ("0", 0, 0),
        ];
        for (text, value, milli) in cases {
            assert_eq!((q(text).value(), q(text).milli_value()), (value, milli), "{text}");
        }
        assert_eq!(q("100Ei").value(), i64::MAX);
    }

    #[test]
    fn keeps_format_of_first_term_in_sums() {
        assert_eq!((Quantity::ZERO + q("1Gi")).to_string(), "1Gi");
        assert_eq!((q("1Gi") + q("1Mi")).to_string(), "1025Mi");
        assert_eq!((q("1") - q("100m")).to_string(), "900m");
        assert_eq!(q("1Gi"), q("1024Mi"));
        assert!(q("1G") < q("1Gi"));
    }

    proptest! {
        #[test]
        fn keeps_canonical_form_unchanged(n in any::<i64>(), suffix in prop::sample::select(vec!["n","u","m","","k","M","G","Ki","Mi","Gi","e3","e-3"])) {
            let once = q(&format!("{n}{suffix}"));
            let again = q(&once.to_string());
            prop_assert_eq!(once, again);
            prop_assert_eq!(once.to_string(), again.to_string());
        }

        #[test]
        fn never_panics(text in "[-+]?[0-9.]{0,40}[eEinumkKMGTP]{0,3}[-+]?[0-9]{0,12}") {
            if let Ok(quantity) = text.parse::<Quantity>() {
                prop_assert!(quantity.to_string().parse::<Quantity>().is_ok());
            }
        }
    }
}
