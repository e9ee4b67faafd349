//! The keys and certificates of all Pods in projected volumes, and the requests for them.

use std::{collections::HashMap, sync::Arc};

use api_meta::Timestamp;
use parking_lot::Mutex;

use crate::error::CertificateError;

/// The position of a certificate in its Pod: the volume's name and the index of the source.
pub(crate) type Position = (String, usize);

/// The certificates of a kubelet's Pods.
pub struct Certificates {
    /// `true` if the gate `PodCertificateRequest` is on.
    is_on: bool,
    /// The certificates of each Pod, by the Pod's UID.
    pods: Mutex<HashMap<String, HashMap<Position, Entry>>>,
}

#[derive(Default)]
struct Entry {
    source: Arc<tokio::sync::Mutex<Source>>,
    /// The time at which the volume must be mounted again.
    due: Option<Timestamp>,
}

/// The state of one source of a projected volume.
#[derive(Default)]
pub(crate) struct Source {
    pub(crate) issued: Option<Issued>,
    pub(crate) pending: Option<Pending>,
    /// The final answer of the signer, if it is a refusal.
    pub(crate) refusal: Option<CertificateError>,
}

/// A key with its certificate.
#[derive(Clone)]
pub(crate) struct Issued {
    pub(crate) key: String,
    pub(crate) chain: String,
    pub(crate) refresh: Timestamp,
    pub(crate) end: Timestamp,
    pub(crate) reported: Reported,
}

/// The Events about an old certificate that were recorded.
#[derive(Clone, Copy, Default)]
pub(crate) struct Reported {
    pub(crate) overdue: bool,
    pub(crate) expired: bool,
}

impl Certificates {
    /// Creates an empty store. Unless `is_on`, sources of the type are errors.
    pub fn new(is_on: bool) -> Self {
        Self { is_on, pods: Mutex::default() }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.is_on
    }

    pub(crate) fn source(&self, uid: &str, at: &Position) -> Arc<tokio::sync::Mutex<Source>> {
        let mut pods = self.pods.lock();
        let sources = pods.entry(uid.to_owned()).or_default();
        sources.entry(at.clone()).or_default().source.clone()
    }

    pub(crate) fn set_due(&self, uid: &str, at: &Position, due: Option<Timestamp>) {
        let mut pods = self.pods.lock();
        if let Some(entry) = pods.get_mut(uid).and_then(|sources| sources.get_mut(at)) {
            entry.due = due;
        }
    }

    /// Returns the time at which the first certificate of a Pod must be refreshed.
    pub fn due(&self, uid: &str) -> Option<Timestamp> {
        let pods = self.pods.lock();
        pods.get(uid)?.values().filter_map(|entry| entry.due).min()
    }

    /// Forgets the keys and certificates of a Pod.
    pub(crate) fn forget(&self, uid: &str) {
        self.pods.lock().remove(uid);
    }
}

/// A request that the kubelet has made, with its key.
pub(crate) struct Pending {
    /// The private key in PEM.
    pub(crate) key: String,
    pub(crate) public: Vec<u8>,
    pub(crate) name: String,
    pub(crate) created: Timestamp,
}
