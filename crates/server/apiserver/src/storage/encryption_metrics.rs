//! The metrics of the encryption configuration, with upstream's names.

use std::sync::Arc;

use encryption::Encryption;
use telemetry::metrics::{Metrics, unix_seconds};

/// Shows the configuration in use and its reloads. `server` is the hash of this server's name.
pub(crate) fn follow(encryption: &Arc<Encryption>, metrics: &Metrics, server: String) {
    if encryption.digest().is_none() {
        return;
    }
    let name = |figure: &str| format!("apiserver_encryption_config_controller_{figure}");
    let labels = &["apiserver_id_hash", "status"];
    let reloads = metrics.counters(
        &name("automatic_reloads_total"),
        "Reloads of the encryption configuration, by status.",
        labels,
    );
    let times = metrics.gauges(
        &name("automatic_reload_last_timestamp_seconds"),
        "The time of the last reload of the encryption configuration, by status.",
        labels,
    );
    let info = metrics.gauges(
        &name("last_config_info"),
        "The encryption configuration in use, by its hash.",
        &["apiserver_id_hash", "hash"],
    );
    let encryption = encryption.clone();
    metrics.before_scrape(move || {
        info.reset();
        if let Some(digest) = encryption.digest() {
            info.with_label_values(&[&*server, &digest]).set(1.0);
        }
        let Some(outcomes) = encryption.outcomes() else { return };
        for (status, count, last) in [
            ("success", outcomes.successes, outcomes.last_success),
            ("failure", outcomes.failures, outcomes.last_failure),
        ] {
            let labels = &[&*server, status];
            let counter = reloads.with_label_values(labels);
            counter.inc_by(count.saturating_sub(counter.get()));
            if let Some(last) = last {
                times.with_label_values(labels).set(unix_seconds(last));
            }
        }
    });
}
