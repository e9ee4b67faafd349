//! Detects repeated read requests.
//!
//! A client that gets no answer soon repeats its request, and a busy server then reads both. The second would start a
//! transfer that no client takes part in.

use std::{collections::HashMap, net::SocketAddr, sync::Arc};

use parking_lot::Mutex;

use super::packet::ReadRequest;

/// The read requests whose clients have not sent another packet.
#[derive(Default)]
pub(super) struct PendingRequests(Mutex<HashMap<SocketAddr, ReadRequest>>);

/// A read request whose client has not sent another packet. Dropping it forgets the request.
pub(super) struct PendingRequest(Arc<PendingRequests>, SocketAddr);

impl PendingRequests {
    /// Registers a request; returns `None` if it repeats a pending one.
    pub(super) fn begin(
        self: &Arc<Self>,
        client: SocketAddr,
        request: &ReadRequest,
    ) -> Option<PendingRequest> {
        let mut requests = self.0.lock();
        if requests.get(&client) == Some(request) {
            return None;
        }
        requests.insert(client, request.clone());
        Some(PendingRequest(self.clone(), client))
    }
}

impl Drop for PendingRequest {
    fn drop(&mut self) {
        self.0.0.lock().remove(&self.1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tftp::Mode;

    #[test]
    fn ignores_repeated_request() {
        let pending = Arc::new(PendingRequests::default());
        let request =
            |name: &str| ReadRequest { name: name.into(), mode: Mode::Octet, options: vec![] };
        let [one, other] = ["10.0.0.1:70", "10.0.0.1:71"].map(|text| text.parse().unwrap());
        let first = pending.begin(one, &request("a")).unwrap();
        assert!(pending.begin(one, &request("a")).is_none());
        // Another file or another client is another transfer.
        assert!(pending.begin(one, &request("b")).is_some());
        assert!(pending.begin(other, &request("a")).is_some());
        drop(first);
        assert!(pending.begin(one, &request("a")).is_some());
        assert!(pending.0.lock().is_empty());
    }
}
