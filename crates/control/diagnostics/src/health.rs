//! The health of a component: its loops run, and its informers have synced.

use std::fmt::Write as _;

use http::StatusCode;

use crate::slis::Slis;

/// The health pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HealthPage {
    /// `/healthz`
    Healthz,
    /// `/livez`
    Livez,
    /// `/readyz`
    Readyz,
}

impl HealthPage {
    /// Returns the page of a path; `None` if the path is not one of health.
    pub(crate) fn of(path: &str) -> Option<Self> {
        match path {
            "/healthz" => Some(Self::Healthz),
            "/livez" => Some(Self::Livez),
            "/readyz" => Some(Self::Readyz),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Healthz => "healthz",
            Self::Livez => "livez",
            Self::Readyz => "readyz",
        }
    }

    /// Returns the health in upstream's format, and records the result. An ended loop fails every check. An unsynced
    /// informer fails only readiness, and other checks merely list it: a restart by a liveness probe would not restore
    /// a missing permission.
    pub(crate) fn answer(
        self,
        tasks: &rt::Tasks,
        slis: &Slis,
        verbose: bool,
    ) -> (StatusCode, String) {
        let check = self.name();
        let mut text = String::from("[+]ping ok\n");
        let (missing, unready) = (tasks.missing(), tasks.not_ready());
        for name in missing.iter().map(|task| &task.name).chain(&unready) {
            let _ = writeln!(text, "[-]{name} failed: reason withheld");
        }
        slis.record(check, "ping", true);
        slis.record(check, "tasks", missing.is_empty());
        slis.record(check, "informer-sync", unready.is_empty());
        if missing.is_empty() && (unready.is_empty() || self != Self::Readyz) {
            let passed = format!("{text}{check} check passed\n");
            return (StatusCode::OK, if verbose { passed } else { "ok".to_owned() });
        }
        (StatusCode::INTERNAL_SERVER_ERROR, format!("{text}{check} check failed\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(tasks: &rt::Tasks, path: &str, verbose: bool) -> (u16, String) {
        let (status, text) = HealthPage::of(path).unwrap().answer(tasks, &Slis::default(), verbose);
        (status.as_u16(), text)
    }

    #[tokio::test(start_paused = true)]
    async fn reports_panicked_loop_and_unready_informer() {
        let tasks = rt::Tasks::new(rt::Shutdown::new());
        assert_eq!(answer(&tasks, "/healthz", false), (200, "ok".to_owned()));
        let unready = tasks.unready("informer of pods");
        let named = "[+]ping ok\n[-]informer of pods failed: reason withheld\n";
        let failed = (500, format!("{named}readyz check failed\n"));
        assert_eq!(answer(&tasks, "/readyz", false), failed);
        let passed = (200, format!("{named}healthz check passed\n"));
        assert_eq!(answer(&tasks, "/healthz", true), passed);
        drop(unready);
        tasks.keep("node monitor", || async { panic!("a secret") });
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        for path in ["/healthz", "/livez", "/readyz"] {
            let (status, text) = answer(&tasks, path, false);
            assert_eq!(status, 500, "{path}");
            assert!(text.contains("[-]node monitor failed: reason withheld\n"), "{text}");
            assert!(!text.contains("secret"), "{text}");
        }
    }
}
