//! Checks a whole store before a machine uses it.

use std::{fmt, fs, sync::Arc};

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{
    handler::{Failure, Matchbox},
    render,
    secrets::{self, Secrets},
    store::{Group, Kind, Pattern, Profile, Store},
    tpm,
};
use crate::labels::{Labels, parse_mac};

/// The problems of a store. Each names its group, profile, template or line.
#[derive(Debug, Default)]
pub struct Report {
    /// The number of groups, invalid ones included.
    pub groups: usize,
    /// The problems, one line each.
    pub problems: Vec<String>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for problem in &self.problems {
            writeln!(f, "{problem}")?;
        }
        write!(f, "{} groups, {} problems", self.groups, self.problems.len())
    }
}

/// Renders everything that the machines of every group can request, with labels that match its selectors.
pub fn check(matchbox: &Matchbox) -> Report {
    let store = matchbox.store();
    let (groups, errors) = store.groups();
    let mut report = Report { groups: groups.len() + errors.len(), problems: errors.clone() };
    report.problems.extend(store.profiles().1.iter().map(ToString::to_string));
    check_selectors(&groups, &mut report);
    check_fields::<Group>(store, "groups", &mut report);
    check_fields::<Profile>(store, "profiles", &mut report);
    check_keys(store, &mut report);
    for group in groups.iter() {
        let labels = example_labels(&group.selector);
        let query: Vec<String> = labels.iter().map(|(k, v)| format!("{k}={v}")).collect();
        let mut data = render::data(group, &labels, &query.join("&"));
        let inventory = &matchbox.settings.inventory;
        let profile = match store.profile(&group.profile) {
            Ok(profile) => profile,
            Err(source) => {
                let failure = Failure::Profile { group: group.id.clone(), source: source.into() };
                report.problems.push(failure.to_string());
                continue;
            }
        };
        let secrets = Secrets::check(store.root().to_owned(), group, inventory);
        for kind in Kind::ALL.into_iter().filter(|kind| !kind.name(&profile).is_empty()) {
            if let Err(error) = matchbox.render(kind, group, &profile, &data, &secrets) {
                report.problems.push(error.to_string());
            }
        }
        if let Some(request) = data.get_mut("request").and_then(Value::as_object_mut) {
            request.insert("nonce".into(), "nonce".into());
        }
        if let Err(error) = matchbox.boot(group, &profile, &data) {
            report.problems.push(error.to_string());
        }
    }
    report
}

/// Reports groups with equal selectors.
fn check_selectors(groups: &[Arc<Group>], report: &mut Report) {
    let mut sorted: Vec<&Group> = groups.iter().map(AsRef::as_ref).collect();
    sorted.sort_by_cached_key(|group| (group.selector_text(), group.id.clone()));
    for pair in sorted.windows(2) {
        let [first, second] = pair else { continue };
        if first.selector == second.selector {
            let what = if first.selector.is_empty() {
                "no selectors: the default group is ambiguous"
            } else {
                "the same selectors: the selected group is ambiguous"
            };
            report.problems.push(format!("groups {:?} and {:?} have {what}", first.id, second.id));
        }
    }
}

/// Reports unknown fields. A misspelt `selector` makes a group the default for all machines.
fn check_fields<T: DeserializeOwned>(store: &Store, folder: &str, report: &mut Report) {
    for path in store.entries(folder) {
        let unknown = |field: serde_ignored::Path<'_>| {
            let (path, field) = (path.display(), field.to_string());
            report.problems.push(format!("{path}: unknown field {field:?}"));
        };
        // Unreadable files have been reported already.
        let text = fs::read(&path).unwrap_or_default();
        let mut json = serde_json::Deserializer::from_slice(&text);
        let _ = serde_ignored::deserialize::<_, _, T>(&mut json, unknown);
    }
}

/// Checks the public TPM keys in groups and in files.
fn check_keys(store: &Store, report: &mut Report) {
    for group in store.groups().0.iter() {
        if let Some(Err(error)) = group.tpm_key.as_deref().map(tpm::public_key) {
            report.problems.push(format!("group {:?}: {error}", group.id));
        }
        let root = store.root();
        // The key of a UUID is looked up when a machine claims the UUID.
        let unkeyed = secrets::unkeyed(group, true).filter(|_| secrets::has_keys(root));
        if let Some(label) = unkeyed {
            report.problems.push(format!(
                "group {:?}: it is selected by {label}, which any machine may claim, and gets no secrets beside \
                 machines with TPM keys; give it tpm_key, or select it by mac",
                group.id
            ));
        }
    }
    let Ok(entries) = fs::read_dir(store.root().join("tpm")) else { return };
    let mut paths: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    for path in paths {
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let named = path.extension().is_some_and(|extension| extension == "pem")
            && (stem.starts_with("uuid-")
                || parse_mac(&stem).is_some_and(|mac| mac.replace(':', "-") == stem));
        let text = fs::read_to_string(&path).map_err(|error| error.to_string());
        let key = text.and_then(|pem| tpm::public_key(&pem).map_err(|error| error.to_string()));
        let problem = match key {
            Err(error) => error,
            Ok(_) if !named => {
                "its name has no machine; name it MAC.pem, in lower case with hyphens".into()
            }
            Ok(_) => continue,
        };
        report.problems.push(format!("{}: {problem}", path.display()));
    }
}

/// Returns labels that the selectors match.
fn example_labels(selector: &std::collections::BTreeMap<String, Pattern>) -> Labels {
    let value = |pattern: &Pattern| match pattern {
        Pattern::Exact(value) => value.clone(),
        Pattern::Any(values) => values.first().cloned().unwrap_or_default(),
        Pattern::Prefix { prefix } => prefix.clone(),
    };
    selector.iter().map(|(key, pattern)| (key.clone(), value(pattern))).collect()
}
