//! Component flags with an empty path. Upstream treats an empty path as absent, and `init` writes one if the CA's key
//! is stored elsewhere.

use std::{any::TypeId, ffi::OsString, path::PathBuf};

/// Removes path flags of the command that have an empty value.
pub(crate) fn without_empty_paths(
    command: &clap::Command,
    arguments: Vec<OsString>,
) -> Vec<OsString> {
    let sub = arguments.get(1).and_then(|name| command.find_subcommand(name));
    let paths = sub.into_iter().flat_map(clap::Command::get_arguments).filter_map(|argument| {
        let is_path = argument.get_value_parser().type_id() == TypeId::of::<PathBuf>();
        argument.get_long().filter(|_| is_path).map(|long| format!("--{long}="))
    });
    let empty: Vec<OsString> = paths.map(OsString::from).collect();
    arguments.into_iter().filter(|argument| !empty.contains(argument)).collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(subcommand)]
        command: Sub,
    }

    #[derive(clap::Subcommand)]
    enum Sub {
        Component {
            #[arg(long)]
            file: Option<PathBuf>,
            #[arg(long)]
            name: Option<String>,
        },
    }

    fn parsed(given: &[&str]) -> Result<(Option<PathBuf>, Option<String>), clap::Error> {
        let command = <Cli as clap::CommandFactory>::command();
        let all = ["windlass", "component"].iter().chain(given).map(OsString::from).collect();
        let Sub::Component { file, name } =
            Cli::try_parse_from(without_empty_paths(&command, all))?.command;
        Ok((file, name))
    }

    #[test]
    fn drops_empty_path_but_keeps_empty_string() {
        assert_eq!(parsed(&["--file=", "--name="]).unwrap(), (None, Some(String::new())));
        assert_eq!(parsed(&["--file=a"]).unwrap(), (Some("a".into()), None));
        assert!(parsed(&["--unknown="]).is_err());
    }
}
