//! Runs `kops edit`: changes a stored object in an editor, or with --set and --unset.

use api_meta::FieldError;
use kops_api::{Kind, Object};
use kops_store::Registry;

use crate::{
    change::store_edited,
    editor,
    environment::CommandEnvironment,
    error::Error,
    flags::{Edit, FieldChanges},
};

/// The paths of v1alpha2 that upstream translates, with the paths of the hub.
const OLD_PATHS: [(&str, &str); 5] = [
    ("spec.masterPublicName", "spec.api.publicName"),
    ("spec.topology.dns.type", "spec.networking.topology.dns"),
    (
        "spec.topology.bastion.loadBalancer.type",
        "spec.networking.topology.bastion.loadBalancer.type",
    ),
    ("spec.externalDns.provider", "spec.externalDNS.provider"),
    ("spec.externalDns.priorityClassName", "spec.externalDNS.priorityClassName"),
];

pub(crate) fn run(
    registry: &Registry,
    command: &Edit,
    name: &str,
    context: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    let (cluster, found, fields) = match command {
        Edit::Cluster { cluster, fields } => {
            let name = cluster.as_deref().unwrap_or(name);
            (name, registry.cluster(name)?, fields)
        }
        Edit::Group { group, fields } => (name, registry.group(name, group)?, fields),
    };
    if cluster.is_empty() {
        return Err(Error::Flag { flag: "--name", problem: "is required" });
    }
    let Some((object, version)) = found else {
        return Err(match command {
            Edit::Cluster { .. } => kops_store::Error::object("cluster", cluster, "was not found"),
            Edit::Group { group, .. } => {
                kops_store::Error::object("InstanceGroup", group, "not found")
            }
        }
        .into());
    };
    let now = context.now;
    let store = |edited| store_edited(registry, cluster, edited, version, now);
    if fields.set.is_empty() && fields.unset.is_empty() {
        let stored = editor::edit(&object, context, |edited| {
            check_name(&edited, &object)?;
            store(edited)
        })?;
        if stored.is_none() {
            writeln!(context.out, "Edit cancelled: no changes made.")?;
        }
        return Ok(());
    }
    store(change_fields(&object, fields)?)
}

/// Checks that an edited object still has its kind and name.
fn check_name(edited: &Object, stored: &Object) -> Result<(), Error> {
    if edited.kind == stored.kind && edited.name() == stored.name() {
        return Ok(());
    }
    let title = |object: &Object| format!("{} {:?}", object.kind.name(), object.name());
    Err(Error::Renamed { edited: title(edited), stored: title(stored) })
}

/// Unsets fields, then sets fields, like upstream.
fn change_fields(stored: &Object, fields: &FieldChanges) -> Result<Object, Error> {
    let mut object = stored.clone();
    let invalid = |flag: &'static str| {
        move |problem: FieldError| kops_api::Error::Fields {
            what: flag.to_owned(),
            problems: vec![problem],
        }
    };
    for path in &fields.unset {
        let path = hub_path(object.kind, path);
        object.unset_field(path).map_err(invalid("--unset"))?;
    }
    for set in fields.set.iter().flat_map(|text| split_fields(text)) {
        let Some((path, text)) = set.split_once('=') else {
            return Err(Error::UnhandledField(set));
        };
        let path = hub_path(object.kind, path);
        object.set_field(path, text).map_err(invalid("--set"))?;
    }
    check_name(&object, stored)?;
    Ok(object)
}

/// Returns a path of a flag as a path of the hub.
fn hub_path(kind: Kind, path: &str) -> &str {
    if kind == Kind::InstanceGroup {
        return path.strip_prefix("instancegroup.").unwrap_or(path);
    }
    let path = path.strip_prefix("cluster.").unwrap_or(path);
    OLD_PATHS.iter().find(|(old, _)| *old == path).map_or(path, |(_, new)| new)
}

/// Splits a flag's text at commas, but not within quotes at the start of a part: CSV as Go reads it with lazy quotes.
fn split_fields(text: &str) -> Vec<String> {
    let mut fields = Vec::new();
    let mut rest = Some(text).filter(|text| !text.is_empty());
    while let Some(part) = rest {
        let (field, next) = match part.strip_prefix('"') {
            Some(quoted) => split_quoted(quoted),
            None => match part.split_once(',') {
                Some((field, next)) => (field.to_owned(), Some(next)),
                None => (part.to_owned(), None),
            },
        };
        fields.push(field);
        rest = next;
    }
    fields
}

/// Splits behind the quote that ends a quoted part. Two quotes are one, and other quotes within are literal.
fn split_quoted(text: &str) -> (String, Option<&str>) {
    let mut field = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('"') {
        field.push_str(before);
        if after.is_empty() {
            return (field, None);
        }
        if let Some(next) = after.strip_prefix(',') {
            return (field, Some(next));
        }
        field.push('"');
        rest = after.strip_prefix('"').unwrap_or(after);
    }
    field.push_str(rest);
    (field, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_fields_as_go_reads_csv() {
        for (text, expected) in [
            ("", &[][..]),
            ("a=1", &["a=1"]),
            ("a=1,b=2", &["a=1", "b=2"]),
            ("a=,b=", &["a=", "b="]),
            ("\"a=1,2\",b=3", &["a=1,2", "b=3"]),
            ("a=\"x\"", &["a=\"x\""]),
            ("\"a=\"\"x\"\"\"", &["a=\"x\""]),
            ("\"a=x\"y\"", &["a=x\"y"]),
            ("\"a,b", &["a,b"]),
            (",", &["", ""]),
        ] {
            assert_eq!(split_fields(text), expected, "{text}");
        }
    }
}
