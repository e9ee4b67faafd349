//! Limits concurrent requests by their number alone, as upstream's max-in-flight handler does when flow control is
//! switched off.

use api_meta::{Status, UserInfo};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::{config::InFlightLimits, request::RequestInfo};

const MASTERS: &str = "system:masters";

/// The free places of requests; `None` without a limit.
pub(crate) struct Places {
    reading: Option<Semaphore>,
    mutating: Option<Semaphore>,
}

impl Places {
    pub(crate) fn new(limits: InFlightLimits) -> Self {
        let places = |limit: u32| (limit > 0).then(|| Semaphore::new(limit as usize));
        Self { reading: places(limits.reading), mutating: places(limits.mutating) }
    }

    /// Takes a place, which the request has until the permit is dropped. Watches and connections need none.
    ///
    /// # Errors
    /// Returns 429 if there is none, but for administrators.
    pub(crate) fn take(
        &self,
        info: &RequestInfo,
        user: &UserInfo,
    ) -> Result<Option<SemaphorePermit<'_>>, Status> {
        if info.verb == "watch" || info.is_connection() {
            return Ok(None);
        }
        let is_reading = matches!(info.verb, "get" | "list");
        let Some(places) = (if is_reading { &self.reading } else { &self.mutating }) else {
            return Ok(None);
        };
        match places.try_acquire() {
            Ok(permit) => Ok(Some(permit)),
            Err(_) if user.groups.iter().any(|group| group == MASTERS) => Ok(None),
            Err(_) => {
                Err(Status::too_many_requests("Too many requests, please try again later.", 1))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(method: &http::Method, path: &str, query: &str) -> RequestInfo {
        RequestInfo::new(method, path, query)
    }

    #[test]
    fn rejects_requests_above_their_limit() {
        let user = UserInfo::new("u", &["system:authenticated"]);
        let (get, post) = (http::Method::GET, http::Method::POST);
        let pods = "/api/v1/namespaces/n/pods";
        let (list, create) = (request(&get, pods, ""), request(&post, pods, ""));
        let places = Places::new(InFlightLimits { reading: 2, mutating: 1 });
        let first = places.take(&list, &user).unwrap();
        let second = places.take(&request(&get, "/healthz", ""), &user).unwrap();
        assert!(first.is_some() && second.is_some());
        assert_eq!(places.take(&list, &user).unwrap_err().code, 429);
        let master = UserInfo::new("admin", &[MASTERS]);
        assert!(places.take(&list, &master).is_ok());
        let exec = request(&post, &format!("{pods}/p/exec"), "command=sh");
        for free in [request(&get, pods, "watch=1"), exec] {
            assert!(places.take(&free, &user).unwrap().is_none());
        }
        let writing = places.take(&create, &user).unwrap();
        assert!(writing.is_some(), "writes have places of their own");
        assert!(places.take(&create, &user).is_err());
        drop(writing);
        assert!(places.take(&create, &user).is_ok());
    }

    #[test]
    fn zero_is_no_limit() {
        let places = Places::new(InFlightLimits { reading: 0, mutating: 0 });
        let user = UserInfo::default();
        let list = request(&http::Method::GET, "/api/v1/pods", "");
        let taken: Vec<_> = (0..10_000).map(|_| places.take(&list, &user)).collect();
        assert!(taken.iter().all(Result::is_ok));
    }
}
