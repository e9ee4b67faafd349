use std::{fmt, str::FromStr};

use crate::{
    field::{FieldError, Path},
    steps, validation,
};

/// A label selector: requirements that must all hold, sorted by key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Selector {
    requirements: Vec<Requirement>,
    /// `true` for the selector that matches no object.
    nothing: bool,
}

/// The operator of a requirement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operator {
    Equals,
    DoubleEquals,
    NotEquals,
    In,
    NotIn,
    Exists,
    DoesNotExist,
    GreaterThan,
    LessThan,
}

/// A condition on one label, validated by its constructor.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Requirement {
    key: String,
    operator: Operator,
    /// The values, sorted and without duplicates.
    values: Vec<String>,
}

/// The error for an invalid selector, with upstream's message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SelectorError(pub(crate) String);

impl Requirement {
    /// Creates a requirement and validates its key, operator and values.
    pub fn new(
        key: &str,
        operator: Operator,
        mut values: Vec<String>,
    ) -> Result<Self, SelectorError> {
        let mut errors = validation::label_key(key, &Path::new("key"));
        let at = Path::new("values");
        match operator {
            Operator::In | Operator::NotIn if values.is_empty() => {
                errors.push(FieldError::invalid(
                    &at,
                    "[]",
                    "for 'in', 'notin' operators, values set can't be empty",
                ));
            }
            Operator::Equals | Operator::DoubleEquals | Operator::NotEquals
                if values.len() != 1 =>
            {
                errors.push(FieldError::invalid(
                    &at,
                    values.clone(),
                    "exact-match compatibility requires one single value",
                ));
            }
            Operator::Exists | Operator::DoesNotExist if !values.is_empty() => {
                errors.push(FieldError::invalid(
                    &at,
                    values.clone(),
                    "values set must be empty for exists and does not exist",
                ));
            }
            Operator::GreaterThan | Operator::LessThan if values.len() != 1 => {
                errors.push(FieldError::invalid(
                    &at,
                    values.clone(),
                    "for 'Gt', 'Lt' operators, exactly one value is required",
                ));
            }
            Operator::GreaterThan | Operator::LessThan if values[0].parse::<i64>().is_err() => {
                errors.push(FieldError::invalid(
                    &at.index(0),
                    values[0].as_str(),
                    "for 'Gt', 'Lt' operators, the value must be an integer",
                ));
            }
            _ => {}
        }
        for (i, value) in values.iter().enumerate() {
            let at = at.index(i).key(key);
            errors.extend(
                validation::label_value(value)
                    .into_iter()
                    .map(|m| FieldError::invalid(&at, value.as_str(), m)),
            );
        }
        if !errors.is_empty() {
            return Err(SelectorError(crate::field::aggregate(&errors)));
        }
        values.sort();
        values.dedup();
        Ok(Self { key: key.to_owned(), operator, values })
    }

    /// Returns the key of the label.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Returns the operator.
    pub fn operator(&self) -> Operator {
        self.operator
    }

    /// Returns the values to compare with; empty for `Exists` and `DoesNotExist`.
    pub fn values(&self) -> &[String] {
        &self.values
    }

    /// Reports whether an object with this label value, or without the label (`None`), satisfies the requirement.
    pub fn matches(&self, label: Option<&str>) -> bool {
        steps::spend(1);
        let listed = |value: &str| self.values.binary_search_by(|v| (**v).cmp(value)).is_ok();
        match (self.operator, label) {
            (Operator::Equals | Operator::DoubleEquals | Operator::In, label) => {
                label.is_some_and(listed)
            }
            (Operator::NotEquals | Operator::NotIn, label) => !label.is_some_and(listed),
            (Operator::Exists, label) => label.is_some(),
            (Operator::DoesNotExist, label) => label.is_none(),
            (Operator::GreaterThan, label) => {
                self.compare(label).is_some_and(|(have, bound)| have > bound)
            }
            (Operator::LessThan, label) => {
                self.compare(label).is_some_and(|(have, bound)| have < bound)
            }
        }
    }

    fn compare(&self, label: Option<&str>) -> Option<(i64, i64)> {
        Some((label?.parse().ok()?, self.values.first()?.parse().ok()?))
    }
}

impl Selector {
    /// Creates a selector from requirements that must all hold. Without requirements it selects everything.
    pub fn new(mut requirements: Vec<Requirement>) -> Self {
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        Self { requirements, nothing: false }
    }

    /// Returns the selector that selects everything.
    pub fn everything() -> Self {
        Self::default()
    }

    /// Returns the selector that selects nothing, as an absent selector does.
    pub fn nothing() -> Self {
        Self { requirements: Vec::new(), nothing: true }
    }

    /// Returns `true` if the selector matches any labels.
    pub fn is_everything(&self) -> bool {
        self.requirements.is_empty() && !self.nothing
    }

    /// Returns `true` if the selector matches no labels.
    pub fn matches_none(&self) -> bool {
        self.nothing
    }

    /// Returns the requirements sorted by key. If there are none, [`Selector::is_everything`] distinguishes the two
    /// cases.
    pub fn requirements(&self) -> &[Requirement] {
        &self.requirements
    }

    /// Reports whether an object matches. `label` returns the object's value of a key.
    pub fn matches_with<'a>(&self, mut label: impl FnMut(&str) -> Option<&'a str>) -> bool {
        !self.nothing && self.requirements.iter().all(|r| r.matches(label(&r.key)))
    }

    /// Reports whether labels match.
    pub fn matches(&self, labels: &std::collections::BTreeMap<String, String>) -> bool {
        self.matches_with(|key| labels.get(key).map(String::as_str))
    }

    /// Reports whether `metadata.labels` of an object tree match.
    pub fn matches_json(
        &self,
        labels: Option<&serde_json::Map<String, serde_json::Value>>,
    ) -> bool {
        self.matches_with(|key| labels.and_then(|l| l.get(key)).and_then(serde_json::Value::as_str))
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (key, values) = (&self.key, self.values.join(","));
        match self.operator {
            Operator::Equals => write!(f, "{key}={values}"),
            Operator::DoubleEquals => write!(f, "{key}=={values}"),
            Operator::NotEquals => write!(f, "{key}!={values}"),
            Operator::In => write!(f, "{key} in ({values})"),
            Operator::NotIn => write!(f, "{key} notin ({values})"),
            Operator::Exists => write!(f, "{key}"),
            Operator::DoesNotExist => write!(f, "!{key}"),
            Operator::GreaterThan => write!(f, "{key}>{values}"),
            Operator::LessThan => write!(f, "{key}<{values}"),
        }
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, requirement) in self.requirements.iter().enumerate() {
            write!(f, "{}{requirement}", if i > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Token<'a> {
    Word(&'a str),
    /// A sign: one of `! = == != ( ) , < >`.
    Sign(&'static str),
    End,
}

impl Token<'_> {
    fn text(&self) -> &str {
        match self {
            Self::Word(text) => text,
            Self::Sign(sign) => sign,
            Self::End => "",
        }
    }
}

const SIGNS: [&str; 9] = ["!=", "==", "=", "!", "(", ")", ",", "<", ">"];

fn tokens(mut text: &str) -> Vec<Token<'_>> {
    let mut out = Vec::new();
    loop {
        text = text.trim_start_matches([' ', '\t', '\r', '\n']);
        if text.is_empty() {
            out.push(Token::End);
            return out;
        }
        if let Some(sign) = SIGNS.iter().find(|sign| text.starts_with(**sign)) {
            out.push(Token::Sign(sign));
            text = &text[sign.len()..];
            continue;
        }
        let end = text.find(|c: char| " \t\r\n=!(),<>".contains(c)).unwrap_or(text.len());
        out.push(Token::Word(&text[..end]));
        text = &text[end..];
    }
}

struct Parser<'a> {
    tokens: Vec<Token<'a>>,
    at: usize,
}

fn unexpected(found: &Token<'_>, expected: &str) -> SelectorError {
    SelectorError(format!("found '{}', expected: {expected}", found.text()))
}

impl<'a> Parser<'a> {
    fn peek(&self) -> &Token<'a> {
        &self.tokens[self.at]
    }

    fn next(&mut self) -> Token<'a> {
        let token = self.tokens[self.at].clone();
        // The last token is `End` and is never passed.
        self.at = (self.at + 1).min(self.tokens.len() - 1);
        token
    }

    fn selector(&mut self) -> Result<Vec<Requirement>, SelectorError> {
        let mut requirements = Vec::new();
        loop {
            match self.peek() {
                Token::End => return Ok(requirements),
                Token::Word(_) | Token::Sign("!") => {
                    let requirement = self.requirement().map_err(|error| {
                        SelectorError(format!("unable to parse requirement: {error}"))
                    });
                    requirements.push(requirement?);
                }
                other => return Err(unexpected(other, "!, identifier, or 'end of string'")),
            }
            match self.next() {
                Token::End => return Ok(requirements),
                Token::Sign(",") if matches!(self.peek(), Token::Word(_) | Token::Sign("!")) => {}
                Token::Sign(",") => return Err(unexpected(self.peek(), "identifier after ','")),
                other => return Err(unexpected(&other, "',' or 'end of string'")),
            }
        }
    }

    fn requirement(&mut self) -> Result<Requirement, SelectorError> {
        let negated = *self.peek() == Token::Sign("!");
        if negated {
            self.next();
        }
        let key = match self.next() {
            Token::Word(key) => key,
            other => return Err(unexpected(&other, "identifier")),
        };
        // Upstream's parser reports an invalid key without a path.
        let wrong = validation::qualified_name(key);
        if !wrong.is_empty() {
            let error = FieldError::invalid(&Path::new("<nil>"), key, wrong.join("; "));
            return Err(SelectorError(error.to_string()));
        }
        // After a negated key, the caller accepts only the end of the requirement.
        if negated || matches!(self.peek(), Token::End | Token::Sign(",")) {
            let operator = if negated { Operator::DoesNotExist } else { Operator::Exists };
            return Requirement::new(key, operator, Vec::new());
        }
        let operator = match self.next() {
            Token::Word("in") => Operator::In,
            Token::Word("notin") => Operator::NotIn,
            Token::Sign("=") => Operator::Equals,
            Token::Sign("==") => Operator::DoubleEquals,
            Token::Sign("!=") => Operator::NotEquals,
            Token::Sign(">") => Operator::GreaterThan,
            Token::Sign("<") => Operator::LessThan,
            other => return Err(unexpected(&other, "in, notin, =, ==, !=, gt, lt")),
        };
        let values = match operator {
            Operator::In | Operator::NotIn => self.set()?,
            _ => vec![self.value()?],
        };
        Requirement::new(key, operator, values)
    }

    /// Parses a value. It may be empty: `a=,b` requires an empty `a`.
    fn value(&mut self) -> Result<String, SelectorError> {
        match self.peek() {
            Token::End | Token::Sign(",") => Ok(String::new()),
            Token::Word(_) => Ok(self.next().text().to_owned()),
            other => Err(unexpected(other, "identifier")),
        }
    }

    fn set(&mut self) -> Result<Vec<String>, SelectorError> {
        match self.next() {
            Token::Sign("(") => {}
            other => {
                return Err(SelectorError(format!("found '{}' expected: '('", other.text())));
            }
        }
        let mut values = Vec::new();
        // The word between two separators; `None` is the empty value.
        let mut pending: Option<&str> = None;
        loop {
            match self.next() {
                Token::Word(word) if pending.is_none() => pending = Some(word),
                Token::Sign(",") => values.push(pending.take().unwrap_or("").to_owned()),
                Token::Sign(")") => {
                    values.push(pending.unwrap_or("").to_owned());
                    return Ok(values);
                }
                other if pending.is_some() => return Err(unexpected(&other, "',' or ')'")),
                other => return Err(unexpected(&other, "',', ')' or identifier")),
            }
        }
    }
}

impl FromStr for Selector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self::new(Parser { tokens: tokens(text), at: 0 }.selector()?))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn labels(text: &str) -> BTreeMap<String, String> {
        text.split(',')
            .filter_map(|p| p.split_once('='))
            .map(|(k, v)| (k.into(), v.into()))
            .collect()
    }

    #[test]
    fn parses_and_prints() {
        let cases = [
            ("", ""),
            ("a", "a"),
            ("!a", "!a"),
            ("a=b", "a=b"),
            ("a==b", "a==b"),
            ("a != b", "a!=b"),
            ("x in (c, b,b)", "x in (b,c)"),
            ("y notin(a)", "y notin (a)"),
            ("b=1,a=2", "a=2,b=1"),
            ("a=", "a="),
            ("a=,b", "a=,b"),
            ("a>5", "a>5"),
            ("a < 5", "a<5"),
            ("x in (,a)", "x in (,a)"),
            ("x in ()", "x in ()"),
            ("in in (in)", "in in (in)"),
            (" example.com/a = b ", "example.com/a=b"),
            ("a,", "!"),
        ];
        for (text, want) in cases {
            let got = text.parse::<Selector>().map_or_else(|_| "!".to_owned(), |s| s.to_string());
            assert_eq!(got, want, "{text:?}");
        }
        for bad in [
            ",",
            "a b",
            "a in b",
            "a in (b",
            "!a=b",
            "a=b=c",
            "a=(b)",
            "a>b",
            "=a",
            "a==-",
            "x in (a b)",
            "A_/b",
        ] {
            assert!(bad.parse::<Selector>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn matches_labels() {
        let cases = [
            ("", "", true),
            ("a", "a=", true),
            ("a", "b=1", false),
            ("!a", "b=1", true),
            ("a=1", "a=1", true),
            ("a!=1", "", true),
            ("a!=1", "a=1", false),
            ("a in (1,2)", "a=2", true),
            ("a in (1,2)", "", false),
            ("a notin (1)", "", true),
            ("a notin (1)", "a=1", false),
            ("a>4", "a=5", true),
            ("a>4", "a=x", false),
            ("a<4", "a=3", true),
            ("a<4", "", false),
            ("a=1,b=2", "a=1", false),
            ("a=1,b=2", "a=1,b=2", true),
        ];
        for (selector, have, want) in cases {
            assert_eq!(
                selector.parse::<Selector>().unwrap().matches(&labels(have)),
                want,
                "{selector} on {have}"
            );
        }
        assert!(!Selector::nothing().matches(&labels("a=1")));
    }

    proptest! {
        #[test]
        fn printing_keeps_the_meaning(text in "(!?[a-c]|[a-c](=|==|!=|>|<)[0-9]|[a-c] (in|notin) \\([a-c0-9](,[a-c0-9]){0,2}\\))(,[d-f]=[a-c]){0,2}") {
            let selector: Selector = text.parse().unwrap();
            prop_assert_eq!(selector.to_string().parse::<Selector>().unwrap(), selector);
        }

        #[test]
        fn never_panics(text in "[a-c!=<>(), in]{0,20}") {
            drop(text.parse::<Selector>());
        }
    }
}
