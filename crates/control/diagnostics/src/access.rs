//! Delegated authentication and authorization: the API server decides who a client is and what it may read.

use std::sync::Arc;

use api_meta::{
    UserInfo,
    user::{ANONYMOUS, GROUP_MASTERS, GROUP_UNAUTHENTICATED},
};
use client::{Client, Resource};
use http::{header, request::Parts};
use serde_json::{Value, json};
use serve::Connection;

/// The sources of identities and permissions.
pub(crate) struct Access {
    /// The CA of client certificates; without it, certificates name no user.
    pub(crate) client_ca: Option<pki::ClientCa>,
    /// The client for TokenReviews; without it, tokens are rejected.
    pub(crate) authentication: Option<Client>,
    /// The client for SubjectAccessReviews; without it, only administrators are authorized.
    pub(crate) authorization: Option<Client>,
}

impl Access {
    /// Authenticates a request. Returns `None` if the credentials are rejected.
    pub(crate) async fn user(&self, request: &Parts) -> Option<UserInfo> {
        let connection = request.extensions.get::<Arc<Connection>>();
        let chain = connection.map_or(&[][..], |c| &c.client_certificates);
        if let (Some(ca), false) = (&self.client_ca, chain.is_empty()) {
            return match ca.verify(chain, rt::now()) {
                Ok(verified) => verified.map(|verified| {
                    let pki::Identity { name, groups, uid, credential_id } = verified.identity;
                    UserInfo::of_certificate(name, uid, groups, credential_id).authenticated()
                }),
                Err(error) => {
                    tracing::debug!(%error, "rejected a client certificate");
                    None
                }
            };
        }
        let Some(credentials) = request.headers.get(header::AUTHORIZATION) else {
            return Some(UserInfo::new(ANONYMOUS, &[GROUP_UNAUTHENTICATED]));
        };
        let (kind, token) = credentials.to_str().ok()?.split_once(' ')?;
        if !kind.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let review = json!({"spec": {"token": token.trim()}});
        let client = self.authentication.as_ref()?;
        let status = review_of(client, &Resource::TOKEN_REVIEWS, &review).await?;
        (status["authenticated"] == true)
            .then(|| serde_json::from_value(status["user"].clone()).ok())
            .flatten()
    }

    /// Reports whether a user may access a path.
    pub(crate) async fn is_authorized(&self, user: &UserInfo, verb: &str, path: &str) -> bool {
        if user.groups.iter().any(|group| group == GROUP_MASTERS) {
            return true;
        }
        let Some(client) = &self.authorization else { return false };
        let review = json!({"spec": {
            "user": user.name, "uid": user.uid, "groups": user.groups, "extra": user.extra,
            "nonResourceAttributes": {"path": path, "verb": verb},
        }});
        let status = review_of(client, &Resource::SUBJECT_ACCESS_REVIEWS, &review).await;
        status.is_some_and(|status| status["allowed"] == true)
    }
}

/// Creates a review and returns its status.
async fn review_of(client: &Client, resource: &Resource, review: &Value) -> Option<Value> {
    match client.create::<_, Value>(resource, "", review).await {
        Ok(mut review) => review.get_mut("status").map(Value::take),
        Err(error) => {
            tracing::warn!(%error, kind = %resource.kind, "a review by the API server failed");
            None
        }
    }
}
