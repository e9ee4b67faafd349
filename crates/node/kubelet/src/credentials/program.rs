//! Runs a provider's program: one request on its standard input, one response on its standard output.

use std::{collections::BTreeMap, path::PathBuf, process::Stdio, time::Duration};

use api_config::GoDuration;
use rt::{Excess, RunError, RunLimits};
use serde::{Deserialize, Serialize};
use tokio::process::Command;

/// The time limit of one run, as upstream.
pub(super) const TIMEOUT: Duration = Duration::from_secs(60);
/// The limit of a program's output in bytes.
pub(super) const MAX_OUTPUT: u64 = 1 << 20;
/// The part of a program's error output that is logged, in bytes.
const LOGGED_ERROR: usize = 4 << 10;

/// The error of one run. Events show it to the Pod's users, so it contains nothing that the program printed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProgramError {
    #[error("its program: {0}")]
    Run(#[from] RunError),
    #[error("its program failed: {0}; see the kubelet's log")]
    Failed(std::process::ExitStatus),
    #[error("its program's response is malformed")]
    Malformed,
    #[error(
        "its program's response has kind {kind:?} and apiVersion {version:?}, expected CredentialProviderResponse and \
         {expected:?}"
    )]
    Version { kind: String, version: String, expected: String },
    #[error("its program did not return a valid cacheKeyType: {0:?}")]
    KeyType(String),
    #[error("its program returned the cacheDuration {0}, which is negative")]
    Duration(GoDuration),
}

/// The request to a program.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Request<'a> {
    pub(super) kind: &'static str,
    pub(super) api_version: &'a str,
    pub(super) image: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(super) service_account_token: &'a str,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) service_account_annotations: &'a BTreeMap<String, String>,
}

/// The images for which a response is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyType {
    Image,
    Registry,
    Global,
}

/// The username and password for images that match a pattern.
#[derive(Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Auth {
    pub(super) username: String,
    pub(super) password: String,
}

/// A program's checked response.
pub(super) struct ProgramResponse {
    pub(super) key_type: KeyType,
    /// The time for which the response may be cached; `None` stands for the provider's default.
    pub(super) duration: Option<Duration>,
    /// The credentials by pattern.
    pub(super) auth: BTreeMap<String, Auth>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawResponse {
    kind: String,
    api_version: String,
    cache_key_type: String,
    cache_duration: Option<GoDuration>,
    auth: Option<BTreeMap<String, Auth>>,
}

/// A provider's program, with its arguments and environment.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) path: PathBuf,
    pub(super) args: Vec<String>,
    pub(super) env: Vec<(String, String)>,
    pub(super) timeout: Duration,
}

impl Program {
    /// Runs the program and returns its response.
    pub(super) async fn run(&self, request: &Request<'_>) -> Result<ProgramResponse, ProgramError> {
        let input = serde_json::to_vec(request).map_err(|_| ProgramError::Malformed)?;
        let limits = RunLimits {
            time: self.timeout,
            output: MAX_OUTPUT,
            excess: Excess::Rejected,
            kills_children: true,
        };
        let mut command = Command::new(&self.path);
        command.args(&self.args).envs(self.env.iter().map(|(name, value)| (name, value)));
        let output = limits.run(command.stderr(Stdio::piped()), &input).await?;
        self.log_errors(&output.stderr);
        match output.status {
            Some(status) if !status.success() => Err(ProgramError::Failed(status)),
            _ => parse(&output.stdout, request.api_version),
        }
    }

    /// Logs the beginning of the program's error output.
    fn log_errors(&self, printed: &[u8]) {
        if printed.is_empty() {
            return;
        }
        let text = String::from_utf8_lossy(&printed[..printed.len().min(LOGGED_ERROR)]);
        let program = self.path.display();
        tracing::warn!(%program, %text, "a credential provider printed an error");
    }
}

/// Parses the output of a program.
pub(super) fn parse(output: &[u8], expected: &str) -> Result<ProgramResponse, ProgramError> {
    // The cause is left out, because it may quote a password.
    let raw: RawResponse = serde_json::from_slice(output).map_err(|_| ProgramError::Malformed)?;
    if raw.kind != "CredentialProviderResponse" || raw.api_version != expected {
        return Err(ProgramError::Version {
            kind: shortened(&raw.kind),
            version: shortened(&raw.api_version),
            expected: expected.to_owned(),
        });
    }
    let key_type = match raw.cache_key_type.as_str() {
        "Image" => KeyType::Image,
        "Registry" => KeyType::Registry,
        "Global" => KeyType::Global,
        other => return Err(ProgramError::KeyType(shortened(other))),
    };
    if let Some(duration) = raw.cache_duration.filter(|duration| duration.nanos() < 0) {
        return Err(ProgramError::Duration(duration));
    }
    let duration = raw.cache_duration.map(GoDuration::to_std);
    Ok(ProgramResponse { key_type, duration, auth: raw.auth.unwrap_or_default() })
}

/// Returns the beginning of a text for a message.
fn shortened(text: &str) -> String {
    text.chars().take(64).collect()
}
