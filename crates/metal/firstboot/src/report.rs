//! Reports the progress of the boot to the server that booted this machine.

use crate::{cmdline, fetch::Fetcher};

/// The outcome of a stage.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Outcome {
    Started,
    Succeeded,
    Failed,
}

impl Outcome {
    fn name(self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
        }
    }
}

/// Returns the URL for reports: the server's `/report` with the labels of this machine.
pub(crate) fn address(line: &str) -> Option<String> {
    cmdline::value(line, "windlass.report").filter(|url| !url.is_empty()).map(str::to_owned)
}

/// Reports a stage if a server is configured. A lost report is only logged.
pub(crate) async fn send(stage: &str, outcome: Outcome, text: &str) {
    let Some(url) = cmdline::read().ok().and_then(|line| address(&line)) else { return };
    let separator = if url.contains('?') { '&' } else { '?' };
    let url = format!("{url}{separator}stage={stage}&status={}", outcome.name());
    // The server's limit for texts.
    let mut end = text.len().min(8 << 10);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    if let Err(error) = Fetcher::new(true).post(&url, text[..end].to_owned()).await {
        tracing::warn!(%error, "sending a report failed");
    }
}
