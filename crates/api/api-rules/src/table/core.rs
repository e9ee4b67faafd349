//! Tables of the core group's smaller kinds and of Nodes.

use api_meta::Tree as _;
use serde_json::{Value, json};

use super::{
    column::{AGE, NAME, Table, age, name, text},
    format,
};
use crate::conditions;

pub(super) static COMPONENT_STATUSES: Table = Table {
    columns: &[NAME, text("Status"), text("Message"), text("Error")],
    cells: |object, _| {
        let healthy = object.items("conditions").iter().find(|c| c.text("type") == "Healthy");
        let (status, message, error) = match healthy {
            None => ("Unknown", "", ""),
            Some(c) => {
                let status = if c.text("status") == "True" { "Healthy" } else { "Unhealthy" };
                (status, c.text("message"), c.text("error"))
            }
        };
        vec![name(object), json!(status), json!(message), json!(error)]
    },
};

pub(super) static CONFIG_MAPS: Table = Table {
    columns: &[NAME, text("Data"), AGE],
    cells: |map, now| {
        let keys = map.pairs("data").count() + map.pairs("binaryData").count();
        vec![name(map), json!(keys), age(map, now)]
    },
};

pub(super) static NAMESPACES: Table = Table {
    columns: &[NAME, text("Status"), AGE],
    cells: |namespace, now| {
        vec![name(namespace), json!(namespace.text("status.phase")), age(namespace, now)]
    },
};

pub(super) static SECRETS: Table = Table {
    columns: &[NAME, text("Type"), text("Data"), AGE],
    cells: |secret, now| {
        let keys = secret.pairs("data").count();
        vec![name(secret), json!(secret.text("type")), json!(keys), age(secret, now)]
    },
};

pub(super) static RESOURCE_QUOTAS: Table = Table {
    columns: &[NAME, text("Request"), text("Limit"), AGE],
    cells: |quota, now| {
        let (mut requests, mut limits) = (Vec::new(), Vec::new());
        for (resource, hard) in quota.pairs("status.hard") {
            let used = quota.at("status.used").get(resource).cloned().unwrap_or(json!("0"));
            let used = format::format_scalar(&used, "0");
            let text = format!("{resource}: {used}/{}", format::format_scalar(hard, "0"));
            if resource.starts_with("limits") { &mut limits } else { &mut requests }.push(text);
        }
        vec![name(quota), json!(requests.join(", ")), json!(limits.join(", ")), age(quota, now)]
    },
};

pub(super) static NODES: Table = Table {
    columns: &[
        NAME,
        text("Status"),
        text("Roles"),
        AGE,
        text("Version"),
        text("Internal-IP").wide(),
        text("External-IP").wide(),
        text("OS-Image").wide(),
        text("Kernel-Version").wide(),
        text("Container-Runtime").wide(),
    ],
    cells: |node, now| {
        let info =
            |field: &str| json!(format::or(node.at("status.nodeInfo").text(field), "<unknown>"));
        let architecture = node.text("status.nodeInfo.architecture");
        let kernel = match (info("kernelVersion"), architecture) {
            (kernel, "") => kernel,
            (kernel, architecture) => {
                json!(format!("{} ({architecture})", kernel.as_str().unwrap_or_default()))
            }
        };
        vec![
            name(node),
            json!(node_status(node)),
            json!(node_roles(node)),
            age(node, now),
            json!(node.text("status.nodeInfo.kubeletVersion")),
            json!(node_address(node, "InternalIP")),
            json!(node_address(node, "ExternalIP")),
            info("osImage"),
            kernel,
            info("containerRuntimeVersion"),
        ]
    },
};

fn node_status(node: &Value) -> String {
    let mut status = match conditions::condition(node, "Ready") {
        Some(ready) if ready.text("status") == "True" => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    }
    .to_owned();
    if node.flag("spec.unschedulable") {
        status += ",SchedulingDisabled";
    }
    status
}

fn node_roles(node: &Value) -> String {
    let mut roles = std::collections::BTreeSet::new();
    for (label, value) in node.pairs("metadata.labels") {
        if let Some(role) = label.strip_prefix("node-role.kubernetes.io/") {
            roles.insert(role);
        } else if label == "kubernetes.io/role" {
            roles.insert(value.as_str().unwrap_or_default());
        }
    }
    roles.remove("");
    let roles: Vec<&str> = roles.into_iter().collect();
    format::or(&roles.join(","), "<none>")
}

fn node_address(node: &Value, kind: &str) -> String {
    let mut addresses = node.items("status.addresses").iter();
    let found = addresses.find(|a| a.text("type") == kind);
    format::or(found.map_or("", |a| a.text("address")), "<none>")
}
