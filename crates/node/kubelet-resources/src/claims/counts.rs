//! Metrics of dynamic resource allocation.

use std::{collections::BTreeMap, time::Duration};

use pod_core::claims::allocations::Allocations;
use telemetry::metrics::{GaugeVec, HistogramVec, Metrics};

/// The metrics of claims, named as upstream.
pub(super) struct Counts {
    operations: HistogramVec,
    calls: HistogramVec,
    in_use: GaugeVec,
}

/// The label value that stands for all drivers.
const ANY: &str = "<any>";

impl Counts {
    pub(super) fn new(metrics: &Metrics) -> Self {
        // Fifteen buckets from 0.1 s to 40 s.
        let bounds: Vec<f64> =
            (0..15).map(|step| 0.1 * 400_f64.powf(f64::from(step) / 14.0)).collect();
        Self {
            operations: metrics.histograms(
                "dra_operations_duration_seconds",
                "[ALPHA] Latency histogram in seconds for the duration of handling all ResourceClaims referenced by \
                 a pod when the pod starts or stops. Identified by the name of the operation (PrepareResources or \
                 UnprepareResources) and separated by the success of the operation. The number of failed operations \
                 is provided through the histogram's overall count.",
                &bounds,
                &["operation_name", "is_error"],
            ),
            calls: metrics.histograms(
                "dra_grpc_operations_duration_seconds",
                "[ALPHA] Duration in seconds of the DRA gRPC operations",
                &bounds,
                &["driver_name", "method_name", "grpc_status_code"],
            ),
            in_use: metrics.gauges(
                "dra_resource_claims_in_use",
                "[ALPHA] The number of ResourceClaims that are currently in use on the node, by driver name \
                 (driver_name label value) and across all drivers (special value <any> for driver_name). Note that \
                 the sum of all by-driver counts is not the total number of in-use ResourceClaims because the same \
                 ResourceClaim might use devices from different drivers. Instead, use the count for the <any> \
                 driver_name.",
                &["driver_name"],
            ),
        }
    }

    /// Records that all claims of a Pod were prepared or unprepared.
    pub(super) fn operation(&self, name: &str, failed: bool, took: Duration) {
        let labels = [name, if failed { "true" } else { "false" }];
        self.operations.with_label_values(&labels).observe(took.as_secs_f64());
    }

    /// Records a call to a driver.
    pub(super) fn call(
        &self,
        driver: &str,
        method: &str,
        error: Option<&deviceplugin::Error>,
        took: Duration,
    ) {
        let code = error.map_or_else(|| "OK".to_owned(), deviceplugin::Error::code_name);
        let labels = [driver, method, &code];
        self.calls.with_label_values(&labels).observe(took.as_secs_f64());
    }

    /// Updates the gauge of prepared claims.
    pub(super) fn measure(&self, allocations: &Allocations) {
        let mut counts = BTreeMap::from([(ANY, 0)]);
        for claim in allocations.claims().filter(|claim| claim.prepared) {
            *counts.entry(ANY).or_default() += 1;
            for driver in claim.drivers.keys() {
                *counts.entry(driver).or_default() += 1;
            }
        }
        self.in_use.reset();
        for (driver, count) in counts {
            self.in_use.with_label_values(&[driver]).set(f64::from(count));
        }
    }
}
