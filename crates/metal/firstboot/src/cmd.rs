//! `windlass ignition`: runs one stage, with upstream's flags.

use std::{path::PathBuf, process::ExitCode, sync::Arc, time::Duration};

use api_meta::GoDuration;
use clap::{
    Parser,
    builder::{OsStringValueParser, TypedValueParser},
};

use crate::{
    context::Context,
    error::Error,
    report::{self, Outcome},
    stages::{self, Stage},
};

/// The upstream version that `--version` reports: the newest whose configs this crate supports.
const VERSION: &str = "Ignition 2.26.0 (Windlass)";

/// The flags of `windlass ignition`, which are upstream's.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// File to cache the config in
    #[arg(long, default_value = "/run/ignition.json")]
    config_cache: PathBuf,
    /// Time to wait for the config
    #[arg(long, default_value = "2m0s", value_parser = duration)]
    fetch_timeout: Duration,
    /// Flag file to write from fetch-offline if networking is needed
    #[arg(long, default_value = "/run/ignition/neednet")]
    neednet: PathBuf,
    /// Current platform: metal, qemu or file
    #[arg(long, default_value = "metal")]
    platform: String,
    /// Root of the filesystem; empty for stages that touch none
    #[arg(long, default_value = "/", value_parser = OsStringValueParser::new().map(PathBuf::from))]
    root: PathBuf,
    /// Execution stage
    #[arg(long, required_unless_present = "print_version")]
    stage: Option<Stage>,
    /// File to store internal state in
    #[arg(long, default_value = "/run/ignition/state")]
    state_file: PathBuf,
    /// Time to wait for each device to appear; upstream leaves this to systemd
    #[arg(long, default_value = "90s", value_parser = duration)]
    device_timeout: Duration,
    /// Print the version and exit
    #[arg(long = "version")]
    print_version: bool,
    /// Log to stdout instead of stderr
    #[arg(long)]
    log_to_stdout: bool,
}

/// Parses a duration in Go's format: 1m30s, 500ms.
fn duration(text: &str) -> Result<Duration, DurationError> {
    let duration = text.parse::<GoDuration>().ok().filter(|read| *read >= GoDuration::ZERO);
    duration.map(GoDuration::to_std).ok_or_else(|| DurationError(text.to_owned()))
}

/// The error for a text that is not a duration.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not a duration; write 90s or 1m30s")]
struct DurationError(String);

#[derive(Parser)]
#[command(name = "ignition")]
struct Cli {
    #[command(flatten)]
    args: Args,
}

/// Runs one stage in this process, as the initrd does.
pub(crate) fn run_stage(arguments: &[&str]) -> Result<(), Error> {
    let cli = Cli::try_parse_from(std::iter::once(&"ignition").chain(arguments));
    let cli =
        cli.map_err(|error| Error::Refused { what: "ignition".into(), reason: error.to_string() })?;
    execute(&cli.args)
}

fn execute(args: &Args) -> Result<(), Error> {
    let Some(stage) = args.stage else { return Ok(()) };
    let context = Context {
        platform: args.platform.clone(),
        root: args.root.clone(),
        config_cache: args.config_cache.clone(),
        neednet: args.neednet.clone(),
        state_file: args.state_file.clone(),
        fetch_timeout: args.fetch_timeout,
        programs: Arc::new(sys::HostPrograms),
        device_timeout: args.device_timeout,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(Error::Runtime)?.block_on(async {
        let online = stage != Stage::FetchOffline;
        if online {
            report::send(stage.name(), Outcome::Started, "").await;
        }
        let result = stages::run(stage, &context).await;
        match &result {
            Ok(()) if online => report::send(stage.name(), Outcome::Succeeded, "").await,
            Err(error) => report::send(stage.name(), Outcome::Failed, &error.to_string()).await,
            Ok(()) => {}
        }
        result
    })
}

/// Runs the command.
pub fn run(args: &Args) -> ExitCode {
    if args.print_version {
        println!("{VERSION}");
        return ExitCode::SUCCESS;
    }
    let name = args.stage.map_or("", Stage::name);
    match execute(args) {
        Ok(()) => {
            print(args, &format!("{name}: done"));
            ExitCode::SUCCESS
        }
        Err(error) => {
            print(args, &format!("{name} failed: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn print(args: &Args, text: &str) {
    if args.log_to_stdout { println!("ignition: {text}") } else { eprintln!("ignition: {text}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_go_durations() {
        for (text, want) in [
            ("2m0s", Some(120_000)),
            ("1.5s", Some(1500)),
            ("500ms", Some(500)),
            ("5", None),
            ("x", None),
        ] {
            assert_eq!(duration(text).ok(), want.map(Duration::from_millis), "{text}");
        }
    }

    #[test]
    fn accepts_upstream_flags() {
        let line = "ignition --platform file --stage disks --root /r --log-to-stdout --config-cache /c --neednet /n --state-file /s --fetch-timeout 5s";
        let cli = Cli::try_parse_from(line.split(' ')).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(cli.args.stage, Some(Stage::Disks));
        // The arguments of an early stage, before the root is mounted.
        let early = Cli::try_parse_from(["ignition", "--stage", "fetch", "--root", ""]);
        assert!(early.is_ok_and(|cli| cli.args.root == PathBuf::new()));
        assert!(Cli::try_parse_from(["ignition", "--version"]).is_ok());
        assert!(Cli::try_parse_from(["ignition"]).is_err());
    }
}
