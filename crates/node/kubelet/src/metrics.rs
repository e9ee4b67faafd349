//! The kubelet's own metrics, with upstream's names. Its managers have more, in the same registry.

use std::{
    path::{Path, PathBuf},
    sync::atomic::Ordering,
    time::Duration,
};

use k8s_openapi::api::core::v1::{ContainerStatus, PodStatus};
use telemetry::metrics::{
    Gauge, Histogram, HistogramVec, IntCounter, IntCounterVec, Metrics, USUAL_BOUNDS, unix_seconds,
};
use tokio::time::Instant;

use crate::certificate::{RENEW_ERRORS, RenewErrors};

/// The metrics of the kubelet's loops.
pub(crate) struct KubeletMetrics {
    relists: Histogram,
    relist_intervals: Histogram,
    relisted_at: Gauge,
    evictions: IntCounterVec,
    syncs: HistogramVec,
    terminations: IntCounterVec,
    pub(crate) image_volumes: ImageVolumeMetrics,
}

/// The metrics of images that containers mount as volumes.
pub(crate) struct ImageVolumeMetrics {
    pub(crate) requested: IntCounter,
    pub(crate) succeeded: IntCounter,
    pub(crate) failed: IntCounter,
}

impl ImageVolumeMetrics {
    fn new(metrics: &Metrics) -> Self {
        Self {
            requested: metrics.counter(
                "kubelet_image_volume_requested_total",
                "Number of requested image volumes.",
            ),
            succeeded: metrics.counter(
                "kubelet_image_volume_mounted_succeed_total",
                "Number of successful image volume mounts.",
            ),
            failed: metrics.counter(
                "kubelet_image_volume_mounted_errors_total",
                "Number of failed image volume mounts.",
            ),
        }
    }

    /// Counts the image volumes of a container that the runtime has created or could not create.
    pub(crate) fn mounted(&self, volumes: usize, error: Option<&cri::Error>) {
        let counter = match error {
            None => &self.succeeded,
            Some(error) if error.message().contains(MOUNT_FAILED) => &self.failed,
            Some(_) => return,
        };
        counter.inc_by(volumes as u64);
    }
}

/// Returns one of the lists of containers in a Pod's status.
type StatusList = fn(&PodStatus) -> &Option<Vec<ContainerStatus>>;

/// The part of a runtime's message that names a failed mount of an image, by CRI's convention.
const MOUNT_FAILED: &str = "ImageVolumeMountFailed";

impl KubeletMetrics {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        Self {
            relists: metrics.histogram(
                "kubelet_pleg_relist_duration_seconds",
                "Duration in seconds for relisting pods in PLEG.",
                USUAL_BOUNDS,
            ),
            relist_intervals: metrics.histogram(
                "kubelet_pleg_relist_interval_seconds",
                "Interval in seconds between relisting in PLEG.",
                USUAL_BOUNDS,
            ),
            relisted_at: metrics.gauge(
                "kubelet_pleg_last_seen_seconds",
                "Timestamp in seconds when PLEG was last seen active.",
            ),
            evictions: metrics.counters(
                "kubelet_evictions",
                "Cumulative number of pod evictions by eviction signal",
                &["eviction_signal"],
            ),
            syncs: metrics.histograms(
                "kubelet_pod_worker_duration_seconds",
                "Duration in seconds to sync a single pod. Broken down by operation type: create, update, or sync",
                USUAL_BOUNDS,
                &["operation_type"],
            ),
            terminations: metrics.counters(
                "kubelet_terminated_containers_total",
                "Cumulative number of container terminations.",
                &["container_type", "exit_code", "reason"],
            ),
            image_volumes: ImageVolumeMetrics::new(metrics),
        }
    }

    /// Records a list of the runtime's Pods that began at `began`, and the time since the list before.
    pub(crate) fn relisted(&self, began: Instant, before: Option<Instant>) {
        self.relists.observe(began.elapsed().as_secs_f64());
        if let Some(before) = before {
            self.relist_intervals.observe((began - before).as_secs_f64());
        }
        self.relisted_at.set(unix_seconds(rt::now()));
    }

    /// Counts an evicted Pod.
    pub(crate) fn evicted(&self, signal: &str) {
        self.evictions.with_label_values(&[signal]).inc();
    }

    /// Counts the containers of a Pod that have ended since the status before.
    pub(crate) fn terminated(&self, before: &PodStatus, now: &PodStatus) {
        let lists: [(&str, StatusList); 3] = [
            ("init_container", |status| &status.init_container_statuses),
            ("container", |status| &status.container_statuses),
            ("ephemeral_container", |status| &status.ephemeral_container_statuses),
        ];
        let end = |container: &ContainerStatus| container.state.clone()?.terminated;
        for (kind, list) in lists {
            for container in list(now).iter().flatten() {
                let mut old = list(before).iter().flatten();
                let had_ended = old.any(|o| o.name == container.name && end(o).is_some());
                if let Some(ended) = end(container).filter(|_| !had_ended) {
                    let (code, reason) = (ended.exit_code.to_string(), ended.reason);
                    let labels = [kind, &code, reason.as_deref().unwrap_or_default()];
                    self.terminations.with_label_values(&labels).inc();
                }
            }
        }
    }

    /// Records the work on one Pod until it waits again.
    pub(crate) fn synced(&self, operation: &str, took: Duration) {
        self.syncs.with_label_values(&[operation]).observe(took.as_secs_f64());
    }
}

/// The files of the certificates that the kubelet presents.
pub(crate) struct CertificateFiles {
    /// The certificate that the kubelet authenticates with at the API server.
    pub(crate) client: PathBuf,
    /// The certificate of the kubelet's server.
    pub(crate) serving: PathBuf,
}

/// Shows how long the kubelet's certificates are valid, and how many renewals failed.
pub(crate) fn follow_certificates(metrics: &Metrics, files: CertificateFiles) {
    let name = |what: &str| format!("kubelet_certificate_manager_{what}");
    let ttl = "Gauge of the shortest TTL (time-to-live) of the Kubelet's";
    let client_ttl =
        metrics.gauge(&name("client_ttl_seconds"), &format!("{ttl} client certificate."));
    let serving_ttl =
        metrics.gauge(&name("server_ttl_seconds"), &format!("{ttl} serving certificate."));
    let client_errors = metrics
        .counter(&name("client_expiration_renew_errors"), "Counter of certificate renewal errors.");
    let serving_errors = metrics.counter(
        "kubelet_server_expiration_renew_errors",
        "Counter of certificate renewal errors.",
    );
    metrics.before_scrape(move || {
        // Upstream's value without a certificate is infinity.
        client_ttl.set(seconds_left(&files.client));
        serving_ttl.set(seconds_left(&files.serving));
        let RenewErrors { client, serving } = &RENEW_ERRORS;
        for (counter, errors) in [(&client_errors, client), (&serving_errors, serving)] {
            counter.inc_by(errors.load(Ordering::Relaxed).saturating_sub(counter.get()));
        }
    });
}

/// Returns the seconds until the certificate in a file expires, negative afterwards.
fn seconds_left(path: &Path) -> f64 {
    let end = pki::read_cert(path).and_then(|certificate| certificate.info());
    let end = end.map(|info| unix_seconds(info.not_after));
    end.map_or(f64::INFINITY, |end| end - unix_seconds(rt::now()))
}

#[cfg(test)]
mod tests {
    use testkit::metrics::{assert_published, published};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn measures_loops_and_certificates() {
        let registry = Metrics::default();
        let metrics = KubeletMetrics::new(&registry);
        let directory = tempfile::tempdir().unwrap();
        let name = vec![pki::AltName::dns("n")];
        let (certificate, _) = pki::self_signed("n", name, rt::now()).unwrap();
        let serving = directory.path().join("kubelet.crt");
        std::fs::write(&serving, certificate).unwrap();
        let files = CertificateFiles { client: directory.path().join("missing.pem"), serving };
        follow_certificates(&registry, files);
        let began = Instant::now();
        tokio::time::sleep(Duration::from_secs(2)).await;
        metrics.relisted(began, None);
        metrics.relisted(Instant::now(), Some(began));
        metrics.evicted("memory.available");
        metrics.image_volumes.requested.inc();
        metrics.image_volumes.mounted(2, None);
        metrics.synced("create", Duration::from_secs(3));
        let text = registry.text();
        assert_published(
            &text,
            &[
                published("kubelet_pleg_relist_duration_seconds", "histogram", &[]),
                published("kubelet_pleg_relist_interval_seconds", "histogram", &[]),
                published("kubelet_pleg_last_seen_seconds", "gauge", &[]),
                published("kubelet_evictions", "counter", &["eviction_signal"]),
                published("kubelet_pod_worker_duration_seconds", "histogram", &["operation_type"]),
                published("kubelet_certificate_manager_client_ttl_seconds", "gauge", &[]),
                published("kubelet_certificate_manager_server_ttl_seconds", "gauge", &[]),
                published(
                    "kubelet_certificate_manager_client_expiration_renew_errors",
                    "counter",
                    &[],
                ),
                published("kubelet_server_expiration_renew_errors", "counter", &[]),
                published("kubelet_image_volume_requested_total", "counter", &[]),
                published("kubelet_image_volume_mounted_succeed_total", "counter", &[]),
                published("kubelet_image_volume_mounted_errors_total", "counter", &[]),
            ],
        );
        for line in [
            "kubelet_pleg_relist_duration_seconds_sum 2\n",
            "kubelet_pleg_relist_interval_seconds_sum 2\n",
            "kubelet_evictions{eviction_signal=\"memory.available\"} 1\n",
            "kubelet_certificate_manager_client_ttl_seconds inf\n",
            "kubelet_image_volume_mounted_succeed_total 2\n",
            "kubelet_image_volume_mounted_errors_total 0\n",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        let prefix = "kubelet_certificate_manager_server_ttl_seconds ";
        let left = text.lines().find_map(|line| line.strip_prefix(prefix)).unwrap();
        let days = left.parse::<f64>().unwrap() / 86_400.0;
        assert!((364.0..366.1).contains(&days), "{days}");
    }
}
