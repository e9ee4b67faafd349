//! Prometheus metrics of the boot server.

use telemetry::metrics::{self, GaugeVec, IntCounter, IntCounterVec};

/// The counters and gauges that `/metrics` exports.
#[derive(Debug)]
pub struct Metrics {
    pub(crate) all: metrics::Metrics,
    /// DHCP offers sent.
    pub dhcp_offers: IntCounter,
    /// DHCP acknowledgements sent.
    pub dhcp_acks: IntCounter,
    /// DHCP refusals sent.
    pub dhcp_naks: IntCounter,
    /// Discovers dropped because too many probes were running.
    pub dhcp_dropped: IntCounter,
    /// Completed TFTP transfers.
    pub tftp_sent: IntCounter,
    /// Failed TFTP transfers.
    pub tftp_failed: IntCounter,
    /// Secrets served to templates.
    pub secrets_served: IntCounter,
    /// Secrets refused to templates.
    pub secrets_refused: IntCounter,
    /// Requests by endpoint and outcome.
    pub(crate) requests: IntCounterVec,
    /// Files being sent, by place (`assets`).
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
