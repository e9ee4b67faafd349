//! The whole store looked over before a machine asks.

use std::fmt;

use serde_json::Value;

use super::{Kind, Matchbox, Pattern, handler::Failure, labels::Labels, render, secrets::Secrets};

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

/// Labels that the selectors accept.
fn example(selector: &std::collections::BTreeMap<String, Pattern>) -> Labels {
    let value = |pattern: &Pattern| match pattern {
        Pattern::Exact(value) => value.clone(),
        Pattern::Any(values) => values.first().cloned().unwrap_or_default(),
        Pattern::Prefix { prefix } => prefix.clone(),
    };
    selector.iter().map(|(key, pattern)| (key.clone(), value(pattern))).collect()
}
