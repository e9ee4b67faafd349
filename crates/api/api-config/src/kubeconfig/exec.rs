use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::cluster::Cluster;

/// A credential plugin: a program that prints a token or a client certificate (client.authentication.k8s.io).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Exec {
    /// The apiVersion of the plugin protocol.
    pub api_version: String,
    /// The program.
    pub command: String,
    /// The arguments of the program.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// The additional environment variables.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<ExecEnv>,
    /// The message for the user if the program does not exist.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub install_hint: String,
    /// `true` if the program receives the cluster's settings.
    pub provide_cluster_info: bool,
    /// The interactive mode; `None` is only allowed in v1beta1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interactive_mode: Option<String>,
}

/// An environment variable of a plugin.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExecEnv {
    /// The name.
    pub name: String,
    /// The value.
    pub value: String,
}

/// The permission of a plugin to prompt the user on the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interactive {
    Never,
    IfAvailable,
    Always,
}

/// The error for a plugin's interactive mode, in client-go's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InteractiveModeError {
    #[error("interactiveMode must be specified for {0} to use exec authentication plugin")]
    Missing(String),
    #[error("invalid interactiveMode for {user}: {mode:?}")]
    Unknown { user: String, mode: String },
}

/// The versions of the plugins' API.
const V1: &str = "client.authentication.k8s.io/v1";
const V1BETA1: &str = "client.authentication.k8s.io/v1beta1";
/// The extension of a cluster that is passed to plugins.
const EXTENSION: &str = "client.authentication.k8s.io/exec";

impl Exec {
    /// Returns the plugin's permission to use the terminal.
    ///
    /// # Errors
    ///
    /// Rejects unknown modes, and in v1 a missing mode.
    pub fn interactive(&self, user: &str) -> Result<Interactive, InteractiveModeError> {
        match self.interactive_mode.as_deref() {
            Some("Never") => Ok(Interactive::Never),
            Some("IfAvailable") => Ok(Interactive::IfAvailable),
            Some("Always") => Ok(Interactive::Always),
            None | Some("") if self.api_version == V1BETA1 => Ok(Interactive::IfAvailable),
            None | Some("") => Err(InteractiveModeError::Missing(user.to_owned())),
            Some(mode) => {
                Err(InteractiveModeError::Unknown { user: user.to_owned(), mode: mode.to_owned() })
            }
        }
    }

    pub(super) fn check(&self, user: &str) -> Vec<String> {
        let must = |field: &str| {
            format!("{field} must be specified for {user} to use exec authentication plugin")
        };
        let mut faults = Vec::new();
        if self.command.is_empty() {
            faults.push(must("command"));
        }
        match self.api_version.as_str() {
            "" => faults.push(must("apiVersion")),
            V1 | V1BETA1 => {}
            other => faults.push(format!("exec plugin: invalid apiVersion {other:?}")),
        }
        if self.env.iter().any(|variable| variable.name.is_empty()) {
            faults.push(must("env variable name"));
        }
        faults.extend(self.interactive(user).err().map(|error| error.to_string()));
        faults
    }

    /// Returns the value of `KUBERNETES_EXEC_INFO`.
    pub fn info(&self, cluster: &Cluster, ca_data: Option<&str>, interactive: bool) -> Value {
        let mut spec = serde_json::Map::new();
        spec.insert("interactive".to_owned(), interactive.into());
        if self.provide_cluster_info {
            spec.insert("cluster".to_owned(), cluster_info(cluster, ca_data));
        }
        json!({"kind": "ExecCredential", "apiVersion": self.api_version, "spec": spec})
    }
}

fn cluster_info(cluster: &Cluster, ca_data: Option<&str>) -> Value {
    let mut out = serde_json::Map::new();
    let texts = [
        ("server", cluster.server.as_str()),
        ("tls-server-name", &cluster.tls_server_name),
        ("certificate-authority-data", ca_data.unwrap_or_default()),
        ("proxy-url", &cluster.proxy_url),
    ];
    for (name, text) in texts.into_iter().filter(|(_, text)| !text.is_empty()) {
        out.insert(name.to_owned(), text.into());
    }
    let flags = [
        ("insecure-skip-tls-verify", cluster.insecure_skip_tls_verify),
        ("disable-compression", cluster.disable_compression),
    ];
    for (name, _) in flags.into_iter().filter(|(_, set)| *set) {
        out.insert(name.to_owned(), true.into());
    }
    let config = cluster.extensions.iter().find(|extension| extension["name"] == EXTENSION);
    out.insert("config".to_owned(), config.map_or(Value::Null, |found| found["extension"].clone()));
    Value::Object(out)
}
