//! Runs a provider's program: one request on its standard input, one response on its standard output.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use api_config::GoDuration;
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    process::{Child, Command},
};

/// The time limit of one run, as upstream.
pub(super) const TIMEOUT: Duration = Duration::from_secs(60);
/// The limit of a program's output in bytes.
pub(super) const MAX_OUTPUT: u64 = 1 << 20;
/// The part of a program's error output that is logged, in bytes.
const LOGGED_ERROR: u64 = 4 << 10;

/// The error of one run. Events show it to the Pod's users, so it contains nothing that the program printed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProgramError {
    #[error("its program cannot be started: {0}")]
    Start(io::Error),
    #[error("its program's output cannot be read: {0}")]
    Read(io::Error),
    #[error("its program did not end within {}s and was killed", .0.as_secs())]
    Timeout(Duration),
    #[error("its program printed more than {MAX_OUTPUT} bytes and was killed")]
    TooLarge,
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

/// A running program. Dropping it kills the program and its children, which are one process group.
struct Running {
    child: Child,
    group: Option<i32>,
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(group) = self.group {
            // The group is gone if the program has ended and left no children.
            sys::process::kill_group(group);
        }
    }
}

impl Program {
    /// Runs the program and returns its response.
    pub(super) async fn run(&self, request: &Request<'_>) -> Result<ProgramResponse, ProgramError> {
        let input = serde_json::to_vec(request).map_err(|_| ProgramError::Malformed)?;
        let run = self.output(&input);
        let output = tokio::time::timeout(self.timeout, run).await;
        let output = output.map_err(|_| ProgramError::Timeout(self.timeout))??;
        parse(&output, request.api_version)
    }

    async fn output(&self, input: &[u8]) -> Result<Vec<u8>, ProgramError> {
        let child = Command::new(&self.path)
            .args(&self.args)
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(ProgramError::Start)?;
        let group = child.id().and_then(|id| i32::try_from(id).ok());
        let mut running = Running { child, group };
        let child = &mut running.child;
        let (stdin, stdout, stderr) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let write = async {
            // A program that ends without reading its input reports the reason itself.
            if let Some(mut stdin) = stdin {
                let _ = stdin.write_all(input).await;
            }
            Ok(())
        };
        let read = async {
            let mut printed = Vec::new();
            if let Some(stdout) = stdout {
                let read = stdout.take(MAX_OUTPUT + 1).read_to_end(&mut printed).await;
                read.map_err(ProgramError::Read)?;
            }
            if printed.len() as u64 > MAX_OUTPUT {
                return Err(ProgramError::TooLarge);
            }
            Ok(printed)
        };
        let path = &self.path;
        let log = async {
            log_errors(path, stderr).await;
            Ok(())
        };
        let ((), printed, ()) = tokio::try_join!(write, read, log)?;
        let status = running.child.wait().await.map_err(ProgramError::Read)?;
        // The process ID may belong to another process from now on.
        running.group = None;
        if status.success() { Ok(printed) } else { Err(ProgramError::Failed(status)) }
    }
}

/// Logs the beginning of a program's error output and discards the rest.
async fn log_errors(path: &Path, stderr: Option<tokio::process::ChildStderr>) {
    let Some(mut stderr) = stderr else { return };
    let mut text = Vec::new();
    let _ = (&mut stderr).take(LOGGED_ERROR).read_to_end(&mut text).await;
    if !text.is_empty() {
        let text = String::from_utf8_lossy(&text);
        tracing::warn!(program = %path.display(), %text, "a credential provider printed an error");
    }
    let _ = tokio::io::copy(&mut stderr, &mut tokio::io::sink()).await;
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
