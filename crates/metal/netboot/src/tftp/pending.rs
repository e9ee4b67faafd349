//! Detects repeated read requests, and ends transfers that no client takes part in.
//!
//! A client that gets no answer soon repeats its request, and a busy server then reads both. The second would start a
//! transfer that no client takes part in. So would a request with a false sender.

use std::{
    collections::{HashMap, hash_map::Entry},
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use futures_util::future::{AbortHandle, AbortRegistration};
use parking_lot::Mutex;

use super::packet::ReadRequest;

/// The read requests whose clients have not sent another packet.
#[derive(Default)]
pub(super) struct PendingRequests(Mutex<Requests>);

#[derive(Default)]
struct Requests {
    by_client: HashMap<SocketAddr, Pending>,
    /// The number of requests so far, which orders them.
    count: u64,
}

struct Pending {
    request: ReadRequest,
    number: u64,
    transfer: AbortHandle,
}

/// A read request whose client has not sent another packet. Dropping it forgets the request.
pub(super) struct PendingRequest {
    requests: Arc<PendingRequests>,
    client: SocketAddr,
    number: u64,
}

impl PendingRequests {
    /// Registers a request, and returns the registration for its transfer; returns `None` if it repeats a pending one.
    pub(super) fn begin(
        self: &Arc<Self>,
        client: SocketAddr,
        request: &ReadRequest,
    ) -> Option<(PendingRequest, AbortRegistration)> {
        let mut requests = self.0.lock();
        if requests.by_client.get(&client).is_some_and(|pending| pending.request == *request) {
            return None;
        }
        let (transfer, registration) = AbortHandle::new_pair();
        requests.count += 1;
        let number = requests.count;
        requests.by_client.insert(client, Pending { request: request.clone(), number, transfer });
        Some((PendingRequest { requests: self.clone(), client, number }, registration))
    }

    /// Ends the oldest transfer whose client has not answered: one of `client`, or of any client for `None`.
    pub(super) fn end_oldest(&self, client: Option<IpAddr>) {
        let requests = self.0.lock();
        let of_client = requests
            .by_client
            .iter()
            .filter(|(address, _)| client.is_none_or(|client| address.ip() == client))
            .filter(|(_, pending)| !pending.transfer.is_aborted());
        if let Some((_, oldest)) = of_client.min_by_key(|(_, pending)| pending.number) {
            oldest.transfer.abort();
        }
    }
}

impl Drop for PendingRequest {
    fn drop(&mut self) {
        // A later request of the client replaces the entry.
        if let Entry::Occupied(entry) = self.requests.0.lock().by_client.entry(self.client)
            && entry.get().number == self.number
        {
            entry.remove();
        }
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
        assert!(pending.0.lock().by_client.is_empty());
    }

    #[test]
    fn ends_oldest_transfer_of_silent_clients() {
        let pending = Arc::new(PendingRequests::default());
        let request = ReadRequest { name: "a".into(), mode: Mode::Octet, options: vec![] };
        let begin = |address: &str| pending.begin(address.parse().unwrap(), &request).unwrap();
        let [answered, old, other, new] =
            ["10.0.0.1:70", "10.0.0.1:71", "10.0.0.2:70", "10.0.0.1:72"].map(begin);
        drop(answered.0);
        let ended = |of: &(PendingRequest, AbortRegistration)| of.1.handle().is_aborted();
        pending.end_oldest(Some("10.0.0.1".parse().unwrap()));
        assert_eq!([&old, &other, &new].map(ended), [true, false, false]);
        drop(old);
        pending.end_oldest(None);
        assert_eq!([&other, &new].map(ended), [true, false]);
        assert!(!answered.1.handle().is_aborted());
    }
}
