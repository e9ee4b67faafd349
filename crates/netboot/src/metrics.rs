//! What has happened, counted for Prometheus.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that only grows, from nought at the start of the process.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Counts one more.
    pub fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// How many have been counted.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What DHCP, TFTP and secrets came to, as `/metrics` shows it.
#[derive(Debug, Default)]
pub struct Metrics {
    pub dhcp_offers: Counter,
    pub dhcp_acks: Counter,
    pub dhcp_naks: Counter,
    /// Discovers that came while too many were being answered.
    pub dhcp_dropped: Counter,
    pub tftp_sent: Counter,
    pub tftp_failed: Counter,
    pub secrets_served: Counter,
    pub secrets_refused: Counter,
}

/// One family of a counter: its name, its help, and its values by label.
pub(crate) fn family(
    out: &mut String,
    name: &str,
    kind: &str,
    help: &str,
    values: impl IntoIterator<Item = (String, u64)>,
) {
    out.push_str(&format!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
    for (labels, value) in values {
        out.push_str(&format!("{name}{{{labels}}} {value}\n"));
    }
}

impl Metrics {
    pub(crate) fn write(&self, out: &mut String) {
        let of = |label: &str, pairs: &[(&str, &Counter)]| -> Vec<(String, u64)> {
            let line =
                |(name, counter): &(&str, &Counter)| (format!("{label}=\"{name}\""), counter.get());
            pairs.iter().map(line).collect()
        };
        let replies = [
            ("offer", &self.dhcp_offers),
            ("ack", &self.dhcp_acks),
            ("nak", &self.dhcp_naks),
            ("dropped", &self.dhcp_dropped),
        ];
        let help = "DHCP requests by what became of them.";
        family(out, "netboot_dhcp_total", "counter", help, of("outcome", &replies));
        let transfers = [("sent", &self.tftp_sent), ("failed", &self.tftp_failed)];
        let help = "TFTP transfers by what became of them.";
        family(out, "netboot_tftp_transfers_total", "counter", help, of("outcome", &transfers));
        let secrets = [("served", &self.secrets_served), ("refused", &self.secrets_refused)];
        let help = "Secrets asked for by templates.";
        family(out, "netboot_secrets_total", "counter", help, of("outcome", &secrets));
    }
}
