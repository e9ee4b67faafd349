//! Credentials for webhooks: the users of a kubeconfig, selected by the webhook's host.

use std::{
    hash::{Hash, Hasher},
    path::{Path, PathBuf},
    sync::Arc,
};

use api_config::{Kubeconfig, kubeconfig::User};
use client::{ClientTls, HttpTransport, KubeconfigError, TlsError, TlsMaterial};

/// The users of the kubeconfig in the admission configuration.
#[derive(Default)]
pub(crate) struct WebhookUsers {
    all: Vec<Arc<WebhookUser>>,
    /// The user of the current context.
    current: Option<Arc<WebhookUser>>,
}

/// A user of the kubeconfig. Users are equal if file and name are.
#[derive(Debug)]
pub(crate) struct WebhookUser {
    file: PathBuf,
    name: String,
    user: User,
}

impl PartialEq for WebhookUser {
    fn eq(&self, other: &Self) -> bool {
        (&self.file, &self.name) == (&other.file, &other.name)
    }
}

impl Eq for WebhookUser {}

impl Hash for WebhookUser {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.file, &self.name).hash(state);
    }
}

impl WebhookUsers {
    pub(crate) fn load(file: &Path) -> Result<Self, KubeconfigError> {
        let config = Kubeconfig::load(file)?;
        let mut all = Vec::new();
        for named in config.users {
            let (name, user) = (named.name, named.user);
            let other = user.exec.is_some() || user.auth_provider.is_some();
            if other || !user.username.is_empty() || !user.impersonate.is_empty() {
                return Err(KubeconfigError::Credentials);
            }
            all.push(Arc::new(WebhookUser { file: file.to_owned(), name, user }));
        }
        let context = config.contexts.iter().find(|c| c.name == config.current_context);
        let current = context
            .and_then(|context| all.iter().find(|user| user.name == context.context.user).cloned());
        Ok(Self { all, current })
    }

    fn named(&self, name: &str) -> Option<Arc<WebhookUser>> {
        self.all.iter().find(|user| user.name == name).cloned()
    }

    /// Returns the user whose name is the target, or `*` followed by the target from one of its dots on.
    fn fits(&self, target: &str) -> Option<Arc<WebhookUser>> {
        let ends = target.match_indices('.').map(|(at, _)| format!("*{}", &target[at..]));
        std::iter::once(target.to_owned()).chain(ends).find_map(|name| self.named(&name))
    }

    /// Returns the user for a webhook at `target`, which includes a port if the webhook's configuration has one.
    pub(crate) fn of(&self, target: &str) -> Option<Arc<WebhookUser>> {
        let without_port = || self.fits(target.strip_suffix(":443")?);
        self.fits(target)
            .or_else(without_port)
            .or_else(|| self.named("*"))
            .or_else(|| self.current.clone())
    }
}

impl WebhookUser {
    /// Builds the TLS configuration with the user's certificate, which is reloaded when it changes.
    pub(super) fn tls(self: Arc<Self>, material: TlsMaterial) -> Result<ClientTls, TlsError> {
        let files = [&self.user.client_certificate, &self.user.client_key].into_iter();
        let files = files.filter(|path| !path.is_empty()).map(PathBuf::from).collect();
        ClientTls::following(files, move || {
            let certificate = self.user.cert_pem()?.map(String::into_bytes);
            let key = self.user.key_pem()?.map(String::into_bytes);
            Ok(TlsMaterial { certificate, key, ..material.clone() })
        })
    }

    /// Adds the user's token to the transport's requests, if it has one.
    pub(super) fn on(&self, transport: HttpTransport) -> HttpTransport {
        transport.with_token_of(&self.user)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
        contexts: [{name: c, context: {user: usual}}]\n\
        users:\n- {name: usual, user: {token: a}}\n- {name: a.ns.svc, user: {token: b}}\n\
        - {name: '*.ns.svc:8443', user: {token: c}}\n- {name: '*.example.com', user: {token: d}}\n";

    fn loaded(text: &str) -> Result<WebhookUsers, KubeconfigError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        WebhookUsers::load(file.path())
    }

    #[test]
    fn selects_user_by_webhook_host() {
        let users = loaded(FILE).unwrap();
        let name = |target: &str| users.of(target).map(|user| user.name.clone()).unwrap();
        for (target, user) in [
            ("a.ns.svc:443", "a.ns.svc"),
            ("a.ns.svc:8443", "*.ns.svc:8443"),
            ("b.ns.svc:443", "usual"),
            ("hooks.example.com", "*.example.com"),
            ("a.b.example.com:443", "*.example.com"),
            ("a.b.example.com:444", "usual"),
            ("example.com", "usual"),
            ("evil-example.com", "usual"),
        ] {
            assert_eq!(name(target), user, "{target}");
        }
        let star = loaded("users: [{name: '*', user: {token: a}}]").unwrap();
        assert_eq!(star.of("anything:1").unwrap().name, "*");
        assert!(WebhookUsers::default().of("a").is_none());
    }

    #[test]
    fn rejects_users_with_unsupported_credentials() {
        for user in ["username: a", "as: root", "exec: {command: x}"] {
            assert!(loaded(&format!("users: [{{name: a, user: {{{user}}}}}]")).is_err(), "{user}");
        }
    }
}
