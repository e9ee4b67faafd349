//! Metrics of the two steps of admission, with upstream's names.

use std::time::Duration;

use admission::Operation;
use telemetry::metrics::{Histogram, Metrics};

const NAME: &str = "apiserver_admission_step_admission_duration_seconds";
const BOUNDS: [f64; 6] = [0.005, 0.025, 0.1, 0.5, 1.0, 2.5];
const OPERATIONS: [Operation; 4] =
    [Operation::Create, Operation::Update, Operation::Delete, Operation::Connect];

/// A step of admission.
#[derive(Clone, Copy)]
pub(crate) enum Step {
    Admit,
    Validate,
}

/// A histogram for each step, operation and result. They are created once, so that a request needs no look-up.
pub(crate) struct Steps([[[Histogram; 2]; 4]; 2]);

impl Steps {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        let help = "How long the steps of admission took.";
        let all = metrics.histograms(NAME, help, &BOUNDS, &["operation", "rejected", "type"]);
        Self(["admit", "validate"].map(|step| {
            OPERATIONS.map(|operation| {
                ["false", "true"]
                    .map(|rejected| all.with_label_values(&[operation.name(), rejected, step]))
            })
        }))
    }

    /// Records the duration of a step.
    pub(crate) fn took(&self, step: Step, operation: Operation, rejected: bool, took: Duration) {
        let of = &self.0[step as usize][operation as usize][usize::from(rejected)];
        of.observe(took.as_secs_f64());
    }
}
