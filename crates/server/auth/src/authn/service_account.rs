//! Bound service account tokens: issued for TokenRequests, and verified against the objects that they are bound to.

use std::sync::Arc;

use api_meta::{
    FieldError, GroupKind, GroupResource, Objects, Path, Status, Timestamp, Tree as _, UserInfo,
    go_quote,
};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};

use super::{
    Authenticated, BearerToken, ServiceAccountTokenError as Refusal, TokenAuthenticator,
    TokenError,
    certificate::CREDENTIAL_ID,
    jwt::{self, DigestCache},
    keys::{KeyError, KeyRing, SigningKey, VerifyingKey},
};

/// The extra field with the name of the token's Pod.
pub const POD_NAME: &str = "authentication.kubernetes.io/pod-name";
/// The extra field with the UID of that Pod.
pub const POD_UID: &str = "authentication.kubernetes.io/pod-uid";
/// The extra field with the name of that Pod's node. NodeRestriction and similar checks use it.
pub const NODE_NAME: &str = "authentication.kubernetes.io/node-name";
/// The extra field with the UID of that node.
pub(crate) const NODE_UID: &str = "authentication.kubernetes.io/node-uid";

/// The tolerated clock skew between machines.
const LEEWAY_SECONDS: i64 = 60;
const DEFAULT_EXPIRATION: i64 = 3600;
const MIN_EXPIRATION: i64 = 600;
/// The lifetime that the ServiceAccount admission plugin requests. The issuer recognizes automatic tokens by it.
const AUTOMATIC_EXPIRATION: i64 = 3607;
/// The extended lifetime of automatic tokens, for clients that read the token only once.
const EXTENDED_EXPIRATION: i64 = 365 * 24 * 3600;

/// The claims of a token (RFC 7519). Times are in seconds since the epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claims {
    /// The audiences. One of them must be the API's.
    #[serde(default, deserialize_with = "one_or_many")]
    pub aud: Vec<String>,
    /// The expiration time.
    pub exp: i64,
    /// The time of issue.
    #[serde(default)]
    pub iat: i64,
    /// The issuer.
    pub iss: String,
    /// The token's unique ID, for the audit log.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub jti: String,
    /// The objects that the token is bound to.
    #[serde(rename = "kubernetes.io")]
    pub bound: Bound,
    /// The start of the validity.
    #[serde(default)]
    pub nbf: i64,
    /// The subject: `system:serviceaccount:NAMESPACE:NAME`.
    pub sub: String,
}

/// The objects that a token is bound to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bound {
    /// The namespace of the service account, Pod and Secret.
    pub namespace: String,
    /// The node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<Ref>,
    /// The Pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Ref>,
    /// The Secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<Ref>,
    /// The service account.
    pub serviceaccount: Ref,
    /// The time after which the use of an extended token is logged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warnafter: Option<i64>,
}

/// A reference to a bound object. The token becomes invalid when an object with this name and UID no longer exists.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ref {
    /// The object's name.
    pub name: String,
    /// The object's UID.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
}

fn one_or_many<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Audience {
        One(String),
        Many(Vec<String>),
    }
    Ok(match Audience::deserialize(deserializer)? {
        Audience::One(one) => vec![one],
        Audience::Many(many) => many,
    })
}

/// Authenticates bound service account tokens.
pub struct ServiceAccountTokens {
    issuers: Vec<String>,
    keys: KeyRing,
    checked: DigestCache<Verified>,
}

/// The claims of a token, and the keys among which its signature was valid.
struct Verified {
    claims: Claims,
    keys: Arc<[VerifyingKey]>,
}

/// The number of cached tokens, enough for every Pod of a large cluster.
const REMEMBERED: usize = 8192;

impl ServiceAccountTokens {
    /// Creates the authenticator. The first issuer also issues tokens. All are accepted, so that an issuer can be
    /// replaced without a gap.
    pub fn new(issuers: Vec<String>, keys: KeyRing) -> Self {
        Self { issuers, keys, checked: DigestCache::new(REMEMBERED) }
    }

    /// Returns the verified claims, or `None` if the token has another issuer.
    fn claims(&self, token: &str) -> Result<Option<Arc<Verified>>, Refusal> {
        let key = DigestCache::<Verified>::key(token);
        let keys = self.keys.current();
        // Other keys may no longer have the one that signed the token.
        if let Some(known) = self.checked.get(&key).filter(|known| Arc::ptr_eq(&known.keys, &keys))
        {
            return Ok(Some(known));
        }
        let Some(claims) = jwt::unverified::<Claims>(token) else { return Ok(None) };
        if !self.issuers.contains(&claims.iss) {
            return Ok(None);
        }
        Refusal::check(jwt::verify(token, &keys))?;
        let verified = Arc::new(Verified { claims, keys });
        self.checked.insert(key, verified.clone());
        Ok(Some(verified))
    }
}

impl TokenAuthenticator for ServiceAccountTokens {
    fn authenticate(&self, bearer: BearerToken<'_>) -> Result<Option<Authenticated>, TokenError> {
        let BearerToken { token, audiences, now, objects } = bearer;
        let Some(verified) = self.claims(token)? else { return Ok(None) };
        let claims = &verified.claims;
        if now.unix() > claims.exp + LEEWAY_SECONDS {
            return Err(Refusal::Expired.into());
        }
        if now.unix() < claims.nbf - LEEWAY_SECONDS {
            return Err(Refusal::NotYetValid.into());
        }
        let matched: Vec<String> =
            claims.aud.iter().filter(|a| audiences.contains(a)).cloned().collect();
        if matched.is_empty() {
            let (given, expected) = (claims.aud.clone(), audiences.to_vec());
            return Err(Refusal::Audiences { given, expected }.into());
        }
        if claims.bound.warnafter.is_some_and(|after| now.unix() > after) {
            tracing::debug!(user = %claims.sub, "a client uses a service account token that it should have refreshed");
        }
        check_bound(&claims.bound, now, objects)?;
        Ok(Some(Authenticated { user: user_of(claims), audiences: matched }))
    }
}

/// Checks that the bound objects still exist.
fn check_bound(bound: &Bound, now: Timestamp, objects: &dyn Objects) -> Result<(), Refusal> {
    let live = |kind: &'static str, resource: &GroupResource, namespace: &str, wanted: &Ref| {
        let name = wanted.name.clone();
        let Some(object) = objects.get(resource, namespace, &name) else {
            return Err(Refusal::ObjectMissing { kind, name });
        };
        let meta = &object["metadata"];
        let uid = meta.text("uid");
        if uid != wanted.uid {
            let (uid, expected) = (uid.to_owned(), wanted.uid.clone());
            return Err(Refusal::ObjectUid { kind, name, uid, expected });
        }
        let deleted = meta["deletionTimestamp"].as_str().and_then(|t| t.parse::<Timestamp>().ok());
        if deleted.is_some_and(|at| at.unix() < now.unix() - LEEWAY_SECONDS) {
            return Err(Refusal::ObjectDeleted { kind, name });
        }
        Ok(())
    };
    let namespace = &bound.namespace;
    live("service account", &GroupResource::SERVICE_ACCOUNTS, namespace, &bound.serviceaccount)?;
    if let Some(secret) = &bound.secret {
        live("secret", &GroupResource::SECRETS, namespace, secret)?;
    }
    match (&bound.pod, &bound.node) {
        (Some(pod), _) => live("pod", &GroupResource::PODS, namespace, pod),
        (None, Some(node)) => live("node", &GroupResource::NODES, "", node),
        (None, None) => Ok(()),
    }
}

fn user_of(claims: &Claims) -> UserInfo {
    let Bound { namespace, node, pod, serviceaccount, .. } = &claims.bound;
    let mut user = UserInfo::service_account(namespace, &serviceaccount.name);
    user.uid.clone_from(&serviceaccount.uid);
    let mut extra = |key: &str, value: &str| {
        if !value.is_empty() {
            user.extra.insert(key.to_owned(), vec![value.to_owned()]);
        }
    };
    for (object, name, uid) in [(pod, POD_NAME, POD_UID), (node, NODE_NAME, NODE_UID)] {
        if let Some(object) = object {
            extra(name, &object.name);
            extra(uid, &object.uid);
        }
    }
    if !claims.jti.is_empty() {
        extra(CREDENTIAL_ID, &format!("JTI={}", claims.jti));
    }
    user
}

/// Issues tokens for the `token` subresource of service accounts.
pub struct TokenIssuer {
    /// The issuer in tokens.
    pub issuer: String,
    /// The audiences of a token if the request names none.
    pub api_audiences: Vec<String>,
    /// The value of `--service-account-max-token-expiration`, in seconds.
    pub max_expiration: Option<i64>,
    /// The value of `--service-account-extend-token-expiration`.
    pub extend: bool,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    audiences: Option<Vec<String>>,
    expiration_seconds: Option<i64>,
    bound_object_ref: Option<ObjectRef>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ObjectRef {
    kind: String,
    api_version: String,
    name: String,
    uid: String,
}

/// The claims for a TokenRequest, which have to be signed. Read [`Issue::claims`] or [`Issue::sign`], then
/// [`Issue::answer`].
#[derive(Debug)]
pub struct Issue {
    claims: Claims,
    requested: i64,
}

impl Issue {
    /// Returns the second part of the token, in base64url.
    pub fn claims(&self) -> Result<String, KeyError> {
        jwt::encode_claims(&self.claims)
    }

    /// Signs the token with a local key.
    pub fn sign(&self, key: &SigningKey) -> Result<String, KeyError> {
        jwt::sign(key, &self.claims)
    }

    /// Writes the signed token and its terms to the `spec` and `status` of the TokenRequest.
    pub fn answer(&self, request: &mut Value, token: &str) {
        request.put(&["spec", "audiences"], json!(self.claims.aud));
        request.put(&["spec", "expirationSeconds"], self.requested);
        // The client gets the short lifetime, so that it refreshes the token.
        let told = self.claims.bound.warnafter.unwrap_or(self.claims.exp);
        request.put(
            &["status"],
            json!({"token": token, "expirationTimestamp": Timestamp::from_unix(told, 0).to_string()}),
        );
    }
}

impl TokenIssuer {
    /// Decides the claims for a TokenRequest. `id` is a new UUID.
    pub fn issue(
        &self,
        request: &Value,
        (namespace, name): (&str, &str),
        objects: &dyn Objects,
        now: Timestamp,
        id: String,
    ) -> Result<Issue, Status> {
        let spec = Spec::deserialize(&request["spec"]).map_err(|e| {
            Status::bad_request(format!("cannot read the TokenRequest's spec: {e}"))
        })?;
        let requested = spec.expiration_seconds.unwrap_or(DEFAULT_EXPIRATION);
        validate_expiration(requested)?;
        let audiences =
            spec.audiences.filter(|a| !a.is_empty()).unwrap_or_else(|| self.api_audiences.clone());
        let account = objects
            .get(&GroupResource::SERVICE_ACCOUNTS, namespace, name)
            .ok_or_else(|| Status::not_found(&GroupResource::SERVICE_ACCOUNTS, name))?;
        let mut bound = Bound {
            namespace: namespace.into(),
            serviceaccount: reference(&account),
            ..Bound::default()
        };
        if let Some(object) = &spec.bound_object_ref {
            bind(&mut bound, object, objects)?;
        }
        let mut lifetime = requested.min(self.max_expiration.unwrap_or(i64::MAX));
        let for_api = audiences.iter().all(|a| self.api_audiences.contains(a));
        if self.extend && bound.pod.is_some() && requested == AUTOMATIC_EXPIRATION && for_api {
            bound.warnafter = Some(now.unix() + lifetime);
            lifetime = EXTENDED_EXPIRATION.min(self.max_expiration.unwrap_or(i64::MAX));
        }
        let claims = Claims {
            aud: audiences,
            exp: now.unix() + lifetime,
            iat: now.unix(),
            iss: self.issuer.clone(),
            jti: id,
            nbf: now.unix(),
            sub: UserInfo::service_account(namespace, name).name,
            bound,
        };
        Ok(Issue { claims, requested: requested.min(self.max_expiration.unwrap_or(i64::MAX)) })
    }
}

fn validate_expiration(seconds: i64) -> Result<(), Status> {
    let wrong = if seconds < MIN_EXPIRATION {
        "may not specify a duration less than 10 minutes"
    } else if seconds > 1 << 32 {
        "may not specify a duration larger than 2^32 seconds"
    } else {
        return Ok(());
    };
    let error = FieldError::invalid(&Path::new("spec").child("expirationSeconds"), seconds, wrong);
    Err(Status::invalid(&GroupKind::new("authentication.k8s.io", "TokenRequest"), "", &[error]))
}

fn reference(object: &Value) -> Ref {
    Ref { name: object.name().to_owned(), uid: object.uid().to_owned() }
}

fn bind(bound: &mut Bound, wanted: &ObjectRef, objects: &dyn Objects) -> Result<(), Status> {
    let (resource, namespace) = match (wanted.api_version.as_str(), wanted.kind.as_str()) {
        ("v1", "Pod") => (GroupResource::PODS, bound.namespace.as_str()),
        ("v1", "Secret") => (GroupResource::SECRETS, bound.namespace.as_str()),
        ("v1", "Node") => (GroupResource::NODES, ""),
        (version, kind) => {
            let (group, version) = version.split_once('/').unwrap_or(("", version));
            return Err(Status::bad_request(format!(
                "cannot bind token to object of type {group}/{version}, Kind={kind}"
            )));
        }
    };
    let object = objects
        .get(&resource, namespace, &wanted.name)
        .ok_or_else(|| Status::not_found(&resource, &wanted.name))?;
    let found = reference(&object);
    if !wanted.uid.is_empty() && wanted.uid != found.uid {
        return Err(Status::conflict(
            &resource,
            &wanted.name,
            format!(
                "the UID in the bound object reference ({}) does not match the UID in record. The \
                object might have been deleted and then recreated",
                wanted.uid
            ),
        ));
    }
    match wanted.kind.as_str() {
        "Pod" => {
            if object["spec"]["serviceAccountName"] != bound.serviceaccount.name.as_str() {
                return Err(Status::bad_request(format!(
                    "cannot bind token for serviceaccount {} to pod running with different serviceaccount name.",
                    go_quote(&bound.serviceaccount.name)
                )));
            }
            if let Some(node) = object.opt_text("spec.nodeName") {
                let node = objects.get(&GroupResource::NODES, "", node);
                // The token names a deleted node without a UID.
                bound.node = Some(node.map_or_else(
                    || Ref { name: object.text("spec.nodeName").into(), uid: String::new() },
                    |node| reference(&node),
                ));
            }
            bound.pod = Some(found);
        }
        "Secret" => bound.secret = Some(found),
        _ => bound.node = Some(found),
    }
    Ok(())
}

#[cfg(test)]
mod tests;
