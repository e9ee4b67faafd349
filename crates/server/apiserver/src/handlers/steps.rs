//! Metrics of the two steps of admission and of their plugins, with upstream's names.

use std::time::Duration;

use admission::{Chain, Operation};
use telemetry::metrics::{Histogram, Metrics};
use tokio::time::Instant;

const BOUNDS: [f64; 6] = [0.005, 0.025, 0.1, 0.5, 1.0, 2.5];
const OPERATIONS: [Operation; 4] =
    [Operation::Create, Operation::Update, Operation::Delete, Operation::Connect];

/// A step of admission.
#[derive(Clone, Copy)]
pub(crate) enum Step {
    Admit,
    Validate,
}

impl Step {
    fn name(self) -> &'static str {
        match self {
            Self::Admit => "admit",
            Self::Validate => "validate",
        }
    }
}

/// A histogram for each step, operation and result. They are created once, so that a request needs no lookup.
struct Outcomes([[[Histogram; 2]; 4]; 2]);

impl Outcomes {
    fn new(of: impl Fn(Step, Operation, &str) -> Histogram) -> Self {
        Self([Step::Admit, Step::Validate].map(|step| {
            OPERATIONS
                .map(|operation| ["false", "true"].map(|rejected| of(step, operation, rejected)))
        }))
    }

    fn took(&self, step: Step, operation: Operation, rejected: bool, took: Duration) {
        let of = &self.0[step as usize][operation as usize][usize::from(rejected)];
        of.observe(took.as_secs_f64());
    }
}

/// The durations of admission: of whole steps, and of single plugins.
pub(crate) struct Steps {
    whole: Outcomes,
    /// The plugins that the chain runs, in its order.
    plugins: Vec<Outcomes>,
    /// The plugins that the API server runs itself, with their names.
    others: Vec<(&'static str, Outcomes)>,
}

impl Steps {
    pub(crate) fn new(metrics: &Metrics, chain: &Chain) -> Self {
        let all = metrics.histograms(
            "apiserver_admission_step_admission_duration_seconds",
            "Admission sub-step latency histogram in seconds, broken out for each operation and API resource and step \
             type (validate or admit).",
            &BOUNDS,
            &["operation", "rejected", "type"],
        );
        let by_name = metrics.histograms(
            "apiserver_admission_controller_admission_duration_seconds",
            "Admission controller latency histogram in seconds, identified by name and broken out for each operation \
             and API resource and type (validate or admit).",
            &BOUNDS,
            &["name", "operation", "rejected", "type"],
        );
        let of_plugin = |name: &str| {
            Outcomes::new(|step, operation, rejected| {
                by_name.with_label_values(&[name, operation.name(), rejected, step.name()])
            })
        };
        let others = chain.names().iter().copied();
        let others = others.filter(|name| chain.plugin_names().all(|plugin| plugin != *name));
        Self {
            plugins: chain.plugin_names().map(of_plugin).collect(),
            others: others.map(|name| (name, of_plugin(name))).collect(),
            whole: Outcomes::new(|step, operation, rejected| {
                all.with_label_values(&[operation.name(), rejected, step.name()])
            }),
        }
    }

    /// Records the duration of a step.
    pub(crate) fn took(&self, step: Step, operation: Operation, rejected: bool, took: Duration) {
        self.whole.took(step, operation, rejected, took);
    }

    /// Starts to measure the plugins of a step one after another.
    pub(crate) fn laps(&self, step: Step, operation: Operation) -> Laps<'_> {
        Laps { steps: self, step, operation, last: Instant::now() }
    }
}

/// Measures plugins that run one after another.
pub(crate) struct Laps<'a> {
    steps: &'a Steps,
    step: Step,
    operation: Operation,
    /// The end of the plugin before.
    last: Instant,
}

impl Laps<'_> {
    fn lap(&mut self) -> Duration {
        let now = Instant::now();
        now - std::mem::replace(&mut self.last, now)
    }

    /// Records the end of a plugin of the chain, by its position there.
    pub(crate) fn plugin(&mut self, at: usize, rejected: bool) {
        let took = self.lap();
        if let Some(plugin) = self.steps.plugins.get(at) {
            plugin.took(self.step, self.operation, rejected, took);
        }
    }

    /// Records the end of a plugin that the API server runs itself.
    pub(crate) fn named(&mut self, name: &str, rejected: bool) {
        let took = self.lap();
        if let Some((_, plugin)) = self.steps.others.iter().find(|(other, _)| *other == name) {
            plugin.took(self.step, self.operation, rejected, took);
        }
    }
}
