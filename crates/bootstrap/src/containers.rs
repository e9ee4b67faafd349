//! What bootstrapping needs of a container runtime.

mod runtime;

use futures_util::future::BoxFuture;

pub use runtime::Runtime;

use crate::Error;

/// A container as the runtime has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    pub id: String,
    pub name: String,
    pub running: bool,
    pub exit_code: Option<i32>,
    /// Why it ended, in the runtime's words.
    pub reason: String,
    pub attempt: u32,
    pub log_path: String,
}

pub trait Containers: Send + Sync {
    /// The runtime's name and version.
    fn version(&self) -> BoxFuture<'_, Result<String, Error>>;
    fn has_image<'a>(&'a self, image: &'a str) -> BoxFuture<'a, Result<bool, Error>>;
    fn pull<'a>(&'a self, image: &'a str) -> BoxFuture<'a, Result<(), Error>>;
    /// Packs images of ours and gives them to the runtime.
    fn build<'a>(&'a self, images: &'a [String]) -> BoxFuture<'a, Result<(), Error>>;
    /// The image that the runtime is configured to hold Pods together with, if it says so.
    fn sandbox_image(&self) -> BoxFuture<'_, Result<Option<String>, Error>>;
    /// Every container of Kubernetes' Pods, ended ones too, the newest first.
    fn containers(&self) -> BoxFuture<'_, Result<Vec<Container>, Error>>;
    /// Stops and removes every Pod; returns how many there were.
    fn remove_pods(&self) -> BoxFuture<'_, Result<usize, Error>>;
}

/// Where no runtime is at hand: every call says so.
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

/// What a component said last and why it is not there: its container's state and the end of its log.
pub async fn last_words(containers: &dyn Containers, name: &str) -> String {
    match containers.containers().await {
        Ok(all) => words_among(&all, name),
        Err(e) => format!("{e}; its log cannot be read"),
    }
}

/// The same, unless it runs or nothing is known of it.
pub async fn words_of_one_down(containers: &dyn Containers, name: &str) -> Option<String> {
    let all = containers.containers().await.ok()?;
    let running = all.iter().find(|c| c.name == name).is_some_and(|c| c.running);
    (!running).then(|| words_among(&all, name))
}

fn words_among(all: &[Container], name: &str) -> String {
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
    // A container that has just been started again has yet to say what the one before it ended with.
    let said = all
        .iter()
        .filter(|c| c.name == name)
        .take(2)
        .find_map(|c| tail(&c.log_path, 5).map(|text| (c.attempt, text)));
    match said {
        Some((attempt, text)) if attempt != newest.attempt => {
            format!("{state}; attempt {attempt} said last:\n{text}")
        }
        Some((_, text)) => format!("{state}; it said last:\n{text}"),
        None => format!("{state}; it has written no log"),
    }
}

/// The last lines of a container's log, without the runtime's prefix of time, stream and tag.
fn tail(path: &str, lines: usize) -> Option<String> {
    let text = std::fs::read(path).ok()?;
    // Only the end is wanted, and logs may be long.
    let text = String::from_utf8_lossy(&text[text.len().saturating_sub(16 << 10)..]).into_owned();
    let messages: Vec<&str> =
        text.lines().map(|line| line.splitn(4, ' ').nth(3).unwrap_or(line)).collect();
    let last = &messages[messages.len().saturating_sub(lines)..];
    (!last.is_empty()).then(|| last.join("\n"))
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

    #[tokio::test(flavor = "current_thread")]
    async fn the_cause_is_shown_with_the_log() {
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
