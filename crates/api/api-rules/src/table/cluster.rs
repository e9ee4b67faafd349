//! Tables of cluster configuration: admission, API services, flow control, classes and leases.

use api_meta::Tree as _;
use serde_json::{Value, json};

use super::{
    column::{AGE, DEFAULT, NAME, Table, age, boolean, integer, name, text},
    format,
};
use crate::conditions;

pub(super) fn admission(resource: &str) -> &'static Table {
    match resource {
        "mutatingwebhookconfigurations" | "validatingwebhookconfigurations" => &WEBHOOKS,
        "validatingadmissionpolicies" => &VALIDATING_POLICIES,
        "mutatingadmissionpolicies" => &MUTATING_POLICIES,
        "validatingadmissionpolicybindings" | "mutatingadmissionpolicybindings" => &POLICY_BINDINGS,
        _ => &DEFAULT,
    }
}

static WEBHOOKS: Table = Table {
    columns: &[NAME, integer("Webhooks"), AGE],
    cells: |object, now| {
        vec![name(object), json!(object.items("webhooks").len()), age(object, now)]
    },
};

static VALIDATING_POLICIES: Table = Table {
    columns: &[NAME, integer("Validations"), text("ParamKind"), AGE],
    cells: |object, now| {
        let count = object.items("spec.validations").len();
        vec![name(object), json!(count), json!(param_kind(object)), age(object, now)]
    },
};

static MUTATING_POLICIES: Table = Table {
    columns: &[NAME, integer("Mutations"), text("ParamKind"), AGE],
    cells: |object, now| {
        let count = object.items("spec.mutations").len();
        vec![name(object), json!(count), json!(param_kind(object)), age(object, now)]
    },
};

fn param_kind(object: &Value) -> String {
    let kind = object.at("spec.paramKind");
    if kind.is_null() {
        "<unset>".to_owned()
    } else {
        format!("{}/{}", kind.text("apiVersion"), kind.text("kind"))
    }
}

static POLICY_BINDINGS: Table = Table {
    columns: &[NAME, text("PolicyName"), text("ParamRef"), AGE],
    cells: |object, now| {
        let parameter = object.at("spec.paramRef");
        let shown = match (parameter.text("name"), parameter.text("namespace")) {
            ("", _) => "<unset>".to_owned(),
            (name, "") => name.to_owned(),
            (name, namespace) => format!("{namespace}/{name}"),
        };
        vec![name(object), json!(object.text("spec.policyName")), json!(shown), age(object, now)]
    },
};

pub(super) static API_SERVICES: Table = Table {
    columns: &[NAME, text("Service"), text("Available"), AGE],
    cells: |object, now| {
        let service = object.at("spec.service");
        let service = if service.is_null() {
            "Local".to_owned()
        } else {
            format!("{}/{}", service.text("namespace"), service.text("name"))
        };
        let available = match conditions::condition(object, "Available") {
            None => "Unknown".to_owned(),
            Some(c) if c.text("status") == "True" => "True".to_owned(),
            Some(c) => format!("{} ({})", c.text("status"), c.text("reason")),
        };
        vec![name(object), json!(service), json!(available), age(object, now)]
    },
};

pub(super) static LEASES: Table = Table {
    columns: &[NAME, text("Holder"), AGE],
    cells: |lease, now| {
        vec![name(lease), json!(lease.text("spec.holderIdentity")), age(lease, now)]
    },
};

pub(super) static LEASE_CANDIDATES: Table = Table {
    columns: &[NAME, text("LeaseName"), text("BinaryVersion"), text("EmulationVersion"), AGE],
    cells: |candidate, now| {
        let spec = |field: &str| json!(candidate.at("spec").text(field));
        let (binary, emulation) = (spec("binaryVersion"), spec("emulationVersion"));
        vec![name(candidate), spec("leaseName"), binary, emulation, age(candidate, now)]
    },
};

pub(super) static TAINT_RULES: Table = Table {
    columns: &[NAME, text("Key"), text("Value"), text("Effect"), text("TimeAdded"), AGE],
    cells: |rule, now| {
        let taint = rule.at("spec.taint");
        let of = |field: &str| json!(taint.text(field));
        let added = taint.text("timeAdded");
        let added = if added.is_empty() { json!("") } else { json!(format::since(added, now)) };
        vec![name(rule), of("key"), of("value"), of("effect"), added, age(rule, now)]
    },
};

pub(super) static FLOW_SCHEMAS: Table = Table {
    columns: &[
        NAME,
        text("PriorityLevel"),
        text("MatchingPrecedence"),
        text("DistinguisherMethod"),
        AGE,
        text("MissingPL"),
    ],
    cells: |schema, now| {
        let dangling = conditions::condition(schema, "Dangling").map_or("?", |c| c.text("status"));
        let method = schema.text("spec.distinguisherMethod.type");
        vec![
            name(schema),
            json!(format::or(schema.text("spec.priorityLevelConfiguration.name"), "<none>")),
            json!(schema.int("spec.matchingPrecedence")),
            json!(format::or(method, "<none>")),
            age(schema, now),
            json!(dangling),
        ]
    },
};

pub(super) static PRIORITY_LEVELS: Table = Table {
    columns: &[
        NAME,
        text("Type"),
        text("NominalConcurrencyShares"),
        text("Queues"),
        text("HandSize"),
        text("QueueLengthLimit"),
        AGE,
    ],
    cells: |level, now| {
        let of = |path: &str| match level.at(path) {
            Value::Null => json!("<none>"),
            value => value.clone(),
        };
        let queuing = "spec.limited.limitResponse.queuing";
        let shares = if level.has("spec.limited") {
            of("spec.limited.nominalConcurrencyShares")
        } else {
            of("spec.exempt.nominalConcurrencyShares")
        };
        vec![
            name(level),
            json!(level.text("spec.type")),
            shares,
            of(&format!("{queuing}.queues")),
            of(&format!("{queuing}.handSize")),
            of(&format!("{queuing}.queueLengthLimit")),
            age(level, now),
        ]
    },
};

pub(super) static RUNTIME_CLASSES: Table = Table {
    columns: &[NAME, text("Handler"), AGE],
    cells: |class, now| vec![name(class), json!(class.text("handler")), age(class, now)],
};

pub(super) static PRIORITY_CLASSES: Table = Table {
    columns: &[NAME, integer("Value"), boolean("Global-Default"), AGE, text("PreemptionPolicy")],
    cells: |class, now| {
        vec![
            name(class),
            json!(class.int("value")),
            json!(class.flag("globalDefault")),
            age(class, now),
            json!(class.text("preemptionPolicy")),
        ]
    },
};

pub(super) static RESOURCE_CLAIMS: Table = Table {
    columns: &[NAME, text("State"), AGE],
    cells: |claim, now| {
        let mut states = Vec::new();
        if claim.has("metadata.deletionTimestamp") {
            states.push("deleted");
        }
        if claim.has("status.allocation") {
            states.push("allocated");
        } else if states.is_empty() {
            states.push("pending");
        }
        if !claim.blank("status.reservedFor") {
            states.push("reserved");
        }
        vec![name(claim), json!(states.join(",")), age(claim, now)]
    },
};

pub(super) static RESOURCE_SLICES: Table = Table {
    columns: &[NAME, text("Node"), text("Driver"), text("Pool"), AGE],
    cells: |slice, now| {
        vec![
            name(slice),
            json!(slice.text("spec.nodeName")),
            json!(slice.text("spec.driver")),
            json!(slice.text("spec.pool.name")),
            age(slice, now),
        ]
    },
};
