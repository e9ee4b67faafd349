//! The durations of compiling and evaluating the validation rules of custom kinds, with upstream's names.

use api_meta::{ErrorList, GroupVersionKind, Path};
use api_schema::Schema;
use serde_json::Value;
use telemetry::metrics::{Histogram, Metrics, USUAL_BOUNDS};
use tokio::time::Instant;

use super::definition::ServedVersion;

/// The metrics of `x-kubernetes-validations`: an observation for each schema and for each object with rules.
pub(crate) struct CelMetrics {
    compilation: Histogram,
    evaluation: Histogram,
}

impl CelMetrics {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        let histogram = |name, help| metrics.histogram(name, help, USUAL_BOUNDS);
        Self {
            compilation: histogram(
                "apiserver_cel_compilation_duration_seconds",
                "CEL compilation time in seconds.",
            ),
            evaluation: histogram(
                "apiserver_cel_evaluation_duration_seconds",
                "CEL evaluation time in seconds.",
            ),
        }
    }

    /// Builds the schema of one version of a custom kind, as [`Schema::from_crd`].
    pub(super) fn schema(
        &self,
        open_api_v3: &Value,
        gvk: &GroupVersionKind,
        path: &Path,
    ) -> Result<Schema, ErrorList> {
        let mut schema = Schema::without_rules(open_api_v3, gvk, path)?;
        let start = Instant::now();
        schema.compile_rules(open_api_v3, path);
        if schema.has_rules() {
            self.compilation.observe(start.elapsed().as_secs_f64());
        }
        Ok(schema)
    }

    /// Evaluates the rules for an object.
    pub(crate) fn evaluate(
        &self,
        served: &ServedVersion,
        tree: &Value,
        old: Option<&Value>,
        errors: &mut ErrorList,
    ) {
        if !served.schema.has_rules() {
            return;
        }
        let start = Instant::now();
        api_schema::validate_rules(&served.schema, served.node, tree, old, errors);
        self.evaluation.observe(start.elapsed().as_secs_f64());
    }
}
