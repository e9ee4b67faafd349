//! `/livez`, `/readyz`, `/healthz`, `/version`, `/metrics`, and the paths' index.

use std::{
    fmt::Write as _,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use http::{Response, StatusCode};
use serde_json::{Value, json};
use serve::Body;

use super::{Server, ok_text};
use crate::{
    answer::{self, Accepted},
    request::info::Query,
};

/// The version of Kubernetes that this server implements.
pub const KUBERNETES_VERSION: &str = "v1.36.2";

/// The checks of `/readyz` that are not always passed.
#[derive(Clone, Default)]
pub(crate) struct Readiness {
    /// The initial objects (namespaces, RBAC) are there.
    pub(crate) started: Arc<AtomicBool>,
    pub(crate) stopping: Arc<AtomicBool>,
}

impl Server {
    pub(crate) fn plain_document(
        &self,
        path: &str,
        query: &Query,
        accepted: Accepted,
    ) -> Option<Response<Body>> {
        let mut parts = path.trim_matches('/').split('/');
        match parts.next()? {
            "" => Some(answer::value(accepted, StatusCode::OK, &json!({"paths": self.paths()}))),
            "version" => Some(answer::value(accepted, StatusCode::OK, &version())),
            "metrics" => Some(self.metrics_page()),
            check @ ("livez" | "readyz" | "healthz") => self.health(check, parts.next(), query),
            ".well-known" if parts.next() == Some("openid-configuration") => Some(answer::bytes(
                StatusCode::OK,
                "application/json",
                self.security.openid_configuration(),
            )),
            "openid" => Some(answer::bytes(
                StatusCode::OK,
                "application/jwk-set+json",
                self.security.jwks(),
            )),
            _ => None,
        }
    }

    fn paths(&self) -> Vec<String> {
        let kinds = self.hub.kinds();
        let mut paths: Vec<String> = [
            "/.well-known/openid-configuration",
            "/api",
            "/api/v1",
            "/apis",
            "/healthz",
            "/livez",
            "/metrics",
            "/openapi/v2",
            "/openapi/v3",
            "/openid/v1/jwks",
            "/readyz",
            "/version",
        ]
        .map(str::to_owned)
        .to_vec();
        for resource in kinds.all.values() {
            for served in resource.definition.served.iter().filter(|s| !s.group.is_empty()) {
                paths.push(format!("/apis/{}", served.group));
                paths.push(format!("/apis/{}", served.api_version));
            }
        }
        paths.sort();
        paths.dedup();
        paths
    }

    fn metrics_page(&self) -> Response<Body> {
        let kinds = self.hub.kinds();
        let objects: Vec<(String, usize)> = kinds
            .all
            .values()
            .filter_map(|r| {
                let d = &r.definition;
                let name = if d.group.is_empty() {
                    d.plural.to_string()
                } else {
                    format!("{}.{}", d.plural, d.group)
                };
                Some((name, r.cache.as_ref()?.len()))
            })
            .collect();
        let size = self.hub.size.load(Ordering::Relaxed);
        ok_text(self.metrics.text(&objects, size))
    }

    fn health(&self, check: &str, one: Option<&str>, query: &Query) -> Option<Response<Body>> {
        let ready = check == "readyz";
        let mut checks = vec![("ping", true), ("log", true), ("etcd", self.hub.is_following())];
        // What ought to run in this process and does not, each by its name.
        let missing = self.hub.tasks.missing();
        checks.extend(missing.iter().map(|task| (&*task.name, false)));
        if ready {
            checks.push(("informer-sync", self.hub.is_following()));
        }
        checks.push((
            "poststarthook/rbac/bootstrap-roles",
            self.readiness.started.load(Ordering::Relaxed),
        ));
        checks.push((
            "poststarthook/start-system-namespaces-controller",
            self.readiness.started.load(Ordering::Relaxed),
        ));
        if ready {
            checks.push(("shutdown", !self.readiness.stopping.load(Ordering::Relaxed)));
        }
        if let Some(one) = one.filter(|o| !o.is_empty()) {
            let (_, passed) = checks.iter().find(|(name, _)| *name == one)?;
            return Some(if *passed {
                ok_text("ok")
            } else {
                failed(format!("internal server error: {one} check failed\n"))
            });
        }
        let excluded: Vec<&str> = query.all("exclude").collect();
        let mut text = String::new();
        let mut passed = true;
        for (name, ok) in &checks {
            if excluded.contains(name) {
                let _ = writeln!(text, "[+]{name} excluded: ok");
            } else if *ok {
                let _ = writeln!(text, "[+]{name} ok");
            } else {
                passed = false;
                let _ = writeln!(text, "[-]{name} failed: reason withheld");
            }
        }
        Some(match (passed, query.get("verbose").is_some()) {
            (true, false) => ok_text("ok"),
            (true, true) => ok_text(format!("{text}{check} check passed\n")),
            (false, _) => failed(format!("{text}{check} check failed\n")),
        })
    }
}

fn failed(text: String) -> Response<Body> {
    answer::bytes(StatusCode::INTERNAL_SERVER_ERROR, "text/plain; charset=utf-8", text)
}

fn version() -> Value {
    json!({
        "major": "1",
        "minor": "36",
        "emulationMajor": "1",
        "emulationMinor": "36",
        "minCompatibilityMajor": "1",
        "minCompatibilityMinor": "35",
        "gitVersion": KUBERNETES_VERSION,
        "gitCommit": option_env!("WINDLASS_COMMIT").unwrap_or("unknown"),
        "gitTreeState": "clean",
        "buildDate": option_env!("WINDLASS_BUILD_DATE").unwrap_or("1970-01-01T00:00:00Z"),
        "goVersion": "none (windlass)",
        "compiler": "rustc",
        "platform": if cfg!(target_arch = "aarch64") { "linux/arm64" } else { "linux/amd64" },
    })
}
