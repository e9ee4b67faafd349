use std::path::Path;

use serde_json::json;

use super::*;

const VERSION: &str = "client.authentication.k8s.io/v1";

/// Creates a plugin that runs a shell script. `$count` is a file that gets a line at each run.
fn plugin(dir: &Path, script: &str) -> Plugin {
    let count = dir.join("count");
    let script = format!("echo >>'{}'\n{script}", count.display());
    let exec = Exec {
        api_version: VERSION.into(),
        command: "/bin/sh".into(),
        args: vec!["-c".into(), script],
        env: vec![api_config::kubeconfig::ExecEnv { name: "OWN".into(), value: "mine".into() }],
        ..Exec::default()
    };
    let info = [json!({"interactive": false}), json!({"interactive": true})];
    Plugin::new(
        exec,
        Interactive::Never,
        info,
        TlsMaterial { insecure: true, ..Default::default() },
    )
}

fn runs(dir: &Path) -> usize {
    std::fs::read_to_string(dir.join("count")).unwrap_or_default().lines().count()
}

fn printing(status: &str) -> String {
    format!(r#"echo '{{"apiVersion": "{VERSION}", "kind": "ExecCredential", "status": {status}}}'"#)
}

#[tokio::test]
async fn runs_once_until_token_expires_or_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let kept = plugin(dir.path(), &printing(r#"{"token": "t"}"#));
    for _ in 0..3 {
        assert_eq!(kept.token().await.unwrap().as_deref(), Some("t"));
    }
    assert_eq!(runs(dir.path()), 1);
    kept.reject().await;
    kept.token().await.unwrap();
    assert_eq!(runs(dir.path()), 2);
    let dir = tempfile::tempdir().unwrap();
    let past = r#"{"token": "t", "expirationTimestamp": "2020-01-01T00:00:00Z"}"#;
    let ended = plugin(dir.path(), &printing(past));
    for _ in 0..3 {
        ended.token().await.unwrap();
    }
    assert_eq!(runs(dir.path()), 3);
}

#[tokio::test]
async fn hands_environment_and_cluster_to_the_program() {
    let dir = tempfile::tempdir().unwrap();
    let script = r#"test "$OWN" = mine && test "$KUBERNETES_EXEC_INFO" = '{"interactive":false}' || exit 9
        read -r line && exit 8
        "#;
    let plugin = plugin(dir.path(), &(script.to_owned() + &printing(r#"{"token": "t"}"#)));
    assert_eq!(plugin.token().await.unwrap().as_deref(), Some("t"));
}

#[tokio::test]
async fn reports_error_of_a_misbehaving_program() {
    let other = r#"echo '{"apiVersion": "client.authentication.k8s.io/v1beta1", "kind": "ExecCredential", "status": {"token": "t"}}'"#;
    let none = format!(r#"echo '{{"apiVersion": "{VERSION}", "kind": "ExecCredential"}}'"#);
    let cases = [
        ("exit 3", "exec: executable /bin/sh failed with exit code 3"),
        ("echo nonsense", "decoding stdout of /bin/sh"),
        (
            other,
            "exec plugin is configured to use API version client.authentication.k8s.io/v1, plugin returned version",
        ),
        (&none, "exec plugin didn't return a status field"),
        (&printing("{}"), "exec plugin didn't return a token or cert/key pair"),
        (
            &printing(r#"{"clientCertificateData": "c"}"#),
            "exec plugin returned only certificate or key, not both",
        ),
        (
            &printing(r#"{"clientCertificateData": "c", "clientKeyData": "k"}"#),
            "failed parsing client key/certificate",
        ),
        (&printing(r#"{"token": "t", "expirationTimestamp": "soon"}"#), "is not an RFC 3339 time"),
        ("while :; do echo 0123456789012345678901234567890123456789; done", "printed more than"),
        ("exec sleep 1000", "did not end in 300ms"),
    ];
    for (script, wanted) in cases {
        let dir = tempfile::tempdir().unwrap();
        let timeout = script.contains("sleep").then_some(Duration::from_millis(300));
        let plugin = Plugin { timeout, ..plugin(dir.path(), script) };
        let refused = plugin.token().await.unwrap_err().to_string();
        assert!(refused.contains(wanted), "{script}: {refused}");
    }
}

#[tokio::test]
async fn shows_the_install_hint_for_a_missing_program() {
    let dir = tempfile::tempdir().unwrap();
    let mut missing = plugin(dir.path(), "");
    missing.exec.command = "/nonexistent/plugin".into();
    missing.exec.install_hint = "get it".into();
    let refused = missing.token().await.unwrap_err().to_string();
    assert_eq!(
        refused,
        "getting credentials: exec: executable /nonexistent/plugin not found\n\nget it"
    );
}
