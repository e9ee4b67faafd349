//! The unversioned paths.

use serde_json::{Value, json};

use super::paths::{TYPES, names, responses};
use super::reference::reference;

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";

/// Returns a path and its operation by the name of its document.
pub(super) fn path(document: &str) -> Option<(String, Value)> {
    let meta = |kind: &str| responses(&reference(&format!("{META}.{kind}")), &TYPES, &["200"]);
    let text =
        |content_type: &str| responses(&json!({"type": "string"}), &[content_type], &["200"]);
    let operation = |id: String, tag: &str, description: &str, responses: Value| {
        json!({
            "operationId": id, "description": description, "responses": responses, "tags": [tag],
        })
    };
    let versions = "get available API versions";
    let get = match document {
        "api" => operation("getCoreAPIVersions".into(), "core", versions, meta("APIVersions")),
        "apis" => operation("getAPIVersions".into(), "apis", versions, meta("APIGroupList")),
        "version" => {
            let info = reference("io.k8s.apimachinery.pkg.version.Info");
            let answers = responses(&info, &TYPES[..1], &["200"]);
            operation(
                "getCodeVersion".into(),
                "version",
                "get the version information for this server",
                answers,
            )
        }
        "openid/v1/jwks" => operation(
            "getServiceAccountIssuerOpenIDKeyset".into(),
            "openid",
            "get service account issuer OpenID JSON Web Key Set (contains public token verification keys)",
            text("application/jwk-set+json"),
        ),
        ".well-known/openid-configuration" => operation(
            "getServiceAccountIssuerOpenIDConfiguration".into(),
            "WellKnown",
            "get service account issuer OpenID configuration, also known as the 'OIDC discovery doc'",
            text("application/json"),
        ),
        group => {
            let group = group.strip_prefix("apis/").filter(|g| !g.contains('/'))?;
            let (tag, title) = names(group);
            let id = format!("get{title}APIGroup");
            operation(id, &tag, "get information of a group", meta("APIGroup"))
        }
    };
    Some((format!("/{document}/"), json!({"get": get})))
}
