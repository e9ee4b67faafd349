//! The whole store looked over before a machine asks.

use std::{fmt, fs};

use serde_json::Value;

use super::{
    Kind, Matchbox, Pattern, Store, handler::Failure, labels::Labels, parse_mac, render,
    secrets::Secrets, tpm,
};

/// What is wrong, each with the group, profile, template and line that it is about.
#[derive(Debug, Default)]
pub struct Report {
    pub groups: usize,
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

/// Renders all that every group's machines can ask for, with labels that fit its selectors.
pub fn check(matchbox: &Matchbox) -> Report {
    let store = matchbox.store();
    let (groups, errors) = store.groups();
    let mut report = Report { groups: groups.len() + errors.len(), problems: errors.clone() };
    let defaults: Vec<_> = groups.iter().filter(|group| group.selector.is_empty()).collect();
    if let [first, second, ..] = defaults[..] {
        report.problems.push(format!(
            "groups {:?} and {:?} have no selectors: which one is the default is not defined",
            first.id, second.id
        ));
    }
    report.problems.extend(store.profiles().1.iter().map(ToString::to_string));
    keys(store, &mut report);
    for group in groups.iter() {
        let labels = example(&group.selector);
        let query: Vec<String> = labels.iter().map(|(k, v)| format!("{k}={v}")).collect();
        let mut data = render::data(group, &labels, &query.join("&"));
        let book = &matchbox.settings.book;
        let profile = match store.profile(&group.profile) {
            Ok(profile) => profile,
            Err(source) => {
                let failure = Failure::Profile { group: group.id.clone(), source: source.into() };
                report.problems.push(failure.to_string());
                continue;
            }
        };
        let secrets = Secrets::check(store.root().to_owned(), group, book);
        for kind in Kind::ALL.into_iter().filter(|kind| !kind.name(&profile).is_empty()) {
            if let Err(error) = matchbox.rendered(kind, group, &profile, &data, &secrets) {
                report.problems.push(error.to_string());
            }
        }
        if let Some(request) = data.get_mut("request").and_then(Value::as_object_mut) {
            request.insert("nonce".into(), "nonce".into());
        }
        if let Err(error) = render::boot(&profile.boot, &profile.id, &data, &Secrets::none(book)) {
            report.problems.push(format!("group {:?}, kernel arguments: {error}", group.id));
        }
    }
    report
}

/// The keys of TPMs, those in groups and those in files.
fn keys(store: &Store, report: &mut Report) {
    for group in store.groups().0.iter() {
        if let Some(Err(why)) = group.tpm_key.as_deref().map(tpm::public_key) {
            report.problems.push(format!("group {:?}: {why}", group.id));
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
        let why = match text.and_then(|pem| tpm::public_key(&pem)) {
            Err(why) => why,
            Ok(_) if !named => {
                "it is named after no machine; name it MAC.pem, in lower case with hyphens".into()
            }
            Ok(_) => continue,
        };
        report.problems.push(format!("{}: {why}", path.display()));
    }
}

/// Labels that the selectors accept.
fn example(selector: &std::collections::BTreeMap<String, Pattern>) -> Labels {
    let value = |pattern: &Pattern| match pattern {
        Pattern::Exact(value) => value.clone(),
        Pattern::Any(values) => values.first().cloned().unwrap_or_default(),
        Pattern::Prefix { prefix } => prefix.clone(),
    };
    selector.iter().map(|(key, pattern)| (key.clone(), value(pattern))).collect()
}
