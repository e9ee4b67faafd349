//! Parses the kubelets' metrics and computes usage from two points. Pure functions.

use std::collections::{BTreeMap, HashMap};

/// The interval between two scrapes, as metrics-server's default.
pub(crate) const RESOLUTION_MS: i64 = 15_000;
/// The age below which a container's usage is not reported.
const YOUNGEST_MS: i64 = 10_000;

/// The cumulative usage at a point in time. All times are in milliseconds since the epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Point {
    pub(crate) at: i64,
    /// CPU time, in seconds.
    pub(crate) cpu: f64,
    /// The working set, in bytes.
    pub(crate) memory: f64,
    /// The start of the container; zero for a node.
    pub(crate) started: i64,
}

/// A Pod's containers by name.
pub(crate) type Containers = BTreeMap<String, Point>;
/// Pods by namespace and name.
type Pods = HashMap<(String, String), Containers>;

/// The metrics of one kubelet.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct KubeletMetrics {
    pub(crate) node: Option<Point>,
    pub(crate) pods: Pods,
}

/// The usage between two points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResourceUsage {
    pub(crate) nanocores: u64,
    pub(crate) bytes: u64,
    pub(crate) at: i64,
    /// The time between the points, in milliseconds.
    pub(crate) window: i64,
}

/// The values of a subject while its lines are read.
#[derive(Default)]
struct Partial {
    cpu: Option<(f64, i64)>,
    memory: Option<f64>,
    started: f64,
}

impl Partial {
    fn take(&mut self, metric: &str, value: f64, at: i64) {
        match metric {
            "cpu_usage_seconds_total" => self.cpu = Some((value, at)),
            "memory_working_set_bytes" => self.memory = Some(value),
            "start_time_seconds" => self.started = value,
            _ => {}
        }
    }

    fn point(&self) -> Option<Point> {
        let (cpu, at) = self.cpu?;
        let started = (self.started * 1e3) as i64;
        Some(Point { at, cpu, memory: self.memory?, started })
    }
}

/// Parses the text format. `now` is the default timestamp. Skips Pods with an incomplete container and bad lines.
pub(crate) fn read(text: &str, now: i64) -> KubeletMetrics {
    let mut node = Partial::default();
    let mut pods: HashMap<(String, String), BTreeMap<String, Partial>> = HashMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let Some(Sample { name, labels, value, at }) = sample(line) else { continue };
        let at = at.unwrap_or(now);
        if let Some(metric) = name.strip_prefix("node_") {
            node.take(metric, value, at);
        } else if let Some(metric) = name.strip_prefix("container_") {
            let of = |key: &str| {
                labels.iter().find(|(name, _)| *name == key).map(|(_, value)| value.clone())
            };
            let (Some(namespace), Some(pod), Some(container)) =
                (of("namespace"), of("pod"), of("container"))
            else {
                continue;
            };
            let pod = pods.entry((namespace, pod)).or_default();
            pod.entry(container).or_default().take(metric, value, at);
        }
    }
    let whole = |containers: BTreeMap<String, Partial>| -> Option<Containers> {
        containers.into_iter().map(|(name, partial)| Some((name, partial.point()?))).collect()
    };
    let pods = pods.into_iter().filter_map(|(pod, containers)| Some((pod, whole(containers)?)));
    KubeletMetrics { node: node.point(), pods: pods.collect() }
}

/// A line of the text format.
struct Sample<'a> {
    name: &'a str,
    labels: Vec<(&'a str, String)>,
    value: f64,
    /// The timestamp, if the line has one.
    at: Option<i64>,
}

/// Parses a sample: `name{label="value"} 1.5 1700000000000`.
fn sample(line: &str) -> Option<Sample<'_>> {
    let end = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at(end);
    let mut labels = Vec::new();
    if let Some(mut inside) = rest.strip_prefix('{') {
        loop {
            inside = inside.trim_start_matches([',', ' ']);
            if let Some(after) = inside.strip_prefix('}') {
                rest = after;
                break;
            }
            let (label, quoted) = inside.split_once("=\"")?;
            let (value, after) = quoted_value(quoted)?;
            labels.push((label, value));
            inside = after;
        }
    }
    let mut words = rest.split_whitespace();
    let value =
        words.next()?.parse().ok().filter(|value: &f64| value.is_finite() && *value >= 0.0)?;
    let at = words.next().map(str::parse).transpose().ok()?;
    Some(Sample { name, labels, value, at })
}

/// Parses a value up to its closing quote, and returns it with the rest.
fn quoted_value(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, text.get(at + 1..)?)),
            '\\' => match chars.next()?.1 {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            c => value.push(c),
        }
    }
    None
}

/// The last two scrapes of a node. The earlier one only has the points that the later one can be compared with.
#[derive(Clone, Debug, Default)]
pub(crate) struct Node {
    last: KubeletMetrics,
    before: KubeletMetrics,
}

impl Node {
    /// Stores a new scrape.
    pub(crate) fn store(&mut self, now: KubeletMetrics) {
        let mut before = KubeletMetrics::default();
        if let Some(point) = &now.node {
            before.node = earlier(point, self.last.node.as_ref(), self.before.node.as_ref());
        }
        for (pod, containers) in &now.pods {
            let of = |scraped: &Self, last: bool, name: &str| {
                let scraped = if last { &scraped.last } else { &scraped.before };
                scraped.pods.get(pod).and_then(|containers| containers.get(name)).copied()
            };
            let points = containers.iter().filter_map(|(name, point)| {
                let (last, first) = (of(self, true, name), of(self, false, name));
                Some((name.clone(), earlier(point, last.as_ref(), first.as_ref())?))
            });
            before.pods.insert(pod.clone(), points.collect());
        }
        *self = Self { last: now, before };
    }

    pub(crate) fn used(&self) -> Option<ResourceUsage> {
        used(self.last.node.as_ref()?, self.before.node.as_ref()?)
    }

    /// Returns the usage of a Pod's containers; `None` unless it is known for each of them.
    pub(crate) fn pod(&self, namespace: &str, name: &str) -> Option<Vec<(String, ResourceUsage)>> {
        let key = (namespace.to_owned(), name.to_owned());
        let (last, before) = (self.last.pods.get(&key)?, self.before.pods.get(&key)?);
        let of = |(name, point): (&String, &Point)| {
            Some((name.clone(), used(point, before.get(name)?)?))
        };
        last.iter().map(of).collect()
    }
}

/// Returns the point to compare a new one with: the last one of the same run of the container. For a young container it
/// is its start, with no usage.
fn earlier(new: &Point, last: Option<&Point>, before: Option<&Point>) -> Option<Point> {
    let age = new.at - new.started;
    if new.started > 0 && (YOUNGEST_MS..RESOLUTION_MS).contains(&age) {
        return Some(Point { at: new.started, cpu: 0.0, ..*new });
    }
    let last = last.filter(|last| new.started < last.at)?;
    if new.at > last.at {
        return Some(*last);
    }
    // The kubelet returned the same point again.
    before.filter(|before| before.at < new.at).copied()
}

/// Returns `None` if no time has passed or the usage has decreased: then the points are from different runs.
fn used(last: &Point, before: &Point) -> Option<ResourceUsage> {
    let window = last.at.checked_sub(before.at).filter(|window| *window > 0)?;
    let cpu = last.cpu - before.cpu;
    let nanocores = (cpu >= 0.0).then(|| (cpu * 1e12 / window as f64).round() as u64)?;
    Some(ResourceUsage { nanocores, bytes: last.memory as u64, at: last.at, window })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# HELP node_cpu_usage_seconds_total [STABLE] x\nnode_cpu_usage_seconds_total 10.5 1000000\n\
        node_memory_working_set_bytes 1.5e+09 1000000\n\
        container_cpu_usage_seconds_total{container=\"app\",namespace=\"default\",pod=\"web\"} 2 1000000\n\
        container_memory_working_set_bytes{container=\"app\",namespace=\"default\",pod=\"web\"} 4096 1000000\n\
        container_start_time_seconds{container=\"app\",namespace=\"default\",pod=\"web\"} 500\n\
        container_cpu_usage_seconds_total{container=\"a\",namespace=\"default\",pod=\"half\"} 1 1000000\n";

    fn key(pod: &str) -> (String, String) {
        ("default".to_owned(), pod.to_owned())
    }

    #[test]
    fn parses_kubelet_metrics_and_skips_incomplete_pods() {
        let scraped = read(TEXT, 5);
        assert_eq!(
            scraped.node,
            Some(Point { at: 1_000_000, cpu: 10.5, memory: 1.5e9, started: 0 })
        );
        let app = Point { at: 1_000_000, cpu: 2.0, memory: 4096.0, started: 500_000 };
        assert_eq!(scraped.pods[&key("web")]["app"], app);
        assert!(!scraped.pods.contains_key(&key("half")));
        assert_eq!(
            read("node_cpu_usage_seconds_total 1\nnode_memory_working_set_bytes 1", 5)
                .node
                .map(|p| p.at),
            Some(5)
        );
    }

    #[test]
    fn skips_malformed_lines() {
        let quote = "container_cpu_usage_seconds_total{container=\"a\\\"}\\n\",namespace=\"n\",pod=\"p\"} 1 2\n";
        assert_eq!(sample(quote.trim()).unwrap().labels[0].1, "a\"}\n");
        for line in [
            "",
            "a",
            "a{",
            "a{b",
            "a{b=\"",
            "a{b=\"\\",
            "a{b=\"c\"",
            "a{b=\"c\"}",
            "a NaN",
            "a -1",
            "a 1 x",
            "a +Inf",
            "{} 1 99999999999999999999",
        ] {
            assert!(sample(line).is_none(), "{line}");
        }
        let seeds = [TEXT.as_bytes(), quote.as_bytes()];
        fuzz::fuzz(env!("CARGO_MANIFEST_DIR"), "resource", &seeds, |input| {
            let mut node = Node::default();
            let scraped = read(&String::from_utf8_lossy(input), 0);
            node.store(scraped.clone());
            node.store(scraped);
            node.used();
        });
    }

    fn point(at: i64, cpu: f64, started: i64) -> Point {
        Point { at, cpu, memory: 1024.0, started }
    }

    fn pod(point: Point) -> KubeletMetrics {
        let containers = Containers::from([("app".to_owned(), point)]);
        KubeletMetrics { node: None, pods: HashMap::from([(key("web"), containers)]) }
    }

    #[test]
    fn rate_needs_two_points_of_one_run() {
        let mut node = Node::default();
        node.store(pod(point(100_000, 1.0, 10_000)));
        assert_eq!(node.pod("default", "web"), None, "there is one point only");
        node.store(pod(point(110_000, 3.5, 10_000)));
        let used =
            ResourceUsage { nanocores: 250_000_000, bytes: 1024, at: 110_000, window: 10_000 };
        assert_eq!(node.pod("default", "web"), Some(vec![("app".to_owned(), used)]));
        // The same point again changes nothing.
        node.store(pod(point(110_000, 3.5, 10_000)));
        assert_eq!(node.pod("default", "web"), Some(vec![("app".to_owned(), used)]));
        // The container was restarted: the points of the earlier run do not count.
        node.store(pod(point(118_000, 0.5, 115_000)));
        assert_eq!(node.pod("default", "web"), None);
        // A young container is compared with its own start.
        node.store(pod(point(127_000, 2.4, 115_000)));
        let used =
            ResourceUsage { nanocores: 200_000_000, bytes: 1024, at: 127_000, window: 12_000 };
        assert_eq!(node.pod("default", "web"), Some(vec![("app".to_owned(), used)]));
        // A decreasing counter is rejected.
        node.store(pod(point(200_000, 0.1, 115_000)));
        assert_eq!(node.pod("default", "web"), None);
    }
}
