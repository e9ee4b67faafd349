//! Units of systemd: their files, whether they start with the machine, and restarts after changes.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

use api_meta::Timestamp;
use kops_core::nodeup::{Distribution, Service, Task, Tasks};
use sys::Programs;

use super::{
    accounts::Accounts,
    files::{Bytes, DesiredFile, apply, check, metadata},
};
use crate::{error::Error, systemd_error::SystemdError};

/// The properties of a unit that are asked for.
const PROPERTIES: &str = "--property=LoadState,ActiveState,UnitFileState,Result,Restart,ExecMainStartTimestamp,\
                          ActiveEnterTimestamp";
/// The directory with a file for each unit that was started since the machine's start. systemd forgets a unit that
/// has ended, if no other unit refers to it.
const STARTED: &str = "run/nodeup/started";

/// The state of a unit, as systemd reports it.
#[derive(Clone, Debug, Default, PartialEq)]
struct UnitState {
    is_found: bool,
    active: String,
    enabled: String,
    result: String,
    /// `true` if systemd does not start the unit again when it ends.
    may_end: bool,
    started: Option<SystemTime>,
}

/// The action that brings a unit into its wanted state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Keep,
    Restart,
    Stop,
}

/// The services of a machine.
pub(super) struct Services<'a> {
    pub(super) root: &'a Path,
    pub(super) programs: &'a dyn Programs,
    pub(super) distribution: Distribution,
}

impl Services<'_> {
    /// Returns the path of a unit file below the root. Upstream writes it where the distribution's packages do.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        let directory = match self.distribution {
            Distribution::Flatcar => "etc/systemd/system",
            _ => "lib/systemd/system",
        };
        self.root.join(directory).join(name)
    }

    /// Rejects unit files that cannot be written.
    pub(super) fn check(&self, tasks: &Tasks) -> Result<(), SystemdError> {
        for service in units(tasks).filter(|service| service.definition.is_some()) {
            check(&self.path(&service.name), false)?;
        }
        Ok(())
    }

    /// Writes the unit files, then brings each unit into its wanted state. Returns what was changed.
    pub(super) fn apply(&self, tasks: &Tasks) -> Result<Vec<String>, Error> {
        let mut changes = self.write_files(tasks)?;
        for service in units(tasks).filter(|service| service.manage_state) {
            let state = self.state(&service.name)?;
            if !state.is_found && !service.running && !service.enabled {
                continue;
            }
            let action = action(service, &state, self.newest(tasks, service)?);
            let command: &[&str] = match action {
                Action::Keep => &[],
                // A unit that hangs must not hang nodeup, on which other units wait.
                Action::Restart => &["systemctl", "restart", "--no-block", &service.name],
                Action::Stop => &["systemctl", "stop", "--no-block", &service.name],
            };
            let enable = match (service.enabled, state.enabled.as_str()) {
                (true, "disabled" | "") => Some("enable"),
                (false, "enabled" | "enabled-runtime") => Some("disable"),
                _ => None,
            };
            let enable: Vec<&str> =
                enable.into_iter().flat_map(|verb| ["systemctl", verb, &service.name]).collect();
            for command in
                [enable.as_slice(), command].into_iter().filter(|command| !command.is_empty())
            {
                self.programs.must(command)?;
                changes.push(command.join(" "));
            }
            if action == Action::Restart {
                pki::write_file(&self.started(&service.name), b"", pki::PUBLIC_MODE)?;
            }
        }
        Ok(changes)
    }

    fn write_files(&self, tasks: &Tasks) -> Result<Vec<String>, Error> {
        let mut changes = Vec::new();
        for service in units(tasks) {
            let Some(definition) = &service.definition else { continue };
            let path = self.path(&service.name);
            let wanted = DesiredFile {
                content: Some(Bytes::Text(definition.clone().into_bytes())),
                path: path.clone(),
                mode: None,
                owner: None,
                group: None,
                if_missing: false,
            };
            if apply(&wanted, &Accounts::default())? {
                changes.push(format!("wrote {}", path.display()));
            }
        }
        // After a crash between the two, systemd has the old file still.
        let is_stale = || -> Result<bool, Error> {
            let known = units(tasks).filter(|service| service.definition.is_some());
            let names: Vec<&str> = known.map(|service| service.name.as_str()).collect();
            let command =
                [&["systemctl", "show", "--property=NeedDaemonReload"][..], &names].concat();
            Ok(self.programs.must(&command)?.lines().any(|line| line == "NeedDaemonReload=yes"))
        };
        if !changes.is_empty() || is_stale()? {
            self.programs.must(&["systemctl", "daemon-reload"])?;
            changes.push("systemctl daemon-reload".to_owned());
        }
        Ok(changes)
    }

    fn state(&self, name: &str) -> Result<UnitState, Error> {
        let command = ["systemctl", "show", "--timestamp=us+utc", PROPERTIES, name];
        let mut state = parse(name, &self.programs.must(&command)?)?;
        if state.started.is_none() {
            let path = self.started(name);
            let found = metadata(&path)?;
            let started = found.map(|found| found.modified());
            state.started = started.transpose().map_err(SystemdError::io("examine", path))?;
        }
        Ok(state)
    }

    /// Returns the path of the file that records a unit's start.
    fn started(&self, name: &str) -> PathBuf {
        self.root.join(STARTED).join(name)
    }

    /// Returns when the unit's file, or a file that concerns it, was last changed: a file that the unit names, or that
    /// must be written before the unit starts.
    fn newest(&self, tasks: &Tasks, service: &Service) -> Result<Option<SystemTime>, SystemdError> {
        let definition = service.definition.as_deref().unwrap_or_default();
        let mut paths: BTreeSet<PathBuf> = named_files(definition)
            .map(|path| self.root.join(path.trim_start_matches('/')))
            .collect();
        if !definition.is_empty() {
            paths.insert(self.path(&service.name));
        }
        for task in tasks.iter() {
            if let Task::File(file) = task
                && file.before_services.contains(&service.name)
            {
                paths.insert(self.root.join(file.path.trim_start_matches('/')));
            }
        }
        let mut newest = None;
        for path in paths {
            // A program may be reached by a link.
            let found = match metadata(&path)? {
                Some(found) if found.is_symlink() => fs::metadata(&path).ok(),
                found => found,
            };
            newest = newest
                .max(found.filter(fs::Metadata::is_file).and_then(|found| found.modified().ok()));
        }
        Ok(newest)
    }
}

fn units(tasks: &Tasks) -> impl Iterator<Item = &Service> {
    tasks.iter().filter_map(|task| match task {
        Task::Service(service) => Some(service),
        _ => None,
    })
}

/// Returns the absolute paths in the lines of a unit file that name programs and environment files.
fn named_files(definition: &str) -> impl Iterator<Item = &str> {
    let lines = definition.lines().filter_map(|line| {
        let (key, value) = line.split_once('=')?;
        ["EnvironmentFile", "ExecStart"].contains(&key.trim()).then_some(value)
    });
    let words = lines.flat_map(str::split_whitespace);
    words
        .map(|word| word.trim_start_matches(['-', '@', ':', '+', '!']))
        .filter(|word| word.starts_with('/'))
}

fn action(service: &Service, state: &UnitState, newest: Option<SystemTime>) -> Action {
    let is_active = ["active", "activating", "reloading"].contains(&state.active.as_str());
    if !service.running {
        return if is_active { Action::Stop } else { Action::Keep };
    }
    let is_older = match (state.started, newest) {
        (Some(started), Some(newest)) => service.smart_restart && started < newest,
        _ => false,
    };
    // A service that ran to its end is in its wanted state. One that somebody stopped is not.
    let has_ended = state.may_end
        && state.active == "inactive"
        && state.result == "success"
        && state.started.is_some();
    if is_older || !(is_active || has_ended) { Action::Restart } else { Action::Keep }
}

fn parse(unit: &str, output: &str) -> Result<UnitState, SystemdError> {
    let value = |name: &str| {
        let found = output.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        found.unwrap_or_default().trim()
    };
    let main = time(unit, value("ExecMainStartTimestamp"))?;
    let started = match main {
        Some(main) => Some(main),
        None => time(unit, value("ActiveEnterTimestamp"))?,
    };
    Ok(UnitState {
        is_found: value("LoadState") != "not-found",
        active: value("ActiveState").to_owned(),
        enabled: value("UnitFileState").to_owned(),
        result: value("Result").to_owned(),
        may_end: value("Restart") == "no",
        started,
    })
}

/// Parses a time such as `Fri 2026-11-27 06:09:26.123456 UTC`; `None` for a unit that has not started.
fn time(unit: &str, text: &str) -> Result<Option<SystemTime>, SystemdError> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let wrong = || SystemdError::StartTime { unit: unit.to_owned(), value: text.to_owned() };
    match words.as_slice() {
        [] | ["n/a"] => Ok(None),
        [_, date, time, "UTC"] => {
            let parsed: Timestamp = format!("{date}T{time}Z").parse().map_err(|_| wrong())?;
            Ok(Some(parsed.into()))
        }
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn service(running: bool) -> Service {
        Service {
            name: "a.service".to_owned(),
            definition: None,
            enabled: running,
            running,
            smart_restart: true,
            manage_state: true,
        }
    }

    #[test]
    fn restarts_only_units_whose_files_are_newer() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let state = |active: &str, result: &str, started: Option<u64>| UnitState {
            is_found: true,
            active: active.to_owned(),
            result: result.to_owned(),
            may_end: true,
            started: started.map(at),
            ..UnitState::default()
        };
        let runs = service(true);
        for (state, newest, wanted) in [
            (state("active", "success", Some(5)), Some(4), Action::Keep),
            (state("active", "success", Some(5)), Some(6), Action::Restart),
            (state("active", "success", Some(5)), None, Action::Keep),
            (state("inactive", "success", Some(5)), Some(4), Action::Keep),
            (state("inactive", "success", Some(5)), Some(6), Action::Restart),
            (state("inactive", "success", None), Some(4), Action::Restart),
            (state("failed", "exit-code", Some(5)), Some(4), Action::Restart),
        ] {
            assert_eq!(action(&runs, &state, newest.map(at)), wanted, "{state:?} {newest:?}");
        }
        let stopped = UnitState { may_end: false, ..state("inactive", "success", Some(5)) };
        assert_eq!(action(&runs, &stopped, Some(at(4))), Action::Restart);
        let stops = service(false);
        assert_eq!(action(&stops, &state("active", "success", Some(5)), None), Action::Stop);
        assert_eq!(action(&stops, &state("inactive", "success", None), None), Action::Keep);
        let fixed = Service { smart_restart: false, ..service(true) };
        assert_eq!(action(&fixed, &state("active", "success", Some(5)), Some(at(6))), Action::Keep);
    }

    #[test]
    fn parses_what_systemd_reports() {
        let output = "LoadState=loaded\nActiveState=active\nUnitFileState=enabled\nResult=success\nRestart=no\nExecMainStartTimestamp=Fri 2026-11-27 06:09:26.500000 UTC\nActiveEnterTimestamp=n/a\n";
        let state = parse("a", output).unwrap();
        assert!(state.is_found && state.active == "active" && state.enabled == "enabled");
        assert!(state.may_end);
        let started = Timestamp::from(state.started.unwrap());
        assert_eq!(started.micros(), "2026-11-27T06:09:26.500000Z");
        assert!(!parse("a", "LoadState=not-found\n").unwrap().is_found);
        assert_eq!(parse("a", "ExecMainStartTimestamp=\n").unwrap().started, None);
        assert!(parse("a", "ExecMainStartTimestamp=yesterday\n").is_err());
    }

    #[test]
    fn finds_files_that_a_unit_names() {
        let unit = "[Service]\nEnvironmentFile=-/etc/sysconfig/a\nExecStart=@/usr/bin/a -c /etc/a.toml \"$OPTS\"\nRestart=always\n";
        let found: Vec<_> = named_files(unit).collect();
        assert_eq!(found, ["/etc/sysconfig/a", "/usr/bin/a", "/etc/a.toml"]);
    }
}
