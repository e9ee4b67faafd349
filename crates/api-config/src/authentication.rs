//! `AuthenticationConfiguration` (apiserver.config.k8s.io): which issuers' tokens are accepted, whom their claims name,
//! and where one need not say who one is.

use serde::{Deserialize, Serialize};

use crate::{Error, Strictness, versioned, yaml};

const GROUP: &str = "apiserver.config.k8s.io";

/// A document of one of the group's versions, read strictly: a field that is unknown is an error.
pub(crate) fn strict<T: serde::de::DeserializeOwned>(
    kind: &'static str,
    text: &str,
) -> Result<T, Error> {
    let versions = ["v1", "v1beta1", "v1alpha1"].map(|version| format!("{GROUP}/{version}"));
    versioned(kind, yaml::parse(text)?, &versions, Strictness::Refuse)
}

/// The whole file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct AuthenticationConfiguration {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(rename = "kind")]
    _kind: String,
    pub jwt: Vec<JwtAuthenticator>,
    /// The flag `--anonymous-auth` where it is absent.
    pub anonymous: Option<AnonymousAuth>,
}

impl AuthenticationConfiguration {
    /// Reads a file's text; what it means is not yet judged.
    pub fn parse(text: &str) -> Result<Self, Error> {
        strict("AuthenticationConfiguration", text)
    }
}

/// Whether requests without credentials go on, and to which paths.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AnonymousAuth {
    pub enabled: bool,
    /// Everywhere if empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<AnonymousCondition>,
}

/// A path that needs no credentials, exactly as it is written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AnonymousCondition {
    pub path: String,
}

/// An issuer and what its tokens mean.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct JwtAuthenticator {
    pub issuer: Issuer,
    pub claim_validation_rules: Vec<ClaimValidationRule>,
    pub claim_mappings: ClaimMappings,
    pub user_validation_rules: Vec<UserValidationRule>,
}

/// Who signs tokens, and for whom.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Issuer {
    /// What tokens call it, and where its discovery document is unless `discoveryURL` says so.
    pub url: String,
    #[serde(rename = "discoveryURL")]
    pub discovery_url: String,
    /// Authorities of its HTTPS certificate, as PEM; the system's if empty.
    pub certificate_authority: String,
    /// A token must be for one of these.
    pub audiences: Vec<String>,
    pub audience_match_policy: String,
    pub egress_selector_type: String,
}

/// What a token must say: a claim with a value, or an expression over its claims.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClaimValidationRule {
    pub claim: String,
    pub required_value: String,
    pub expression: String,
    pub message: String,
}

/// Where a user's attributes stand in a token.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ClaimMappings {
    pub username: PrefixedClaimOrExpression,
    pub groups: PrefixedClaimOrExpression,
    pub uid: ClaimOrExpression,
    pub extra: Vec<ExtraMapping>,
}

/// A claim and what stands before its value, or an expression.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct PrefixedClaimOrExpression {
    pub claim: String,
    /// Must be said where a claim is named, if only to be empty.
    pub prefix: Option<String>,
    pub expression: String,
}

/// A claim, or an expression.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ClaimOrExpression {
    pub claim: String,
    pub expression: String,
}

/// A key of a user's extra fields, and the expression that gives its values.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ExtraMapping {
    pub key: String,
    pub value_expression: String,
}

/// What must hold of a user that claims were mapped to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct UserValidationRule {
    pub expression: String,
    pub message: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_strictly_in_each_version() {
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
        let told = wrong(&text("v1", "  foo: 1\n"));
        assert!(told.starts_with(r#"strict decoding error: unknown field "jwt[0].foo""#), "{told}");
        let told = wrong(&text("v2", ""));
        assert!(told.contains("no kind \"AuthenticationConfiguration\" is registered"), "{told}");
        assert!(wrong("kind: AuthenticationConfiguration").contains("'apiVersion' is missing"));
        assert!(wrong("").contains("'Kind' is missing"));
    }
}
