//! Bootstrap tokens: format, Secret and allowed groups. Read [`Token`] first.

use std::{fmt, str::FromStr};

use api_config::kubeadm::BootstrapToken;
use api_meta::{Timestamp, Tree as _};
use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Map, Value, json};

use crate::Error;

/// The type of token Secrets.
pub const SECRET_TYPE: &str = "bootstrap.kubernetes.io/token";
const ALPHABET: &[u8] = b"abcdefghijklmnopqrstuvwxyz0123456789";
const ID: usize = 6;
const SECRET: usize = 16;

/// A bootstrap token.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// The public id.
    pub id: String,
    /// The secret part.
    pub secret: String,
}

impl Token {
    /// Generates a random token. `below(n)` returns a random number less than `n`.
    pub fn generate(mut below: impl FnMut(usize) -> usize) -> Self {
        let mut draw = |length| -> String {
            std::iter::repeat_with(|| char::from(ALPHABET[below(ALPHABET.len()) % ALPHABET.len()]))
                .take(length)
                .collect()
        };
        Self { id: draw(ID), secret: draw(SECRET) }
    }

    /// Returns the name of the token's Secret in `kube-system`.
    pub fn secret_name(&self) -> String {
        secret_name(&self.id)
    }

    /// Returns the whole token, including its secret part.
    pub fn reveal(&self) -> String {
        format!("{}.{}", self.id, self.secret)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({}.<secret>)", self.id)
    }
}

impl FromStr for Token {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let fits = |part: &str, length| {
            part.len() == length && part.bytes().all(|b| ALPHABET.contains(&b))
        };
        match text.split_once('.') {
            Some((id, secret)) if fits(id, ID) && fits(secret, SECRET) => {
                Ok(Self { id: id.to_owned(), secret: secret.to_owned() })
            }
            _ => Err(Error::Token(
                text.split('.').next().unwrap_or_default().chars().take(ID).collect(),
            )),
        }
    }
}

/// Returns the name of a token's Secret in `kube-system`.
pub fn secret_name(id: &str) -> String {
    format!("bootstrap-token-{id}")
}

/// Returns `true` if a token id is well formed.
pub fn is_token_id(id: &str) -> bool {
    id.len() == ID && id.bytes().all(|b| ALPHABET.contains(&b))
}

/// Returns `true` if a token may have the group: only groups below `system:bootstrappers:` are allowed.
pub fn is_bootstrap_group(group: &str) -> bool {
    group.strip_prefix("system:bootstrappers:").is_some_and(|rest| {
        !rest.is_empty()
            && rest.len() <= 256
            && rest
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b':' || b == b'-')
            && rest.ends_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
    })
}

/// Returns the Secret that makes a token valid. `expiration` is in RFC 3339; without one the token does not expire.
pub fn secret(token: &Token, config: &BootstrapToken, expiration: Option<&str>) -> Value {
    let mut data = Map::new();
    let mut put =
        |name: &str, text: &str| data.insert(name.to_owned(), STANDARD.encode(text).into());
    put("token-id", &token.id);
    put("token-secret", &token.secret);
    if !config.description.is_empty() {
        put("description", &config.description);
    }
    if let Some(expiration) = expiration {
        put("expiration", expiration);
    }
    for usage in &config.usages {
        put(&format!("usage-bootstrap-{usage}"), "true");
    }
    if !config.groups.is_empty() {
        put("auth-extra-groups", &config.groups.join(","));
    }
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": SECRET_TYPE, "data": data,
        "metadata": {"name": token.secret_name(), "namespace": "kube-system"},
    })
}

/// Returns the expiration of a token's Secret; `None` if it does not expire. An invalid time counts as long past, as
/// upstream has it. All users of tokens call this function.
pub fn expiry(secret: &Value) -> Option<Timestamp> {
    let written = secret.at("data.expiration");
    if written.is_null() || written == "" {
        return None;
    }
    let text = written.as_str().and_then(|data| STANDARD.decode(data).ok());
    let time = text.and_then(|text| std::str::from_utf8(&text).ok()?.parse().ok());
    Some(time.unwrap_or(Timestamp::from_unix(0, 0)))
}

/// Returns `true` if a token's Secret has expired.
pub fn is_expired(secret: &Value, now: Timestamp) -> bool {
    expiry(secret).is_some_and(|end| end <= now)
}

/// The fields of a token's Secret for `token list`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenInfo {
    /// The whole token.
    pub token: String,
    /// The expiration in RFC 3339; `None` if it does not expire.
    pub expiration: Option<String>,
    /// The allowed usages.
    pub usages: Vec<String>,
    /// The description.
    pub description: String,
    /// The extra groups.
    pub groups: Vec<String>,
}

/// Parses a token's Secret; the error describes what is invalid.
pub fn listed(secret: &Value) -> Result<TokenInfo, Error> {
    let name = secret.name();
    let bad = |reason| Error::TokenSecret { secret: name.to_owned(), reason };
    let get = |field: &str| -> Option<String> {
        String::from_utf8(STANDARD.decode(secret["data"][field].as_str()?).ok()?).ok()
    };
    let (id, hidden) =
        (get("token-id").unwrap_or_default(), get("token-secret").unwrap_or_default());
    let token: Token = format!("{id}.{hidden}")
        .parse()
        .map_err(|_| bad("its token-id or token-secret is malformed"))?;
    if token.secret_name() != name {
        return Err(bad("its name does not match its token-id"));
    }
    let usages = ["authentication", "signing"].map(str::to_owned);
    Ok(TokenInfo {
        token: token.reveal(),
        expiration: get("expiration"),
        usages: usages
            .into_iter()
            .filter(|u| get(&format!("usage-bootstrap-{u}")).as_deref() == Some("true"))
            .collect(),
        description: get("description").unwrap_or_default(),
        groups: get("auth-extra-groups")
            .map(|g| g.split(',').map(str::to_owned).collect())
            .unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_malformed_tokens_without_showing_secrets() {
        assert_eq!(
            "abcdef.0123456789abcdef".parse::<Token>().unwrap().reveal(),
            "abcdef.0123456789abcdef"
        );
        for bad in [
            "",
            "abcdef",
            "abcde.0123456789abcdef",
            "abcdeF.0123456789abcdef",
            "abcdef.0123456789abcde!",
            "abcdef.0123456789abcdef.x",
        ] {
            let error = bad.parse::<Token>().unwrap_err().to_string();
            assert!(!error.contains("0123456789"), "{error}");
        }
        assert_eq!(
            format!("{:?}", "abcdef.0123456789abcdef".parse::<Token>().unwrap()),
            "Token(abcdef.<secret>)"
        );
    }

    #[test]
    fn reads_token_secret_back() {
        let token: Token = "abcdef.0123456789abcdef".parse().unwrap();
        let config = BootstrapToken {
            description: "for racks".into(),
            usages: vec!["signing".into(), "authentication".into()],
            groups: vec!["system:bootstrappers:kubeadm:default-node-token".into()],
            ..Default::default()
        };
        let made = secret(&token, &config, Some("2026-11-22T00:00:00Z"));
        assert_eq!(made["data"]["usage-bootstrap-signing"], "dHJ1ZQ==");
        let read = listed(&made).unwrap();
        assert_eq!(
            (read.token, read.description, read.groups),
            (token.reveal(), config.description, config.groups)
        );
        assert_eq!(
            (read.usages.len(), read.expiration.as_deref()),
            (2, Some("2026-11-22T00:00:00Z"))
        );
        let mut renamed = made;
        renamed["metadata"]["name"] = "bootstrap-token-other0".into();
        assert!(listed(&renamed).is_err());
    }

    #[test]
    fn treats_invalid_expiry_as_past() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let secret = |data: &[u8]| json!({"data": {"expiration": STANDARD.encode(data)}});
        for past in [
            &b"soon"[..],
            b"2025-12-31T23:59:59Z",
            b"2026-01-01T00:00:00Z",
            b"2030-01-01",
            b"\xff\xfe",
            b" ",
            b"2030-01-01T00:00:00Z\n",
        ] {
            assert!(is_expired(&secret(past), now), "{past:?}");
        }
        for odd in [json!("not base64!"), json!(7), json!({}), json!(["MjAz"])] {
            assert!(is_expired(&json!({"data": {"expiration": odd}}), now));
        }
        assert!(!is_expired(&secret(b"2030-01-01T00:00:00Z"), now));
        for never in [json!({}), json!({"data": {}}), secret(b"")] {
            assert_eq!(expiry(&never), None);
        }
    }

    #[test]
    fn accepts_bootstrapper_groups_only() {
        for good in ["system:bootstrappers:a", "system:bootstrappers:kubeadm:default-node-token"] {
            assert!(is_bootstrap_group(good));
        }
        for bad in [
            "system:masters",
            "system:bootstrappers:",
            "system:bootstrappers:A",
            "system:bootstrappers:a-",
        ] {
            assert!(!is_bootstrap_group(bad), "{bad}");
        }
    }

    proptest::proptest! {
        #[test]
        fn generated_tokens_are_valid(seed: u64) {
            let mut state = seed;
            let token = Token::generate(|n| {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (state >> 33) as usize % n
            });
            proptest::prop_assert_eq!(token.reveal().parse::<Token>().unwrap(), token);
        }
    }
}
