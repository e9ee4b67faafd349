//! The command `version`.

use clap::ValueEnum;
use serde_json::json;
use version::{BUILD_DATE, BUILD_VERSION, COMMIT, KUBERNETES_VERSION, PLATFORM};

use super::{
    global::GlobalFlags,
    output::{Format, print_values},
    program::Program,
};
use crate::Error;

/// The flags of `version`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Output format
    #[arg(short, long, value_enum)]
    output: Option<Form>,
    #[command(flatten)]
    pub(super) global: GlobalFlags,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    /// The version number only, for scripts
    Short,
    Json,
    Yaml,
}

pub(super) fn run(args: &Args, program: Program) -> Result<(), Error> {
    print!("{}", version_text(args.output, program)?);
    Ok(())
}

fn version_text(form: Option<Form>, program: Program) -> Result<String, Error> {
    let mut numbers = KUBERNETES_VERSION.trim_start_matches('v').split('.');
    let (major, minor) = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
    let output = match form {
        None => {
            return Ok(format!(
                "{} version: &version.Info{{Major:\"{major}\", Minor:\"{minor}\", GitVersion:\"{BUILD_VERSION}\", \
                 GitCommit:\"{COMMIT}\", BuildDate:\"{BUILD_DATE}\", Platform:\"{PLATFORM}\"}}\n",
                program.name()
            ));
        }
        Some(Form::Short) => return Ok(format!("{BUILD_VERSION}\n")),
        Some(Form::Json) => Format::Json,
        Some(Form::Yaml) => Format::Yaml,
    };
    let info = json!({"clientVersion": {
        "major": major,
        "minor": minor,
        "gitVersion": BUILD_VERSION,
        "gitCommit": COMMIT,
        "gitTreeState": "clean",
        "buildDate": BUILD_DATE,
        "platform": PLATFORM,
    }});
    Ok(print_values(&output, &[info])?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_release_for_scripts() {
        assert_eq!(
            version_text(Some(Form::Short), Program::Kubeadm).unwrap(),
            format!("{BUILD_VERSION}\n")
        );
        let text = version_text(None, Program::Kubeadm).unwrap();
        assert!(
            text.starts_with("kubeadm version: &version.Info{Major:\"1\", Minor:\"36\""),
            "{text}"
        );
        let json = version_text(Some(Form::Json), Program::Kubeadm).unwrap();
        let read: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(read["clientVersion"]["gitVersion"], BUILD_VERSION);
    }
}
