//! Bootstrap tokens, such as `abcdef.0123456789abcdef`, with which a node joins. They are stored in Secrets of
//! kube-system.

use api_meta::{GroupResource, Tree as _, UserInfo, user::GROUP_AUTHENTICATED};
use aws_lc_rs::constant_time::verify_slices_are_equal;
use base64::{Engine, prelude::BASE64_STANDARD as BASE64};
use bootstrap_core::tokens;

use super::{Authenticated, BearerToken, TokenAuthenticator, TokenError};

const GROUP: &str = "system:bootstrappers";

/// Authenticates bootstrap tokens against the Secrets of kube-system. Expired tokens are rejected.
pub struct BootstrapTokens;

/// Splits a well-formed token into its ID and its secret.
fn split(token: &str) -> Option<(&str, &str)> {
    let (id, secret) = token.split_once('.')?;
    let word = |text: &str, length| {
        text.len() == length && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
    };
    (word(id, 6) && word(secret, 16)).then_some((id, secret))
}

impl TokenAuthenticator for BootstrapTokens {
    fn authenticate(&self, bearer: BearerToken<'_>) -> Result<Option<Authenticated>, TokenError> {
        let BearerToken { token, audiences, now, objects } = bearer;
        let Some((id, secret)) = split(token) else { return Ok(None) };
        let Some(object) =
            objects.get(&GroupResource::SECRETS, "kube-system", &format!("bootstrap-token-{id}"))
        else {
            return Ok(None);
        };
        let field = |name: &str| -> Option<String> {
            String::from_utf8(BASE64.decode(object["data"][name].as_str()?).ok()?).ok()
        };
        let equals = |name: &str, wanted: &str| {
            field(name)
                .is_some_and(|v| verify_slices_are_equal(v.as_bytes(), wanted.as_bytes()).is_ok())
        };
        let in_force = object["type"] == tokens::SECRET_TYPE
            && !object.has("metadata.deletionTimestamp")
            && equals("token-secret", secret)
            && equals("token-id", id)
            && field("usage-bootstrap-authentication").as_deref() == Some("true")
            && !tokens::is_expired(&object, now);
        if !in_force {
            return Ok(None);
        }
        let mut groups = vec![GROUP.to_owned()];
        for group in
            field("auth-extra-groups").unwrap_or_default().split(',').filter(|g| !g.is_empty())
        {
            if !group.starts_with("system:bootstrappers:") {
                let (id, group) = (id.to_owned(), group.to_owned());
                return Err(TokenError::BootstrapGroup { id, group });
            }
            groups.push(group.to_owned());
        }
        groups.push(GROUP_AUTHENTICATED.to_owned());
        let user =
            UserInfo { name: format!("system:bootstrap:{id}"), groups, ..UserInfo::default() };
        Ok(Some(Authenticated { user, audiences: audiences.to_vec() }))
    }
}

#[cfg(test)]
mod tests {
    use api_meta::Timestamp;
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{Cluster, authenticate};

    fn secret(changes: &[(&str, &str)]) -> Value {
        let mut data = json!({
            "token-id": "abcdef", "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true",
            "expiration": "2030-01-01T00:00:00Z", "auth-extra-groups": "system:bootstrappers:kubeadm:default-node-token"
        });
        for (key, value) in changes {
            data[*key] = (*value).into();
        }
        for value in data.as_object_mut().unwrap().values_mut() {
            *value = BASE64.encode(value.as_str().unwrap()).into();
        }
        json!({"metadata": {"name": "bootstrap-token-abcdef", "namespace": "kube-system"}, "type": "bootstrap.kubernetes.io/token", "data": data})
    }

    #[test]
    fn accepts_token_while_its_secret_allows_it() {
        let now: Timestamp = "2025-01-01T00:00:00Z".parse().unwrap();
        let ask = |changes: &[(&str, &str)], token: &str| {
            let mut cluster = Cluster::default();
            cluster.put(&GroupResource::SECRETS, secret(changes));
            authenticate(&BootstrapTokens, token, "", now, &cluster)
        };
        let good = "abcdef.0123456789abcdef";
        let user = ask(&[], good).unwrap().unwrap().user;
        assert_eq!(user.name, "system:bootstrap:abcdef");
        assert_eq!(
            user.groups,
            [
                "system:bootstrappers",
                "system:bootstrappers:kubeadm:default-node-token",
                "system:authenticated"
            ]
        );
        assert_eq!(ask(&[], "abcdef.0123456789abcdeX").unwrap(), None);
        assert_eq!(ask(&[], "abcdef.0123456789abcdee").unwrap(), None);
        assert_eq!(ask(&[], "uvwxyz.0123456789abcdef").unwrap(), None);
        assert_eq!(ask(&[("expiration", "2024-01-01T00:00:00Z")], good).unwrap(), None);
        assert_eq!(ask(&[("expiration", "soon")], good).unwrap(), None);
        let mut cluster = Cluster::default();
        let mut binary = secret(&[]);
        binary["data"]["expiration"] = BASE64.encode(b"\xff\xfe").into();
        cluster.put(&GroupResource::SECRETS, binary);
        assert_eq!(authenticate(&BootstrapTokens, good, "", now, &cluster).unwrap(), None);
        assert_eq!(ask(&[("usage-bootstrap-authentication", "false")], good).unwrap(), None);
        assert!(ask(&[("auth-extra-groups", "system:masters")], good).is_err());
    }
}
