//! The pages of scheduler and controller manager under `up`: who may read them, and what they hold.

use e2e::{Session, shared};

/// Reads a page with a token instead of the administrator's certificate.
fn page(s: &Session<'_>, port: u16, path: &str, token: &str) -> e2e::Output {
    let line = format!(
        "--server=https://127.0.0.1:{port} --insecure-skip-tls-verify --kubeconfig=/dev/null --token={token} \
         get --raw {path}"
    );
    s.on_node("kubectl", &line.split_whitespace().collect::<Vec<_>>())
}

#[test]
fn components_serve_metrics_to_permitted_accounts() {
    let s = shared("scrape");
    for name in ["monitor", "stranger"] {
        s.kubectl(&format!("create serviceaccount {name}")).ok();
    }
    s.kubectl(
        "create clusterrolebinding scrape-monitor --clusterrole=system:monitoring --serviceaccount=scrape:monitor",
    )
    .ok();
    s.deploy("web", "app:1", 1);
    s.available("web");
    let [monitor, stranger] = ["monitor", "stranger"]
        .map(|name| s.kubectl(&format!("create token {name}")).ok().trim().to_owned());
    for (port, series) in [
        (
            10259,
            "scheduler_schedule_attempts_total{profile=\"default-scheduler\",result=\"scheduled\"}",
        ),
        (10257, "workqueue_adds_total{name=\"deployment\"}"),
    ] {
        assert_eq!(page(&s, port, "/healthz", "nonsense").ok(), "ok");
        page(&s, port, "/metrics", "nonsense").refused();
        let refused = page(&s, port, "/metrics", &stranger).refused();
        assert!(refused.contains("cannot get path \"/metrics\""), "{refused}");
        let text = page(&s, port, "/metrics", &monitor).ok();
        assert!(text.contains(series), "{text}");
        let flags = page(&s, port, "/flagz", &monitor).ok();
        assert!(flags.contains(" flagz\nWarning: "), "{flags}");
        // system:monitoring permits only the paths that it names.
        page(&s, port, "/configz", &monitor).refused();
    }
    page(&s, 10259, "/metrics/resources", &monitor).refused();
    s.kubectl("delete clusterrolebinding scrape-monitor").ok();
}
