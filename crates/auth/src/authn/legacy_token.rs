//! Service-account tokens that live in Secrets: they do not expire, and are good while their Secret is.

use api_meta::{GroupResource, Objects, Timestamp, Tree as _, UserInfo};
use aws_lc_rs::constant_time::verify_slices_are_equal;
use base64::{Engine, prelude::BASE64_STANDARD as BASE64};
use serde::{Deserialize, Serialize};

use super::{
    Authenticated, TokenAuthenticator, TokenError, jwt,
    keys::{KeyError, SigningKey, VerifyingKey},
};

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

/// Checks such tokens against their Secret and service account as they are now.
pub struct LegacyTokens {
    pub keys: Vec<VerifyingKey>,
    /// What a token that names no audience is good for.
    pub api_audiences: Vec<String>,
}

/// The token that the controller puts into a Secret of type `kubernetes.io/service-account-token`.
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
    fn authenticate(
        &self,
        token: &str,
        audiences: &[String],
        _now: Timestamp,
        objects: &dyn Objects,
    ) -> Result<Option<Authenticated>, TokenError> {
        let Some(claims) = jwt::unverified::<Claims>(token).filter(|claims| claims.iss == ISSUER)
        else {
            return Ok(None);
        };
        if !jwt::verified(token, &self.keys) {
            return Err(TokenError(
                "the service account token's signature is not by any known key".into(),
            ));
        }
        let (namespace, deleted) = (&claims.namespace, "metadata.deletionTimestamp");
        let secret = objects.get(&GroupResource::SECRETS, namespace, &claims.secret);
        let holds = secret.filter(|s| !s.has(deleted)).is_some_and(|secret| {
            let held = secret["data"]["token"].as_str().and_then(|data| BASE64.decode(data).ok());
            held.is_some_and(|held| verify_slices_are_equal(&held, token.as_bytes()).is_ok())
        });
        if !holds {
            return Err(TokenError(
                "service account token has been invalidated: its Secret does not hold it".into(),
            ));
        }
        let account = objects.get(&GroupResource::SERVICE_ACCOUNTS, namespace, &claims.account);
        if account.is_none_or(|account| account["metadata"]["uid"] != claims.uid.as_str()) {
            return Err(TokenError(
                "the service account of the token has been deleted or made anew".into(),
            ));
        }
        let matched: Vec<String> =
            self.api_audiences.iter().filter(|a| audiences.contains(a)).cloned().collect();
        if matched.is_empty() {
            return Err(TokenError(
                "the token is not for any of the audiences that were asked".into(),
            ));
        }
        let user =
            UserInfo { uid: claims.uid, ..UserInfo::service_account(namespace, &claims.account) };
        Ok(Some(Authenticated { user, audiences: matched }))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{authn::keys::tests::key, testing::Cluster};

    #[test]
    fn a_token_is_good_while_its_secret_holds_it() {
        let key = key(&rcgen::PKCS_ECDSA_P256_SHA256);
        let token = sign(&key, "ns", "s", "app", "u").unwrap();
        let tokens =
            LegacyTokens { keys: vec![key.public().clone()], api_audiences: vec!["api".into()] };
        let secret = |held: &str| json!({"metadata": {"name": "s", "namespace": "ns"}, "data": {"token": BASE64.encode(held)}});
        let ask = |held: &str, uid: &str, audience: &str| {
            let mut cluster = Cluster::default();
            cluster.put(&GroupResource::SECRETS, secret(held));
            cluster.put(
                &GroupResource::SERVICE_ACCOUNTS,
                json!({"metadata": {"name": "app", "namespace": "ns", "uid": uid}}),
            );
            tokens.authenticate(&token, &[audience.into()], Timestamp::default(), &cluster)
        };
        assert_eq!(
            ask(&token, "u", "api").unwrap().unwrap().user.name,
            "system:serviceaccount:ns:app"
        );
        assert!(ask("other", "u", "api").is_err());
        assert!(ask(&token, "u2", "api").is_err());
        assert!(ask(&token, "u", "vault").is_err());
        let other = LegacyTokens { keys: vec![], api_audiences: vec![] };
        assert!(
            other.authenticate(&token, &[], Timestamp::default(), &Cluster::default()).is_err()
        );
        assert_eq!(
            other.authenticate("x.y.z", &[], Timestamp::default(), &Cluster::default()),
            Ok(None)
        );
    }
}
