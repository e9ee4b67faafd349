//! Renews certificates before they expire.

use std::{
    cell::Cell,
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime},
};

use bootstrap_core::{
    Layout,
    certs::{Ca, Plan},
};
use pki::Cert;
use rt::Clock;

use super::renew::{Renewal, renew_combined, renew_kubeconfig, renew_leaf};
use crate::{Error, FileChange};

/// The kubeconfig files whose client certificates are renewed. The kubelet renews its own.
pub const KUBECONFIGS: [&str; 4] =
    ["admin.conf", "super-admin.conf", "controller-manager.conf", "scheduler.conf"];

/// Every certificate that a control plane may have, with its authority.
const LEAVES: [(&str, Ca); 7] = [
    ("apiserver", Ca::Kubernetes),
    ("apiserver-kubelet-client", Ca::Kubernetes),
    ("front-proxy-client", Ca::FrontProxy),
    ("etcd/server", Ca::Etcd),
    ("etcd/peer", Ca::Etcd),
    ("etcd/healthcheck-client", Ca::Etcd),
    ("apiserver-etcd-client", Ca::Etcd),
];

/// The longest interval between checks.
pub const EVERY: Duration = Duration::from_secs(6 * 3600);

/// The shortest interval between checks, also when a CA that ends soon leaves certificates only seconds. Processes
/// check for renewed files about once a minute.
const SHORTEST: Duration = Duration::from_secs(10);

/// Returns the interval between checks of certificates with this validity: three checks in the last third of it, in
/// which they are due.
pub fn check_interval(validity: Duration) -> Duration {
    (validity / 9).clamp(SHORTEST, EVERY)
}

/// Returns the validity of a certificate.
pub fn validity(cert: &Cert) -> Result<Duration, Error> {
    let info = cert.info()?;
    Ok(info.not_after.duration_since(info.not_before).unwrap_or_default())
}

/// Returns `true` if at most a third of the validity is left. For one year that is four months, enough for a machine
/// that is off or has a full disk.
pub fn is_due(cert: &Cert, now: SystemTime) -> Result<bool, Error> {
    let left = cert.info()?.not_after.duration_since(now).unwrap_or_default();
    Ok(left <= validity(cert)? / 3)
}

/// Renews due certificates of a control plane according to the plan. Missing files and those without the authority's
/// key are skipped. A failure does not stop the other renewals.
pub fn renew_due(layout: &Layout, plan: &Plan, now: SystemTime) -> Vec<Result<FileChange, Error>> {
    let renewal = Renewal { now, period: plan.leaf_validity, algorithm: Some(plan.algorithm) };
    renew(layout, |old| Ok(is_due(old, now)?.then_some(renewal)))
}

/// Renews due certificates with the same kind of key and validity, so that no configuration is needed.
pub fn renew_due_with_same_parameters(
    layout: &Layout,
    now: SystemTime,
) -> Vec<Result<FileChange, Error>> {
    renew(
        layout,
        |old| if is_due(old, now)? { same_parameters(old, now).map(Some) } else { Ok(None) },
    )
}

/// Renews all certificates with the same kind of key and validity, because their authority has changed.
pub(crate) fn renew_all_with_same_parameters(
    layout: &Layout,
    now: SystemTime,
) -> Vec<Result<FileChange, Error>> {
    renew(layout, |old| same_parameters(old, now).map(Some))
}

/// Renews the kubelet's client certificates on a control plane: the rotated one, which shares a file with its key, and
/// the one in its kubeconfig, if present.
pub(crate) fn renew_kubelet(layout: &Layout, now: SystemTime) -> Result<Vec<FileChange>, Error> {
    let mut touched = Vec::new();
    let current = layout.kubelet.join("pki/kubelet-client-current.pem");
    if current.exists() {
        let renewal = same_parameters(&pki::read_cert(&current)?, now)?;
        touched.push(renew_combined(&layout.certificates, &current, renewal)?);
    }
    let path = layout.kubeconfig("kubelet.conf");
    if path.exists() {
        let config = api_config::Kubeconfig::load(&path)?;
        let user = config.current()?.user;
        if !user.client_certificate_data.is_empty()
            && let Some(old) = client_cert(&path)?
        {
            let renewal = same_parameters(&old, now)?;
            touched.push(renew_kubeconfig(&layout.certificates, &path, renewal)?);
        }
    }
    Ok(touched)
}

/// Returns the interval between checks of the certificates of a control plane, which the shortest validity decides.
pub fn interval_of(layout: &Layout) -> Duration {
    let shortest = Cell::new(EVERY);
    let _ = renew(layout, |old| {
        shortest.set(shortest.get().min(check_interval(validity(old)?)));
        Ok(None)
    });
    shortest.get()
}

fn same_parameters(old: &Cert, now: SystemTime) -> Result<Renewal, Error> {
    Ok(Renewal { now, period: validity(old)?, algorithm: None })
}

fn renew(
    layout: &Layout,
    renewal: impl Fn(&Cert) -> Result<Option<Renewal>, Error>,
) -> Vec<Result<FileChange, Error>> {
    let dir = &layout.certificates;
    let mut results = Vec::new();
    for (base, ca) in LEAVES {
        let path = layout.pki(base, "crt");
        if !path.exists() || !layout.pki(ca.base(), "key").exists() {
            continue;
        }
        let old = pki::read_cert(&path).map_err(Error::from);
        let renewed = old.and_then(|old| match renewal(&old)? {
            Some(renewal) => renew_leaf(dir, base, ca, renewal),
            None => Ok(Vec::new()),
        });
        match renewed {
            Ok(touched) => results.extend(touched.into_iter().map(Ok)),
            Err(e) => results.push(Err(e)),
        }
    }
    for path in KUBECONFIGS.map(|f| layout.kubeconfig(f)) {
        if !path.exists() || !layout.pki("ca", "key").exists() {
            continue;
        }
        let renewed = client_cert(&path).and_then(|cert| {
            match cert.map(|old| renewal(&old)).transpose()?.flatten() {
                Some(renewal) => renew_kubeconfig(dir, &path, renewal).map(Some),
                None => Ok(None),
            }
        });
        results.extend(renewed.transpose());
    }
    results
}

/// Returns the client certificate of a kubeconfig's current user; `None` if the user has none in the file.
pub fn client_cert(path: &Path) -> Result<Option<Cert>, Error> {
    let config = api_config::Kubeconfig::load(path)?;
    let pem = config.current()?.user.cert_pem()?;
    Ok(pem.map(|pem| Cert::from_pem(&pem)).transpose()?)
}

/// Renews due certificates until the future is dropped.
pub async fn keep_renewed(layout: Layout, clock: Arc<dyn Clock>) {
    loop {
        let (layout, now) = (layout.clone(), clock.now());
        // Generating keys takes CPU time, so it runs on a blocking thread.
        let renewed = tokio::task::spawn_blocking(move || {
            (renew_due_with_same_parameters(&layout, now), interval_of(&layout))
        });
        let (results, interval) = renewed.await.unwrap_or_else(|_| (Vec::new(), EVERY));
        for result in results {
            match result {
                Ok(touched) => {
                    tracing::info!(path = %touched.path.display(), "renewed a certificate before its time")
                }
                Err(error) => {
                    tracing::error!(%error, ?interval, "cannot renew a certificate; trying again after the interval")
                }
            }
        }
        tokio::time::sleep(interval).await;
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use api_config::{GoDuration, kubeadm::ClusterConfiguration};

    use super::*;
    use crate::{
        certs::{
            self,
            tests::{cluster, endpoint},
        },
        kubeconfigs,
    };

    const DAY: Duration = Duration::from_secs(86_400);

    fn machine(dir: &Path, now: SystemTime) -> (Layout, Plan) {
        machine_with(dir, now, &cluster())
    }

    fn machine_with(dir: &Path, now: SystemTime, cluster: &ClusterConfiguration) -> (Layout, Plan) {
        let layout = Layout {
            kubernetes: dir.to_owned(),
            certificates: dir.join("pki"),
            kubelet: dir.join("kubelet"),
        };
        let plan = Plan::new(cluster, &endpoint(), "vm").unwrap();
        certs::ensure(&layout.certificates, &plan, now).unwrap();
        let files = bootstrap_core::kubeconfigs::plan(cluster, &endpoint(), "vm", true);
        kubeconfigs::ensure(&layout.kubernetes, &layout.certificates, &files, &plan, now).unwrap();
        (layout, plan)
    }

    fn valid(layout: &Layout, plan: &Plan, at: SystemTime) {
        for leaf in &plan.leaves {
            let cert = pki::read_cert(&layout.pki(leaf.base, "crt")).unwrap();
            cert.check_valid_at(at).unwrap();
            cert.check_key(&pki::read_key(&layout.pki(leaf.base, "key")).unwrap()).unwrap();
            cert.check_names(&leaf.spec.alt_names).unwrap();
        }
        for file in KUBECONFIGS {
            client_cert(&layout.kubeconfig(file)).unwrap().unwrap().check_valid_at(at).unwrap();
        }
    }

    /// Nine years with a check every 25 days and sometimes a gap of three months.
    #[test]
    fn renews_every_certificate_before_it_expires() {
        let dir = tempfile::tempdir().unwrap();
        let mut now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_790_000_000);
        let end = now + 9 * 365 * DAY;
        let (layout, plan) = machine(dir.path(), now);
        let (mut renewed, mut step) = (0, 0u32);
        while now < end {
            let gap = if step % 5 == 4 { 90 } else { 25 } * DAY;
            step += 1;
            now += gap;
            valid(&layout, &plan, now);
            let results = match step % 2 {
                0 => renew_due(&layout, &plan, now),
                _ => renew_due_with_same_parameters(&layout, now),
            };
            renewed += results.into_iter().map(Result::unwrap).count();
            certs::ensure(&layout.certificates, &plan, now).unwrap();
        }
        assert!(renewed >= 9 * 11, "{renewed}");
    }

    #[test]
    fn checks_short_lived_certificates_more_often() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_790_000_000);
        for (seconds, interval) in [(600, 66), (365 * 86_400, 6 * 3600)] {
            let dir = tempfile::tempdir().unwrap();
            let mut cluster = cluster();
            cluster.certificate_validity_period = Some(GoDuration::from_secs(seconds));
            let (layout, _) = machine_with(dir.path(), now, &cluster);
            assert_eq!(interval_of(&layout).as_secs(), interval);
        }
    }

    #[test]
    fn skips_certificates_not_due_or_without_ca_key() {
        let dir = tempfile::tempdir().unwrap();
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_790_000_000);
        let (layout, plan) = machine(dir.path(), now);
        assert!(renew_due(&layout, &plan, now + 200 * DAY).is_empty());
        fs::remove_file(layout.pki("ca", "key")).unwrap();
        let bases: Vec<_> = renew_due(&layout, &plan, now + 300 * DAY)
            .into_iter()
            .map(|t| t.unwrap().path)
            .collect();
        assert!(
            !bases.is_empty() && bases.iter().all(|p| !p.ends_with("apiserver.crt")),
            "{bases:?}"
        );
    }
}
