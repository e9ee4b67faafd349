//! Validates a kubeconfig with client-go's messages: contradictory settings are rejected.

use std::collections::BTreeSet;

use super::{Cluster, Kubeconfig, ResolvedContext, User};
use crate::error::Error;

impl Kubeconfig {
    /// Rejects entries of the same name, because parsers may use either.
    pub(super) fn check_names(&self) -> Result<(), Error> {
        let clusters = self.clusters.iter().map(|named| &named.name);
        let contexts = self.contexts.iter().map(|named| &named.name);
        let users = self.users.iter().map(|named| &named.name);
        once("Cluster", clusters).and(once("Context", contexts)).and(once("AuthInfo", users))
    }
}

fn once<'a>(kind: &'static str, names: impl Iterator<Item = &'a String>) -> Result<(), Error> {
    let mut seen = BTreeSet::new();
    let mut names = names;
    match names.find(|name| !seen.insert(name.as_str())) {
        Some(name) => Err(Error::DuplicateEntry { kind, name: name.clone() }),
        None => Ok(()),
    }
}

impl ResolvedContext<'_> {
    /// Checks that the cluster and user can be used by a client, without reading the files that they name.
    ///
    /// # Errors
    ///
    /// Returns all errors as one, like client-go's `ConfirmUsable`.
    pub fn check(&self) -> Result<(), Error> {
        let mut faults = self.cluster.check(self.cluster_name);
        faults.extend(self.user.check(self.user_name));
        match faults.as_slice() {
            [] => Ok(()),
            [one] => Err(Error::InvalidKubeconfig(one.clone())),
            several => Err(Error::InvalidKubeconfig(format!("[{}]", several.join(", ")))),
        }
    }
}

impl Cluster {
    fn check(&self, name: &str) -> Vec<String> {
        let mut faults = Vec::new();
        if self.server.is_empty() {
            faults.push(format!("no server found for cluster {name:?}"));
        }
        let (file, data) = (&self.certificate_authority, &self.certificate_authority_data);
        if !file.is_empty() && !data.is_empty() {
            faults.push(format!(
                "certificate-authority-data and certificate-authority are both specified for {name}. \
                 certificate-authority-data will override."
            ));
        }
        if self.insecure_skip_tls_verify && !(file.is_empty() && data.is_empty()) {
            faults.push(
                "specifying a root certificates file with the insecure flag is not allowed"
                    .to_owned(),
            );
        }
        faults
    }
}

impl User {
    /// Reports whether the user has any credentials.
    pub fn has_credentials(&self) -> bool {
        let certificate =
            !self.client_certificate.is_empty() || !self.client_certificate_data.is_empty();
        let key = !self.client_key.is_empty() || !self.client_key_data.is_empty();
        !self.token.is_empty()
            || !self.token_file.is_empty()
            || (!self.username.is_empty() && !self.password.is_empty())
            || (certificate && key)
            || self.exec.as_ref().is_some_and(|exec| !exec.command.is_empty())
            || self.auth_provider.is_some()
    }

    fn check(&self, name: &str) -> Vec<String> {
        let mut faults = Vec::new();
        let has = |fields: [&String; 2]| fields.map(|field| !field.is_empty());
        let basic = has([&self.username, &self.password]).contains(&true);
        if basic && !self.token.is_empty() {
            faults.push(format!(
                "more than one authentication method found for {name}; found [token basicAuth], only one is allowed"
            ));
        }
        let certificate = has([&self.client_certificate, &self.client_certificate_data]);
        let key = has([&self.client_key, &self.client_key_data]);
        if certificate.contains(&true) {
            if certificate == [true, true] {
                faults.push(format!(
                    "client-cert-data and client-cert are both specified for {name}. client-cert-data will override."
                ));
            }
            if key == [true, true] {
                faults.push(format!(
                    "client-key-data and client-key are both specified for {name}; client-key-data will override"
                ));
            }
            if !key.contains(&true) {
                faults.push(format!(
                    "client-key-data or client-key must be specified for {name} to use the clientCert authentication \
                     method."
                ));
            }
        }
        if let Some(exec) = &self.exec {
            if self.auth_provider.is_some() {
                faults.push(format!(
                    "authProvider cannot be provided in combination with an exec plugin for {name}"
                ));
            }
            faults.extend(exec.check(name));
        } else if let Some(provider) = &self.auth_provider {
            let provider = provider["name"].as_str().unwrap_or_default();
            faults.push(format!(
                "no Auth Provider found for name {provider:?}; use an exec plugin in its place"
            ));
        }
        let others = !self.as_uid.is_empty() || !self.as_groups.is_empty();
        if self.impersonate.is_empty() && (others || !self.as_user_extra.is_empty()) {
            faults.push(format!(
                "requesting uid, groups or user-extra for {name} without impersonating a user"
            ));
        }
        faults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(cluster: &str, user: &str) -> String {
        let text = format!(
            "current-context: x\ncontexts: [{{name: x, context: {{cluster: c, user: u}}}}]\n\
             clusters: [{{name: c, cluster: {{{cluster}}}}}]\nusers: [{{name: u, user: {{{user}}}}}]\n"
        );
        let config = Kubeconfig::parse(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
        let checked = config.current().unwrap().check();
        checked.err().map(|error| error.to_string()).unwrap_or_default()
    }

    const SERVER: &str = "server: 'https://a:1'";
    const PLUGIN: &str =
        "command: p, apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never";

    #[test]
    fn rejects_contradictions_with_client_go_messages() {
        let plugin = |more: &str| format!("exec: {{{PLUGIN}{more}}}");
        let cases = [
            ("", String::new(), "no server found for cluster \"c\""),
            (
                "server: s, certificate-authority: f, certificate-authority-data: QQ==",
                String::new(),
                "certificate-authority-data and certificate-authority are both specified for c.",
            ),
            (
                "server: s, certificate-authority: f, insecure-skip-tls-verify: true",
                String::new(),
                "specifying a root certificates file with the insecure flag is not allowed",
            ),
            (SERVER, "token: t, username: u".into(), "more than one authentication method found for u"),
            (
                SERVER,
                "client-certificate: c".into(),
                "client-key-data or client-key must be specified for u",
            ),
            (
                SERVER,
                "client-certificate: c, client-certificate-data: QQ==, client-key: k".into(),
                "client-cert-data and client-cert are both specified for u",
            ),
            (
                SERVER,
                "client-certificate: c, client-key: k, client-key-data: QQ==".into(),
                "client-key-data and client-key are both specified for u",
            ),
            (
                SERVER,
                "as-groups: [g]".into(),
                "requesting uid, groups or user-extra for u without impersonating a user",
            ),
            (SERVER, "as-uid: '1'".into(), "without impersonating a user"),
            (SERVER, "as-user-extra: {a: [b]}".into(), "without impersonating a user"),
            (
                SERVER,
                "auth-provider: {name: gcp}".into(),
                "no Auth Provider found for name \"gcp\"",
            ),
            (
                SERVER,
                plugin("") + ", auth-provider: {name: gcp}",
                "authProvider cannot be provided in combination with an exec plugin for u",
            ),
            (SERVER, "exec: {}".into(), "command must be specified for u to use exec authentication plugin"),
            (SERVER, "exec: {command: p}".into(), "apiVersion must be specified for u"),
            (
                SERVER,
                "exec: {command: p, apiVersion: client.authentication.k8s.io/v1alpha1}".into(),
                "exec plugin: invalid apiVersion \"client.authentication.k8s.io/v1alpha1\"",
            ),
            (
                SERVER,
                "exec: {command: p, apiVersion: client.authentication.k8s.io/v1}".into(),
                "interactiveMode must be specified for u",
            ),
            (
                SERVER,
                "exec: {command: p, apiVersion: client.authentication.k8s.io/v1, interactiveMode: x}".into(),
                "invalid interactiveMode for u: \"x\"",
            ),
            (SERVER, plugin(", env: [{value: a}]"), "env variable name must be specified for u"),
        ];
        for (cluster, user, wanted) in cases {
            let refused = checked(cluster, &user);
            assert!(refused.contains(wanted), "{user}: {refused:?}, wanted {wanted}");
        }
    }

    #[test]
    fn accepts_same_kubeconfigs_as_client_go() {
        let beta = "exec: {command: p, apiVersion: client.authentication.k8s.io/v1beta1, args: null, env: null}";
        let plugin = format!("exec: {{{PLUGIN}}}");
        for user in [
            "",
            "token: t",
            "token: t, tokenFile: f",
            "token: t, client-certificate: c, client-key: k",
            "username: u, password: p",
            "as: other, as-uid: '1', as-groups: [g], as-user-extra: {a: [b, c]}",
            &plugin,
            beta,
        ] {
            assert_eq!(checked(SERVER, user), "", "{user}");
        }
        assert_eq!(
            checked("server: s, proxy-url: 'http://p:1', disable-compression: true", ""),
            ""
        );
    }

    #[test]
    fn rejects_two_entries_of_one_name() {
        for (list, kind) in
            [("clusters", "Cluster"), ("contexts", "Context"), ("users", "AuthInfo")]
        {
            let text = format!("{list}: [{{name: a}}, {{name: b}}, {{name: a}}]");
            let refused = Kubeconfig::parse(&text).unwrap_err().to_string();
            assert_eq!(
                refused,
                format!(
                    "error converting *[]Named{kind} into *map[string]*api.{kind}: duplicate name \"a\" in list"
                )
            );
        }
    }

    #[test]
    fn sends_cluster_to_plugin_only_if_requested() {
        let text = format!(
            "clusters: [{{name: c, cluster: {{server: s, tls-server-name: name, proxy-url: p, extensions: \
             [{{name: client.authentication.k8s.io/exec, extension: {{a: 1}}}}]}}}}]\n\
             users: [{{name: u, user: {{exec: {{{PLUGIN}, provideClusterInfo: true}}}}}}]\n"
        );
        let config = Kubeconfig::parse(&text).unwrap();
        let mut exec = config.users[0].user.exec.clone().unwrap();
        let info = exec.info(&config.clusters[0].cluster, Some("QQ=="), false);
        assert_eq!(
            info["spec"],
            serde_json::json!({"interactive": false, "cluster": {"server": "s", "tls-server-name": "name",
                "proxy-url": "p", "certificate-authority-data": "QQ==", "config": {"a": 1}}})
        );
        exec.provide_cluster_info = false;
        let info = exec.info(&config.clusters[0].cluster, None, true);
        assert_eq!(info["spec"], serde_json::json!({"interactive": true}));
    }

    #[test]
    fn recognizes_all_kinds_of_credentials() {
        let user = |fields: &str| {
            let text = format!("users: [{{name: u, user: {{{fields}}}}}]");
            Kubeconfig::parse(&text).unwrap().users.remove(0).user
        };
        let plugin = format!("exec: {{{PLUGIN}}}");
        for with in [
            "token: t",
            "tokenFile: f",
            "username: u, password: p",
            "client-certificate: c, client-key: k",
            "client-certificate-data: c, client-key-data: k",
            &plugin,
            "auth-provider: {name: oidc}",
        ] {
            assert!(user(with).has_credentials(), "{with}");
        }
        for without in ["", "username: u", "client-certificate: c", "as: other", "exec: {}"] {
            assert!(!user(without).has_credentials(), "{without}");
        }
    }
}
