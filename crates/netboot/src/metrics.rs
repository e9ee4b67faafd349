//! What has happened, counted for Prometheus.

use telemetry::metrics::{self, GaugeVec, IntCounter, IntCounterVec};

/// What DHCP, TFTP and secrets came to, as `/metrics` shows it.
#[derive(Debug)]
pub struct Metrics {
    pub(crate) all: metrics::Metrics,
    pub dhcp_offers: IntCounter,
    pub dhcp_acks: IntCounter,
    pub dhcp_naks: IntCounter,
    /// Discovers that came while too many were being answered.
    pub dhcp_dropped: IntCounter,
    pub tftp_sent: IntCounter,
    pub tftp_failed: IntCounter,
    pub secrets_served: IntCounter,
    pub secrets_refused: IntCounter,
    /// By endpoint and outcome.
    pub(crate) requests: IntCounterVec,
    /// Files being sent, by place.
    pub(crate) transfers: GaugeVec,
    /// Machines by stage.
    pub(crate) machines: GaugeVec,
}

impl Default for Metrics {
    fn default() -> Self {
        let all = metrics::Metrics::default();
        let counters = |name, help| {
            let counters = all.counters(name, help, &["outcome"]);
            move |outcome: &str| counters.with_label_values(&[outcome])
        };
        let dhcp = counters("netboot_dhcp_total", "DHCP requests by what became of them.");
        let tftp =
            counters("netboot_tftp_transfers_total", "TFTP transfers by what became of them.");
        let secrets = counters("netboot_secrets_total", "Secrets asked for by templates.");
        Self {
            dhcp_offers: dhcp("offer"),
            dhcp_acks: dhcp("ack"),
            dhcp_naks: dhcp("nak"),
            dhcp_dropped: dhcp("dropped"),
            tftp_sent: tftp("sent"),
            tftp_failed: tftp("failed"),
            secrets_served: secrets("served"),
            secrets_refused: secrets("refused"),
            requests: all.counters(
                "netboot_requests_total",
                "Requests by endpoint and outcome.",
                &["endpoint", "outcome"],
            ),
            transfers: all.gauges("netboot_transfers", "Files being sent.", &["place"]),
            machines: all.gauges(
                "netboot_machines",
                "Machines by the stage that they are at.",
                &["stage"],
            ),
            all,
        }
    }
}
