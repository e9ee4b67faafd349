//! Authenticates clients by certificate or bearer token and authorizes their requests, both with the API server's help.

use std::sync::Arc;

use api_meta::{UserInfo, user::ANONYMOUS};
use client::{Client, Resource};
use diagnostics::TtlCache;
use http::{Method, StatusCode, header, request::Parts};
use rt::FromFiles;
use serde_json::{Value, json};
use serve::Connection;
use sha2::{Digest, Sha256};

use crate::{
    backend::Backend,
    error::ServerError,
    response::{ErrorResponse, text},
    tls,
};

/// Returns the user that a TokenReview authenticates, if it does.
fn user_of_review(review: &Value) -> Option<UserInfo> {
    let status = &review["status"];
    let user = (status["authenticated"] == true).then(|| status["user"].clone())?;
    serde_json::from_value(user).ok()
}

/// Returns the SubjectAccessReview for an access to a node, with all known attributes of the user.
fn access_review(user: &UserInfo, verb: &str, subresource: &str, node: &str) -> Value {
    json!({ "spec": {
        "user": user.name,
        "uid": user.uid,
        "groups": user.groups,
        "extra": user.extra,
        "resourceAttributes": {
            "verb": verb, "version": "v1", "resource": "nodes", "subresource": subresource, "name": node,
        },
    } })
}

/// The error of a request whose authorization is not known.
#[derive(Debug, thiserror::Error)]
enum AuthorizeError {
    #[error("this kubelet has no API server (no --kubeconfig)")]
    Standalone,
    #[error(transparent)]
    Api(#[from] client::Error),
}

pub(crate) struct Auth {
    backend: Arc<Backend>,
    client_ca: Option<FromFiles<pki::ClientCa>>,
    tokens: TtlCache<[u8; 32], Option<UserInfo>>,
    decisions: TtlCache<(UserInfo, &'static str, &'static str), bool>,
}

fn unauthorized() -> ErrorResponse {
    Box::new(text(StatusCode::UNAUTHORIZED, "Unauthorized"))
}

impl Auth {
    pub(crate) fn new(backend: &Arc<Backend>) -> Result<Self, ServerError> {
        let client_ca = match &backend.settings.server.client_ca {
            None => None,
            Some(path) => {
                let file = path.clone();
                let read = move || {
                    pki::ClientCa::from_pem(&tls::read(&file)?)
                        .map_err(|source| ServerError::ClientCa { path: file.clone(), source })
                };
                Some(FromFiles::new(vec![path.clone()], read)?)
            }
        };
        Ok(Self {
            backend: backend.clone(),
            client_ca,
            tokens: TtlCache::default(),
            decisions: TtlCache::default(),
        })
    }

    /// Authenticates and authorizes a request, and returns its user.
    pub(crate) async fn check(&self, request: &Parts) -> Result<UserInfo, ErrorResponse> {
        let user = self.authenticate(request).await?;
        if let Some(connection) = request.extensions.get::<Arc<Connection>>()
            && user.name != ANONYMOUS
        {
            connection.raise_standing(serve::Standing::Known);
        }
        if self.backend.settings.server.always_allow {
            return Ok(user);
        }
        let verb = match request.method {
            Method::POST => "create",
            Method::PUT => "update",
            Method::PATCH => "patch",
            Method::DELETE => "delete",
            _ => "get",
        };
        let subresources = subresources(request.uri.path());
        for subresource in subresources {
            match self.authorize(&user, verb, subresource).await {
                Ok(true) => return Ok(user),
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(user = user.name, %error, "authorize a request");
                    let message = format!(
                        "Authorization error (user={}, verb={verb}, resource=nodes, subresource={subresource})",
                        user.name
                    );
                    return Err(Box::new(text(StatusCode::INTERNAL_SERVER_ERROR, message)));
                }
            }
        }
        let message = format!(
            "Forbidden (user={}, verb={verb}, resource=nodes, subresource(s)=[{}])",
            user.name,
            subresources.join(" ")
        );
        Err(Box::new(text(StatusCode::FORBIDDEN, message)))
    }

    async fn authenticate(&self, request: &Parts) -> Result<UserInfo, ErrorResponse> {
        let connection = request.extensions.get::<Arc<Connection>>();
        if let Some(connection) = connection
            && let Some(user) = self.by_certificate(connection)?
        {
            return Ok(user);
        }
        let header = request.headers.get(header::AUTHORIZATION).and_then(|h| h.to_str().ok());
        let token = header
            .and_then(|h| h.split_once(' '))
            .filter(|(kind, _)| kind.eq_ignore_ascii_case("bearer"));
        if let Some((_, token)) = token {
            return self.by_token(token.trim()).await?.ok_or_else(unauthorized);
        }
        if self.backend.settings.server.anonymous {
            return Ok(UserInfo::anonymous());
        }
        Err(unauthorized())
    }

    fn by_certificate(&self, connection: &Connection) -> Result<Option<UserInfo>, ErrorResponse> {
        let Some(client_ca) = &self.client_ca else { return Ok(None) };
        let verified =
            client_ca.current().verify(&connection.client_certificates, self.backend.clock.now());
        let verified = verified.map_err(|error| {
            tracing::debug!(%error, "reject a client certificate");
            unauthorized()
        })?;
        Ok(verified.map(|pki::VerifiedClient { identity, .. }| {
            let pki::Identity { name, groups, uid, credential_id } = identity;
            UserInfo::of_certificate(name, uid, groups, credential_id).authenticated()
        }))
    }

    /// Authenticates a bearer token by a TokenReview.
    async fn by_token(&self, token: &str) -> Result<Option<UserInfo>, ErrorResponse> {
        let Some(client) = self
            .backend
            .client
            .as_ref()
            .filter(|_| self.backend.settings.server.webhook_authentication)
        else {
            return Ok(None);
        };
        let key: [u8; 32] = Sha256::digest(token).into();
        if let Some(user) = self.tokens.get(&key) {
            return Ok(user);
        }
        let review = json!({ "spec": { "token": token } });
        let response = review_of(client, &Resource::TOKEN_REVIEWS, &review).await;
        let response = response.map_err(|error| {
            tracing::warn!(%error, "review a token");
            unauthorized()
        })?;
        let user = user_of_review(&response);
        self.tokens.put(key, user.clone(), self.backend.settings.server.authentication_ttl);
        Ok(user)
    }

    /// Authorizes an access to this node by a SubjectAccessReview.
    async fn authorize(
        &self,
        user: &UserInfo,
        verb: &'static str,
        subresource: &'static str,
    ) -> Result<bool, AuthorizeError> {
        let key = (user.clone(), verb, subresource);
        if let Some(allowed) = self.decisions.get(&key) {
            return Ok(allowed);
        }
        let settings = &self.backend.settings;
        let client = self.backend.client.as_ref().ok_or(AuthorizeError::Standalone)?;
        let review = access_review(user, verb, subresource, &settings.node_name);
        let reviewed = review_of(client, &Resource::SUBJECT_ACCESS_REVIEWS, &review).await?;
        let allowed = reviewed["status"]["allowed"] == true;
        let ttl =
            if allowed { settings.server.authorized_ttl } else { settings.server.unauthorized_ttl };
        self.decisions.put(key, allowed, ttl);
        Ok(allowed)
    }
}

async fn review_of(
    client: &Client,
    resource: &Resource,
    review: &Value,
) -> Result<Value, client::Error> {
    client.create(resource, "", review).await
}

/// Returns the subresources of a path for authorization. Access to any of them is sufficient.
fn subresources(path: &str) -> &'static [&'static str] {
    match path.trim_start_matches('/').split('/').next().unwrap_or_default() {
        "stats" => &["stats"],
        "metrics" => &["metrics"],
        "logs" => &["log"],
        "checkpoint" => &["checkpoint"],
        "pods" | "runningpods" => &["pods", "proxy"],
        "healthz" => &["healthz", "proxy"],
        "configz" => &["configz", "proxy"],
        _ => &["proxy"],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_paths_to_subresources_as_upstream() {
        assert_eq!(subresources("/stats/summary"), ["stats"]);
        assert_eq!(subresources("/metrics/resource"), ["metrics"]);
        assert_eq!(subresources("/pods"), ["pods", "proxy"]);
        assert_eq!(subresources("/exec/a/b/c"), ["proxy"]);
        assert_eq!(subresources("/"), ["proxy"]);
    }
    #[test]
    fn passes_extra_fields_of_a_token_to_the_authorizer() {
        let extra = json!({ "example.com/tenant": ["a"], "scopes": ["x", "y"] });
        let review = json!({ "status": { "authenticated": true, "user": {
            "username": "u", "uid": "1", "groups": ["g"], "extra": extra } } });
        let user = user_of_review(&review).unwrap();
        assert_eq!(
            access_review(&user, "get", "stats", "n1")["spec"],
            json!({ "user": "u", "uid": "1", "groups": ["g"], "extra": extra,
                "resourceAttributes": { "verb": "get", "version": "v1", "resource": "nodes",
                    "subresource": "stats", "name": "n1" } })
        );
        assert_eq!(user_of_review(&json!({ "status": { "user": { "username": "u" } } })), None);
        // Decisions are cached separately for each set of extra fields.
        let plain = json!({ "status": { "authenticated": true, "user": { "username": "u", "uid": "1", "groups": ["g"] } } });
        assert_ne!(user_of_review(&plain), Some(user));
    }
}
