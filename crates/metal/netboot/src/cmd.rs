//! Commands `windlass metal serve`, `check`, `status` and `reinstall`.

mod args;
mod error;
mod start;

use std::{sync::Arc, time::UNIX_EPOCH};

use rt::Tasks;

use self::start::open_store;
pub use self::{
    args::{Args, CheckArgs, Command, LogLevel, ReinstallArgs, ServeArgs, StatusArgs},
    error::{AddressError, Error, LogLevelError},
    start::{BootServer, start},
};
use crate::{
    machines::status,
    matchbox::{Matchbox, Settings, check::check},
};

/// Returns the log level for a command.
pub fn log_level_of(command: &Command) -> &'static str {
    match command {
        Command::Serve(args) => args.log_level.0,
        _ => "info",
    }
}

/// Runs a command. `serve` returns when `tasks` shut down.
pub async fn run(command: Command, tasks: Tasks) -> Result<(), Error> {
    match command {
        Command::Serve(args) => {
            start(&args, &tasks, None).await?;
            tasks.shutdown().stopping().await;
            Ok(())
        }
        Command::Check(args) => {
            let store = Arc::new(open_store(&args.data_path)?);
            let report = check(&Matchbox::new(store, Settings::default()));
            println!("{report}");
            match report.problems.len() {
                0 => Ok(()),
                count => Err(Error::Problems(count)),
            }
        }
        Command::Status(args) => {
            let path = &args.machines_file;
            let failed = |source| Error::Machines { path: path.clone(), source };
            let text = match args.machine {
                None => status::table(path, now()).map_err(failed)?,
                Some(id) => {
                    let timeline = status::timeline(path, &id, now()).map_err(failed)?;
                    timeline.ok_or(Error::NoMachine(id))?
                }
            };
            print!("{text}");
            Ok(())
        }
        Command::Reinstall(args) => {
            let path = args.machines_file;
            status::reinstall(&path, &args.machine)
                .map_err(|source| Error::Machines { path, source })
        }
    }
}

fn now() -> u64 {
    let since = rt::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: ServeArgs,
    }

    #[test]
    fn accepts_matchbox_flags() {
        let parse = |text: &str| Cli::try_parse_from(text.split(' ')).map(|cli| cli.args);
        let args = parse(
            "serve --address=:8080 --rpc-address=0.0.0.0:8081 --assets-path= --log-level=WARNING \
             --cert-file=a --key-file=b --ca-file=c --key-ring-path=d --web-ssl --web-cert-file=e \
             --web-key-file=f --data-path=g",
        )
        .unwrap();
        assert_eq!(args.address, "0.0.0.0:8080".parse().unwrap());
        assert!(args.assets_path.as_os_str().is_empty() && args.web_ssl);
        assert_eq!(args.log_level.0, "warn");
        assert!(parse("serve --log-level=loud").is_err());
        assert!(parse("serve --address=8080").is_err());
    }
}
