//! Tables of workloads, autoscalers and disruption budgets.

use api_meta::Tree as _;
use serde_json::{Value, json};

use super::{
    column::{AGE, NAME, Table, age, integer, name, text},
    format,
};
use crate::conditions;

pub(super) static DEPLOYMENTS: Table = Table {
    columns: &[
        NAME,
        text("Ready"),
        text("Up-to-date"),
        text("Available"),
        AGE,
        text("Containers").wide(),
        text("Images").wide(),
        text("Selector").wide(),
    ],
    cells: |object, now| deployment_cells(object, age(object, now)),
};

fn deployment_cells(object: &Value, age: Value) -> Vec<Value> {
    let [containers, images] = format::containers(object.at("spec.template"));
    vec![
        name(object),
        ready_of(object),
        json!(object.int("status.updatedReplicas")),
        json!(object.int("status.availableReplicas")),
        age,
        json!(containers),
        json!(images),
        json!(format::selector(object.at("spec.selector"))),
    ]
}

/// Returns the numbers of ready and of wanted Pods.
fn ready_of(object: &Value) -> Value {
    json!(format!("{}/{}", object.int("status.readyReplicas"), object.int("spec.replicas")))
}

const REPLICAS: [super::column::Column; 8] = [
    NAME,
    integer("Desired"),
    integer("Current"),
    integer("Ready"),
    AGE,
    text("Containers").wide(),
    text("Images").wide(),
    text("Selector").wide(),
];

pub(super) static REPLICA_SETS: Table = Table {
    columns: &REPLICAS,
    cells: |object, now| {
        replica_cells(object, age(object, now), format::selector(object.at("spec.selector")))
    },
};

pub(super) static REPLICATION_CONTROLLERS: Table = Table {
    columns: &REPLICAS,
    cells: |object, now| {
        replica_cells(object, age(object, now), format::labels(object.at("spec.selector")))
    },
};

fn replica_cells(object: &Value, age: Value, selector: String) -> Vec<Value> {
    let [containers, images] = format::containers(object.at("spec.template"));
    vec![
        name(object),
        json!(object.int("spec.replicas")),
        json!(object.int("status.replicas")),
        json!(object.int("status.readyReplicas")),
        age,
        json!(containers),
        json!(images),
        json!(selector),
    ]
}

pub(super) static STATEFUL_SETS: Table = Table {
    columns: &[NAME, text("Ready"), AGE, text("Containers").wide(), text("Images").wide()],
    cells: |object, now| {
        let [containers, images] = format::containers(object.at("spec.template"));
        vec![name(object), ready_of(object), age(object, now), json!(containers), json!(images)]
    },
};

pub(super) static DAEMON_SETS: Table = Table {
    columns: &[
        NAME,
        integer("Desired"),
        integer("Current"),
        integer("Ready"),
        integer("Up-to-date"),
        integer("Available"),
        text("Node Selector"),
        AGE,
        text("Containers").wide(),
        text("Images").wide(),
        text("Selector").wide(),
    ],
    cells: |object, now| {
        let [containers, images] = format::containers(object.at("spec.template"));
        vec![
            name(object),
            json!(object.int("status.desiredNumberScheduled")),
            json!(object.int("status.currentNumberScheduled")),
            json!(object.int("status.numberReady")),
            json!(object.int("status.updatedNumberScheduled")),
            json!(object.int("status.numberAvailable")),
            json!(format::labels(object.at("spec.template.spec.nodeSelector"))),
            age(object, now),
            json!(containers),
            json!(images),
            json!(format::selector(object.at("spec.selector"))),
        ]
    },
};

pub(super) static POD_TEMPLATES: Table = Table {
    columns: &[NAME, text("Containers"), text("Images"), text("Pod Labels")],
    cells: |object, _| {
        let [containers, images] = format::containers(object.at("template"));
        let labels = format::labels(object.at("template.metadata.labels"));
        vec![name(object), json!(containers), json!(images), json!(labels)]
    },
};

pub(super) static POD_GROUPS: Table = Table {
    columns: &[NAME, text("Policy"), text("Workload"), text("Status"), AGE],
    cells: |group, now| {
        let policy = group.at("spec.schedulingPolicy");
        let policy = match (policy.has("basic"), policy.has("gang")) {
            (true, _) => "Basic",
            (_, true) => "Gang",
            _ => "",
        };
        let workload = group.text("spec.podGroupTemplateRef.workload.workloadName");
        let scheduled = conditions::condition(group, "PodGroupScheduled");
        let status = scheduled.map_or("", |condition| condition.text("reason"));
        let shown = [policy, workload, status].map(|text| json!(text));
        [vec![name(group)], shown.to_vec(), vec![age(group, now)]].concat()
    },
};

pub(super) static CONTROLLER_REVISIONS: Table = Table {
    columns: &[NAME, text("Controller"), text("Revision"), AGE],
    cells: |object, now| {
        let owners = object.items("metadata.ownerReferences");
        let controller = owners.iter().find(|o| o.flag("controller")).map_or_else(
            || "<none>".to_owned(),
            |owner| {
                let kind = owner.text("kind").to_lowercase();
                let kind = match owner.text("apiVersion").split_once('/') {
                    Some((group, _)) => format!("{kind}.{group}"),
                    None => kind,
                };
                format!("{kind}/{}", owner.text("name"))
            },
        );
        vec![name(object), json!(controller), json!(object.int("revision")), age(object, now)]
    },
};

pub(super) static DISRUPTION_BUDGETS: Table = Table {
    columns: &[
        NAME,
        text("Min Available"),
        text("Max Unavailable"),
        integer("Allowed Disruptions"),
        AGE,
    ],
    cells: |object, now| {
        vec![
            name(object),
            json!(format::format_scalar(object.at("spec.minAvailable"), "N/A")),
            json!(format::format_scalar(object.at("spec.maxUnavailable"), "N/A")),
            json!(object.int("status.disruptionsAllowed")),
            age(object, now),
        ]
    },
};

pub(super) static AUTOSCALERS: Table = Table {
    columns: &[
        NAME,
        text("Reference"),
        text("Targets"),
        text("MinPods"),
        text("MaxPods"),
        text("Replicas"),
        AGE,
    ],
    cells: |object, now| {
        let target = object.at("spec.scaleTargetRef");
        vec![
            name(object),
            json!(format!("{}/{}", target.text("kind"), target.text("name"))),
            json!(targets(object)),
            json!(format::format_scalar(object.at("spec.minReplicas"), "<unset>")),
            json!(object.int("spec.maxReplicas")),
            json!(object.int("status.currentReplicas")),
            age(object, now),
        ]
    },
};

/// Formats the targets of an autoscaler, such as `cpu: 5%/80%`, for at most two metrics.
fn targets(object: &Value) -> String {
    let metrics = object.items("spec.metrics");
    if metrics.is_empty() {
        return match object.opt_int("spec.targetCPUUtilizationPercentage") {
            Some(target) => {
                let current = object.at("status.currentCPUUtilizationPercentage");
                let current =
                    if current.is_null() { "<unknown>".to_owned() } else { format!("{current}%") };
                format!("cpu: {current}/{target}%")
            }
            None => "<none>".to_owned(),
        };
    }
    let current = object.items("status.currentMetrics");
    let list: Vec<String> =
        metrics.iter().enumerate().map(|(i, m)| metric(m, current.get(i))).collect();
    let shown = list[..list.len().min(2)].join(", ");
    if list.len() > 2 { format!("{shown} + {} more...", list.len() - 2) } else { shown }
}

fn metric(metric: &Value, current: Option<&Value>) -> String {
    let source = match metric.text("type") {
        "Resource" => "resource",
        "ContainerResource" => "containerResource",
        "Pods" => "pods",
        "Object" => "object",
        "External" => "external",
        _ => return "<unknown type>".to_owned(),
    };
    let (target, now) = (
        metric.at(source).at("target"),
        current.map_or(&Value::Null, |c| c.at(source).at("current")),
    );
    let prefix = match source {
        "resource" | "containerResource" => format!("{}: ", metric.at(source).text("name")),
        _ => String::new(),
    };
    if let Some(percent) = target.opt_int("averageUtilization") {
        let now = match now.opt_int("averageUtilization") {
            Some(now) => format!("{now}%"),
            None => "<unknown>".to_owned(),
        };
        return format!("{prefix}{now}/{percent}%");
    }
    let (field, suffix) = if !target.has("averageValue") {
        ("value", "")
    } else if source == "object" || source == "external" {
        ("averageValue", " (avg)")
    } else {
        ("averageValue", "")
    };
    let shown = |value: &Value| format::format_scalar(value.at(field), "<unknown>");
    format!("{prefix}{}/{}{suffix}", shown(now), shown(target))
}
