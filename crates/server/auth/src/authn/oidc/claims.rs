//! Maps the claims of a verified token to a user.

use api_config::authentication as config;
use api_meta::UserInfo;
use serde_json::{Map, Number, Value};

use super::expressions::{Expression, ExpressionError, ExpressionInput};
use crate::authn::certificate::CREDENTIAL_ID;

/// A compiled JWT authenticator: the issuer, the claim mappings and the validation rules.
#[derive(Debug)]
pub struct JwtAuthenticator {
    pub(super) config: config::JwtAuthenticator,
    pub(super) username: Option<Expression>,
    pub(super) groups: Option<Expression>,
    pub(super) uid: Option<Expression>,
    /// The extra fields, by key.
    pub(super) extra: Vec<(String, Expression)>,
    /// The claim validation rules and their messages.
    pub(super) claim_rules: Vec<(Expression, String)>,
    pub(super) user_rules: Vec<(Expression, String)>,
}

/// The reason why claims name no user, with upstream's messages.
#[derive(Debug, thiserror::Error)]
pub enum ClaimsError {
    #[error(
        "could not expand distributed claims: {0} is a distributed claim, which is not supported"
    )]
    Distributed(String),
    #[error("error evaluating {purpose}: {source}")]
    Expression { purpose: &'static str, source: ExpressionError },
    #[error("error evaluating extra claim expression: {expression}: {source}")]
    Extra { expression: String, source: ExpressionError },
    #[error("empty username via CEL expression is not allowed")]
    EmptyExpression,
    #[error("parse {purpose} {claim:?}: {source}")]
    Claim { purpose: &'static str, claim: String, source: ClaimError },
    #[error("email not verified")]
    EmailNotVerified,
    #[error("parse 'email_verified' claim: it is not a boolean")]
    EmailVerified,
    #[error("the username claim {0:?} is empty")]
    EmptyName(String),
    #[error("required claim {0} not present in ID token")]
    RequiredMissing(String),
    #[error("parse claim {claim}: {source}")]
    Required { claim: String, source: ClaimError },
    #[error("required claim {claim} value does not match. Got = {got}, want = {expected}")]
    RequiredValue { claim: String, got: String, expected: String },
}

/// The reason why a claim has no string.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    #[error("claim not present")]
    Absent,
    #[error("it is not a string")]
    NotString,
}

/// Returns a string claim. As in Go, null is an empty string.
fn text(claims: &Map<String, Value>, name: &str) -> Result<String, ClaimError> {
    match claims.get(name) {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Null) => Ok(String::new()),
        Some(_) => Err(ClaimError::NotString),
        None => Err(ClaimError::Absent),
    }
}

/// Returns a function that names the purpose of a failed expression.
fn failed(purpose: &'static str) -> impl FnOnce(ExpressionError) -> ClaimsError {
    move |source| ClaimsError::Expression { purpose, source }
}

impl JwtAuthenticator {
    /// Returns the configured issuer.
    pub fn issuer(&self) -> &config::Issuer {
        &self.config.issuer
    }

    /// Maps the claims to a user and evaluates the validation rules.
    pub fn user(&self, claims: &Map<String, Value>) -> Result<UserInfo, ClaimsError> {
        self.refuse_distributed(claims)?;
        let seen = Value::Object(self.expression_claims(claims));
        let user = UserInfo {
            name: self.name(claims, &seen)?,
            groups: self.groups(claims, &seen)?,
            uid: self.uid(claims, &seen)?,
            extra: self.extra(claims, &seen)?,
        };
        for rule in self.config.claim_validation_rules.iter().filter(|r| !r.claim.is_empty()) {
            required(claims, rule)?;
        }
        for (rule, message) in &self.claim_rules {
            rule.require(&seen, ExpressionInput::Claims, message)
                .map_err(failed("claim validation expression"))?;
        }
        if !self.user_rules.is_empty() {
            let shown = serde_json::json!({
                "username": user.name, "uid": user.uid, "groups": user.groups, "extra": user.extra,
            });
            for (rule, message) in &self.user_rules {
                rule.require(&shown, ExpressionInput::User, message)
                    .map_err(failed("user info validation rule"))?;
            }
        }
        Ok(user)
    }

    /// Rejects a token with distributed groups. Without the groups, rules that forbid a group would not match.
    fn refuse_distributed(&self, claims: &Map<String, Value>) -> Result<(), ClaimsError> {
        let groups = &self.config.claim_mappings.groups.claim;
        let elsewhere = claims.get("_claim_names").and_then(|names| names.get(groups));
        if !groups.is_empty() && !claims.contains_key(groups) && elsewhere.is_some() {
            return Err(ClaimsError::Distributed(groups.clone()));
        }
        Ok(())
    }

    fn name(&self, claims: &Map<String, Value>, seen: &Value) -> Result<String, ClaimsError> {
        if let Some(expression) = &self.username {
            let name = expression.string(seen, "username");
            let name = name.map_err(failed("username claim expression"))?;
            return if name.is_empty() { Err(ClaimsError::EmptyExpression) } else { Ok(name) };
        }
        let mapping = &self.config.claim_mappings.username;
        let name = text(claims, &mapping.claim).map_err(|source| ClaimsError::Claim {
            purpose: "username claims",
            claim: mapping.claim.clone(),
            source,
        })?;
        if mapping.claim == "email" {
            match claims.get("email_verified") {
                None | Some(Value::Bool(true)) => {}
                Some(Value::Bool(false) | Value::Null) => {
                    return Err(ClaimsError::EmailNotVerified);
                }
                Some(_) => return Err(ClaimsError::EmailVerified),
            }
        }
        let name = mapping.prefix.clone().unwrap_or_default() + &name;
        if name.is_empty() {
            return Err(ClaimsError::EmptyName(mapping.claim.clone()));
        }
        Ok(name)
    }

    fn groups(
        &self,
        claims: &Map<String, Value>,
        seen: &Value,
    ) -> Result<Vec<String>, ClaimsError> {
        if let Some(expression) = &self.groups {
            return expression.strings(seen).map_err(failed("group claim expression"));
        }
        let mapping = &self.config.claim_mappings.groups;
        let Some(value) = claims.get(&mapping.claim).filter(|_| !mapping.claim.is_empty()) else {
            return Ok(Vec::new());
        };
        // Some issuers send a single role as a string.
        let one = |value: &Value| match value {
            Value::String(text) => Ok(text.clone()),
            Value::Null => Ok(String::new()),
            _ => Err(ClaimsError::Claim {
                purpose: "groups claim",
                claim: mapping.claim.clone(),
                source: ClaimError::NotString,
            }),
        };
        let groups = match value {
            Value::Null => Vec::new(),
            Value::Array(items) => items.iter().map(one).collect::<Result<_, _>>()?,
            single => vec![one(single)?],
        };
        let prefix = mapping.prefix.as_deref().unwrap_or_default();
        Ok(groups.into_iter().map(|group| format!("{prefix}{group}")).collect())
    }

    fn uid(&self, claims: &Map<String, Value>, seen: &Value) -> Result<String, ClaimsError> {
        let claim = &self.config.claim_mappings.uid.claim;
        match &self.uid {
            Some(expression) => {
                expression.string(seen, "uid").map_err(failed("uid claim expression"))
            }
            None if claim.is_empty() => Ok(String::new()),
            None => text(claims, claim).map_err(|source| ClaimsError::Claim {
                purpose: "uid claim",
                claim: claim.clone(),
                source,
            }),
        }
    }

    fn extra(
        &self,
        claims: &Map<String, Value>,
        seen: &Value,
    ) -> Result<std::collections::BTreeMap<String, Vec<String>>, ClaimsError> {
        let id = claims.get("jti").and_then(Value::as_str).filter(|id| !id.is_empty());
        let id = id.map(|id| (CREDENTIAL_ID.to_owned(), vec![format!("JTI={id}")]));
        let mut extra: std::collections::BTreeMap<_, _> = id.into_iter().collect();
        for (key, expression) in &self.extra {
            let values = expression.strings(seen).map_err(|source| ClaimsError::Extra {
                expression: expression.text.clone(),
                source,
            })?;
            if !values.is_empty() {
                extra.insert(key.clone(), values);
            }
        }
        Ok(extra)
    }

    /// Returns the claims as expressions see them. Numbers are doubles, as in Go. Names that are no CEL identifiers are
    /// escaped if an expression uses escapes (`claims.foo__dot__bar`).
    fn expression_claims(&self, claims: &Map<String, Value>) -> Map<String, Value> {
        let all = [&self.username, &self.groups, &self.uid].into_iter().flatten();
        let all = all
            .chain(self.extra.iter().map(|(_, expression)| expression))
            .chain(self.claim_rules.iter().map(|(expression, _)| expression));
        let escapes = all.into_iter().any(|expression| expression.text.contains("__"));
        members(claims, escapes)
    }
}

fn members(claims: &Map<String, Value>, escapes: bool) -> Map<String, Value> {
    let mut out = Map::new();
    for (name, value) in claims {
        let value = expression_value(value, escapes);
        if let Some(escaped) = escapes.then(|| cel::escape(name)).flatten().filter(|e| e != name) {
            out.insert(escaped, value.clone());
        }
        out.insert(name.clone(), value);
    }
    out
}

fn expression_value(value: &Value, escapes: bool) -> Value {
    match value {
        Value::Number(number) => {
            let number = number.as_f64().and_then(Number::from_f64);
            number.map_or(Value::Null, Value::Number)
        }
        Value::Array(items) => items.iter().map(|item| expression_value(item, escapes)).collect(),
        Value::Object(map) => Value::Object(members(map, escapes)),
        other => other.clone(),
    }
}

fn required(
    claims: &Map<String, Value>,
    rule: &config::ClaimValidationRule,
) -> Result<(), ClaimsError> {
    let (claim, expected) = (rule.claim.clone(), rule.required_value.clone());
    if !claims.contains_key(&claim) {
        return Err(ClaimsError::RequiredMissing(claim));
    }
    match text(claims, &claim) {
        Ok(got) if got == expected => Ok(()),
        Ok(got) => Err(ClaimsError::RequiredValue { claim, got, expected }),
        Err(source) => Err(ClaimsError::Required { claim, source }),
    }
}
