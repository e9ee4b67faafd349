//! The metrics that every component has.

use api_config::FeatureGates;
use telemetry::metrics::Metrics;

/// Creates the metrics of a component, with the states of its feature gates.
pub fn component_metrics(features: &FeatureGates) -> Metrics {
    let metrics = Metrics::of_component(version::BUILD_VERSION);
    for feature in features.all() {
        metrics.set_feature(feature.name, feature.stage.label(), feature.enabled);
    }
    metrics
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_feature_gates() {
        let gates = FeatureGates::parse(["APIResponseCompression=false"]).unwrap();
        let text = component_metrics(&gates).text();
        for line in [
            "kubernetes_feature_enabled{name=\"AllBeta\",stage=\"BETA\"} 0\n",
            "kubernetes_feature_enabled{name=\"APIResponseCompression\",stage=\"BETA\"} 0\n",
            "kubernetes_feature_enabled{name=\"ComponentFlagz\",stage=\"BETA\"} 1\n",
            "kubernetes_feature_enabled{name=\"SidecarContainers\",stage=\"\"} 1\n",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
    }
}
