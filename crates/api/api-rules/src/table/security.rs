//! Tables of role bindings, certificate requests and trust bundles.

use std::time::Duration;

use api_meta::{Tree as _, human_duration};
use serde_json::{Value, json};

use super::{
    column::{AGE, NAME, Table, age, name, text},
    format,
};

pub(super) static TRUST_BUNDLES: Table = Table {
    columns: &[NAME, text("SignerName")],
    cells: |bundle, _| vec![name(bundle), json!(bundle.text("spec.signerName"))],
};

pub(super) static POD_CERTIFICATES: Table = Table {
    columns: &[
        NAME,
        text("PodName"),
        text("ServiceAccountName"),
        text("NodeName"),
        text("SignerName"),
        text("State"),
    ],
    cells: |request, _| {
        let spec = |field: &str| json!(request.at("spec").text(field));
        let state = request.items("status.conditions").iter().find(|c| c.text("status") == "True");
        let state = state.map_or("Pending", |condition| condition.text("type"));
        vec![
            name(request),
            spec("podName"),
            spec("serviceAccountName"),
            spec("nodeName"),
            spec("signerName"),
            json!(state),
        ]
    },
};

pub(super) static BINDINGS: Table = Table {
    columns: &[
        NAME,
        text("Role"),
        AGE,
        text("Users").wide(),
        text("Groups").wide(),
        text("ServiceAccounts").wide(),
    ],
    cells: |binding, now| {
        let subjects = |kind: &str| {
            let list: Vec<String> = binding
                .items("subjects")
                .iter()
                .filter(|s| s.text("kind") == kind)
                .map(|s| match kind {
                    "ServiceAccount" => format!("{}/{}", s.text("namespace"), s.text("name")),
                    _ => s.text("name").to_owned(),
                })
                .collect();
            json!(list.join(", "))
        };
        let role = binding.at("roleRef");
        vec![
            name(binding),
            json!(format!("{}/{}", role.text("kind"), role.text("name"))),
            age(binding, now),
            subjects("User"),
            subjects("Group"),
            subjects("ServiceAccount"),
        ]
    },
};

pub(super) static SIGNING_REQUESTS: Table = Table {
    columns: &[
        NAME,
        AGE,
        text("SignerName"),
        text("Requestor"),
        text("RequestedDuration"),
        text("Condition"),
    ],
    cells: |csr, now| {
        let duration = match csr.opt_int("spec.expirationSeconds") {
            Some(seconds) => human_duration(Duration::from_secs(seconds.unsigned_abs())),
            None => "<none>".to_owned(),
        };
        vec![
            name(csr),
            age(csr, now),
            json!(format::or(csr.text("spec.signerName"), "<none>")),
            json!(csr.text("spec.username")),
            json!(duration),
            json!(decision(csr)),
        ]
    },
};

fn decision(csr: &Value) -> String {
    let has = |kind: &str| csr.items("status.conditions").iter().any(|c| c.text("type") == kind);
    let mut text = if has("Denied") {
        "Denied"
    } else if has("Approved") {
        "Approved"
    } else {
        "Pending"
    }
    .to_owned();
    if has("Failed") {
        text += ",Failed";
    }
    if !csr.blank("status.certificate") {
        text += ",Issued";
    }
    text
}
