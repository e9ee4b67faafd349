//! The state of consultations of extenders between a question and its answer.

use std::{cmp::Reverse, collections::BTreeSet, sync::Arc};

use crate::schedule::Diagnosis;

/// The consultation in progress and the Pods that wait for its end.
#[derive(Default)]
pub(super) struct Consultations {
    /// The number of the next question.
    pub(super) next: u64,
    pub(super) open: Option<OpenQuestion>,
    /// The Pods that concern extenders, by priority and then arrival.
    pub(super) waiting: BTreeSet<(Reverse<i32>, u64, Arc<str>)>,
    /// The number of Pods that have waited so far.
    pub(super) arrivals: u64,
}

impl Consultations {
    /// Returns the state for a new core, in which late answers to earlier questions have no effect.
    pub(super) fn restart(&self) -> Self {
        Self { next: self.next, ..Self::default() }
    }

    /// Returns the number of Pods that extenders are or will be asked about.
    pub(super) fn pods(&self) -> usize {
        self.waiting.len() + usize::from(self.open.is_some())
    }
}

/// A question without an answer so far.
pub(super) struct OpenQuestion {
    pub(super) id: u64,
    pub(super) uid: Arc<str>,
    /// The number of events before the attempt.
    pub(super) events: u64,
    pub(super) subject: Subject,
}

/// The subject of a question.
pub(super) enum Subject {
    /// The nominated node of the Pod.
    Nomination(Arc<str>),
    Nodes(AskedNodes),
    Victims(Rejection),
}

/// The nodes of a question and, in case that none is accepted, the state of the others.
pub(super) struct AskedNodes {
    pub(super) nodes: Vec<Arc<str>>,
    pub(super) evaluated: usize,
    pub(super) diagnosis: Diagnosis,
    /// The names of the nodes on which preemption might help: indices may change until the answer.
    pub(super) preemptible: Vec<Arc<str>>,
}

/// The reasons why a Pod fits nowhere, before preemption.
#[derive(Debug)]
pub(super) struct Rejection {
    pub(super) message: String,
    /// The message of DynamicResources about the deallocation of claims.
    pub(super) devices: Option<&'static str>,
    pub(super) blocking_claim: Option<(Box<str>, Box<str>)>,
    /// The plugins that rejected the Pod, as a bit set.
    pub(super) plugins: u32,
    pub(super) is_error: bool,
}
