//! The container runtime as far as bootstrapping needs it. Read [`Containers`] first.

mod interface;
mod runtime;

use futures_util::future::BoxFuture;

pub use interface::{Container, Containers};
pub use runtime::Runtime;

use crate::Error;

/// The number of log lines that an error shows.
const LAST_LINES: usize = 5;

/// A runtime that is not available: every call returns an error.
pub struct NoRuntime(pub String);

impl NoRuntime {
    fn fail<T: Send + 'static>(
        &self,
        operation: &'static str,
        subject: &str,
    ) -> BoxFuture<'static, Result<T, Error>> {
        let error =
            Error::Runtime { operation, subject: subject.to_owned(), cause: self.0.clone() };
        Box::pin(async { Err(error) })
    }
}

impl Containers for NoRuntime {
    fn version(&self) -> BoxFuture<'_, Result<String, Error>> {
        self.fail("ask for", "the version")
    }
    fn has_image<'a>(&'a self, image: &'a str) -> BoxFuture<'a, Result<bool, Error>> {
        self.fail("look for", image)
    }
    fn images(&self) -> BoxFuture<'_, Result<Vec<String>, Error>> {
        self.fail("list", "images")
    }
    fn pull<'a>(&'a self, image: &'a str) -> BoxFuture<'a, Result<(), Error>> {
        self.fail("pull", image)
    }
    fn build<'a>(&'a self, images: &'a [String]) -> BoxFuture<'a, Result<(), Error>> {
        self.fail("bring", &images.join(", "))
    }
    fn sandbox_image(&self) -> BoxFuture<'_, Result<Option<String>, Error>> {
        self.fail("ask for", "the sandbox image")
    }
    fn containers(&self) -> BoxFuture<'_, Result<Vec<Container>, Error>> {
        self.fail("list", "containers")
    }
    fn remove_pods(&self) -> BoxFuture<'_, Result<usize, Error>> {
        self.fail("remove", "Pods")
    }
}

/// Describes why a component is down: the state of its container and the end of its log.
pub async fn last_words(containers: &dyn Containers, name: &str) -> String {
    match containers.containers().await {
        Ok(all) => describe_container(&all, name),
        Err(e) => format!("{e}; its log cannot be read"),
    }
}

/// Like [`last_words`], but `None` if the container runs or its state is unknown.
pub(crate) async fn last_words_if_down(containers: &dyn Containers, name: &str) -> Option<String> {
    let all = containers.containers().await.ok()?;
    let running = all.iter().find(|c| c.name == name).is_some_and(|c| c.running);
    (!running).then(|| describe_container(&all, name))
}

fn describe_container(all: &[Container], name: &str) -> String {
    let Some(newest) = all.iter().find(|c| c.name == name) else {
        return format!(
            "the container runtime has no container {name:?}: the kubelet has not started it, and its log says why \
             (journalctl -xeu kubelet, or /var/log/windlass/kubelet.log)"
        );
    };
    let state = match newest.exit_code {
        _ if newest.running => format!("its container runs (attempt {})", newest.attempt),
        Some(code) => format!(
            "its container ended with code {code} ({}), attempt {}",
            newest.reason, newest.attempt
        ),
        None => format!("its container is not running ({})", newest.reason),
    };
    // A container that has just restarted has no output yet, so the previous attempt's log is shown.
    let log = all
        .iter()
        .filter(|c| c.name == name)
        .take(2)
        .find_map(|c| log_tail(&c.log_path).map(|text| (c.attempt, text)));
    match log {
        Some((attempt, text)) if attempt != newest.attempt => {
            format!("{state}; attempt {attempt} said last:\n{text}")
        }
        Some((_, text)) => format!("{state}; it said last:\n{text}"),
        None => format!("{state}; it has written no log"),
    }
}

/// Returns the end of a container's log without the runtime's prefix of time, stream and tag.
fn log_tail(path: &str) -> Option<String> {
    let text = std::fs::read(path).ok()?;
    // Only the end is shown, and logs may be long.
    let text = String::from_utf8_lossy(&text[text.len().saturating_sub(16 << 10)..]).into_owned();
    let messages: Vec<&str> =
        text.lines().map(|line| line.splitn(4, ' ').nth(3).unwrap_or(line)).collect();
    Some(relevant_lines(&messages)).filter(|lines| !lines.is_empty())
}

/// Returns the last lines of a log. If none of them names an error, the newest line that does comes first, because many
/// programs print their usage after an error.
pub(crate) fn relevant_lines(lines: &[&str]) -> String {
    let lines: Vec<&str> = lines.iter().copied().filter(|l| !l.trim().is_empty()).collect();
    let (before, last) = lines.split_at(lines.len().saturating_sub(LAST_LINES));
    let error = if last.iter().any(|line| names_an_error(line)) {
        None
    } else {
        before.iter().rfind(|line| names_an_error(line))
    };
    error.into_iter().chain(last).copied().collect::<Vec<_>>().join("\n")
}

fn names_an_error(line: &str) -> bool {
    let line = line.trim_start();
    // klog starts error lines with E1121 or F1121. Errors of Go's flag package contain no such word.
    let klog = line.strip_prefix(['E', 'F']).and_then(|rest| rest.get(..4));
    let plain = line.to_ascii_lowercase();
    klog.is_some_and(|date| date.bytes().all(|b| b.is_ascii_digit()))
        // A Go stack trace contains calls of panic().
        || plain.starts_with("flag provided but not defined")
        || ["error", "fatal", "panic"].iter().any(|word| {
            plain.strip_prefix(word).is_some_and(|rest| !rest.starts_with('('))
                || plain.contains(&format!(" {word} "))
                || plain.contains(&format!("\"level\":\"{word}\""))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    struct One(Vec<Container>);

    impl Containers for One {
        fn version(&self) -> BoxFuture<'_, Result<String, Error>> {
            Box::pin(async { Ok("test 1".to_owned()) })
        }
        fn has_image<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<bool, Error>> {
            Box::pin(async { Ok(true) })
        }
        fn images(&self) -> BoxFuture<'_, Result<Vec<String>, Error>> {
            Box::pin(async { Ok(Vec::new()) })
        }
        fn pull<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<(), Error>> {
            Box::pin(async { Ok(()) })
        }
        fn build<'a>(&'a self, _: &'a [String]) -> BoxFuture<'a, Result<(), Error>> {
            Box::pin(async { Ok(()) })
        }
        fn sandbox_image(&self) -> BoxFuture<'_, Result<Option<String>, Error>> {
            Box::pin(async { Ok(None) })
        }
        fn containers(&self) -> BoxFuture<'_, Result<Vec<Container>, Error>> {
            Box::pin(async { Ok(self.0.clone()) })
        }
        fn remove_pods(&self) -> BoxFuture<'_, Result<usize, Error>> {
            Box::pin(async { Ok(0) })
        }
    }

    #[test]
    fn shows_error_before_long_usage_text() {
        let usage: Vec<String> = (0..20).map(|n| format!("  --flag-{n}")).collect();
        let after = |error: &str| {
            let mut lines = vec!["starting", error, ""];
            lines.extend(usage.iter().map(String::as_str));
            relevant_lines(&lines)
        };
        for error in [
            "flag provided but not defined: -nonsense",
            "{\"level\":\"fatal\",\"msg\":\"discovery failed\"}",
            "2026-11-21T22:57:19Z ERROR windlass: no such file",
            "E1121 22:57:19.345 1 run.go:74] \"command failed\"",
            "panic: write /var/lib/etcd/member: no space left on device",
        ] {
            let told = after(error);
            assert!(told.starts_with(error) && told.ends_with("--flag-19"), "{told}");
            assert_eq!(told.lines().count(), 1 + LAST_LINES);
        }
        assert_eq!(after("panic({0xd2a680, 0xc000})").lines().count(), LAST_LINES);
        assert_eq!(after("Every thing is well").lines().count(), LAST_LINES);
        assert_eq!(relevant_lines(&["Error: one", "two"]), "Error: one\ntwo");
    }

    #[tokio::test(flavor = "current_thread")]
    async fn shows_exit_code_and_end_of_log() {
        let log = tempfile::NamedTempFile::new().unwrap();
        let line = "2026-11-21T10:00:00Z stderr F ";
        std::fs::write(
            log.path(),
            format!("{line}one\n{line}Error: listen tcp :6443: bind: address already in use\n"),
        )
        .unwrap();
        let ended = Container {
            id: "1".into(),
            name: "kube-apiserver".into(),
            running: false,
            exit_code: Some(1),
            reason: "Error".into(),
            attempt: 3,
            log_path: log.path().display().to_string(),
        };
        let text = last_words(&One(vec![ended]), "kube-apiserver").await;
        assert_eq!(
            text,
            "its container ended with code 1 (Error), attempt 3; it said last:\none\nError: listen tcp :6443: bind: address already in use"
        );
        let text = last_words(&One(Vec::new()), "etcd").await;
        assert!(text.contains("no container \"etcd\"") && text.contains("journalctl"), "{text}");
        let text = last_words(&NoRuntime("no socket".into()), "etcd").await;
        assert!(text.contains("no socket"), "{text}");
    }
}
