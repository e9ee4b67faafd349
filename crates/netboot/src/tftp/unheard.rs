//! Requests whose client has not been heard since.
//!
//! A client that gets no answer soon sends its request again, and a busy server finds both. The second would have a
//! transfer that nobody takes part in, and hold its place until it is given up.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use super::ReadRequest;

#[derive(Default)]
pub(super) struct Unheard(Mutex<HashMap<SocketAddr, ReadRequest>>);

/// One of them, until its client is heard.
pub(super) struct First(Arc<Unheard>, SocketAddr);

impl Unheard {
    /// `None` if the request repeats one.
    pub(super) fn begin(
        self: &Arc<Self>,
        client: SocketAddr,
        request: &ReadRequest,
    ) -> Option<First> {
        let mut requests = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if requests.get(&client) == Some(request) {
            return None;
        }
        requests.insert(client, request.clone());
        Some(First(self.clone(), client))
    }
}

impl Drop for First {
    fn drop(&mut self) {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.1);
    }
}

#[cfg(test)]
mod tests {
    use super::{super::Mode, *};

    #[test]
    fn a_request_that_comes_again_is_known() {
        let unheard = Arc::new(Unheard::default());
        let request =
            |name: &str| ReadRequest { name: name.into(), mode: Mode::Octet, options: vec![] };
        let [one, other] = ["10.0.0.1:70", "10.0.0.1:71"].map(|text| text.parse().unwrap());
        let first = unheard.begin(one, &request("a")).unwrap();
        assert!(unheard.begin(one, &request("a")).is_none());
        // Another file, or another client, is another transfer.
        assert!(unheard.begin(one, &request("b")).is_some());
        assert!(unheard.begin(other, &request("a")).is_some());
        drop(first);
        assert!(unheard.begin(one, &request("a")).is_some());
        assert!(unheard.0.lock().unwrap().is_empty());
    }
}
