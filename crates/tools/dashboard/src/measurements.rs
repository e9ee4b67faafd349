//! An hour of measurements, from the API server's metrics.

use std::{collections::VecDeque, time::Duration};

use client::Client;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::api;

const PERIOD: Duration = Duration::from_secs(15);
/// The time that is kept.
pub(crate) const SPAN: Duration = Duration::from_secs(3600);

/// The sums of the metrics that are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Totals {
    /// The finished requests, without those that last on purpose.
    requests: f64,
    /// Their total duration in seconds.
    seconds: f64,
    /// The Pods that were bound to nodes.
    bindings: f64,
    /// The memory of the API server's process in bytes.
    memory: f64,
}

impl Totals {
    /// Sums up a page of metrics in the Prometheus text format.
    fn of(text: &str) -> Self {
        let mut totals = Self::default();
        for line in text.lines() {
            let Some((name, value)) = line.rsplit_once(' ') else { continue };
            let Ok(value) = value.parse::<f64>() else { continue };
            let lasts =
                ["verb=\"WATCH\"", "verb=\"CONNECT\""].iter().any(|verb| name.contains(verb));
            match name.split('{').next().unwrap_or_default() {
                "apiserver_request_duration_seconds_count" if !lasts => totals.requests += value,
                "apiserver_request_duration_seconds_sum" if !lasts => totals.seconds += value,
                "apiserver_request_total"
                    if name.contains("subresource=\"binding\"")
                        && name.contains("code=\"201\"") =>
                {
                    totals.bindings += value;
                }
                "process_resident_memory_bytes" => totals.memory = value,
                _ => {}
            }
        }
        totals
    }
}

/// The points of the plots: age in seconds and value, the oldest first.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Series {
    /// The mean duration of requests in seconds.
    pub(crate) latency: Vec<(f64, f64)>,
    /// The requests per second.
    pub(crate) requests: Vec<(f64, f64)>,
    /// The Pods per second that were bound to nodes.
    pub(crate) bindings: Vec<(f64, f64)>,
    /// The memory of the API server's process in bytes.
    pub(crate) memory: Vec<(f64, f64)>,
}

/// The samples, and the error of the last attempt.
#[derive(Default)]
pub(crate) struct Measurements {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    samples: VecDeque<(Instant, Totals)>,
    error: Option<String>,
}

impl Measurements {
    fn add(&self, at: Instant, totals: Totals) {
        let mut state = self.state.lock();
        state.error = None;
        while state.samples.front().is_some_and(|(earliest, _)| at - *earliest > SPAN) {
            state.samples.pop_front();
        }
        state.samples.push_back((at, totals));
    }

    /// Returns the error of the last attempt, if it failed.
    pub(crate) fn error(&self) -> Option<String> {
        self.state.lock().error.clone()
    }

    /// Returns the rates between samples. A restart of the API server resets its counters, so it gives no rate.
    pub(crate) fn series(&self, now: Instant) -> Series {
        let state = self.state.lock();
        let mut series = Series::default();
        for ((earlier, before), (at, after)) in
            state.samples.iter().zip(state.samples.iter().skip(1))
        {
            let (age, seconds) = ((now - *at).as_secs_f64(), (*at - *earlier).as_secs_f64());
            series.memory.push((age, after.memory));
            let requests = after.requests - before.requests;
            if requests < 0.0 || seconds <= 0.0 {
                continue;
            }
            series.requests.push((age, requests / seconds));
            series.bindings.push((age, (after.bindings - before.bindings).max(0.0) / seconds));
            if requests > 0.0 {
                series.latency.push((age, (after.seconds - before.seconds) / requests));
            }
        }
        series
    }
}

/// Samples the API server's metrics, until the task ends.
pub(crate) async fn sample(client: Client, into: std::sync::Arc<Measurements>) {
    loop {
        match api::metrics(&client).await {
            Ok(text) => into.add(Instant::now(), Totals::of(&text)),
            Err(error) => into.state.lock().error = Some(error.message()),
        }
        tokio::time::sleep(PERIOD).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# HELP apiserver_request_total requests
apiserver_request_duration_seconds_sum{resource=\"pods\",verb=\"GET\"} 1.5
apiserver_request_duration_seconds_count{resource=\"pods\",verb=\"GET\"} 30
apiserver_request_duration_seconds_sum{resource=\"pods\",verb=\"WATCH\"} 3000
apiserver_request_duration_seconds_count{resource=\"pods\",verb=\"WATCH\"} 10
apiserver_request_total{code=\"201\",resource=\"pods\",subresource=\"binding\",verb=\"POST\"} 4
apiserver_request_total{code=\"409\",resource=\"pods\",subresource=\"binding\",verb=\"POST\"} 9
process_resident_memory_bytes 4.2e+07
nonsense
";

    #[test]
    fn sums_requests_that_do_not_last() {
        let totals = Totals { requests: 30.0, seconds: 1.5, bindings: 4.0, memory: 4.2e7 };
        assert_eq!(Totals::of(TEXT), totals);
        assert_eq!(Totals::of(""), Totals::default());
    }

    #[tokio::test(start_paused = true)]
    async fn computes_rates_and_forgets_what_is_older_than_an_hour() {
        let measurements = Measurements::default();
        let start = Instant::now();
        let totals =
            |requests: f64| Totals { requests, seconds: requests / 10.0, ..Totals::default() };
        measurements.add(start, totals(100.0));
        measurements.add(start + PERIOD, totals(130.0));
        // The API server starts again.
        measurements.add(start + 2 * PERIOD, totals(10.0));
        let series = measurements.series(start + 2 * PERIOD);
        assert_eq!(series.requests, [(15.0, 2.0)]);
        assert_eq!(series.latency, [(15.0, 0.1)]);
        assert_eq!(series.memory.len(), 2);
        for n in 3..1000 {
            measurements.add(start + n * PERIOD, totals(f64::from(n)));
        }
        let series = measurements.series(start + 999 * PERIOD);
        assert!(series.memory.iter().all(|(age, _)| *age <= SPAN.as_secs_f64()));
        assert_eq!(series.memory.len() as u64, SPAN.as_secs() / PERIOD.as_secs());
    }
}
