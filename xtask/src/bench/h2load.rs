//! Generates load with h2load, over TLS and HTTP/2.

use std::{fs, path::Path, process::Command};

use crate::{
    error::Result,
    file::read,
    run::{output, program},
};

/// A number of identical requests.
#[derive(Clone)]
pub(super) struct Load<'a> {
    pub(super) url: String,
    pub(super) requests: u32,
    pub(super) connections: u32,
    /// The number of concurrent requests on each connection.
    pub(super) streams: u32,
    /// The body to post; `None` to read the URL.
    pub(super) body: Option<&'a Path>,
    /// `true` if the body is a merge patch.
    pub(super) patch: bool,
    pub(super) gzip: bool,
    /// The requests per second; `None` for as many as possible.
    pub(super) rate: Option<u32>,
    /// The log file of the requests, which [`records`] reads.
    pub(super) log: Option<&'a Path>,
    /// A file of URLs, one a line, that are requested in turn instead of `url`. All are of one server.
    pub(super) urls: Option<&'a Path>,
}

/// The time of a request and the duration until its response.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Record {
    /// The time in microseconds since 1970.
    pub(super) sent: u64,
    pub(super) micros: u64,
}

/// Parses the log of a load, in the order in which the requests ended.
pub(super) fn records(log: &Path) -> Result<Vec<Record>> {
    read(log)?
        .lines()
        .map(|line| {
            let mut columns = line.split('\t');
            let sent = columns.next()?.parse().ok()?;
            Some(Record { sent, micros: columns.nth(1)?.parse().ok()? })
        })
        .collect::<Option<_>>()
        .ok_or_else(|| format!("{} is not a log of h2load", log.display()).into())
}

/// Returns the 50th and the 99th percentile, in thousandths.
pub(super) fn percentiles(mut values: Vec<u64>) -> (f64, f64) {
    values.sort_unstable();
    let at = |share: f64| {
        let index = (values.len() as f64 * share) as usize;
        values.get(index).or(values.last()).map_or(0.0, |value| *value as f64 / 1e3)
    };
    (at(0.5), at(0.99))
}

impl Load<'_> {
    /// Runs the load and returns the requests per second. An unsuccessful response fails the benchmark.
    pub(super) fn run(&self, token: &str) -> Result<f64> {
        self.rate(&mut self.command(token))
    }

    /// Runs the load as a browser with a cookie: a reader of pages, without a token.
    pub(super) fn run_as_browser(&self, cookie: &str) -> Result<()> {
        let mut h2load = self.base();
        h2load.arg(format!("--header=cookie: {cookie}")).arg("--header=accept: text/html");
        self.rate(self.finish(&mut h2load)).map(drop)
    }

    fn rate(&self, h2load: &mut Command) -> Result<f64> {
        let report = output(h2load)?;
        rate(&report, self.requests)
            .ok_or_else(|| format!("{} answered:\n{report}", self.url).into())
    }

    fn content_type(&self) -> &'static str {
        if self.patch { "application/merge-patch+json" } else { "application/json" }
    }

    pub(super) fn command(&self, token: &str) -> Command {
        let mut h2load = self.base();
        h2load.args([
            format!("--header=authorization: Bearer {token}"),
            format!("--header=content-type: {}", self.content_type()),
            "--header=accept: application/json".to_owned(),
        ]);
        if self.gzip {
            h2load.arg("--header=accept-encoding: gzip");
        }
        if let Some(body) = self.body {
            h2load.arg("--data").arg(body);
        }
        if self.patch {
            h2load.arg("--header=:method: PATCH");
        }
        self.finish(&mut h2load);
        h2load
    }

    fn base(&self) -> Command {
        let mut h2load = program("h2load", [] as [&str; 0]);
        h2load.args([
            format!("--requests={}", self.requests),
            format!("--clients={}", self.connections),
            format!("--max-concurrent-streams={}", self.streams),
        ]);
        h2load
    }

    /// Adds the rate, the log and the URL, which is the last argument.
    fn finish<'c>(&self, h2load: &'c mut Command) -> &'c mut Command {
        if let Some(rate) = self.rate {
            h2load.arg(format!("--rps={}", rate / self.connections));
        }
        if let Some(log) = self.log {
            // h2load appends to an existing file.
            let _ = fs::remove_file(log);
            h2load.arg("--log-file").arg(log);
        }
        match self.urls {
            Some(urls) => h2load.arg("--input-file").arg(urls),
            None => h2load.arg(&self.url),
        }
    }
}

/// Returns the number of bytes of the response bodies.
pub(super) fn body_bytes(report: &str) -> Option<u64> {
    let line = report.lines().find_map(|line| line.strip_prefix("traffic: "))?;
    let data = line.split(", ").find(|part| part.ends_with(" data"))?;
    data.split(['(', ')']).nth(1)?.parse().ok()
}

/// Returns the number of successful requests.
pub(super) fn succeeded(report: &str) -> Option<u32> {
    let line = report.lines().find_map(|line| line.strip_prefix("status codes: "))?;
    line.split(" 2xx").next()?.trim().parse().ok()
}

/// Returns the rate if all requests succeeded.
fn rate(report: &str, requests: u32) -> Option<f64> {
    let succeeded = succeeded(report)?;
    let line = report.lines().find_map(|line| line.strip_prefix("finished in "));
    let rate = line?.split(", ").nth(1)?.strip_suffix(" req/s")?;
    rate.parse().ok().filter(|_| succeeded == requests)
}

#[cfg(test)]
mod tests {
    use super::{body_bytes, percentiles, rate};

    #[test]
    fn returns_rate_only_if_all_requests_succeeded() {
        let report = |good: u32| {
            format!(
                "finished in 2.46s, 8130.08 req/s, 3.07MB/s\nrequests: 20000 total\nstatus codes: {good} 2xx, 0 3xx"
            )
        };
        assert_eq!(rate(&report(20000), 20000), Some(8130.08));
        assert_eq!(rate(&report(19999), 20000), None);
        assert_eq!(rate("", 1), None);
    }

    #[test]
    fn parses_bytes_of_bodies() {
        let report = "status codes: 1 2xx\ntraffic: 4.74MB (4969960) total, 118.78KB (121631) headers (space \
                    savings 95.19%), 4.45MB (4667889) data\n";
        assert_eq!(body_bytes(report), Some(4667889));
        assert_eq!(body_bytes("status codes: 1 2xx"), None);
    }

    #[test]
    fn computes_percentiles_of_sorted_values() {
        assert_eq!(percentiles((1..=1000).rev().map(|n| n * 1000).collect()), (501.0, 991.0));
        assert_eq!(percentiles(vec![7000]), (7.0, 7.0));
        assert_eq!(percentiles(Vec::new()), (0.0, 0.0));
    }
}
