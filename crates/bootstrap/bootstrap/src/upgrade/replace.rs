//! Replaces static Pods one after another, and returns to the earlier ones if a new one does not become ready.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use super::context::WaitForHealth;
use crate::{
    Error, FileChange, UpgradeError,
    cluster::{get, is_ready},
    containers::last_words,
    error::io,
    manifests::write_pod,
    node::Node,
};
use api_config::yaml;
use api_meta::Tree as _;
use bootstrap_core::{
    images,
    manifests::Component,
    upgrade::{PROGRAM, first_image},
};
use client::{Client, Resource};
use serde_json::{Value, json};

/// The annotation of a mirror Pod with the hash of its static Pod.
const HASH: &str = "kubernetes.io/config.hash";
/// The prefix of annotations that Windlass sets on static Pods.
const OWN_ANNOTATIONS: &str = "windlass.local/";
/// The directory of the earlier manifests, below the upgrade's own.
pub(super) const MANIFESTS: &str = "manifests";
const POLL: Duration = Duration::from_millis(250);
/// The time in which a replaced API server answers at the cluster's endpoint.
const SETTLE: Duration = Duration::from_secs(60);

/// A static Pod that may differ from the running one.
pub(super) struct NewPod {
    /// The name of the component, which is the name of the file and the start of the Pod's name too.
    pub(super) name: &'static str,
    /// The component, unless it only gives access to the API.
    pub(super) component: Option<Component>,
    /// The static Pod.
    pub(super) pod: Value,
}

impl NewPod {
    /// Returns the name of the file.
    pub(super) fn file(&self) -> String {
        format!("{}.yaml", self.name)
    }

    /// Adds what a new static Pod keeps from the current one, and the digest of this binary to Pods of its images.
    pub(super) fn complete(mut self, current: &Value, program: Option<&str>) -> Self {
        let mut kept: Vec<(String, Value)> = Vec::new();
        for (name, value) in current.pairs("metadata.annotations") {
            if name.starts_with(OWN_ANNOTATIONS) {
                kept.push((name.clone(), value.clone()));
            }
        }
        let is_ours =
            images::is_own(first_image(&self.pod)) && self.component != Some(Component::Etcd);
        kept.extend(program.filter(|_| is_ours).map(|p| (PROGRAM.to_owned(), json!(p))));
        for (name, value) in kept {
            self.pod.put(&["metadata", "annotations", &name], value);
        }
        self
    }
}

/// A static Pod that has been replaced.
struct Replaced {
    name: &'static str,
    file: String,
    /// The hash of the earlier Pod, if the kubelet had reported it.
    before: Option<String>,
}

/// The replacement of a machine's static Pods.
pub(super) struct Replacer<'a> {
    node: &'a Node,
    client: &'a Client,
    wait_for_health: WaitForHealth,
    backup: PathBuf,
    rejected: PathBuf,
    replaced: Vec<Replaced>,
}

impl<'a> Replacer<'a> {
    /// Creates a replacement that backs the earlier files up below `directory`.
    pub(super) fn new(
        node: &'a Node,
        client: &'a Client,
        wait_for_health: WaitForHealth,
        directory: &Path,
    ) -> Self {
        let (backup, rejected) = (directory.join(MANIFESTS), directory.join("rejected"));
        Self { node, client, wait_for_health, backup, rejected, replaced: Vec::new() }
    }

    /// Replaces one static Pod and waits until it is ready. `prepare` runs before, if the Pod changes.
    pub(super) async fn replace(
        &mut self,
        new: &NewPod,
        current: &Value,
        prepare: impl FnOnce() -> Result<Vec<FileChange>, Error>,
    ) -> Result<Vec<FileChange>, Error> {
        let name = new.name;
        let patience = self.node.timeouts().upgrade_manifests.unwrap_or_default().to_std();
        if *current == new.pod {
            println!(
                "[upgrade/staticpods] Current and new manifests of {name} are equal, skipping upgrade"
            );
            // An upgrade that was killed may have written it a moment ago.
            self.wait(name, patience, |_| true).await?;
            return Ok(Vec::new());
        }
        let mut touched = prepare()?;
        let before = self.hash(name).await?;
        let file = new.file();
        let path = self.node.layout.manifests().join(&file);
        // A machine without this Pod has nothing to return to.
        if path.exists() {
            let text = fs::read(&path).map_err(io("read", &path))?;
            write_private(&self.backup, &file, &text)?;
        }
        println!(
            "[upgrade/staticpods] Moving new manifest to {:?} and backing up old manifest to {:?}",
            path.display().to_string(),
            self.backup.join(&file).display().to_string()
        );
        self.replaced.push(Replaced { name, file: file.clone(), before: before.clone() });
        touched.push(write_pod(&new.pod, &self.node.layout.manifests(), &file)?);
        println!("[upgrade/staticpods] Waiting for the kubelet to restart the component");
        match self.wait(name, patience, |hash| hash != before.as_deref()).await {
            Ok(()) => {
                println!("[upgrade/staticpods] Component {name:?} upgraded successfully!");
                Ok(touched)
            }
            Err(source) => Err(self.roll_back(new, source).await.into()),
        }
    }

    /// Returns the hash of the running static Pod; `None` if the kubelet has not reported it.
    async fn hash(&self, name: &str) -> Result<Option<String>, Error> {
        let mirror = format!("{name}-{}", self.node.name());
        let pods = Resource::PODS;
        let read = || get(self.client, &pods, "kube-system", &mirror);
        // The API server may have been replaced a moment ago.
        let is_passing =
            |e: &Error| matches!(e, Error::Api { source: client::Error::Transport { .. }, .. });
        let pod = rt::retry(SETTLE, POLL, is_passing, read).await?;
        Ok(pod.and_then(|pod| Some(pod.annotation(HASH)?.to_owned())))
    }

    /// Waits until the kubelet runs a Pod whose hash is `wanted`, and until it is ready and healthy.
    async fn wait(
        &self,
        name: &'static str,
        patience: Duration,
        wanted: impl Fn(Option<&str>) -> bool,
    ) -> Result<(), Error> {
        let mirror = format!("{name}-{}", self.node.name());
        let not_up = |cause: String| Error::NotUp {
            what: format!("Pod kube-system/{mirror}"),
            waited: format!("{}s", patience.as_secs()),
            cause,
        };
        let look = || async {
            let pod = get(self.client, &Resource::PODS, "kube-system", &mirror).await;
            match pod.map_err(|e| not_up(e.to_string()))? {
                None => Err(not_up("the kubelet has not reported it".to_owned())),
                Some(pod) if !wanted(pod.annotation(HASH)) => {
                    Err(not_up("the kubelet has not restarted it".to_owned()))
                }
                Some(pod) if is_ready(&pod) => Ok(()),
                Some(pod) => {
                    Err(not_up(format!("it is not ready: {}", pod["status"]["containerStatuses"])))
                }
            }
        };
        if let Err(error) = rt::retry(patience, POLL, |_| true, look).await {
            return Err(match error {
                Error::NotUp { what, waited, cause } => {
                    let words = last_words(self.node.containers.as_ref(), name).await;
                    Error::NotUp { what, waited, cause: format!("{cause}; {words}") }
                }
                other => other,
            });
        }
        (self.wait_for_health)(self.node, name).await
    }

    /// Returns to the earlier static Pods, and keeps the manifest that did not work.
    async fn roll_back(&self, new: &NewPod, source: Error) -> UpgradeError {
        let (component, source) = (new.name, Box::new(source));
        let rejected = self.rejected.clone();
        match self.restore(new).await {
            Ok(()) => UpgradeError::RolledBack { component, source, rejected },
            Err(after) => UpgradeError::NotRolledBack {
                component,
                source,
                after: Box::new(after),
                backup: self.backup.clone(),
                rejected,
            },
        }
    }

    async fn restore(&self, new: &NewPod) -> Result<(), Error> {
        write_private(&self.rejected, &new.file(), yaml::to_string(&new.pod)?.as_bytes())?;
        for replaced in self.replaced.iter().rev() {
            let backup = self.backup.join(&replaced.file);
            let current = self.node.layout.manifests().join(&replaced.file);
            if backup.exists() {
                let text = fs::read(&backup).map_err(io("read", &backup))?;
                pki::write_file(&current, &text, pki::KEY_MODE)?;
            } else {
                fs::remove_file(&current).map_err(io("remove", &current))?;
            }
        }
        println!("[upgrade/staticpods] Waiting for the earlier static Pods");
        let timeouts = self.node.timeouts();
        let patience = timeouts.control_plane_component_health_check.unwrap_or_default().to_std();
        for replaced in self.replaced.iter().filter(|replaced| replaced.before.is_some()) {
            self.wait(replaced.name, patience, |hash| hash == replaced.before.as_deref()).await?;
        }
        Ok(())
    }
}

fn write_private(directory: &Path, file: &str, text: &[u8]) -> Result<(), Error> {
    fs::create_dir_all(directory).map_err(io("create the directory", directory))?;
    Ok(pki::write_file(&directory.join(file), text, pki::KEY_MODE)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(component: Option<Component>, image: &str) -> NewPod {
        let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"image": image}]}});
        NewPod { name: "p", component, pod }
    }

    #[test]
    fn keeps_own_annotations_and_marks_own_images() {
        let current =
            json!({"metadata": {"annotations": {"windlass.local/authorities": "m", "a/b": "c"}}});
        for (component, image, mark) in [
            (Some(Component::Scheduler), "windlass.local/kube-scheduler:v1", Some("digest")),
            (Some(Component::Etcd), "windlass.local/etcd:3.5.1-0", None),
            (Some(Component::Scheduler), "registry.k8s.io/kube-scheduler:v1", None),
            (None, "windlass.local/windlass:v1", Some("digest")),
        ] {
            let new = pod(component, image).complete(&current, Some("digest")).pod;
            let annotations = &new["metadata"]["annotations"];
            assert_eq!(annotations["windlass.local/authorities"], "m");
            assert_eq!(annotations[PROGRAM].as_str(), mark, "{image}");
            assert_eq!(annotations.get("a/b"), None);
        }
        let plain = pod(None, "registry.k8s.io/a:1").complete(&Value::Null, None).pod;
        assert!(plain["metadata"].get("annotations").is_none());
    }
}
