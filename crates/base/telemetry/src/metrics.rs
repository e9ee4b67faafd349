//! The metrics of a component, with its upstream peer's names, and their page.

use std::{
    fmt, fs,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use parking_lot::Mutex;
use prometheus::{
    Counter, Encoder as _, HistogramOpts, Opts, Registry, TextEncoder, core::Collector,
};
pub use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec,
};

use crate::{
    exposition::{Exposition, Labels, Metric, counter},
    stability::stability,
};

/// The default bounds of Prometheus' libraries for histograms of seconds.
pub const USUAL_BOUNDS: &[f64; 11] = prometheus::DEFAULT_BUCKETS;

/// The content type of metrics pages.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

const PANICS: Metric = counter("windlass_panics_total", "Panics that were caught, by worker.");

/// The metrics of one component. Each component of a process has its own registry and page.
///
/// A metric is created once, at the start of its component. Values of labels must come from a small set: labels taken
/// from requests would let clients fill the memory.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Registry,
    process: Process,
    /// The number of metrics by stability level; `None` for programs that are not components of Kubernetes.
    registered: Option<IntCounterVec>,
    /// The states of feature gates; `None` for programs that are not components of Kubernetes.
    features: Option<GaugeVec>,
    refreshers: Refreshers,
}

/// The functions that update values before each scrape.
#[derive(Clone, Default)]
struct Refreshers(Arc<Mutex<Vec<Refresher>>>);

type Refresher = Arc<dyn Fn() + Send + Sync>;

impl fmt::Debug for Refreshers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Refreshers")
    }
}

impl Refreshers {
    fn all(&self) -> Vec<Refresher> {
        self.0.lock().clone()
    }
}

impl Default for Metrics {
    fn default() -> Self {
        let registry = Registry::new();
        Self {
            process: Process::new(&registry),
            registry,
            registered: None,
            features: None,
            refreshers: Refreshers::default(),
        }
    }
}

impl Metrics {
    /// Creates the metrics of a component of Kubernetes, with those that every component has: its build, its features,
    /// and the number of its metrics by stability level.
    pub fn of_component(version: &str) -> Self {
        let mut metrics = Self::default();
        let registered = metrics.counters(
            "registered_metrics_total",
            "The count of registered metrics broken by stability level and deprecation version.",
            &["stability_level", "deprecated_version"],
        );
        registered.with_label_values(&[stability("registered_metrics_total"), ""]).inc();
        metrics.registered = Some(registered);
        metrics.counter("disabled_metrics_total", "The count of disabled metrics.");
        metrics.counter("hidden_metrics_total", "The count of hidden metrics.");
        let features = metrics.gauges(
            "kubernetes_feature_enabled",
            "This metric records the data about the stage and enablement of a k8s feature.",
            &["name", "stage"],
        );
        metrics.features = Some(features);
        // The features of alpha and beta cannot be switched on as a group.
        metrics.set_feature("AllAlpha", "ALPHA", false);
        metrics.set_feature("AllBeta", "BETA", false);
        let build = metrics.gauges(
            "kubernetes_build_info",
            "A metric with a constant '1' value labeled by major, minor and git version of Kubernetes.",
            &["git_version", "major", "minor"],
        );
        let mut parts = version.trim_start_matches('v').split('.');
        let (major, minor) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        build.with_label_values(&[version, major, minor]).set(1.0);
        metrics
    }

    /// Sets the state of a feature gate in `kubernetes_feature_enabled`, if these are the metrics of a component.
    /// `stage` is upstream's label.
    pub fn set_feature(&self, name: &str, stage: &str, is_enabled: bool) {
        if let Some(features) = &self.features {
            features.with_label_values(&[name, stage]).set(f64::from(u8::from(is_enabled)));
        }
    }

    /// Calls `refresh` before each scrape, to set values that are measured then.
    pub fn before_scrape(&self, refresh: impl Fn() + Send + Sync + 'static) {
        let mut all = self.refreshers.0.lock();
        all.push(Arc::new(refresh));
    }

    /// Creates a counter. Its name ends with `_total`, unless upstream's does not.
    pub fn counter(&self, name: &str, help: &str) -> IntCounter {
        self.add(name, IntCounter::new(name, help))
    }

    /// Creates a counter for each combination of label values.
    pub fn counters(&self, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
        self.add(name, IntCounterVec::new(Opts::new(name, help), labels))
    }

    /// Creates a gauge.
    pub fn gauge(&self, name: &str, help: &str) -> Gauge {
        self.add(name, Gauge::new(name, help))
    }

    /// Creates a gauge for each combination of label values.
    pub fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> GaugeVec {
        self.add(name, GaugeVec::new(Opts::new(name, help), labels))
    }

    /// Creates a histogram with these upper bounds.
    pub fn histogram(&self, name: &str, help: &str, bounds: &[f64]) -> Histogram {
        let options = HistogramOpts::new(name, help).buckets(bounds.to_vec());
        self.add(name, Histogram::with_opts(options))
    }

    /// Creates a histogram with these upper bounds for each combination of label values.
    pub fn histograms(
        &self,
        name: &str,
        help: &str,
        bounds: &[f64],
        labels: &[&str],
    ) -> HistogramVec {
        let options = HistogramOpts::new(name, help).buckets(bounds.to_vec());
        self.add(name, HistogramVec::new(options, labels))
    }

    fn add<M: Collector + Clone + 'static>(&self, name: &str, made: prometheus::Result<M>) -> M {
        if let Some(registered) = &self.registered {
            registered.with_label_values(&[stability(name), ""]).inc();
        }
        add(&self.registry, name, made)
    }

    /// Returns the page in the text format. It ends with the numbers of caught panics in the process.
    pub fn text(&self) -> String {
        self.process.read();
        self.refreshers.all().iter().for_each(|refresh| refresh());
        let mut text = Vec::new();
        if let Err(error) = TextEncoder::new().encode(&self.registry.gather(), &mut text) {
            // Only a metric without values cannot be encoded, and such metrics are not gathered.
            tracing::error!(%error, "failed to encode the metrics");
        }
        let mut own = Exposition::default();
        for (worker, count) in rt::panics() {
            own.add(PANICS, &Labels::of(&[("worker", worker)]), count as f64, None);
        }
        String::from_utf8_lossy(&text).into_owned() + &own.text()
    }
}

/// Returns `count` bounds of a histogram, each twice the one before.
pub fn doubling(first: f64, count: usize) -> Vec<f64> {
    std::iter::successors(Some(first), |bound| Some(bound * 2.0)).take(count).collect()
}

/// Returns a time in seconds since 1970.
pub fn unix_seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

fn add<M: Collector + Clone + 'static>(
    registry: &Registry,
    name: &str,
    made: prometheus::Result<M>,
) -> M {
    // Names and labels are constants: an invalid or duplicate one fails the component's first test.
    let added = made.and_then(|metric| {
        registry.register(Box::new(metric.clone()))?;
        Ok(metric)
    });
    added.unwrap_or_else(|error| panic!("the metric {name}: {error}"))
}

/// Metrics of the process from the kernel, with the names of Prometheus' client libraries.
#[derive(Clone, Debug)]
struct Process {
    cpu: Counter,
    resident: Gauge,
    virtual_size: Gauge,
    open_files: Gauge,
}

impl Process {
    fn new(registry: &Registry) -> Self {
        let gauge = |name, help| add(registry, name, Gauge::new(name, help));
        let name = "process_cpu_seconds_total";
        let cpu = Counter::new(name, "Processor time that the process has taken.");
        let started =
            gauge("process_start_time_seconds", "When it started, in seconds since 1970.");
        started.set(unix_seconds(rt::now()));
        Self {
            cpu: add(registry, name, cpu),
            resident: gauge("process_resident_memory_bytes", "Memory that the process holds."),
            virtual_size: gauge("process_virtual_memory_bytes", "Its address space."),
            open_files: gauge("process_open_fds", "Files that it has open."),
        }
    }

    /// Updates the values. Those that cannot be read keep their previous value.
    fn read(&self) {
        if let Ok(open) = fs::read_dir("/proc/self/fd") {
            self.open_files.set(open.count() as f64);
        }
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        for (line, gauge) in [("VmRSS:", &self.resident), ("VmSize:", &self.virtual_size)] {
            let found = status.lines().find_map(|text| text.strip_prefix(line));
            let kilobytes = found.and_then(|text| text.trim().strip_suffix("kB"));
            if let Some(kilobytes) = kilobytes.and_then(|text| text.trim().parse::<f64>().ok()) {
                gauge.set(kilobytes * 1024.0);
            }
        }
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        if let Some(seconds) = cpu_seconds(&stat) {
            self.cpu.inc_by((seconds - self.cpu.get()).max(0.0));
        }
    }
}

/// Parses the processor time in `/proc/PID/stat`: fields 14 and 15, in hundredths of a second. The second field is the
/// program's name, which may contain spaces and parentheses.
fn cpu_seconds(stat: &str) -> Option<f64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut times = rest.split_whitespace().skip(11);
    let mut next = || times.next()?.parse::<f64>().ok();
    Some((next()? + next()?) / 100.0)
}

#[cfg(test)]
mod tests {
    use super::{Metrics, cpu_seconds};

    #[test]
    fn parses_processor_time_after_any_name() {
        let stat = "1 (a) b 9) S 1 1 1 0 -1 4194560 1 2 3 4 150 50 7 8 20 0 1 0 5 1000 20";
        assert_eq!(cpu_seconds(stat), Some(2.0));
        assert_eq!(cpu_seconds("1 (a"), None);
    }

    #[test]
    fn encodes_text_format() {
        let metrics = Metrics::default();
        let asked = metrics.counters("asked_total", "What was asked.", &["what"]);
        let took = metrics.histogram("took_seconds", "How long it took.", &[0.5, 1.0]);
        metrics.gauge("open", "What is open.").set(2.5);
        asked.with_label_values(&["a \"name\"\n"]).inc();
        took.observe(0.7);
        let text = metrics.text();
        let expected = "# HELP asked_total What was asked.\n# TYPE asked_total counter\n\
                        asked_total{what=\"a \\\"name\\\"\\n\"} 1\n\
                        # HELP open What is open.\n# TYPE open gauge\nopen 2.5\n\
                        # HELP took_seconds How long it took.\n# TYPE took_seconds histogram\n\
                        took_seconds_bucket{le=\"0.5\"} 0\ntook_seconds_bucket{le=\"1\"} 1\n\
                        took_seconds_bucket{le=\"+Inf\"} 1\ntook_seconds_sum 0.7\ntook_seconds_count 1\n";
        let own: Vec<&str> = text.lines().filter(|line| !line.contains("process_")).collect();
        assert!((own.join("\n") + "\n").starts_with(expected), "{text}");
        for name in ["cpu_seconds_total", "resident_memory_bytes", "open_fds", "start_time_seconds"]
        {
            let value =
                text.lines().find_map(|line| line.strip_prefix(&format!("process_{name} ")));
            assert!(value.is_some_and(|value| value.parse::<f64>().is_ok()), "{name}: {text}");
        }
        let _ = rt::catch_sync("a test of metrics", "x", || -> () { panic!("on purpose") });
        let line = "windlass_panics_total{worker=\"a test of metrics\"} 1\n";
        assert!(metrics.text().ends_with(line), "{}", metrics.text());
    }

    #[test]
    fn counts_metrics_by_stability_and_refreshes_before_scrape() {
        let metrics = Metrics::of_component("v1.36.2");
        let pending = metrics.gauges("scheduler_pending_pods", "Pending Pods.", &["queue"]);
        let before = metrics.clone();
        metrics.before_scrape(move || pending.with_label_values(&["active"]).inc());
        for (scrape, metrics) in [metrics, before].iter().enumerate() {
            let text = metrics.text();
            let pending = format!("scheduler_pending_pods{{queue=\"active\"}} {}\n", scrape + 1);
            for line in [
                pending.as_str(),
                "registered_metrics_total{deprecated_version=\"\",stability_level=\"STABLE\"} 1\n",
                "registered_metrics_total{deprecated_version=\"\",stability_level=\"BETA\"} 5\n",
                "disabled_metrics_total 0\n",
                "hidden_metrics_total 0\n",
                "kubernetes_feature_enabled{name=\"AllAlpha\",stage=\"ALPHA\"} 0\n",
                "kubernetes_build_info{git_version=\"v1.36.2\",major=\"1\",minor=\"36\"} 1\n",
            ] {
                assert!(text.contains(line), "{line}: {text}");
            }
        }
    }

    #[test]
    #[should_panic(expected = "the metric asked_total")]
    fn panics_on_duplicate_name() {
        let metrics = Metrics::default();
        metrics.counter("asked_total", "What was asked.");
        metrics.counter("asked_total", "What was asked.");
    }
}
