//! The time for which a node stays ready while its container runtime does not answer.
//!
//! A restarting runtime does not answer for a moment, while its containers run on. If the node became not ready
//! immediately, all of its Pods would drop out of their Services, cluster DNS included.

use std::time::Duration;

use cri::v1::{StatusResponse, VersionResponse};
use tokio::time::Instant;

/// Upstream's threshold for a runtime's status.
const STATUS: Duration = Duration::from_secs(30);
/// Upstream's threshold for the list of containers.
const LISTING: Duration = Duration::from_secs(180);

/// The runtime's last answers, and the times of the first failures since.
#[derive(Debug, Default)]
pub(super) struct RuntimeGrace {
    version: VersionResponse,
    status: Option<StatusResponse>,
    failing: Option<Instant>,
    unlisted: Option<Instant>,
}

impl RuntimeGrace {
    /// Returns the runtime's version: its last answer if the runtime fails.
    pub(super) fn version(&mut self, response: Option<VersionResponse>) -> VersionResponse {
        if let Some(response) = response {
            self.version = response;
        }
        self.version.clone()
    }

    /// Returns the status to judge the node by. If the runtime fails, that is its last answer until the threshold has
    /// passed since the first failure. A runtime that has never answered has no such grace period.
    pub(super) fn status<E>(
        &mut self,
        response: Result<StatusResponse, E>,
        now: Instant,
    ) -> Result<StatusResponse, E> {
        match response {
            Ok(response) => {
                (self.status, self.failing) = (Some(response.clone()), None);
                Ok(response)
            }
            Err(error) => {
                let since = *self.failing.get_or_insert(now);
                let last = self.status.clone().filter(|_| now.duration_since(since) < STATUS);
                last.ok_or(error)
            }
        }
    }

    /// Returns the error of listing containers once it has lasted for its threshold.
    pub(super) fn listing_error<'a>(
        &mut self,
        error: Option<&'a String>,
        now: Instant,
    ) -> Option<&'a String> {
        let Some(error) = error else {
            self.unlisted = None;
            return None;
        };
        let since = *self.unlisted.get_or_insert(now);
        (now.duration_since(since) >= LISTING).then_some(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn keeps_the_last_answer_while_the_runtime_restarts() {
        let began = Instant::now();
        let mut grace = RuntimeGrace::default();
        let away = || Err("connection refused".to_owned());
        assert!(grace.status(away(), began).is_err(), "a runtime that never answered");
        let response = StatusResponse::default();
        let answers = || Ok::<_, String>(StatusResponse::default());
        assert_eq!(grace.status(answers(), began), Ok(response.clone()));
        // The threshold counts from the first failure, not from the last answer.
        assert_eq!(grace.status(away(), began + at(10)), Ok(response.clone()));
        assert_eq!(grace.status(away(), began + at(39)), Ok(response.clone()));
        assert!(grace.status(away(), began + at(40)).is_err());
        // The runtime answered again and failed again.
        assert!(grace.status(answers(), began + at(50)).is_ok());
        assert_eq!(grace.status(away(), began + at(90)), Ok(response));
    }

    #[test]
    fn keeps_the_version_while_the_runtime_restarts() {
        let mut grace = RuntimeGrace::default();
        let response = VersionResponse { runtime_name: "containerd".into(), ..Default::default() };
        assert_eq!(grace.version(None), VersionResponse::default());
        assert_eq!(grace.version(Some(response.clone())), response);
        assert_eq!(grace.version(None), response);
    }

    #[test]
    fn reports_a_listing_that_goes_on_failing() {
        let began = Instant::now();
        let mut grace = RuntimeGrace::default();
        let error = "connection refused".to_owned();
        assert_eq!(grace.listing_error(Some(&error), began), None);
        assert_eq!(grace.listing_error(Some(&error), began + at(179)), None);
        assert_eq!(grace.listing_error(Some(&error), began + at(180)), Some(&error));
        assert_eq!(grace.listing_error(None, began + at(181)), None);
        assert_eq!(grace.listing_error(Some(&error), began + at(400)), None);
    }
}
