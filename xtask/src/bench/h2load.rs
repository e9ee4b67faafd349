//! Load by h2load, over TLS and HTTP/2.

use std::path::Path;

use crate::run::{output, program};

/// Requests that are all the same.
pub(super) struct Load<'a> {
    pub(super) url: String,
    pub(super) requests: u32,
    pub(super) connections: u32,
    /// Requests under way on each connection.
    pub(super) streams: u32,
    /// What is posted; without it the URL is read.
    pub(super) body: Option<&'a Path>,
    pub(super) gzip: bool,
}

impl Load<'_> {
    /// Requests a second; an answer that is no success fails the benchmark.
    pub(super) fn run(&self, token: &str) -> Result<f64, String> {
        let mut h2load = program("h2load", [] as [&str; 0]);
        h2load.args([
            format!("--requests={}", self.requests),
            format!("--clients={}", self.connections),
            format!("--max-concurrent-streams={}", self.streams),
            format!("--header=authorization: Bearer {token}"),
            "--header=content-type: application/json".to_owned(),
            "--header=accept: application/json".to_owned(),
        ]);
        if self.gzip {
            h2load.arg("--header=accept-encoding: gzip");
        }
        if let Some(body) = self.body {
            h2load.arg("--data").arg(body);
        }
        let said = output(h2load.arg(&self.url))?;
        rate(&said, self.requests).ok_or_else(|| format!("{} answered:\n{said}", self.url))
    }
}

/// The rate, if all requests succeeded.
fn rate(said: &str, requests: u32) -> Option<f64> {
    let line = |start: &str| said.lines().find_map(|line| line.strip_prefix(start));
    let succeeded = line("status codes: ")?.split(" 2xx").next()?.trim().parse::<u32>().ok()?;
    let rate = line("finished in ")?.split(", ").nth(1)?.strip_suffix(" req/s")?;
    rate.parse().ok().filter(|_| succeeded == requests)
}

#[cfg(test)]
mod tests {
    use super::rate;

    #[test]
    fn a_rate_counts_only_if_all_succeeded() {
        let said = |good: u32| {
            format!(
                "finished in 2.46s, 8130.08 req/s, 3.07MB/s\nrequests: 20000 total\nstatus codes: {good} 2xx, 0 3xx"
            )
        };
        assert_eq!(rate(&said(20000), 20000), Some(8130.08));
        assert_eq!(rate(&said(19999), 20000), None);
        assert_eq!(rate("", 1), None);
    }
}
