//! Validates an `AuthenticationConfiguration` with upstream's messages, and compiles it.

use std::collections::BTreeSet;

use api_config::{
    AuthenticationConfiguration,
    authentication::{
        ClaimMappings, ClaimValidationRule, Issuer, JwtAuthenticator as Config,
        PrefixedClaimOrExpression, UserValidationRule,
    },
};
use api_meta::{ErrorList, FieldError, Path, validation::domain_prefixed_path};
use rustls::pki_types::{CertificateDer, pem::PemObject};
use serde_json::json;

use super::{
    claims::JwtAuthenticator,
    expressions::{Expression, ExpressionInput},
};

/// The maximum number of issuers in a file.
pub const MAX_ISSUERS: usize = 64;
const BOTH: &str = "claim and expression can't both be set";
const NEITHER: &str = "claim or expression is required";

/// The egress selectors that issuers may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EgressTypes {
    /// The server has no egress selector.
    None,
    /// The server has one, so that issuers may name a network.
    Configured,
}

const EGRESS_TYPES: [&str; 2] = ["controlplane", "cluster"];

/// Compiles the issuers of a configuration. `disallowed` are the issuers of our own service account tokens.
pub fn authenticators(
    config: &AuthenticationConfiguration,
    disallowed: &[String],
    egress: EgressTypes,
) -> Result<Vec<JwtAuthenticator>, ErrorList> {
    let (root, mut errors, mut all) = (Path::new("jwt"), ErrorList::new(), Vec::new());
    if config.jwt.len() > MAX_ISSUERS {
        return Err([FieldError::too_many(&root, config.jwt.len(), MAX_ISSUERS)].into());
    }
    let (mut issuers, mut documents) = (BTreeSet::new(), BTreeSet::new());
    for (i, jwt) in config.jwt.iter().enumerate() {
        let at = root.index(i);
        all.push(authenticator(jwt, &at, disallowed, &mut errors));
        let (at, issuer) = (at.child("issuer"), &jwt.issuer);
        let selector = issuer.egress_selector_type.as_str();
        if egress == EgressTypes::None && EGRESS_TYPES.contains(&selector) {
            let detail =
                format!("oidc: egress lookup required with egress selector type {selector:?}");
            errors.push(FieldError::invalid(&at.child("egressSelectorType"), selector, detail));
        }
        if !issuers.insert(&issuer.url) {
            errors.push(FieldError::duplicate(&at.child("url"), &*issuer.url));
        }
        if !issuer.discovery_url.is_empty() && !documents.insert(&issuer.discovery_url) {
            errors.push(FieldError::duplicate(&at.child("discoveryURL"), &*issuer.discovery_url));
        }
    }
    if let Some(anonymous) = config.anonymous.as_ref().filter(|a| !a.enabled)
        && !anonymous.conditions.is_empty()
    {
        let detail = "enabled should be set to true when conditions are defined";
        let conditions: Vec<_> =
            anonymous.conditions.iter().map(|c| json!({"Path": c.path})).collect();
        let at = Path::new("anonymous").child("conditions");
        errors.push(FieldError::invalid(&at, conditions, detail));
    }
    if errors.is_empty() { Ok(all) } else { Err(errors) }
}

fn authenticator(
    config: &Config,
    at: &Path,
    disallowed: &[String],
    errors: &mut ErrorList,
) -> JwtAuthenticator {
    validate_issuer(&config.issuer, disallowed, &at.child("issuer"), errors);
    let rules = &config.claim_validation_rules;
    let claim_rules = claim_rules(rules, &at.child("claimValidationRules"), errors);
    let mut made = JwtAuthenticator {
        config: config.clone(),
        username: None,
        groups: None,
        uid: None,
        extra: Vec::new(),
        claim_rules,
        user_rules: Vec::new(),
    };
    let (mappings, path) = (&config.claim_mappings, at.child("claimMappings"));
    made.username = prefixed(&mappings.username, &path.child("username"), true, errors);
    made.groups = prefixed(&mappings.groups, &path.child("groups"), false, errors);
    made.uid = uid(mappings, &path.child("uid"), errors);
    made.extra = extra(mappings, &path.child("extra"), errors);
    made.validate_email(mappings, &path, errors);
    let rules = &config.user_validation_rules;
    made.user_rules = user_rules(rules, &at.child("userValidationRules"), errors);
    made
}

impl JwtAuthenticator {
    /// Requires that an expression that maps `email` to the user name also checks `email_verified`.
    fn validate_email(&self, mappings: &ClaimMappings, at: &Path, errors: &mut ErrorList) {
        let takes = |expression: &&Expression| expression.selects("email");
        let verifies = |expression: &Expression| expression.selects("email_verified");
        let is_verified = self.username.iter().any(verifies)
            || self.extra.iter().any(|(_, expression)| verifies(expression))
            || self.claim_rules.iter().any(|(expression, _)| verifies(expression));
        if self.username.as_ref().filter(takes).is_some() && !is_verified {
            let detail = "claims.email_verified must be used in claimMappings.username.expression \
                or claimMappings.extra[*].valueExpression or claimValidationRules[*].expression \
                when claims.email is used in claimMappings.username.expression";
            let at = at.child("username").child("expression");
            errors.push(FieldError::invalid(&at, &*mappings.username.expression, detail));
        }
    }
}

fn validate_issuer(issuer: &Issuer, disallowed: &[String], at: &Path, errors: &mut ErrorList) {
    let (url, document) = (&issuer.url, &issuer.discovery_url);
    if url.is_empty() {
        errors.push(FieldError::required(&at.child("url"), ""));
    } else {
        validate_url(url, disallowed, &at.child("url"), errors);
    }
    if !document.is_empty() {
        let at = at.child("discoveryURL");
        if !url.is_empty() && url.trim_end_matches('/') == document.trim_end_matches('/') {
            let detail = "discoveryURL must be different from URL";
            errors.push(FieldError::invalid(&at, &**document, detail));
        }
        validate_url(document, &[], &at, errors);
    }
    validate_audiences(issuer, at, errors);
    let authorities = &issuer.certificate_authority;
    if !authorities.is_empty()
        && !CertificateDer::pem_slice_iter(authorities.as_bytes()).any(|found| found.is_ok())
    {
        let detail = "data does not contain any valid RSA or ECDSA certificates";
        errors.push(FieldError::invalid(&at.child("certificateAuthority"), "<omitted>", detail));
    }
    let selector = issuer.egress_selector_type.as_str();
    if !selector.is_empty() && !EGRESS_TYPES.contains(&selector) {
        let detail = "egress selector must be either controlplane or cluster";
        errors.push(FieldError::invalid(&at.child("egressSelectorType"), selector, detail));
    }
}

fn validate_url(url: &str, disallowed: &[String], at: &Path, errors: &mut ErrorList) {
    let mut invalid = |detail: String| errors.push(FieldError::invalid(at, url, detail));
    if disallowed.iter().any(|issuer| issuer == url) {
        let shown = disallowed.join(" ");
        invalid(format!("URL must not overlap with disallowed issuers: [{shown}]"));
    }
    let quoted = api_meta::go_quote(url);
    if url.chars().any(|c| c.is_ascii_control()) {
        return invalid(format!("parse {quoted}: net/url: invalid control character in URL"));
    }
    if url.starts_with(':') {
        return invalid(format!("parse {quoted}: missing protocol scheme"));
    }
    let (rest, fragment) = url.split_once('#').unwrap_or((url, ""));
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (scheme, rest) = rest.split_once("://").unwrap_or(("", rest));
    let authority = rest.split('/').next().unwrap_or_default();
    if !scheme.eq_ignore_ascii_case("https") {
        invalid("URL scheme must be https".to_owned());
    }
    for (wrong, what) in [
        (authority.contains('@'), "a username or password"),
        (!query.is_empty(), "a query"),
        (!fragment.is_empty(), "a fragment"),
    ] {
        if wrong {
            invalid(format!("URL must not contain {what}"));
        }
    }
}

fn validate_audiences(issuer: &Issuer, at: &Path, errors: &mut ErrorList) {
    let (audiences, at_policy) = (&issuer.audiences, at.child("audienceMatchPolicy"));
    let at = at.child("audiences");
    if audiences.is_empty() {
        let detail = format!("at least one {} is required", at.as_str());
        return errors.push(FieldError::required(&at, detail));
    }
    let mut seen = BTreeSet::new();
    for (i, audience) in audiences.iter().enumerate() {
        if audience.is_empty() {
            errors.push(FieldError::required(&at.index(i), ""));
        }
        if !seen.insert(audience) {
            errors.push(FieldError::duplicate(&at.index(i), &**audience));
        }
    }
    let policy = issuer.audience_match_policy.as_str();
    let detail = match (audiences.len(), policy) {
        (_, "MatchAny") | (1, "") => return,
        (1, _) => "audienceMatchPolicy must be empty or MatchAny for single audience",
        _ => "audienceMatchPolicy must be MatchAny for multiple audiences",
    };
    errors.push(FieldError::invalid(&at_policy, policy, detail));
}

fn compiled(
    text: &str,
    input: ExpressionInput,
    bool: bool,
    at: &Path,
    errors: &mut ErrorList,
) -> Option<Expression> {
    let compiled = Expression::compile(text, input, bool);
    compiled.map_err(|error| errors.push(FieldError::invalid(at, text, error.to_string()))).ok()
}

fn claim_rules(
    rules: &[ClaimValidationRule],
    at: &Path,
    errors: &mut ErrorList,
) -> Vec<(Expression, String)> {
    let (mut claims, mut expressions) = (BTreeSet::new(), BTreeSet::new());
    let mut out = Vec::new();
    for (i, rule) in rules.iter().enumerate() {
        let at = at.index(i);
        let invalid =
            |field: &str, value: &str, detail| FieldError::invalid(&at.child(field), value, detail);
        match (rule.claim.as_str(), rule.expression.as_str()) {
            ("", "") => errors.push(FieldError::required(&at, NEITHER)),
            ("", text) => {
                if !rule.required_value.is_empty() {
                    let detail = "may not be specified when expression is set";
                    errors.push(invalid("requiredValue", &rule.required_value, detail));
                }
                let at = at.child("expression");
                if !expressions.insert(text) {
                    errors.push(FieldError::duplicate(&at, text));
                } else if let Some(made) =
                    compiled(text, ExpressionInput::Claims, true, &at, errors)
                {
                    out.push((made, rule.message.clone()));
                }
            }
            (claim, "") => {
                if !rule.message.is_empty() {
                    let detail = "may not be specified when claim is set";
                    errors.push(invalid("message", &rule.message, detail));
                }
                if !claims.insert(claim) {
                    errors.push(FieldError::duplicate(&at.child("claim"), claim));
                }
            }
            (claim, _) => errors.push(FieldError::invalid(&at, claim, BOTH)),
        }
    }
    out
}

fn prefixed(
    mapping: &PrefixedClaimOrExpression,
    at: &Path,
    required: bool,
    errors: &mut ErrorList,
) -> Option<Expression> {
    match (mapping.claim.as_str(), mapping.expression.as_str()) {
        ("", "") if required => errors.push(FieldError::required(at, NEITHER)),
        ("", "") => {}
        ("", text) => {
            let at_prefix = at.child("prefix");
            errors.extend(mapping.prefix.as_deref().map(|prefix| {
                let detail = "may not be specified when expression is set";
                FieldError::invalid(&at_prefix, prefix, detail)
            }));
            return compiled(text, ExpressionInput::Claims, false, &at.child("expression"), errors);
        }
        (_, "") if mapping.prefix.is_none() => {
            let detail = "prefix is required when claim is set. It can be set to an empty string to disable prefixing";
            errors.push(FieldError::required(&at.child("prefix"), detail));
        }
        (_, "") => {}
        _ => errors.push(FieldError::invalid(at, "", BOTH)),
    }
    None
}

fn uid(mappings: &ClaimMappings, at: &Path, errors: &mut ErrorList) -> Option<Expression> {
    match (mappings.uid.claim.as_str(), mappings.uid.expression.as_str()) {
        (_, "") => None,
        ("", text) => {
            compiled(text, ExpressionInput::Claims, false, &at.child("expression"), errors)
        }
        _ => {
            errors.push(FieldError::invalid(at, "", BOTH));
            None
        }
    }
}

fn is_reserved(key: &str) -> bool {
    let Some((domain, _)) = key.split_once('/') else { return false };
    ["kubernetes.io", "k8s.io"].iter().any(|own| {
        domain.strip_suffix(own).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    })
}

fn extra(mappings: &ClaimMappings, at: &Path, errors: &mut ErrorList) -> Vec<(String, Expression)> {
    let (mut keys, mut out) = (BTreeSet::new(), Vec::new());
    for (i, mapping) in mappings.extra.iter().enumerate() {
        let (at, key) = (at.index(i), mapping.key.as_str());
        let at_key = at.child("key");
        let invalid = |detail: String| FieldError::invalid(&at_key, key, detail);
        match key {
            "" => errors.push(FieldError::required(&at_key, "")),
            key => errors.extend(domain_prefixed_path(key).into_iter().map(invalid)),
        }
        if key.to_lowercase() != key {
            errors.push(invalid("must be lowercase".to_owned()));
        }
        if is_reserved(key) {
            let detail =
                "k8s.io, kubernetes.io and their subdomains are reserved for Kubernetes use";
            errors.push(invalid(detail.to_owned()));
        }
        if !keys.insert(key) {
            errors.push(FieldError::duplicate(&at_key, key));
            continue;
        }
        let (text, at) = (mapping.value_expression.as_str(), at.child("valueExpression"));
        if text.is_empty() {
            errors.push(FieldError::required(&at, ""));
        } else if let Some(made) = compiled(text, ExpressionInput::Claims, false, &at, errors) {
            out.push((key.to_owned(), made));
        }
    }
    out
}

fn user_rules(
    rules: &[UserValidationRule],
    at: &Path,
    errors: &mut ErrorList,
) -> Vec<(Expression, String)> {
    let (mut seen, mut out) = (BTreeSet::new(), Vec::new());
    for (i, rule) in rules.iter().enumerate() {
        let (at, text) = (at.index(i).child("expression"), rule.expression.as_str());
        if text.is_empty() {
            errors.push(FieldError::required(&at, ""));
        } else if !seen.insert(text) {
            errors.push(FieldError::duplicate(&at, text));
        } else if let Some(made) = compiled(text, ExpressionInput::User, true, &at, errors) {
            out.push((made, rule.message.clone()));
        }
    }
    out
}
