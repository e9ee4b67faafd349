//! Service account tokens in Secrets. They do not expire, and are valid while their Secret exists, unless a label of
//! the Secret invalidates them.

use api_meta::{GroupResource, Timestamp, Tree as _, UserInfo};
use aws_lc_rs::constant_time::verify_slices_are_equal;
use base64::{Engine, prelude::BASE64_STANDARD as BASE64};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    Authenticated, BearerToken, ServiceAccountTokenError as Refusal, TokenAuthenticator,
    TokenError, jwt,
    keys::{KeyError, KeyRing, SigningKey},
};

/// The label of a Secret with an invalidated token. Its value is the date of the invalidation.
pub const INVALID_SINCE: &str = "kubernetes.io/legacy-token-invalid-since";
/// The label of a Secret with the date on which its token was last used.
pub const LAST_USED: &str = "kubernetes.io/legacy-token-last-used";

/// The ConfigMap in kube-system whose field `since` is the date on which the tracking of uses began.
pub const TRACKING: &str = "kube-apiserver-legacy-service-account-token-tracking";

const SECONDS_A_DAY: i64 = 24 * 3600;

const ISSUER: &str = "kubernetes/serviceaccount";

#[derive(Serialize, Deserialize)]
struct Claims {
    iss: String,
    sub: String,
    #[serde(rename = "kubernetes.io/serviceaccount/namespace")]
    namespace: String,
    #[serde(rename = "kubernetes.io/serviceaccount/secret.name")]
    secret: String,
    #[serde(rename = "kubernetes.io/serviceaccount/service-account.name")]
    account: String,
    #[serde(rename = "kubernetes.io/serviceaccount/service-account.uid")]
    uid: String,
}

/// Authenticates these tokens against their Secret and service account.
pub struct LegacyTokens {
    /// The keys that verify tokens.
    pub keys: KeyRing,
    /// The audiences of a token that names none.
    pub api_audiences: Vec<String>,
    /// Called with each Secret whose label [`LAST_USED`] is older than a day.
    pub used: Option<UseCallback>,
}

/// A callback with a Secret's namespace and name. It must not block.
pub type UseCallback = Box<dyn Fn(&str, &str) + Send + Sync>;

/// Signs the token for a Secret of type `kubernetes.io/service-account-token`.
pub fn sign(
    key: &SigningKey,
    namespace: &str,
    secret: &str,
    account: &str,
    uid: &str,
) -> Result<String, KeyError> {
    let claims = Claims {
        iss: ISSUER.into(),
        sub: UserInfo::service_account(namespace, account).name,
        namespace: namespace.into(),
        secret: secret.into(),
        account: account.into(),
        uid: uid.into(),
    };
    jwt::sign(key, &claims)
}

impl TokenAuthenticator for LegacyTokens {
    fn authenticate(&self, bearer: BearerToken<'_>) -> Result<Option<Authenticated>, TokenError> {
        let BearerToken { token, audiences, now, objects } = bearer;
        let Some(claims) = jwt::unverified::<Claims>(token).filter(|claims| claims.iss == ISSUER)
        else {
            return Ok(None);
        };
        Refusal::check(jwt::verify(token, &self.keys.current()))?;
        let (namespace, deleted) = (&claims.namespace, "metadata.deletionTimestamp");
        let secret = objects.get(&GroupResource::SECRETS, namespace, &claims.secret);
        let secret = secret.filter(|secret| !secret.has(deleted)).filter(|secret| {
            let held = secret["data"]["token"].as_str().and_then(|data| BASE64.decode(data).ok());
            held.is_some_and(|held| verify_slices_are_equal(&held, token.as_bytes()).is_ok())
        });
        let Some(secret) = secret else {
            return Err(Refusal::NotInSecret.into());
        };
        let account = objects.get(&GroupResource::SERVICE_ACCOUNTS, namespace, &claims.account);
        if account.is_none_or(|account| account["metadata"]["uid"] != claims.uid.as_str()) {
            return Err(Refusal::AccountGone.into());
        }
        self.report_use(&secret, now);
        let label = |name: &str| secret.text(&["metadata", "labels", name]);
        if !label(INVALID_SINCE).is_empty() {
            let Claims { namespace, secret, account, .. } = claims;
            let label = INVALID_SINCE;
            return Err(Refusal::MarkedInvalid { namespace, secret, account, label }.into());
        }
        let matched: Vec<String> =
            self.api_audiences.iter().filter(|a| audiences.contains(a)).cloned().collect();
        if matched.is_empty() {
            return Err(Refusal::OtherAudience.into());
        }
        let user =
            UserInfo { uid: claims.uid, ..UserInfo::service_account(namespace, &claims.account) };
        Ok(Some(Authenticated { user, audiences: matched }))
    }
}

impl LegacyTokens {
    /// Reports the use of a Secret's token, at most once per day.
    fn report_use(&self, secret: &Value, now: Timestamp) {
        let Some(used) = &self.used else { return };
        let last = secret.text(&["metadata", "labels", LAST_USED]);
        let last = format!("{last}T00:00:00Z").parse::<Timestamp>().map(Timestamp::unix);
        if last.is_ok_and(|last| now.unix() - last < SECONDS_A_DAY) {
            return;
        }
        used(secret.namespace(), secret.name());
    }
}

/// Returns the value of the label [`LAST_USED`] for a time.
pub fn date(now: Timestamp) -> String {
    now.to_string().chars().take_while(|c| *c != 'T').collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;
    use serde_json::json;

    use super::*;
    use crate::testing::{Cluster, authenticate, signing_key as key};

    #[test]
    fn accepts_token_while_its_secret_has_it() {
        let key = key(&rcgen::PKCS_ECDSA_P256_SHA256);
        let token = sign(&key, "ns", "s", "app", "u").unwrap();
        let tokens = LegacyTokens {
            keys: KeyRing::new(vec![key.public().clone()]),
            api_audiences: vec!["api".into()],
            used: None,
        };
        let secret = |held: &str| json!({"metadata": {"name": "s", "namespace": "ns"}, "data": {"token": BASE64.encode(held)}});
        let ask = |held: &str, uid: &str, audience: &str| {
            let mut cluster = Cluster::default();
            cluster.put(&GroupResource::SECRETS, secret(held));
            cluster.put(
                &GroupResource::SERVICE_ACCOUNTS,
                json!({"metadata": {"name": "app", "namespace": "ns", "uid": uid}}),
            );
            authenticate(&tokens, &token, audience, Timestamp::default(), &cluster)
        };
        assert_eq!(
            ask(&token, "u", "api").unwrap().unwrap().user.name,
            "system:serviceaccount:ns:app"
        );
        assert!(ask("other", "u", "api").is_err());
        assert!(ask(&token, "u2", "api").is_err());
        assert!(ask(&token, "u", "vault").is_err());
        let other =
            LegacyTokens { keys: KeyRing::new(Vec::new()), api_audiences: vec![], used: None };
        let ask = |token: &str| {
            authenticate(&other, token, "", Timestamp::default(), &Cluster::default())
        };
        assert!(ask(&token).is_err());
        assert_eq!(ask("x.y.z").unwrap(), None);
    }

    #[test]
    fn rejects_token_of_secret_marked_invalid() {
        let key = key(&rcgen::PKCS_ECDSA_P256_SHA256);
        let token = sign(&key, "ns", "s", "app", "u").unwrap();
        let reported = Arc::new(Mutex::new(Vec::new()));
        let told = reported.clone();
        let used: UseCallback = Box::new(move |namespace, name| {
            told.lock().push(format!("{namespace}/{name}"));
        });
        let tokens = LegacyTokens {
            keys: KeyRing::new(vec![key.public().clone()]),
            api_audiences: vec!["api".into()],
            used: Some(used),
        };
        let ask = |labels: Value| {
            let mut cluster = Cluster::default();
            let metadata = json!({"name": "s", "namespace": "ns", "labels": labels});
            let data = json!({"token": BASE64.encode(&token)});
            cluster.put(&GroupResource::SECRETS, json!({"metadata": metadata, "data": data}));
            let account = json!({"metadata": {"name": "app", "namespace": "ns", "uid": "u"}});
            cluster.put(&GroupResource::SERVICE_ACCOUNTS, account);
            let now = "2026-11-25T12:00:00Z".parse().unwrap();
            assert_eq!(date(now), "2026-11-25");
            authenticate(&tokens, &token, "api", now, &cluster)
        };
        let reports = || std::mem::take(&mut *reported.lock());
        assert!(ask(json!({LAST_USED: "2026-11-25"})).is_ok());
        assert!(ask(json!({LAST_USED: "2026-11-26"})).is_ok(), "of a server whose clock is ahead");
        assert_eq!(reports(), [""; 0]);
        for labels in [json!({}), json!({LAST_USED: "2026-11-24"}), json!({LAST_USED: "x"})] {
            assert!(ask(labels).is_ok());
            assert_eq!(reports(), ["ns/s"]);
        }
        let error = ask(json!({INVALID_SINCE: "2026-11-01"})).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the token in secret ns/s for service account ns/app has been marked invalid. Use tokens from the \
             TokenRequest API or manually created secret-based tokens, or remove the \
             'kubernetes.io/legacy-token-invalid-since' label from the secret to temporarily allow use of this token"
        );
        assert_eq!(reports(), ["ns/s"], "an attempt is a use, too");
    }
}
