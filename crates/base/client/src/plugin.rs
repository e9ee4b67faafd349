//! Credential plugins (client.authentication.k8s.io): programs that print a token or a client certificate.

use std::{
    io::{self, IsTerminal as _},
    process::Stdio,
    sync::Arc,
    time::{Duration, SystemTime},
};

use api_config::kubeconfig::{Exec, Interactive};
use rt::{Excess, RunError, RunLimits};
use serde::Deserialize;
use serde_json::Value;
use tokio::{process::Command, sync::Mutex};

use crate::tls::{Configs, TlsError, TlsMaterial};

/// The timeouts of a plugin: without and with interaction with the user.
const TIMEOUT: Duration = Duration::from_secs(60);
const INTERACTIVE_TIMEOUT: Duration = Duration::from_secs(600);
/// The limit of a plugin's output, in bytes.
const MAX_OUTPUT: u64 = 1 << 20;

/// A plugin and the credentials that it returned last.
pub(crate) struct Plugin {
    exec: Exec,
    interactive: Interactive,
    /// The values of `KUBERNETES_EXEC_INFO` if the plugin may not prompt the user, and if it may.
    info: [Value; 2],
    /// The trust settings of the kubeconfig's cluster.
    trust: TlsMaterial,
    timeout: Option<Duration>,
    /// The current credentials. The lock is held while the program runs, so that it runs once for all waiting requests.
    current: Mutex<Option<Arc<Credential>>>,
}

struct Credential {
    token: Option<String>,
    tls: Option<Arc<Configs>>,
    expires: Option<SystemTime>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Output {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    status: Option<Status>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Status {
    expiration_timestamp: Option<String>,
    token: String,
    client_certificate_data: String,
    client_key_data: String,
}

/// The error of a plugin's run, with client-go's message where client-go has one.
#[derive(Debug, thiserror::Error)]
enum PluginError {
    #[error("exec plugin cannot support interactive mode: standard input is not a terminal")]
    NoTerminal,
    #[error("exec: {program}: {source}")]
    Start { program: String, source: io::Error },
    #[error("exec: executable {program} not found{}{hint}", if hint.is_empty() { "" } else { "\n\n" })]
    NotFound { program: String, hint: String },
    #[error("exec: reading from {program}: {source}")]
    Read { program: String, source: io::Error },
    #[error("exec: {program} printed more than {MAX_OUTPUT} bytes")]
    TooLarge { program: String },
    #[error("exec: executable {program} failed with exit code {code}")]
    ExitCode { program: String, code: i32 },
    #[error("exec: executable {program} was ended by a signal")]
    Signal { program: String },
    #[error("exec: {program} did not end in {timeout:?}")]
    Timeout { program: String, timeout: Duration },
    #[error("decoding stdout of {program}: {source}")]
    Decode { program: String, source: serde_json::Error },
    #[error(
        "exec plugin is configured to use API version {expected}, plugin returned version {version}, kind {kind}"
    )]
    Version { expected: String, version: String, kind: String },
    #[error("exec plugin didn't return a status field")]
    NoStatus,
    #[error("exec plugin returned only certificate or key, not both")]
    HalfPair,
    #[error("exec plugin didn't return a token or cert/key pair")]
    NoCredential,
    #[error("the expirationTimestamp {0:?} is not an RFC 3339 time")]
    Expiration(String),
    #[error("failed parsing client key/certificate: {0}")]
    Tls(#[from] TlsError),
}

impl Plugin {
    /// Creates a plugin that has not run yet. `info` is its `KUBERNETES_EXEC_INFO` without a terminal and with one.
    pub(crate) fn new(
        exec: Exec,
        interactive: Interactive,
        info: [Value; 2],
        trust: TlsMaterial,
    ) -> Self {
        let current = Mutex::new(None);
        Self { exec, interactive, info, trust, timeout: None, current }
    }

    pub(crate) async fn token(&self) -> io::Result<Option<String>> {
        Ok(self.credential().await?.token.clone())
    }

    /// Returns the TLS settings with the plugin's certificate; `None` if the plugin returns tokens.
    pub(crate) async fn tls(&self) -> io::Result<Option<Arc<Configs>>> {
        Ok(self.credential().await?.tls.clone())
    }

    pub(crate) async fn reject(&self) {
        self.current.lock().await.take();
    }

    async fn credential(&self) -> io::Result<Arc<Credential>> {
        let mut current = self.current.lock().await;
        let good = |found: &&Arc<Credential>| found.expires.is_none_or(|end| rt::now() < end);
        if let Some(found) = current.as_ref().filter(good) {
            return Ok(found.clone());
        }
        let fresh = Arc::new(
            self.run()
                .await
                .map_err(|error| io::Error::other(format!("getting credentials: {error}")))?,
        );
        Ok(current.insert(fresh).clone())
    }

    async fn run(&self) -> Result<Credential, PluginError> {
        let terminal = io::stdin().is_terminal();
        let interactive = match self.interactive {
            Interactive::Never => false,
            Interactive::IfAvailable => terminal,
            Interactive::Always if terminal => true,
            Interactive::Always => return Err(PluginError::NoTerminal),
        };
        let output = self.output(interactive).await?;
        let output: Output = serde_json::from_slice(&output)
            .map_err(|source| PluginError::Decode { program: self.program(), source })?;
        self.read(output)
    }

    fn program(&self) -> String {
        self.exec.command.clone()
    }

    /// Runs the program and returns its standard output.
    async fn output(&self, interactive: bool) -> Result<Vec<u8>, PluginError> {
        let input = if interactive { Stdio::inherit() } else { Stdio::null() };
        let default = if interactive { INTERACTIVE_TIMEOUT } else { TIMEOUT };
        let limits = RunLimits {
            time: self.timeout.unwrap_or(default),
            output: MAX_OUTPUT,
            excess: Excess::Rejected,
            // The program may prompt the user on the terminal.
            kills_children: false,
        };
        let mut command = Command::new(&self.exec.command);
        command
            .args(&self.exec.args)
            .envs(self.exec.env.iter().map(|variable| (&variable.name, &variable.value)))
            .env("KUBERNETES_EXEC_INFO", self.info[usize::from(interactive)].to_string())
            .stdin(input);
        let output = limits.run(&mut command, &[]).await.map_err(|error| self.run_error(error))?;
        match output.status.and_then(|status| status.code()) {
            Some(0) => Ok(output.stdout),
            Some(code) => Err(PluginError::ExitCode { program: self.program(), code }),
            None => Err(PluginError::Signal { program: self.program() }),
        }
    }

    fn run_error(&self, error: RunError) -> PluginError {
        let program = self.program();
        match error {
            RunError::Start(source) if source.kind() == io::ErrorKind::NotFound => {
                PluginError::NotFound { program, hint: self.exec.install_hint.clone() }
            }
            RunError::Start(source) => PluginError::Start { program, source },
            RunError::Read(source) => PluginError::Read { program, source },
            RunError::Timeout(timeout) => PluginError::Timeout { program, timeout },
            RunError::TooLarge(_) => PluginError::TooLarge { program },
        }
    }

    fn read(&self, output: Output) -> Result<Credential, PluginError> {
        let expected = &self.exec.api_version;
        if output.api_version != *expected || output.kind != "ExecCredential" {
            return Err(PluginError::Version {
                expected: expected.clone(),
                version: output.api_version,
                kind: output.kind,
            });
        }
        let status = output.status.ok_or(PluginError::NoStatus)?;
        let (certificate, key) = (status.client_certificate_data, status.client_key_data);
        if certificate.is_empty() != key.is_empty() {
            return Err(PluginError::HalfPair);
        }
        if status.token.is_empty() && certificate.is_empty() {
            return Err(PluginError::NoCredential);
        }
        let tls = (!certificate.is_empty()).then(|| {
            let material = TlsMaterial {
                certificate: Some(certificate.into_bytes()),
                key: Some(key.into_bytes()),
                ..self.trust.clone()
            };
            material.client_config().map(|config| Arc::new(Configs::new(config)))
        });
        let expires = status.expiration_timestamp.map(|text| {
            let time = text.parse::<api_meta::Timestamp>();
            time.map(SystemTime::from).map_err(|_| PluginError::Expiration(text))
        });
        Ok(Credential {
            token: Some(status.token).filter(|token| !token.is_empty()),
            tls: tls.transpose()?,
            expires: expires.transpose()?,
        })
    }
}

#[cfg(test)]
mod tests;
