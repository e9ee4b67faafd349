//! The phase `control-plane` of `upgrade`: replaces the static Pods of this machine and renews their certificates.

use std::{
    fs,
    path::{Path, PathBuf},
};

use api_meta::Timestamp;
use bootstrap_core::{
    certs::Ca,
    constants::ETCD_CLIENT_PORT,
    manifests::Component,
    upgrade::{Flags, joined_members},
};
use serde_json::Value;

use super::{
    context::Ctx,
    machine::read_pod,
    replace::{MANIFESTS, NewPod, Replacer},
};
use crate::{
    Error, FileChange, UpgradeError,
    certs::{KUBECONFIGS, Renewal, renew_kubeconfig, renew_leaf},
    error::io,
    etcd::Etcd,
    external_ca::is_external,
    manifests::write_pod,
    node::Node,
    phase::{Outcome, Phase},
};

/// The directory below /etc/kubernetes for backups.
const BACKUPS: &str = "tmp";
/// The start of the name of a backup's directory.
const PREFIX: &str = "kubeadm-backup-manifests-";
/// The file in a backup's directory that exists until the upgrade has ended.
const UNFINISHED: &str = "unfinished";

pub(super) const PHASE: Phase<Ctx> = Phase {
    name: "control-plane",
    about: "Upgrade the control plane",
    run: |ctx| {
        Box::pin(async {
            let pods = new_pods(ctx)?;
            if pods.is_empty() {
                return Ok(Outcome::skipped("not a control plane node"));
            }
            if let Some(directory) = &ctx.dry_run {
                return write_only(&directory.join("manifests"), &pods).map(Outcome::Done);
            }
            let client = ctx.node.client().await?;
            let directory = make_backup_directory(&ctx.node)?;
            let mut replacer = Replacer::new(&ctx.node, &client, ctx.wait_for_health, &directory);
            let mut touched = Vec::new();
            for (new, current) in &pods {
                if new.component == Some(Component::Etcd) && *current != new.pod {
                    touched.push(back_up_etcd(&ctx.node, current, &directory).await?);
                }
                let prepare = || renew(ctx, new.component);
                touched.extend(replacer.replace(new, current, prepare).await?);
            }
            if ctx.is_control_plane() {
                touched.extend(renew_admins(ctx)?);
            }
            finish(&directory)?;
            Ok(Outcome::Done(touched))
        })
    },
};

/// Returns the new static Pods of this machine, in the order of their replacement, each with the current one.
pub(super) fn new_pods(ctx: &Ctx) -> Result<Vec<(NewPod, Value)>, Error> {
    let (node, mut pods) = (&ctx.node, Vec::new());
    let manifests = node.layout.manifests();
    let current = |file: &str| match manifests.join(file) {
        path if path.exists() => read_pod(&path),
        _ => Ok(Value::Null),
    };
    let mut components = Vec::new();
    if ctx.is_control_plane() {
        let etcd = node.config.cluster.etcd.local.is_some() && ctx.options.etcd;
        components.extend(etcd.then_some(Component::Etcd));
        components.extend(Component::CONTROL_PLANE);
    }
    for component in components {
        let current = current(&component.file())?;
        let members =
            if component == Component::Etcd { joined_members(&current) } else { Vec::new() };
        let pod = node.static_pod(component, &members)?;
        pods.push((NewPod { name: component.name(), component: Some(component), pod }, current));
    }
    for (name, pod) in node.access_pods(ctx.is_control_plane()) {
        pods.push((NewPod { name, component: None, pod }, current(&format!("{name}.yaml"))?));
    }
    let complete =
        |(new, current): (NewPod, Value)| (new.complete(&current, ctx.program.as_deref()), current);
    Ok(pods.into_iter().map(complete).collect())
}

/// Writes the new static Pods to the directory of a dry run.
fn write_only(directory: &Path, pods: &[(NewPod, Value)]) -> Result<Vec<FileChange>, Error> {
    pods.iter().map(|(new, _)| write_pod(&new.pod, directory, &new.file())).collect()
}

/// Saves a snapshot of etcd's data, which a newer version may change for good.
async fn back_up_etcd(node: &Node, current: &Value, directory: &Path) -> Result<FileChange, Error> {
    let own = format!("https://127.0.0.1:{ETCD_CLIENT_PORT}");
    let urls = Flags::of(current).value("listen-client-urls");
    let endpoint = urls.and_then(|urls| urls.split(',').next());
    let etcd = Etcd::new(&[endpoint.unwrap_or(&own).to_owned()], &node.layout)?;
    let path = directory.join("etcd-snapshot.db");
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .open(&path)
        .map_err(io("create", &path))?;
    etcd.snapshot(&mut file).await?;
    file.sync_all().map_err(io("write", &path))?;
    println!("[upgrade/etcd] Backed up etcd to {:?}", path.display());
    Ok(FileChange::written(path))
}

/// Renews the certificates that a component reads, unless their authority's key is elsewhere.
fn renew(ctx: &Ctx, component: Option<Component>) -> Result<Vec<FileChange>, Error> {
    let Some(component) = component.filter(|_| ctx.options.renew_certificates) else {
        return Ok(Vec::new());
    };
    let leaves: &[&str] = match component {
        Component::Etcd => &["etcd-server", "etcd-peer", "etcd-healthcheck-client"],
        Component::ApiServer => &[
            "apiserver",
            "apiserver-kubelet-client",
            "front-proxy-client",
            "apiserver-etcd-client",
        ],
        Component::ControllerManager | Component::Scheduler => &[],
    };
    let (node, mut touched) = (&ctx.node, Vec::new());
    let plan = node.pki()?;
    for leaf in leaves.iter().filter_map(|name| plan.leaf(name)) {
        if is_signed_elsewhere(node, leaf.ca, leaf.name) {
            continue;
        }
        println!("[upgrade/staticpods] Renewing {} certificate", leaf.name);
        let renewal = renewal(node, plan.leaf_validity);
        touched.extend(renew_leaf(&node.layout.certificates, leaf.base, leaf.ca, renewal)?);
    }
    let file = match component {
        Component::ControllerManager => "controller-manager.conf",
        Component::Scheduler => "scheduler.conf",
        _ => return Ok(touched),
    };
    touched.extend(renew_file(node, file)?);
    Ok(touched)
}

/// Renews the administrators' kubeconfig files, which no component reads.
fn renew_admins(ctx: &Ctx) -> Result<Vec<FileChange>, Error> {
    if !ctx.options.renew_certificates {
        return Ok(Vec::new());
    }
    let files = KUBECONFIGS.iter().filter(|file| file.ends_with("admin.conf"));
    let mut touched = Vec::new();
    for file in files {
        touched.extend(renew_file(&ctx.node, file)?);
    }
    Ok(touched)
}

fn renew_file(node: &Node, file: &str) -> Result<Option<FileChange>, Error> {
    let path = node.layout.kubeconfig(file);
    if !path.exists() || is_signed_elsewhere(node, Ca::Kubernetes, file) {
        return Ok(None);
    }
    println!("[upgrade/staticpods] Renewing {file} certificate");
    let renewal = renewal(node, node.pki()?.leaf_validity);
    renew_kubeconfig(&node.layout.certificates, &path, renewal).map(Some)
}

fn renewal(node: &Node, period: std::time::Duration) -> Renewal {
    Renewal { now: node.now(), period, algorithm: None }
}

/// Reports whether the key of a certificate's authority is not on this machine, and prints that the renewal is skipped.
fn is_signed_elsewhere(node: &Node, ca: Ca, name: &str) -> bool {
    let external = is_external(&node.layout, ca);
    if external {
        println!("[upgrade/staticpods] External {} detected, skipping renew of {name}", ca.base());
    }
    external
}

/// Returns the path of a backup that begins now.
pub(super) fn backup_directory(node: &Node, prefix: &str) -> PathBuf {
    let time = Timestamp::from(node.now()).to_string().replace(':', "-");
    node.layout.kubernetes.join(BACKUPS).join(format!("{prefix}{time}"))
}

/// Makes the directory for the earlier static Pods of this upgrade.
fn make_backup_directory(node: &Node) -> Result<PathBuf, Error> {
    let directory = backup_directory(node, PREFIX);
    fs::create_dir_all(&directory).map_err(io("create the directory", &directory))?;
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    fs::set_permissions(&directory, private).map_err(io("set the mode of", &directory))?;
    pki::write_file(&directory.join(UNFINISHED), b"", pki::KEY_MODE)?;
    Ok(directory)
}

/// Marks all upgrades as ended, and deletes all but the newest backups.
fn finish(directory: &Path) -> Result<(), Error> {
    let Some(all) = directory.parent() else { return Ok(()) };
    for backup in backups(all)? {
        let file = backup.join(UNFINISHED);
        if file.exists() {
            fs::remove_file(&file).map_err(io("remove", &file))?;
        }
    }
    Ok(())
}

fn backups(directory: &Path) -> Result<Vec<PathBuf>, Error> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(io("read the directory", directory)(error)),
    };
    let paths =
        entries.map(|entry| entry.map(|e| e.path()).map_err(io("read the directory", directory)));
    let mut paths: Vec<PathBuf> = paths.collect::<Result<_, _>>()?;
    paths.retain(|p| p.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PREFIX)));
    paths.sort();
    Ok(paths)
}

/// Adds to an error the backup of an upgrade that was killed, which may be the reason why no API server answers.
pub(crate) fn explain(node_directory: &Path, source: Error) -> Error {
    let unfinished = backups(&node_directory.join(BACKUPS)).unwrap_or_default();
    match unfinished.into_iter().rfind(|backup| backup.join(UNFINISHED).exists()) {
        Some(backup) => UpgradeError::Interrupted {
            source: Box::new(source),
            backup: backup.join(MANIFESTS),
            manifests: node_directory.join("manifests"),
        }
        .into(),
        None => source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_backup_of_killed_upgrade_until_one_ends() {
        let dir = tempfile::tempdir().unwrap();
        let error = || explain(dir.path(), Error::Aborted).to_string();
        assert!(!error().contains("earlier upgrade"));
        let backups = dir.path().join(BACKUPS);
        let made = ["1", "2"].map(|number| backups.join(format!("{PREFIX}{number}")));
        for path in &made {
            fs::create_dir_all(path).unwrap();
            fs::write(path.join(UNFINISHED), "").unwrap();
        }
        fs::create_dir(backups.join("other")).unwrap();
        let newest = made[1].join("manifests").display().to_string();
        assert!(error().contains(&newest), "{}", error());
        finish(&made[1]).unwrap();
        assert!(!error().contains("earlier upgrade"));
    }
}
