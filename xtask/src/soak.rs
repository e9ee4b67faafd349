//! `cargo xtask soak`: runs a cluster for hours under churn and kills, and checks that it does not grow.

use std::path::PathBuf;

use crate::{
    build::{self, Profile},
    error::{During as _, Result},
    machine,
    run::{cargo, pass, step, target_directory},
    tools,
};

const USAGE: &str = "usage: cargo xtask soak [--hours H] [--compaction-minutes M] [--plot FILE]

  --hours H               the time, such as 0.5 [default: 1]
  --compaction-minutes M  the interval between compactions of the store; H must be 8 of them or more [default: 5]
  --plot FILE             the SVG with a panel for each quantity [default: target/soak.svg]

Certificates live ten minutes. In the first half, processes of the cluster are killed in turn. In the second half, after
two compactions, each quantity must stay flat: memory, descriptors and threads of each process, disk, nftables rules,
mounts and cgroups. The environment variable WINDLASS is the path of a binary to use instead of a new build.";

/// The arguments of `cargo xtask soak`.
#[derive(Debug, PartialEq)]
struct Options {
    hours: f64,
    /// The interval between compactions, in minutes.
    compaction: u32,
    plot: PathBuf,
}

impl Options {
    fn parse(args: &[String]) -> Result<Self> {
        let plot = target_directory().join("soak.svg");
        let mut options = Self { hours: 1.0, compaction: 5, plot };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let value = args.next().ok_or(USAGE)?;
            match arg.as_str() {
                "--hours" => {
                    let hours = value.parse().ok().filter(|hours| (0.01..=1000.0).contains(hours));
                    options.hours = hours.ok_or(USAGE)?;
                }
                "--compaction-minutes" => {
                    let minutes = value.parse().ok().filter(|minutes| *minutes > 0);
                    options.compaction = minutes.ok_or(USAGE)?;
                }
                "--plot" => options.plot = PathBuf::from(value),
                _ => return Err(USAGE.into()),
            }
        }
        // The store's history grows during two intervals after a start. It must not be mistaken for a leak.
        if options.hours * 60.0 < f64::from(options.compaction) * 8.0 {
            return Err(USAGE.into());
        }
        Ok(options)
    }
}

pub(crate) fn run(args: &[String]) -> Result<()> {
    let options = Options::parse(args)?;
    let tools = step("prepare the machine", || {
        machine::install_to_test(false)?;
        machine::forward_packets()?;
        tools::directory()
    })?;
    let binary = build::given_or_built(Profile::Quick)?;
    // Only the binary is measured: an optimised build of this program would take minutes for nothing.
    let profile = ["bench", "--locked", "--profile", "dev"];
    let mut soak = cargo(profile.iter().chain(&["--package", "e2e", "--bench", "soak"]));
    soak.env("WINDLASS", binary).env("WINDLASS_TOOLS", tools);
    soak.env("WINDLASS_SOAK_HOURS", options.hours.to_string());
    soak.env("WINDLASS_SOAK_COMPACTION_MINUTES", options.compaction.to_string());
    let plot = std::path::absolute(&options.plot).during("resolving", options.plot.display())?;
    soak.env("WINDLASS_SOAK_PLOT", plot);
    step("soak", || pass(&mut soak))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_hours_and_rejects_others() {
        let parse = |line: &str| {
            Options::parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
        };
        let default = parse("").unwrap();
        assert_eq!((default.hours, default.compaction), (1.0, 5));
        let all = parse("--hours 0.25 --compaction-minutes 1 --plot a.svg").unwrap();
        assert_eq!(all, Options { hours: 0.25, compaction: 1, plot: "a.svg".into() });
        for line in [
            "--hours",
            "--hours 0",
            "--hours NaN",
            "--hours -1",
            "--hours x",
            "--hours 0.25",
            "--compaction-minutes 0",
            "--compaction-minutes 8",
            "more 1",
        ] {
            assert_eq!(parse(line).unwrap_err().to_string(), USAGE, "{line}");
        }
    }
}
