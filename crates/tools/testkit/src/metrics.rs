//! Compares metrics pages with upstream's published list of metrics.

use std::collections::BTreeSet;

/// The name, type and labels of a published metric.
#[derive(Clone, Copy, Debug)]
pub struct PublishedMetric {
    name: &'static str,
    kind: &'static str,
    labels: &'static [&'static str],
}

/// Returns a metric of upstream's list.
pub const fn published(
    name: &'static str,
    kind: &'static str,
    labels: &'static [&'static str],
) -> PublishedMetric {
    PublishedMetric { name, kind, labels }
}

/// The metrics that every component has.
pub const OF_COMPONENTS: &[PublishedMetric] = &[
    published("registered_metrics_total", "counter", &["deprecated_version", "stability_level"]),
    published("disabled_metrics_total", "counter", &[]),
    published("hidden_metrics_total", "counter", &[]),
    published("kubernetes_feature_enabled", "gauge", &["name", "stage"]),
    published("kubernetes_build_info", "gauge", &["git_version", "major", "minor"]),
];

/// The metrics that every component has that calls the API server.
pub const OF_CLIENTS: &[PublishedMetric] = &[
    published("rest_client_requests_total", "counter", &["code", "host", "method"]),
    published("rest_client_request_duration_seconds", "histogram", &["host", "verb"]),
    published("rest_client_request_size_bytes", "histogram", &["host", "verb"]),
    published("rest_client_response_size_bytes", "histogram", &["host", "verb"]),
];

/// The metrics of work queues.
pub const OF_QUEUES: &[PublishedMetric] = &[
    published("workqueue_adds_total", "counter", &["name"]),
    published("workqueue_depth", "gauge", &["name"]),
    published("workqueue_longest_running_processor_seconds", "gauge", &["name"]),
    published("workqueue_queue_duration_seconds", "histogram", &["name"]),
    published("workqueue_retries_total", "counter", &["name"]),
    published("workqueue_unfinished_work_seconds", "gauge", &["name"]),
    published("workqueue_work_duration_seconds", "histogram", &["name"]),
];

/// Asserts that a metrics page has these metrics, with upstream's type and labels.
///
/// # Panics
///
/// Panics if one is missing or differs.
pub fn assert_published<'a>(text: &str, wanted: impl IntoIterator<Item = &'a PublishedMetric>) {
    let lines = BTreeSet::from_iter(text.lines());
    for PublishedMetric { name, kind, labels } in wanted {
        assert!(lines.contains(&*format!("# TYPE {name} {kind}")), "{name} {kind}: {text}");
        let wanted: BTreeSet<&str> = labels.iter().copied().collect();
        assert_eq!(labels_of(text, name), wanted, "{name}: {text}");
    }
}

/// Returns the names of a metric's labels, without the bounds of a histogram.
fn labels_of<'a>(text: &'a str, name: &str) -> BTreeSet<&'a str> {
    let own = |line: &&str| {
        let end = line.find(['{', ' ']).unwrap_or(line.len());
        line[..end].strip_prefix(name).is_some_and(|part| ["", "_bucket", "_sum"].contains(&part))
    };
    let sets = text.lines().filter(own).filter_map(|line| line.split_once('{'));
    let mut labels = BTreeSet::new();
    for (_, set) in sets {
        // A value may contain every character, with quotation marks and backslashes escaped.
        let (mut in_value, mut escaped, mut start) = (false, false, 0);
        for (at, c) in set.char_indices() {
            match c {
                _ if escaped => escaped = false,
                '\\' if in_value => escaped = true,
                '"' => in_value = !in_value,
                '=' if !in_value => {
                    let _ = labels.insert(&set[start..at]);
                }
                ',' if !in_value => start = at + 1,
                '}' if !in_value => break,
                _ => {}
            }
        }
    }
    labels.remove("le");
    labels
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# TYPE a_seconds histogram\na_seconds_bucket{x=\"},y=\\\"\",z=\"\",le=\"1\"} 1\n\
                        a_seconds_sum{x=\"\",z=\"\"} 1\n";

    #[test]
    fn accepts_hostile_values() {
        assert_published(PAGE, &[published("a_seconds", "histogram", &["z", "x"])]);
    }

    #[test]
    #[should_panic(expected = "a_seconds")]
    fn rejects_other_labels() {
        assert_published(PAGE, &[published("a_seconds", "histogram", &["x", "y"])]);
    }

    #[test]
    #[should_panic(expected = "a_seconds gauge")]
    fn rejects_other_type() {
        assert_published(PAGE, &[published("a_seconds", "gauge", &["x", "z"])]);
    }
}
