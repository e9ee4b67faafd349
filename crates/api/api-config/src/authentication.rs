//! `AuthenticationConfiguration` (apiserver.config.k8s.io): the accepted token issuers, the mapping of claims to users,
//! and anonymous access.

use serde::{Deserialize, Serialize};

use crate::{
    decode::{Strictness, versioned},
    error::Error,
    yaml,
};

const GROUP: &str = "apiserver.config.k8s.io";

/// Decodes a document of one of the group's versions. An unknown field is an error.
pub(crate) fn strict<T: serde::de::DeserializeOwned>(
    kind: &'static str,
    text: &str,
) -> Result<T, Error> {
    let versions = ["v1", "v1beta1", "v1alpha1"].map(|version| format!("{GROUP}/{version}"));
    versioned(kind, yaml::parse(text)?, &versions, Strictness::Refuse)
}

/// The root of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct AuthenticationConfiguration {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(rename = "kind")]
    _kind: String,
    /// The accepted issuers of tokens.
    pub jwt: Vec<JwtAuthenticator>,
    /// The anonymous access; `None` leaves it to `--anonymous-auth`.
    pub anonymous: Option<AnonymousAuth>,
}

impl AuthenticationConfiguration {
    /// Parses a file's text without validating it.
    pub fn parse(text: &str) -> Result<Self, Error> {
        strict("AuthenticationConfiguration", text)
    }
}

/// The access of requests without credentials.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AnonymousAuth {
    /// `true` if anonymous requests are accepted.
    pub enabled: bool,
    /// The accepted paths; empty for all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<AnonymousCondition>,
}

/// A path that needs no credentials; it must match exactly.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AnonymousCondition {
    /// The URL path.
    pub path: String,
}

/// An issuer of tokens, with the meaning of its tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct JwtAuthenticator {
    /// The issuer.
    pub issuer: Issuer,
    /// The conditions on claims.
    pub claim_validation_rules: Vec<ClaimValidationRule>,
    /// The mapping of claims to user attributes.
    pub claim_mappings: ClaimMappings,
    /// The conditions on the resulting user.
    pub user_validation_rules: Vec<UserValidationRule>,
}

/// The issuer of tokens and their audiences.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Issuer {
    /// The URL of the issuer in tokens, which also locates the discovery document if `discoveryURL` is empty.
    pub url: String,
    /// The URL of the discovery document, if it differs from the issuer's.
    #[serde(rename = "discoveryURL")]
    pub discovery_url: String,
    /// The CA bundle of its HTTPS server, as PEM; empty for the system's.
    pub certificate_authority: String,
    /// The accepted audiences. A token must be for one of them.
    pub audiences: Vec<String>,
    /// The match policy for several audiences, `MatchAny`.
    pub audience_match_policy: String,
    /// The egress selector of the connection to the issuer.
    pub egress_selector_type: String,
}

/// A condition on a token: a claim with a value, or an expression over the claims.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClaimValidationRule {
    /// The name of the claim.
    pub claim: String,
    /// The required value of the claim.
    pub required_value: String,
    /// The CEL expression.
    pub expression: String,
    /// The message if the expression is false.
    pub message: String,
}

/// The mapping of a token's claims to user attributes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ClaimMappings {
    /// The user name.
    pub username: PrefixedClaimOrExpression,
    /// The groups.
    pub groups: PrefixedClaimOrExpression,
    /// The UID.
    pub uid: ClaimOrExpression,
    /// The extra fields.
    pub extra: Vec<ExtraMapping>,
}

/// A claim with a prefix for its value, or an expression.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct PrefixedClaimOrExpression {
    /// The name of the claim.
    pub claim: String,
    /// The prefix. It is required with a claim, but may be empty.
    pub prefix: Option<String>,
    /// The CEL expression.
    pub expression: String,
}

/// A claim or an expression.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ClaimOrExpression {
    /// The name of the claim.
    pub claim: String,
    /// The CEL expression.
    pub expression: String,
}

/// An extra field of the user and the expression for its values.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ExtraMapping {
    /// The key of the extra field.
    pub key: String,
    /// The CEL expression for the values.
    pub value_expression: String,
}

/// A condition on the user that the claims were mapped to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct UserValidationRule {
    /// The CEL expression.
    pub expression: String,
    /// The message if the expression is false.
    pub message: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decodes_every_version_strictly() {
        let text = |version: &str, more: &str| {
            format!(
                "apiVersion: apiserver.config.k8s.io/{version}\nkind: AuthenticationConfiguration\n\
                 jwt:\n- issuer: {{url: https://a, discoveryURL: https://b, audiences: [x]}}\n  \
                 claimMappings: {{username: {{claim: sub, prefix: ''}}}}\n{more}"
            )
        };
        for version in ["v1", "v1beta1", "v1alpha1"] {
            let read = AuthenticationConfiguration::parse(&text(version, "")).unwrap();
            assert_eq!(read.jwt[0].issuer.discovery_url, "https://b");
            assert_eq!(read.jwt[0].claim_mappings.username.prefix.as_deref(), Some(""));
        }
        let wrong = |text: &str| AuthenticationConfiguration::parse(text).unwrap_err().to_string();
        let error = wrong(&text("v1", "  foo: 1\n"));
        assert!(
            error.starts_with(r#"strict decoding error: unknown field "jwt[0].foo""#),
            "{error}"
        );
        let error = wrong(&text("v2", ""));
        assert!(error.contains("no kind \"AuthenticationConfiguration\" is registered"), "{error}");
        assert!(wrong("kind: AuthenticationConfiguration").contains("'apiVersion' is missing"));
        assert!(wrong("").contains("'Kind' is missing"));
    }
}
