//! Settings of all commands, from flags, the environment and `~/.kops.yaml`.

use api_meta::Tree as _;
use kops_store::parse_yaml;

use crate::{error::Error, flags::Args};

/// The default state store, on this machine.
const DEFAULT_STATE: &str = "file:///var/lib/windlass/kops";

/// The settings of all commands.
pub(crate) struct Settings {
    /// The URL of the state store.
    pub(crate) state: String,
    /// The cluster's name; empty if none is given.
    pub(crate) name: String,
    /// `true` if a flag gives the name.
    has_name_flag: bool,
}

impl Settings {
    /// Returns the name of the cluster of a command with an optional argument for it.
    pub(crate) fn cluster<'a>(&'a self, argument: &'a Option<String>) -> Result<&'a str, Error> {
        match argument {
            Some(_) if self.has_name_flag => Err(Error::TwoNames),
            Some(name) => Ok(name),
            None => Ok(&self.name),
        }
    }

    /// Returns the names of the clusters of a command with arguments for them; empty for all clusters.
    pub(crate) fn clusters(&self, arguments: &[String]) -> Result<Vec<String>, Error> {
        match arguments {
            [] if self.name.is_empty() => Ok(Vec::new()),
            [] => Ok(vec![self.name.clone()]),
            _ if self.has_name_flag => Err(Error::TwoNames),
            names => Ok(names.to_vec()),
        }
    }
}

/// Returns the settings. Flags override the environment, which overrides the file.
pub(crate) fn read_settings(
    args: &Args,
    environment: &dyn Fn(&str) -> Option<String>,
) -> Result<Settings, Error> {
    let default = || environment("HOME").map(|home| format!("{home}/.kops.yaml"));
    let file = match args.config.clone().or_else(default) {
        None => None,
        Some(path) => match std::fs::read(&path) {
            Ok(text) => Some((path, text)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && args.config.is_none() => {
                None
            }
            Err(error) => return Err(kops_store::Error::file("reading", &path)(error).into()),
        },
    };
    let stored = match file {
        None => String::new(),
        Some((path, text)) => {
            let tree = parse_yaml(&path, &text)?;
            // Upstream accepts both names.
            let names = ["kops_state_store", "KOPS_STATE_STORE"];
            names.map(|name| tree.text(name)).concat()
        }
    };
    let setting = |flag: &Option<String>, variable| {
        let setting = flag.clone().or_else(|| environment(variable));
        setting.filter(|text| !text.is_empty())
    };
    let state = setting(&args.state, "KOPS_STATE_STORE").unwrap_or(stored);
    let state = if state.is_empty() { DEFAULT_STATE.to_owned() } else { state };
    let name = setting(&args.name, "KOPS_CLUSTER_NAME").unwrap_or_default();
    Ok(Settings { state, name, has_name_flag: args.name.is_some() })
}
