//! The health checks of the server, with upstream's names and in upstream's order.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use crate::{
    config::COORDINATION_GATE,
    handlers::state::State,
    reconcilers::progress::{Progress, Step},
};

/// Inputs of the checks besides the watch cache and the tasks.
#[derive(Default)]
pub(crate) struct Readiness {
    pub(crate) progress: Progress,
    pub(crate) stopping: AtomicBool,
    /// `true` if new requests are rejected with `Retry-After`, because the server stops.
    pub(crate) refusing: AtomicBool,
    /// `true` if the last health check of a KMS plugin failed.
    pub(crate) plugins_ill: AtomicBool,
}

/// The health endpoints.
pub(super) const PAGES: [&str; 3] = ["healthz", "livez", "readyz"];

/// Upstream's post-start hooks in upstream's order, with the start-up step that each one waits for. `None` marks hooks
/// that are complete before the server listens: by then the watch cache has loaded the store, with custom kinds,
/// APIServices and priority levels, and observers receive every change.
const HOOKS: [(&str, Option<Step>); 35] = [
    ("poststarthook/start-apiserver-admission-initializer", None),
    ("poststarthook/generic-apiserver-start-informers", None),
    ("poststarthook/priority-and-fairness-config-consumer", None),
    ("poststarthook/priority-and-fairness-filter", None),
    ("poststarthook/storage-object-count-tracker-hook", None),
    ("poststarthook/start-apiextensions-informers", None),
    ("poststarthook/start-apiextensions-controllers", None),
    ("poststarthook/crd-informer-synced", None),
    ("poststarthook/start-system-namespaces-controller", Some(Step::Namespaces)),
    (
        "poststarthook/start-kube-apiserver-coordinated-leader-election-controller",
        Some(Step::Elections),
    ),
    ("poststarthook/peer-endpoint-reconciler-controller", Some(Step::Loops)),
    ("poststarthook/mixed-version-proxy-handler", Some(Step::Peers)),
    ("poststarthook/local-discovery-cache-sync", Some(Step::Peers)),
    ("poststarthook/peer-discovery-workers", Some(Step::Peers)),
    ("poststarthook/start-cluster-authentication-info-controller", Some(Step::Authorities)),
    ("poststarthook/start-kube-apiserver-identity-lease-controller", Some(Step::Loops)),
    ("poststarthook/start-kube-apiserver-identity-lease-garbage-collector", Some(Step::Loops)),
    ("poststarthook/storage-readiness", None),
    ("poststarthook/start-legacy-token-tracking-controller", Some(Step::Authorities)),
    ("poststarthook/start-service-ip-repair-controllers", None),
    ("poststarthook/rbac/bootstrap-roles", Some(Step::Roles)),
    ("poststarthook/scheduling/bootstrap-system-priority-classes", Some(Step::PriorityClasses)),
    ("poststarthook/priority-and-fairness-config-producer", Some(Step::FlowControl)),
    ("poststarthook/bootstrap-controller", Some(Step::KubernetesService)),
    ("poststarthook/start-kubernetes-service-cidr-controller", Some(Step::KubernetesService)),
    ("poststarthook/start-kube-aggregator-informers", None),
    ("poststarthook/apiservice-status-local-available-controller", Some(Step::Loops)),
    ("poststarthook/apiservice-status-remote-available-controller", Some(Step::Loops)),
    ("poststarthook/apiservice-registration-controller", None),
    ("poststarthook/apiservice-wait-for-first-sync", Some(Step::ApiServices)),
    ("poststarthook/apiservice-discovery-controller", None),
    ("poststarthook/kube-apiserver-autoregistration", Some(Step::ApiServices)),
    ("autoregister-completion", Some(Step::ApiServices)),
    ("poststarthook/apiservice-openapi-controller", None),
    ("poststarthook/apiservice-openapiv3-controller", None),
];

/// A health check and its result.
pub(super) struct Check {
    pub(super) name: Arc<str>,
    pub(super) passed: bool,
    /// The check with which this one is excluded.
    pub(super) group: Option<&'static str>,
}

/// Evaluates the checks of one of the [`PAGES`]. `age` is the time since the server's start.
pub(super) fn of(page: &str, state: &State, readiness: &Readiness, age: Duration) -> Vec<Check> {
    let is_graced = is_graced(page, age, state.config.serving.livez_grace);
    let check = |name: &str, passed| Check { name: name.into(), passed, group: None };
    let is_following = state.cache.main().is_following();
    let mut checks = vec![check("ping", true), check("log", true), check("etcd", is_following)];
    // As upstream: the stores of single resources have checks of their own, which are excluded with `etcd`.
    checks.extend(state.cache.feeds().iter().skip(1).enumerate().map(|(index, feed)| Check {
        group: Some("etcd"),
        ..check(&format!("etcd-override-{index}"), feed.is_following())
    }));
    // Tasks that should run in this process but do not, each as a failing check with the task's name.
    let missing = state.cache.tasks.missing();
    checks.extend(missing.into_iter().map(|task| check(&task.name, false)));
    if page == "readyz" {
        checks.extend(["etcd-readiness", "informer-sync"].map(|name| check(name, is_following)));
    }
    let forwards = state.config.peer_authorities().is_some();
    let elects = state.config.features.is_enabled(COORDINATION_GATE);
    let hooks = HOOKS.into_iter().filter(|(_, step)| match step {
        Some(Step::Peers) => forwards,
        Some(Step::Elections) => elects,
        _ => true,
    });
    checks.extend(hooks.map(|(name, step)| {
        check(name, is_graced || step.is_none_or(|step| readiness.progress.is_done(step)))
    }));
    let has_plugins =
        || state.config.encryption.as_ref().is_some_and(|encryption| encryption.is_checked());
    if checks_plugins(page) && has_plugins() {
        checks.push(check("kms-providers", !readiness.plugins_ill.load(Ordering::Relaxed)));
    }
    if page == "readyz" {
        checks.push(check("shutdown", !readiness.stopping.load(Ordering::Relaxed)));
    }
    checks
}

/// Reports whether a page checks the KMS plugins. `/livez` does not, as upstream: a restart of the server would not
/// heal a plugin, but lose the decrypted seeds.
pub(super) fn checks_plugins(page: &str) -> bool {
    PAGES.contains(&page) && page != "livez"
}

/// Reports whether the checks of the start pass in any case, as upstream within `--livez-grace-period`.
fn is_graced(page: &str, age: Duration, grace: Duration) -> bool {
    page == "livez" && age < grace
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn graces_liveness_after_start() {
        let (none, ten) = (Duration::ZERO, Duration::from_secs(10));
        for (page, age, grace, wanted) in [
            ("livez", 0, none, false),
            ("livez", 9, ten, true),
            ("livez", 10, ten, false),
            ("readyz", 0, ten, false),
            ("healthz", 0, ten, false),
        ] {
            assert_eq!(is_graced(page, Duration::from_secs(age), grace), wanted, "{page} {age}");
        }
    }
}
