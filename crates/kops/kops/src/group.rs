//! Runs `kops create instancegroup`.

use api_meta::Tree as _;
use kops_api::{Kind, Object};
use kops_core::{
    Cluster as _,
    create::{NewGroup, create_group},
};
use kops_store::Registry;
use serde_json::json;

use crate::{
    change::{CLUSTER_LABEL, store_group},
    editor,
    environment::CommandEnvironment,
    error::Error,
    flags::CreateGroup,
    get,
};

/// The roles of instance groups, with their words in flags and in output.
const ROLES: [(&str, &str); 4] = [
    ("control-plane", "ControlPlane"),
    ("apiserver", "APIServer"),
    ("node", "Node"),
    ("bastion", "Bastion"),
];

/// Returns the word of a role in flags and in output.
pub(crate) fn role_word(role: &str) -> &'static str {
    ROLES.iter().find(|(_, known)| *known == role).map_or("node", |(word, _)| *word)
}

/// Parses a role as upstream does: in any case, in the plural, and with the old name of control planes.
fn parse_role(text: &str) -> Result<&'static str, Error> {
    let lower = text.to_ascii_lowercase();
    let word = lower.strip_suffix('s').unwrap_or(&lower).replace("controlplane", "control-plane");
    let word = if word == "master" { "control-plane" } else { &word };
    let found = ROLES.iter().find(|(known, _)| *known == word);
    found.map(|(_, role)| *role).ok_or_else(|| Error::UnknownRole(text.to_owned()))
}

pub(crate) fn create(
    registry: &Registry,
    command: &CreateGroup,
    name: &str,
    context: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    let cluster = get::find_cluster(registry, name)?;
    if registry.group(name, &command.group)?.is_some() {
        let problem = "already exists";
        return Err(kops_store::Error::object("instance group", &command.group, problem).into());
    }
    let role = parse_role(&command.role)?;
    if !cluster.cloud().is_bare() {
        return Err(Error::GroupCloud(cluster.cloud().word()));
    }
    let wanted =
        NewGroup { name: &command.group, role, subnets: &command.subnet, zones: &command.zone };
    let group = create_group(&cluster, &wanted)?;
    if command.dry_run {
        if command.output.is_empty() {
            return Err(Error::MissingOutput);
        }
        return get::print_documents(&[group], &command.output, true, context.out);
    }
    if !command.output.is_empty() {
        return Err(Error::Flag { flag: "--output", problem: "is for --dry-run" });
    }
    let now = context.now;
    if !command.edit {
        return store_group(registry, name, group, now);
    }
    let stored = editor::edit(&group, context, |edited| {
        store_group(registry, name, with_cluster(edited, name)?, now)
    })?;
    // A proposal that was not changed is stored, too.
    if stored.is_none() { store_group(registry, name, group, now) } else { Ok(()) }
}

/// Returns an edited group with the label of its cluster.
fn with_cluster(mut edited: Object, cluster: &str) -> Result<Object, Error> {
    if edited.kind != Kind::InstanceGroup {
        let edited = edited.kind.name().to_owned();
        return Err(Error::Renamed { edited, stored: "an InstanceGroup".to_owned() });
    }
    edited.metadata.put("labels", json!({ CLUSTER_LABEL: cluster }));
    Ok(edited)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_roles_as_upstream_does() {
        for (text, role) in [
            ("node", "Node"),
            ("Nodes", "Node"),
            ("master", "ControlPlane"),
            ("ControlPlane", "ControlPlane"),
            ("control-plane", "ControlPlane"),
            ("bastions", "Bastion"),
        ] {
            assert_eq!(parse_role(text).unwrap(), role);
        }
        for text in ["", "s", "king", "node,bastion"] {
            let error = parse_role(text).unwrap_err().to_string();
            assert_eq!(error, format!("unknown role {text:?}"));
        }
    }
}
