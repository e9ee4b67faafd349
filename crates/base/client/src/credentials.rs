//! Request credentials besides the client certificate: tokens, passwords and impersonation.

use std::{io, sync::Arc};

use api_config::kubeconfig::User;
use base64::{Engine, engine::general_purpose::STANDARD};
use http::{HeaderMap, HeaderName, HeaderValue, header};

use crate::{plugin::Plugin, tls::Configs};

/// Returns the bearer token of the next request.
pub(crate) type TokenSource = Arc<dyn Fn() -> Option<String> + Send + Sync>;

/// The credentials of a transport.
#[derive(Clone, Default)]
pub(crate) struct Credentials {
    source: Source,
    /// The headers `Impersonate-*`.
    impersonation: Vec<(HeaderName, HeaderValue)>,
}

#[derive(Clone, Default)]
enum Source {
    #[default]
    Anonymous,
    Bearer(TokenSource),
    Basic(HeaderValue),
    Plugin(Arc<Plugin>),
}

impl From<Option<TokenSource>> for Credentials {
    fn from(token: Option<TokenSource>) -> Self {
        let source = token.map_or(Source::Anonymous, Source::Bearer);
        Self { source, impersonation: Vec::new() }
    }
}

impl Credentials {
    /// Returns the credentials of a kubeconfig's user. `plugin` is the credential plugin that the user names.
    pub(crate) fn of_user(user: &User, plugin: Option<Plugin>) -> io::Result<Self> {
        let source = if let Some(plugin) = plugin {
            Source::Plugin(Arc::new(plugin))
        } else if !user.token.is_empty() || !user.token_file.is_empty() {
            // Read the token at every request, because the kubelet rotates token files.
            let user = user.clone();
            Source::Bearer(Arc::new(move || user.bearer().ok().flatten()))
        } else if !user.username.is_empty() || !user.password.is_empty() {
            Source::Basic(basic(&user.username, &user.password)?)
        } else {
            Source::Anonymous
        };
        Ok(Self { source, impersonation: impersonation(user)? })
    }

    /// Adds the credential headers to the next request.
    pub(crate) async fn authorize(&self, headers: &mut HeaderMap) -> io::Result<()> {
        let bearer = |token: String| secret(&format!("Bearer {}", token.trim()));
        let value = match &self.source {
            Source::Anonymous => None,
            Source::Bearer(token) => token().map(bearer).transpose()?,
            Source::Basic(value) => Some(value.clone()),
            Source::Plugin(plugin) => plugin.token().await?.map(bearer).transpose()?,
        };
        if let Some(value) = value {
            headers.insert(header::AUTHORIZATION, value);
        }
        for (name, value) in &self.impersonation {
            headers.append(name, value.clone());
        }
        Ok(())
    }

    /// Returns the TLS settings of the next connection if a plugin provides the client certificate.
    pub(crate) async fn tls(&self) -> io::Result<Option<Arc<Configs>>> {
        match &self.source {
            Source::Plugin(plugin) => plugin.tls().await,
            _ => Ok(None),
        }
    }

    /// Drops credentials that the server rejected, so that the next request runs the plugin again.
    pub(crate) async fn reject(&self) {
        if let Source::Plugin(plugin) = &self.source {
            plugin.reject().await;
        }
    }
}

/// Returns the `Basic` authorization header value for a name and password.
pub(crate) fn basic(name: &str, password: &str) -> io::Result<HeaderValue> {
    secret(&format!("Basic {}", STANDARD.encode(format!("{name}:{password}"))))
}

fn secret(text: &str) -> io::Result<HeaderValue> {
    let mut value: HeaderValue = text.parse().map_err(io::Error::other)?;
    value.set_sensitive(true);
    Ok(value)
}

/// The characters of a header name besides letters and digits (RFC 9110 §5.6.2), without the percent sign, which is the
/// escape character.
const TOKEN: &[u8] = b"!#$&'*+-.^_`|~";

fn impersonation(user: &User) -> io::Result<Vec<(HeaderName, HeaderValue)>> {
    let mut headers = Vec::new();
    let mut add = |name: String, value: &str| -> io::Result<()> {
        let name: HeaderName = name.parse().map_err(io::Error::other)?;
        headers.push((name, value.parse().map_err(io::Error::other)?));
        Ok(())
    };
    for (name, value) in
        [("impersonate-user", &user.impersonate), ("impersonate-uid", &user.as_uid)]
    {
        if !value.is_empty() {
            add(name.to_owned(), value)?;
        }
    }
    for group in &user.as_groups {
        add("impersonate-group".to_owned(), group)?;
    }
    for (key, values) in &user.as_user_extra {
        let name = format!("impersonate-extra-{}", api_meta::percent_encode(key, TOKEN));
        for value in values {
            add(name.clone(), value)?;
        }
    }
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn headers_of(user: User) -> Vec<(String, String)> {
        let mut headers = HeaderMap::new();
        Credentials::of_user(&user, None).unwrap().authorize(&mut headers).await.unwrap();
        let text = |value: &HeaderValue| value.to_str().unwrap().to_owned();
        let mut all: Vec<_> = headers.iter().map(|(k, v)| (k.to_string(), text(v))).collect();
        all.sort();
        all
    }

    #[tokio::test]
    async fn sends_every_field_of_a_user() {
        let user = User {
            username: "u".into(),
            password: "p".into(),
            impersonate: "other".into(),
            as_uid: "7".into(),
            as_groups: vec!["a".into(), "b".into()],
            as_user_extra: [("example.org/Scope%".to_owned(), vec!["x".to_owned()])].into(),
            ..User::default()
        };
        let wanted = [
            ("authorization", "Basic dTpw"),
            ("impersonate-extra-example.org%2fscope%25", "x"),
            ("impersonate-group", "a"),
            ("impersonate-group", "b"),
            ("impersonate-uid", "7"),
            ("impersonate-user", "other"),
        ];
        assert_eq!(headers_of(user).await, wanted.map(|(k, v)| (k.to_owned(), v.to_owned())));
        let bearer = User { token: "t\n".into(), ..User::default() };
        let wanted = [("authorization".to_owned(), "Bearer t".to_owned())];
        assert_eq!(headers_of(bearer).await, wanted);
        assert!(headers_of(User::default()).await.is_empty());
    }
}
