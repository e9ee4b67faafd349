//! Delegated authentication and authorization: the API server decides who a client is and what it may read.

use std::{sync::Arc, time::Duration};

use api_meta::{
    UserInfo,
    user::{ANONYMOUS, GROUP_MASTERS, GROUP_UNAUTHENTICATED},
};
use client::{Client, Resource};
use http::{header, request::Parts};
use rt::FromFiles;
use serde_json::{Value, json};
use serve::Connection;
use sha2::{Digest as _, Sha256};

use crate::cache::TtlCache;

/// The time for which an answer of the API server holds, as upstream's.
const TTL: Duration = Duration::from_secs(10);
/// The longest path in bytes whose decision is cached. Clients choose the paths, and the cache must stay small.
const CACHED_PATH: usize = 1024;

/// The sources of identities and permissions.
pub(crate) struct Access {
    /// The CA of client certificates; without it, certificates name no user.
    pub(crate) client_ca: Option<FromFiles<pki::ClientCa>>,
    /// The client for TokenReviews; without it, tokens are rejected.
    pub(crate) authentication: Option<Client>,
    /// The client for SubjectAccessReviews; without it, only administrators are authorized.
    pub(crate) authorization: Option<Client>,
    /// The users of tokens, by the digest of the token; `None` for one that is rejected.
    pub(crate) tokens: TtlCache<[u8; 32], Option<UserInfo>>,
    /// The decisions by user, verb and path.
    pub(crate) decisions: TtlCache<AccessKey, bool>,
}

/// An access that the API server decides about.
#[derive(PartialEq, Eq, Hash)]
pub(crate) struct AccessKey {
    user: UserInfo,
    verb: String,
    path: String,
}

impl Access {
    /// Authenticates a request. Returns `None` if the credentials are rejected.
    pub(crate) async fn user(&self, request: &Parts) -> Option<UserInfo> {
        let connection = request.extensions.get::<Arc<Connection>>();
        let chain = connection.map_or(&[][..], |c| &c.client_certificates);
        if let (Some(ca), false) = (&self.client_ca, chain.is_empty()) {
            return match ca.current().verify(chain, rt::now()) {
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
        let key: [u8; 32] = Sha256::digest(token.trim()).into();
        if let Some(user) = self.tokens.get(&key) {
            return user;
        }
        let review = json!({"spec": {"token": token.trim()}});
        let client = self.authentication.as_ref()?;
        let status = review_of(client, &Resource::TOKEN_REVIEWS, &review).await?;
        let user: Option<UserInfo> = (status["authenticated"] == true)
            .then(|| serde_json::from_value(status["user"].clone()).ok())
            .flatten();
        self.tokens.put(key, user.clone(), TTL);
        user
    }

    /// Reports whether a user may access a path.
    pub(crate) async fn is_authorized(&self, user: &UserInfo, verb: &str, path: &str) -> bool {
        if user.groups.iter().any(|group| group == GROUP_MASTERS) {
            return true;
        }
        let key = AccessKey { user: user.clone(), verb: verb.to_owned(), path: path.to_owned() };
        if let Some(allowed) = self.decisions.get(&key) {
            return allowed;
        }
        let Some(client) = &self.authorization else { return false };
        let review = json!({"spec": {
            "user": user.name, "uid": user.uid, "groups": user.groups, "extra": user.extra,
            "nonResourceAttributes": {"path": path, "verb": verb},
        }});
        let status = review_of(client, &Resource::SUBJECT_ACCESS_REVIEWS, &review).await;
        // A failed review is not cached, so the next request is reviewed again.
        let Some(status) = status else { return false };
        let allowed = status["allowed"] == true;
        if path.len() <= CACHED_PATH {
            self.decisions.put(key, allowed, TTL);
        }
        allowed
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
