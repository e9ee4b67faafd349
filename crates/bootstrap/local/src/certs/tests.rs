//! Tests of the renewal of certificates.

use std::fs;

use api_config::GoDuration;
use bootstrap::certs::EVERY;
use rt::ManualClock;

use super::*;
use crate::cluster;

const DAY: Duration = Duration::from_secs(86_400);

fn start() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_790_000_000)
}

/// Creates a cluster with all its certificates, and the user's kubeconfig with another context in it.
fn made(dir: &Path) -> (Cluster, Plan) {
    made_with(dir, None)
}

/// Creates a cluster whose certificates have this validity.
fn made_with(dir: &Path, validity: Option<GoDuration>) -> (Cluster, Plan) {
    let mut cluster = cluster::example(dir);
    cluster.settings.config.certificate_validity_period = validity;
    cluster.settings.kubeconfig = Some(dir.join("user.yaml"));
    cluster.save().unwrap();
    let (layout, plan, now) = (cluster.layout(), plan(&cluster).unwrap(), start());
    bootstrap::certs::ensure(&layout.certificates, &plan, now).unwrap();
    let init = cluster.init();
    let mut files =
        bootstrap_core::kubeconfigs::plan(&init.cluster, &init.init.local_api_endpoint, "vm", true);
    files.extend(crate::up::agent_kubeconfigs(&files).unwrap());
    bootstrap::kubeconfigs::ensure(&layout.kubernetes, &layout.certificates, &files, &plan, now)
        .unwrap();
    fs::create_dir_all(layout.kubelet.join("pki")).unwrap();
    assert!(ensure_serving_certificate(&cluster, &plan, now).unwrap());
    let user = dir.join("user.yaml");
    let other = api_config::kubeconfig::Cluster::with_ca("https://other", "");
    Kubeconfig::single("other", other, "other", Default::default()).write(&user).unwrap();
    context::merge(&cluster, &user, false).unwrap();
    (cluster, plan)
}

/// Returns every certificate except CAs below a directory.
fn leaves(dir: &Path) -> Vec<(PathBuf, Cert)> {
    let mut all = certificates(dir);
    all.retain(|(path, _)| !["ca.crt", "front-proxy-ca.crt"].iter().any(|ca| path.ends_with(ca)));
    all
}

/// Returns every certificate below a directory, in PEM files and kubeconfigs, with its path.
fn certificates(dir: &Path) -> Vec<(PathBuf, Cert)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
        let path = entry.path();
        if path.is_dir() {
            found.extend(certificates(&path));
        } else if path.extension().is_some_and(|e| e == "crt") {
            found.push((path.clone(), pki::read_cert(&path).unwrap()));
        } else if path.extension().is_some_and(|e| e == "conf" || e == "yaml") {
            let Ok(config) = Kubeconfig::load(&path) else { continue };
            for user in &config.users {
                if let Some(pem) = user.user.cert_pem().unwrap() {
                    found.push((path.clone(), Cert::from_pem(&pem).unwrap()));
                }
            }
        }
    }
    found
}

/// Advances the paused clock step by step until no certificate is due. Keys are generated on other threads, which the
/// clock does not know about.
async fn until_none_is_due(dir: &Path, now: SystemTime, step: Duration) {
    let deadline = std::time::Instant::now() + Duration::from_secs(30);
    loop {
        let due = leaves(dir).into_iter().filter(|(_, cert)| is_due(cert, now).unwrap());
        let due: Vec<_> = due.map(|(path, _)| path).collect();
        if due.is_empty() {
            return;
        }
        assert!(std::time::Instant::now() < deadline, "due and not renewed: {due:?}");
        tokio::time::advance(step).await;
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[tokio::test(start_paused = true)]
async fn renews_all_certificates_of_running_cluster() {
    let dir = tempfile::tempdir().unwrap();
    let (cluster, _) = made(dir.path());
    let first = leaves(dir.path());
    // The leaf certificates of the control plane, etcd, the kubelet and the front proxy; eight kubeconfigs; the user's.
    assert!(first.len() >= 15, "{:?}", first.iter().map(|(path, _)| path).collect::<Vec<_>>());
    let clock = Arc::new(ManualClock::new(start()));
    let (_changed, changes) = watch::channel(());
    let renewing = tokio::spawn(keep_renewed(cluster.clone(), clock.clone(), changes));
    // Two years, a week at a time. The task checks every six hours.
    for _ in 0..104 {
        clock.advance(7 * DAY);
        until_none_is_due(dir.path(), clock.now(), EVERY).await;
    }
    renewing.abort();
    let last = leaves(dir.path());
    assert_eq!(first.len(), last.len());
    for ((path, old), (_, new)) in first.iter().zip(&last) {
        assert_ne!(old, new, "{} was never renewed", path.display());
        let (old, new) = (old.info().unwrap(), new.info().unwrap());
        assert_eq!(
            (old.subject, old.alt_names),
            (new.subject, new.alt_names),
            "{}",
            path.display()
        );
    }
    let user = Kubeconfig::load(&dir.path().join("user.yaml")).unwrap();
    assert_eq!((user.current_context.as_str(), user.contexts.len()), ("other@other", 2));
}

#[test]
fn no_certificate_of_ten_minutes_expires() {
    let dir = tempfile::tempdir().unwrap();
    let (cluster, plan) = made_with(dir.path(), Some(GoDuration::from_secs(600)));
    let mut now = start();
    for _ in 0..30 {
        now += check_interval(plan.leaf_validity);
        for (_, cert) in leaves(dir.path()) {
            cert.check_valid_at(now).unwrap();
        }
        assert!(renew_due(&cluster, &plan, now).iter().all(Result::is_ok));
    }
    assert!(now > start() + Duration::from_secs(1800));
}

#[test]
fn no_certificate_expires_after_a_longer_validity_is_set() {
    let dir = tempfile::tempdir().unwrap();
    let (mut cluster, _) = made_with(dir.path(), Some(GoDuration::from_secs(600)));
    cluster.settings.config.certificate_validity_period = None;
    let (plan, mut now) = (plan(&cluster).unwrap(), start());
    while now < start() + Duration::from_secs(600) {
        now += check_interval_of(&cluster, &plan);
        for (_, cert) in leaves(dir.path()) {
            cert.check_valid_at(now).unwrap();
        }
        assert!(renew_due(&cluster, &plan, now).iter().all(Result::is_ok));
    }
    assert_eq!(check_interval_of(&cluster, &plan), EVERY);
}

#[tokio::test(start_paused = true)]
async fn checks_certificates_when_settings_change() {
    let dir = tempfile::tempdir().unwrap();
    let (mut cluster, _) = made(dir.path());
    let clock = Arc::new(ManualClock::new(start() + 300 * DAY));
    let (changed, changes) = watch::channel(());
    let renewing = tokio::spawn(keep_renewed(cluster.clone(), clock.clone(), changes));
    until_none_is_due(dir.path(), clock.now(), Duration::ZERO).await;
    cluster.settings.config.certificate_validity_period = Some(GoDuration::from_secs(600));
    cluster.save().unwrap();
    fs::remove_file(serving_certificate(&cluster)).unwrap();
    ensure_serving_certificate(&cluster, &plan(&cluster).unwrap(), clock.now()).unwrap();
    clock.advance(Duration::from_secs(450));
    changed.send_replace(());
    until_none_is_due(dir.path(), clock.now(), Duration::ZERO).await;
    renewing.abort();
}

#[test]
fn does_not_restore_context_that_the_user_removed() {
    let dir = tempfile::tempdir().unwrap();
    let (cluster, plan) = made(dir.path());
    let user = dir.path().join("user.yaml");
    context::remove(&cluster, &user).unwrap();
    let results = renew_due(&cluster, &plan, start() + 300 * DAY);
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    assert!(!results.is_empty());
    let config = Kubeconfig::load(&user).unwrap();
    assert_eq!(config.contexts.len(), 1);
}
