//! Deletes the content of a terminating namespace, then removes its finalizer.

use api_meta::{ObjectMeta, PartialObject, Tree as _};
use std::time::Duration;

use client::{Client, DeleteOptions, Error, ListOptions, NotFoundExt as _, Resource, WorkQueue};
use serde_json::{Value, json};

use crate::{
    context::{Context, merged, synced},
    discovery::{self, Discovery},
    shared::Watched,
    views::Namespace,
};

const FINALIZER: &str = "kubernetes";

/// The state of a namespace's deletion.
#[derive(Debug, Default)]
struct Findings {
    /// Discovery failures: the namespace may still hold objects of these groups.
    discovery_failures: Vec<String>,
    deletion_failures: Vec<String>,
    /// Resource names, each with the number of objects left.
    remaining: Vec<(String, usize)>,
    /// Finalizers that hold objects, each with the number of objects.
    finalizers: std::collections::BTreeMap<String, usize>,
    /// The longest grace period of a terminating Pod, in seconds.
    grace_seconds: u64,
}

impl Findings {
    fn is_empty(&self) -> bool {
        self.discovery_failures.is_empty()
            && self.deletion_failures.is_empty()
            && self.remaining.is_empty()
    }
}

/// A condition that reports the progress of the deletion.
struct DeletionCondition {
    kind: &'static str,
    /// The status: `true` if the deletion has a problem.
    status: bool,
    reason: &'static str,
    message: String,
}

/// Returns the conditions that report the progress of the deletion, in upstream's words.
fn conditions(findings: &Findings) -> Vec<DeletionCondition> {
    // The reason and the message of the good and of the bad state.
    let condition = |kind, status: bool, reasons: [&'static str; 2], messages: [String; 2]| {
        let [good, bad] = messages;
        let (reason, message) = if status { (reasons[1], bad) } else { (reasons[0], good) };
        DeletionCondition { kind, status, reason, message }
    };
    let remaining: Vec<_> = findings
        .remaining
        .iter()
        .map(|(name, n)| format!("{name} has {n} resource instances"))
        .collect();
    let held: Vec<_> = findings
        .finalizers
        .iter()
        .map(|(name, n)| format!("{name} in {n} resource instances"))
        .collect();
    vec![
        condition(
            "NamespaceDeletionDiscoveryFailure",
            !findings.discovery_failures.is_empty(),
            ["ResourcesDiscovered", "DiscoveryFailed"],
            [
                "All resources successfully discovered".into(),
                format!(
                    "Discovery failed for some groups, {} failing: unable to retrieve the complete list of \
                     server APIs: {}",
                    findings.discovery_failures.len(),
                    findings.discovery_failures.join(", ")
                ),
            ],
        ),
        DeletionCondition {
            kind: "NamespaceDeletionGroupVersionParsingFailure",
            status: false,
            reason: "ParsedGroupVersions",
            message: "All legacy kube types successfully parsed".into(),
        },
        condition(
            "NamespaceDeletionContentFailure",
            !findings.deletion_failures.is_empty(),
            ["ContentDeleted", "ContentDeletionFailed"],
            [
                "All content successfully deleted, may be waiting on finalization".into(),
                format!(
                    "Failed to delete all resource types, {} remaining: {}",
                    findings.deletion_failures.len(),
                    findings.deletion_failures.join(", ")
                ),
            ],
        ),
        condition(
            "NamespaceContentRemaining",
            !remaining.is_empty(),
            ["ContentRemoved", "SomeResourcesRemain"],
            [
                "All content successfully removed".into(),
                format!("Some resources are remaining: {}", remaining.join(", ")),
            ],
        ),
        condition(
            "NamespaceFinalizersRemaining",
            !held.is_empty(),
            ["ContentHasNoFinalizers", "SomeFinalizersRemain"],
            [
                "All content-preserving finalizers finished".into(),
                format!(
                    "Some content in the namespace has finalizers remaining: {}",
                    held.join(", ")
                ),
            ],
        ),
    ]
}

pub(crate) fn start(context: Context) {
    let queue = WorkQueue::new(Duration::from_millis(100), Duration::from_secs(60));
    let namespaces = context.watch::<Namespace>(Resource::NAMESPACES);
    namespaces.on_key_if(&queue, |change| change.new.is_some_and(|ns| ns.metadata.terminating()));
    let waits = vec![synced(&namespaces)];
    let state = (context.clone(), namespaces, queue.clone());
    context.run(&queue, 10, waits, state, |(context, namespaces, queue), key| async move {
        reconcile(&context, &namespaces, &queue, &key).await
    });
}

async fn reconcile(
    context: &Context,
    namespaces: &Watched<Namespace>,
    queue: &WorkQueue<String>,
    name: &str,
) -> Result<(), Error> {
    let Some(namespace) = namespaces.get(name) else { return Ok(()) };
    if !namespace.metadata.terminating()
        || !namespace.spec.finalizers.iter().any(|f| f == FINALIZER)
    {
        return Ok(());
    }
    let findings = empty(&context.client, name).await;
    write_conditions(context, name, &findings).await?;
    if findings.is_empty() {
        return finalize(&context.client, name, &namespace.metadata).await;
    }
    // Terminating objects only need time, and finalizers may take any time.
    let wait =
        if findings.grace_seconds > 0 { findings.grace_seconds.div_ceil(2).min(15) } else { 1 };
    queue.add_after(name.to_owned(), Duration::from_secs(wait));
    Ok(())
}

/// Deletes all content and returns the rest. Pods go first, and nothing else before they are gone: a NetworkPolicy
/// protects them and they may need a ConfigMap or Secret to shut down.
async fn empty(client: &Client, namespace: &str) -> Findings {
    let mut findings = Findings::default();
    let Discovery { mut resources, failures } = discovery::namespaced(client).await;
    findings.discovery_failures = failures;
    // Events last, because deletions may still create some.
    let pods = |resource: &Resource| resource.group.is_empty() && resource.plural == "pods";
    resources.sort_by_key(|resource| (!pods(resource), resource.plural == "events"));
    for resource in &resources {
        if let Err(error) = empty_of(client, namespace, resource, &mut findings).await {
            findings.deletion_failures.push(format!(
                "{}: {}",
                discovery::name(resource),
                error.server_message()
            ));
        }
        let left = !(findings.remaining.is_empty() && findings.deletion_failures.is_empty());
        if pods(resource) && left {
            break;
        }
    }
    findings
}

async fn empty_of(
    client: &Client,
    namespace: &str,
    resource: &Resource,
    findings: &mut Findings,
) -> Result<(), Error> {
    let all = ListOptions::default();
    let before = client.list::<PartialObject>(resource, namespace, &all).await?.items;
    if before.is_empty() {
        return Ok(());
    }
    if before.iter().any(|left| !left.metadata.terminating()) {
        let options =
            DeleteOptions { propagation_policy: Some("Background"), ..DeleteOptions::default() };
        match client.delete_collection(resource, namespace, &all, &options).await {
            Err(error) if error.code() == Some(405) => {
                for left in &before {
                    client
                        .delete(resource, namespace, &left.metadata.name, &options)
                        .await
                        .or_none()?;
                }
            }
            other => other?,
        }
    }
    let after = client.list::<PartialObject>(resource, namespace, &all).await?.items;
    if after.is_empty() {
        return Ok(());
    }
    findings.remaining.push((discovery::name(resource), after.len()));
    for left in &after {
        for finalizer in &left.metadata.finalizers {
            *findings.finalizers.entry(finalizer.clone()).or_default() += 1;
        }
        let grace = left.metadata.deletion_grace_period_seconds.unwrap_or(0);
        findings.grace_seconds = findings.grace_seconds.max(grace);
    }
    Ok(())
}

async fn write_conditions(context: &Context, name: &str, findings: &Findings) -> Result<(), Error> {
    let namespace = context.client.get::<Value>(&Resource::NAMESPACES, "", name).await.or_none()?;
    let Some(namespace) = namespace else { return Ok(()) };
    let now = context.now().to_seconds();
    let old = namespace.items("status.conditions").to_vec();
    let mut new = old.clone();
    for DeletionCondition { kind, status, reason, message } in conditions(findings) {
        let status = if status { "True" } else { "False" };
        let place = new.iter().position(|c| c["type"] == kind);
        let since = place.filter(|at| new[*at]["status"] == status);
        let since = since.map_or(json!(now), |at| new[at]["lastTransitionTime"].clone());
        let condition = json!({"type": kind, "status": status, "reason": reason, "message": message,
            "lastTransitionTime": since});
        match place {
            Some(at) => new[at] = condition,
            None => new.push(condition),
        }
    }
    let desired = merged(&namespace, &json!({"status": {"conditions": new}}));
    if desired == namespace {
        return Ok(());
    }
    let resource = &Resource::NAMESPACES;
    let written = context.client.update_status::<_, Value>(resource, "", name, &desired).await;
    written.or_none().map(drop)
}

/// Removes the controller's finalizer, which lets the API server delete the namespace.
async fn finalize(client: &Client, name: &str, meta: &ObjectMeta) -> Result<(), Error> {
    let namespace = client.get::<Value>(&Resource::NAMESPACES, "", name).await.or_none()?;
    let Some(mut namespace) = namespace else { return Ok(()) };
    if *namespace.at("metadata.uid") != meta.uid.as_str() {
        return Ok(());
    }
    if let Some(finalizers) =
        namespace.at_mut(&["spec", "finalizers"]).and_then(Value::as_array_mut)
    {
        finalizers.retain(|f| f != FINALIZER);
    }
    let resource = &Resource::NAMESPACES;
    let finalized =
        client.update_subresource::<_, Value>(resource, "", name, "finalize", &namespace).await;
    finalized.or_none().map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_list_remaining_content() {
        let findings = Findings {
            remaining: vec![("pods.".into(), 2)],
            finalizers: [("example.com/hold".to_owned(), 1)].into(),
            discovery_failures: vec!["a/v1: stale GroupVersion discovery: a/v1".into()],
            ..Findings::default()
        };
        let all = conditions(&findings);
        let find = |kind: &str| all.iter().find(|c| c.kind == kind).unwrap();
        assert_eq!(
            find("NamespaceContentRemaining").message,
            "Some resources are remaining: pods. has 2 resource instances"
        );
        assert_eq!(
            find("NamespaceFinalizersRemaining").message,
            "Some content in the namespace has finalizers remaining: example.com/hold in 1 resource instances"
        );
        assert_eq!(
            find("NamespaceDeletionDiscoveryFailure").message,
            "Discovery failed for some groups, 1 failing: unable to retrieve the complete list of server APIs: a/v1: stale GroupVersion discovery: a/v1"
        );
        assert!(!find("NamespaceDeletionContentFailure").status);
        assert!(!findings.is_empty() && Findings::default().is_empty());
    }
}
