use api_config::{Strictness, versioned};
use api_meta::{GroupResource, Status, Tree as _};
use api_rules::amounts::{Overhead, pod_total};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    configuration::ConfigurationError,
    request::{AdmissionResult, Outcome, Plugin, Request},
};

/// Adds a namespace's default tolerations and rejects tolerations that the namespace does not allow. The cluster's
/// configuration applies to namespaces without these annotations.
#[derive(Default)]
pub(crate) struct PodTolerationRestriction {
    configuration: Configuration,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Configuration {
    default: Vec<Value>,
    whitelist: Vec<Value>,
}

const SERVED: [&str; 1] = ["podtolerationrestriction.admission.k8s.io/v1alpha1"];

impl PodTolerationRestriction {
    /// Reads a `Configuration`; null means no configuration.
    pub(crate) fn configured(configuration: &Value) -> Result<Self, ConfigurationError> {
        if configuration.is_null() {
            return Ok(Self::default());
        }
        let configuration: Configuration =
            versioned("Configuration", configuration.clone(), &SERVED, Strictness::Warn)?;
        let all = configuration.default.iter().chain(&configuration.whitelist);
        if let Some(wrong) = all.into_iter().find(|toleration| !toleration.is_object()) {
            return Err(ConfigurationError::NotToleration(wrong.clone()));
        }
        Ok(Self { configuration })
    }
}

const DEFAULTS: &str = "scheduler.alpha.kubernetes.io/defaultTolerations";
const ALLOWED: &str = "scheduler.alpha.kubernetes.io/tolerationsWhitelist";

impl Plugin for PodTolerationRestriction {
    fn mutates(&self, request: &Request<'_>) -> bool {
        request.is(&GroupResource::PODS) && (request.creates() || request.updates())
    }

    fn mutate(&self, request: &Request<'_>, pod: &mut Value) -> AdmissionResult {
        let mut tolerations: Vec<Value> = pod.items("spec.tolerations").to_vec();
        if request.creates() {
            let defaults = annotated_tolerations(request, pod, DEFAULTS)?;
            let defaults = defaults.unwrap_or_else(|| self.configuration.default.clone());
            if defaults.iter().any(|d| tolerations.iter().any(|t| conflicts(d, t))) {
                return Err(
                    request.forbidden(pod, "namespace tolerations and pod tolerations conflict")
                );
            }
            add(&mut tolerations, defaults);
        }
        // As upstream: Pods with requests or limits tolerate memory pressure.
        let states = ["requests", "limits"]
            .iter()
            .any(|field| !pod_total(pod, field, Overhead::Left).is_empty());
        if states {
            let pressure = json!({
                "key": "node.kubernetes.io/memory-pressure", "operator": "Exists", "effect": "NoSchedule",
            });
            add(&mut tolerations, vec![pressure]);
        }
        if !tolerations.is_empty() {
            pod.put(&["spec", "tolerations"], tolerations);
        }
        Ok(())
    }

    fn validate(&self, request: &Request<'_>, pod: &Value, _: &mut Outcome) -> AdmissionResult {
        if !request.is(&GroupResource::PODS) || !(request.creates() || request.updates()) {
            return Ok(());
        }
        let (allowed, whose) = match annotated_tolerations(request, pod, ALLOWED)? {
            Some(allowed) => (allowed, "namespace"),
            None => (self.configuration.whitelist.clone(), "cluster"),
        };
        if allowed.is_empty()
            || pod.items("spec.tolerations").iter().all(|t| allowed.iter().any(|a| covers(a, t)))
        {
            return Ok(());
        }
        let cause = format!(
            "pod tolerations (possibly merged with namespace default tolerations) conflict with its {whose} whitelist"
        );
        Err(request.forbidden(pod, cause))
    }
}

/// Reads the tolerations in an annotation of the namespace; `None` without the annotation.
fn annotated_tolerations(
    request: &Request<'_>,
    pod: &Value,
    key: &str,
) -> Result<Option<Vec<Value>>, Status> {
    let namespace = request.objects.get(&GroupResource::NAMESPACES, "", request.namespace);
    let Some(text) = namespace.as_deref().and_then(|namespace| namespace.annotation(key)) else {
        return Ok(None);
    };
    if text.is_empty() {
        return Ok(Some(Vec::new()));
    }
    serde_json::from_str(text).map(Some).map_err(|e| {
        request.forbidden(
            pod,
            format!("cannot read annotation {key} of namespace {}: {e}", request.namespace),
        )
    })
}

fn same(a: &Value, b: &Value, fields: &[&str]) -> bool {
    fields.iter().all(|field| a.text(field) == b.text(field))
}

/// Reports whether two tolerations of the same taint differ in `tolerationSeconds`.
fn conflicts(a: &Value, b: &Value) -> bool {
    same(a, b, &["key", "effect", "operator", "value"])
        && a["tolerationSeconds"] != b["tolerationSeconds"]
}

fn add(tolerations: &mut Vec<Value>, more: Vec<Value>) {
    for toleration in more {
        if tolerations.iter().all(|t| !covers(t, &toleration)) {
            tolerations.push(toleration);
        }
    }
}

fn operator(toleration: &Value) -> &str {
    toleration.opt_text("operator").unwrap_or("Equal")
}

/// Reports whether `wide` tolerates every taint that `narrow` tolerates.
fn covers(wide: &Value, narrow: &Value) -> bool {
    let within =
        |field: &str| wide.text(field).is_empty() || wide.text(field) == narrow.text(field);
    let lasts = wide
        .opt_int("tolerationSeconds")
        .is_none_or(|wide| narrow.opt_int("tolerationSeconds").is_some_and(|n| n <= wide));
    let matching = match (operator(wide), operator(narrow)) {
        ("Exists", _) => true,
        ("Equal", "Equal") => wide.text("value") == narrow.text("value"),
        _ => false,
    };
    within("key") && within("effect") && matching && lasts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Cluster, Try, pod};

    fn cluster(defaults: Value, allowed: Value) -> Cluster {
        let annotations = json!({DEFAULTS: defaults.to_string(), ALLOWED: allowed.to_string()});
        Cluster::default().with(
            &GroupResource::NAMESPACES,
            json!({"metadata": {"name": "ns", "annotations": annotations}}),
        )
    }

    #[test]
    fn adds_defaults_and_rejects_disallowed_tolerations() {
        let gpu = json!({"key": "gpu", "operator": "Exists", "effect": "NoSchedule"});
        let cluster = cluster(json!([gpu]), json!([{"key": "gpu", "operator": "Exists"}]));
        let create = Try::create(&cluster, &GroupResource::PODS);
        assert_eq!(
            create.admitted(&PodTolerationRestriction::default(), pod(json!({})))["spec"]["tolerations"],
            json!([gpu])
        );
        let own = json!({"tolerations": [{"key": "gpu", "value": "x", "effect": "NoExecute"}]});
        assert!(
            create.refusal(&PodTolerationRestriction::default(), pod(own)).starts_with("admitted")
        );
        let other = json!({"tolerations": [{"operator": "Exists"}]});
        assert!(
            create
                .refusal(&PodTolerationRestriction::default(), pod(other))
                .contains("conflict with its namespace whitelist")
        );
        let sooner = json!({"tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule", "tolerationSeconds": 5}]});
        assert!(
            create
                .refusal(&PodTolerationRestriction::default(), pod(sooner))
                .contains("namespace tolerations and pod tolerations conflict")
        );
    }
    #[test]
    fn applies_cluster_configuration_without_annotations() {
        let gpu = json!({"key": "gpu", "operator": "Exists", "effect": "NoSchedule"});
        let configuration = json!({"apiVersion": SERVED[0], "kind": "Configuration", "default": [gpu], "whitelist": [gpu]});
        let plugin = PodTolerationRestriction::configured(&configuration).unwrap();
        let silent = Cluster::default()
            .with(&GroupResource::NAMESPACES, json!({"metadata": {"name": "ns"}}));
        let create = Try::create(&silent, &GroupResource::PODS);
        let made = create.admitted(&plugin, pod(json!({})));
        assert_eq!(made["spec"]["tolerations"], json!([gpu]));
        let every = || pod(json!({"tolerations": [{"operator": "Exists"}]}));
        let refusal = create.refusal(&plugin, every());
        assert!(refusal.ends_with("conflict with its cluster whitelist"), "{refusal}");
        let free = cluster(json!([]), json!([]));
        let own = Try::create(&free, &GroupResource::PODS).refusal(&plugin, every());
        assert!(own.starts_with("admitted"), "{own}");
        let wrong = json!({"apiVersion": SERVED[0], "kind": "Configuration", "default": [5]});
        assert!(PodTolerationRestriction::configured(&wrong).is_err());
    }
}
