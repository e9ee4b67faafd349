use api_meta::{GroupResource, Status, Tree as _, go_quote, names};
use std::collections::HashSet;

use serde_json::{Value, json};

use crate::request::{AdmissionResult, Outcome, Plugin, Request};

/// Sets a Pod's service account, adds its pull secrets, and mounts a token into the containers.
pub(crate) struct ServiceAccount;

const TOKEN_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const VOLUME_PREFIX: &str = "kube-api-access-";
/// The lifetime of tokens that this plugin requests. The API server recognizes them by it.
const TOKEN_SECONDS: i64 = 3607;
pub(crate) const MIRROR: &str = "kubernetes.io/config.mirror";
const ENFORCE_MOUNTABLE: &str = "kubernetes.io/enforce-mountable-secrets";

impl Plugin for ServiceAccount {
    fn mutates(&self, request: &Request<'_>) -> bool {
        request.is(&GroupResource::PODS) && request.creates()
    }

    fn mutate(&self, request: &Request<'_>, pod: &mut Value) -> AdmissionResult {
        if pod.annotation(MIRROR).is_some() {
            return Ok(());
        }
        if pod.text("spec.serviceAccountName").is_empty() {
            pod.put(&["spec", "serviceAccountName"], "default");
        }
        // The deprecated alias of the same field.
        pod.put(&["spec", "serviceAccount"], pod.at("spec.serviceAccountName").clone());
        let account = account_of(request, pod)?;
        let mounts = pod
            .opt_flag("spec.automountServiceAccountToken")
            .or_else(|| account.opt_flag("automountServiceAccountToken"))
            .unwrap_or(true);
        if mounts {
            mount_token(request, pod);
        }
        if pod.items("spec.imagePullSecrets").is_empty()
            && !account.items("imagePullSecrets").is_empty()
        {
            pod.put(&["spec", "imagePullSecrets"], account["imagePullSecrets"].clone());
        }
        Ok(())
    }

    fn validate(&self, request: &Request<'_>, pod: &Value, _: &mut Outcome) -> AdmissionResult {
        let creates = request.is(&GroupResource::PODS) && request.creates();
        // Ephemeral containers are added after the Pod was validated.
        let adds = request.is_sub(&GroupResource::PODS, "ephemeralcontainers") && request.updates();
        if !creates && !adds {
            return Ok(());
        }
        if creates && pod.annotation(MIRROR).is_some() {
            return check_mirror(pod).map_err(|cause| request.forbidden(pod, cause));
        }
        if pod.text("spec.serviceAccountName").is_empty() {
            let name = pod.name();
            let cause =
                format!("no service account specified for pod {}/{name}", request.namespace);
            return Err(request.forbidden(pod, cause));
        }
        let account = account_of(request, pod)?;
        if !enforces(&account) {
            return Ok(());
        }
        let checked = validate_containers(pod, &account);
        let checked = if creates {
            checked.and_then(|()| validate_volumes_and_pulls(pod, &account))
        } else {
            checked
        };
        checked.map_err(|cause| request.forbidden(pod, cause))
    }
}

/// Reports whether the Pods of a service account may only use the Secrets that it lists.
fn enforces(account: &Value) -> bool {
    // The strings that Go's `strconv.ParseBool` reads as true.
    const TRUE: [&str; 6] = ["1", "t", "T", "TRUE", "true", "True"];
    account.annotation(ENFORCE_MOUNTABLE).is_some_and(|value| TRUE.contains(&value))
}

fn account_of(request: &Request<'_>, pod: &Value) -> Result<std::sync::Arc<Value>, Status> {
    let (namespace, name) = (request.namespace, pod.text("spec.serviceAccountName"));
    request.objects.get(&GroupResource::SERVICE_ACCOUNTS, namespace, name).ok_or_else(|| {
        let quoted = go_quote(name);
        let cause = format!(
            "error looking up service account {namespace}/{name}: serviceaccount {quoted} not found"
        );
        request.forbidden(pod, cause)
    })
}

fn mount_token(request: &Request<'_>, pod: &mut Value) {
    let existing = pod
        .items("spec.volumes")
        .iter()
        .map(|v| v.text("name"))
        .find(|name| name.starts_with(VOLUME_PREFIX));
    let (name, has_volume) = match existing {
        Some(name) => (name.to_owned(), true),
        None => (names::generate(VOLUME_PREFIX, request.random), false),
    };
    let mut needed = false;
    for list in ["spec.initContainers", "spec.containers"] {
        for container in pod.items_mut(list) {
            if container
                .items("volumeMounts")
                .iter()
                .all(|mount| mount.text("mountPath") != TOKEN_PATH)
            {
                let mount = json!({"mountPath": TOKEN_PATH, "name": name, "readOnly": true});
                container.push(&["volumeMounts"], mount);
                needed = true;
            }
        }
    }
    if needed && !has_volume {
        pod.push(&["spec", "volumes"], token_volume(&name));
    }
}

/// Builds the volume with the files that in-cluster clients read: token, CA and namespace.
fn token_volume(name: &str) -> Value {
    json!({
        "name": name,
        "projected": {
            "defaultMode": 0o644,
            "sources": [
                {"serviceAccountToken": {"expirationSeconds": TOKEN_SECONDS, "path": "token"}},
                {"configMap": {"items": [{"key": "ca.crt", "path": "ca.crt"}], "name": "kube-root-ca.crt"}},
                {"downwardAPI": {"items": [
                    {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}, "path": "namespace"}
                ]}}
            ]
        }
    })
}

/// Validates a mirror Pod, which may not reference credentials.
fn check_mirror(pod: &Value) -> Result<(), &'static str> {
    if !pod.text("spec.serviceAccountName").is_empty() {
        return Err("a mirror pod may not reference service accounts");
    }
    if secret_references(pod).next().is_some() {
        return Err("a mirror pod may not reference secrets");
    }
    let projects_token = pod
        .items("spec.volumes")
        .iter()
        .flat_map(|volume| volume.items("projected.sources"))
        .any(|source| source.has("serviceAccountToken"));
    if projects_token {
        Err("a mirror pod may not use ServiceAccountToken volume projections")
    } else {
        Ok(())
    }
}

/// Returns the Secrets that a Pod references.
pub(super) fn secret_references(pod: &Value) -> impl Iterator<Item = &str> {
    let in_containers = references_of_containers(pod).map(|(_, secret)| secret);
    in_containers.chain(references_of_volumes(pod)).chain(references_of_pulls(pod))
}

/// Returns the Secrets that containers read variables from, each with its place in upstream's words.
fn references_of_containers(pod: &Value) -> impl Iterator<Item = (String, &str)> {
    let lists = [
        ("init container", "spec.initContainers"),
        ("container", "spec.containers"),
        ("ephemeral container", "spec.ephemeralContainers"),
    ];
    let containers = lists.into_iter().flat_map(move |(noun, list)| {
        pod.items(list).iter().map(move |container| (noun, container))
    });
    let found = containers.flat_map(|(noun, container)| {
        let place = format!("{noun} {}", container.text("name"));
        let of_variable = place.clone();
        let env = container.items("env").iter().map(move |env| {
            let place = format!("{of_variable} with envVar {}", env.text("name"));
            (place, env.text("valueFrom.secretKeyRef.name"))
        });
        let from = container
            .items("envFrom")
            .iter()
            .map(move |from| (format!("{place} with envFrom"), from.text("secretRef.name")));
        env.chain(from)
    });
    found.filter(|(_, secret)| !secret.is_empty())
}

fn references_of_volumes(pod: &Value) -> impl Iterator<Item = &str> {
    let found = pod.items("spec.volumes").iter().flat_map(|volume| {
        let own = ["secret.secretName", "csi.nodePublishSecretRef.name"]
            .map(|pointer| volume.text(pointer));
        let projected =
            volume.items("projected.sources").iter().map(|source| source.text("secret.name"));
        own.into_iter().chain(projected)
    });
    found.filter(|secret| !secret.is_empty())
}

fn references_of_pulls(pod: &Value) -> impl Iterator<Item = &str> {
    pod.items("spec.imagePullSecrets")
        .iter()
        .map(|r| r.text("name"))
        .filter(|name| !name.is_empty())
}

fn listed<'a>(account: &'a Value, field: &str) -> HashSet<&'a str> {
    account.items(field).iter().map(|listed| listed.text("name")).collect()
}

/// A reference to a Secret that the service account does not list, with upstream's messages.
#[derive(Debug, thiserror::Error)]
enum UnlistedSecret {
    #[error(
        "{place} referencing secret.secretName={} is not allowed because service account {account} does not \
         reference that secret",
        go_quote(.secret)
    )]
    Container { place: String, secret: String, account: String },
    #[error(
        "volume with secret.secretName={} is not allowed because service account {account} does not reference \
         that secret",
        go_quote(.secret)
    )]
    Volume { secret: String, account: String },
    #[error(
        "imagePullSecrets[{index}].name={} is not allowed because service account {account} does not reference \
         that imagePullSecret",
        go_quote(.secret)
    )]
    Pull { index: usize, secret: String, account: String },
}

fn validate_containers(pod: &Value, account: &Value) -> Result<(), UnlistedSecret> {
    let mut references = references_of_containers(pod);
    let known = listed(account, "secrets");
    match references.find(|(_, secret)| !known.contains(secret)) {
        None => Ok(()),
        Some((place, secret)) => Err(UnlistedSecret::Container {
            place,
            secret: secret.to_owned(),
            account: account.name().to_owned(),
        }),
    }
}

fn validate_volumes_and_pulls(pod: &Value, account: &Value) -> Result<(), UnlistedSecret> {
    let known = listed(account, "secrets");
    if let Some(secret) = references_of_volumes(pod).find(|s| !known.contains(s)) {
        let (secret, account) = (secret.to_owned(), account.name().to_owned());
        return Err(UnlistedSecret::Volume { secret, account });
    }
    let mut pulls = references_of_pulls(pod).enumerate();
    let known = listed(account, "imagePullSecrets");
    match pulls.find(|(_, secret)| !known.contains(secret)) {
        None => Ok(()),
        Some((index, secret)) => Err(UnlistedSecret::Pull {
            index,
            secret: secret.to_owned(),
            account: account.name().to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Cluster, Try, pod};

    fn cluster(account: Value) -> Cluster {
        let mut account = account;
        account["metadata"]["name"] = "default".into();
        account["metadata"]["namespace"] = "ns".into();
        Cluster::default().with(&GroupResource::SERVICE_ACCOUNTS, account)
    }

    #[test]
    fn mounts_token_into_containers() {
        let cluster = cluster(json!({"imagePullSecrets": [{"name": "pull"}]}));
        let create = Try::create(&cluster, &GroupResource::PODS);
        let made = create.admitted(&ServiceAccount, pod(json!({"containers": [{"name": "a"}, {"name": "b", "volumeMounts": [{"mountPath": TOKEN_PATH, "name": "own"}]}]})));
        let spec = &made["spec"];
        assert_eq!(
            (&spec["serviceAccountName"], &spec["serviceAccount"]),
            (&json!("default"), &json!("default"))
        );
        assert_eq!(spec["imagePullSecrets"], json!([{"name": "pull"}]));
        assert_eq!(spec["volumes"], json!([token_volume("kube-api-access-bbbbb")]));
        assert_eq!(
            spec["containers"][0]["volumeMounts"],
            json!([{"mountPath": TOKEN_PATH, "name": "kube-api-access-bbbbb", "readOnly": true}])
        );
        assert_eq!(spec["containers"][1]["volumeMounts"].as_array().unwrap().len(), 1);
        assert!(spec.get("initContainers").is_none(), "nothing is made that was not asked for");
        // Admitting an admitted Pod changes nothing.
        assert_eq!(create.admitted(&ServiceAccount, made.clone()), made);
    }

    #[test]
    fn mounts_no_token_if_automount_is_off() {
        let containers = json!([{"name": "a"}]);
        for (account, spec) in [
            (json!({"automountServiceAccountToken": false}), json!({"containers": containers})),
            (json!({}), json!({"containers": containers, "automountServiceAccountToken": false})),
        ] {
            let cluster = cluster(account);
            let made =
                Try::create(&cluster, &GroupResource::PODS).admitted(&ServiceAccount, pod(spec));
            assert!(made["spec"]["volumes"].is_null());
        }
    }

    #[test]
    fn rejects_unlisted_secrets_and_mirror_pods_with_credentials() {
        let none = Cluster::default();
        assert_eq!(
            Try::create(&none, &GroupResource::PODS).refusal(&ServiceAccount, pod(json!({}))),
            "pods \"p\" is forbidden: error looking up service account ns/default: serviceaccount \"default\" not found"
        );
        let mut mirror = pod(json!({"serviceAccountName": "x"}));
        mirror["metadata"]["annotations"] = json!({MIRROR: "h"});
        assert!(
            Try::create(&none, &GroupResource::PODS)
                .refusal(&ServiceAccount, mirror)
                .ends_with("a mirror pod may not reference service accounts")
        );
        let strict = cluster(
            json!({"metadata": {"annotations": {ENFORCE_MOUNTABLE: "true"}}, "secrets": [{"name": "known"}]}),
        );
        let uses = |secret: &str| {
            let spec = json!({"containers": [], "volumes": [{"name": "v", "secret": {"secretName": secret}}]});
            Try::create(&strict, &GroupResource::PODS).refusal(&ServiceAccount, pod(spec))
        };
        assert!(uses("known").starts_with("admitted"));
        assert!(uses("other").ends_with("volume with secret.secretName=\"other\" is not allowed because service account default does not reference that secret"));
    }
    /// CVE-2023-2728: ephemeral containers were not checked.
    #[test]
    fn checks_mountable_secrets_of_every_container() {
        let strict = |truth: &str| {
            cluster(json!({
                "metadata": {"annotations": {ENFORCE_MOUNTABLE: truth}},
                "secrets": [{"name": "known"}],
                "imagePullSecrets": [{"name": "pull"}],
            }))
        };
        let env = |secret: &str| json!({"name": "c", "env": [{"name": "V", "valueFrom": {"secretKeyRef": {"name": secret, "key": "k"}}}]});
        let from =
            |secret: &str| json!({"name": "c", "envFrom": [{"secretRef": {"name": secret}}]});
        let end = "referencing secret.secretName=\"other\" is not allowed because service account default does not reference that secret";
        let nouns = [
            ("initContainers", "init container"),
            ("containers", "container"),
            ("ephemeralContainers", "ephemeral container"),
        ];
        let named = |spec: Value| {
            let mut spec = spec;
            spec["serviceAccountName"] = "default".into();
            pod(spec)
        };
        for truth in ["true", "True", "TRUE", "t", "T", "1"] {
            let cluster = strict(truth);
            let create = Try::create(&cluster, &GroupResource::PODS);
            let add = Try::update(&cluster, &GroupResource::PODS, named(json!({})))
                .sub("ephemeralcontainers");
            for (list, noun) in nouns {
                for (container, how) in [(env("other"), "envVar V"), (from("other"), "envFrom")] {
                    let wanted = format!("{noun} c with {how} {end}");
                    let spec = json!({list: [container]});
                    let refusal = create.refusal(&ServiceAccount, named(spec.clone()));
                    assert!(refusal.ends_with(&format!(": {wanted}")), "{refusal}");
                    let refusal = add.refusal(&ServiceAccount, named(spec));
                    assert!(refusal.ends_with(&format!(": {wanted}")), "{refusal}");
                }
                for container in [env("known"), from("known")] {
                    let pod = named(json!({list: [container]}));
                    assert!(create.refusal(&ServiceAccount, pod.clone()).starts_with("admitted"));
                    assert!(add.refusal(&ServiceAccount, pod).starts_with("admitted"));
                }
            }
            let pulls = json!({"imagePullSecrets": [{"name": "pull"}, {"name": "known"}]});
            assert!(create.refusal(&ServiceAccount, named(pulls)).ends_with("imagePullSecrets[1].name=\"known\" is not allowed because service account default does not reference that imagePullSecret"));
        }
        // Status updates and other updates of a Pod are allowed, whatever Secrets it names.
        let cluster = strict("true");
        let update = Try::update(&cluster, &GroupResource::PODS, named(json!({})));
        let free = named(json!({"containers": [env("other")]}));
        assert!(update.refusal(&ServiceAccount, free).starts_with("admitted"));
        // A Pod without a service account gets no ephemeral container.
        let add = Try::update(&cluster, &GroupResource::PODS, pod(json!({})));
        let refusal = add.sub("ephemeralcontainers").refusal(&ServiceAccount, pod(json!({})));
        assert!(refusal.ends_with("no service account specified for pod ns/p"), "{refusal}");
    }
}
