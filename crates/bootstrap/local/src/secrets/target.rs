//! Finds the encryption configuration of the API server on this machine.

use std::path::{Path, PathBuf};

use api_meta::Tree as _;
use client::Client;
use serde_json::Value;

use crate::secrets_error::SecretsError;

/// The file of an API server's encryption configuration, and an administrator's client.
pub(super) struct Target {
    pub(super) file: PathBuf,
    pub(super) client: Client,
}

const FLAG: &str = "--encryption-provider-config";

/// Returns the configuration file on the host, by the manifest of the API server's static Pod.
pub(super) fn file_of_static_pod(path: &Path, text: &str) -> Result<PathBuf, SecretsError> {
    let pod = api_config::yaml::parse(text).map_err(|error| SecretsError::Manifest {
        path: path.to_owned(),
        reason: error.to_string(),
    })?;
    let containers = pod.items("spec.containers");
    let container = containers.first().ok_or_else(|| SecretsError::Manifest {
        path: path.to_owned(),
        reason: "it has no containers".to_owned(),
    })?;
    let words = container.items("command").iter().chain(container.items("args"));
    let words: Vec<&str> = words.filter_map(Value::as_str).collect();
    let inside = flag(&words, FLAG).ok_or(SecretsError::NotConfigured)?;
    let reload = flag(&words, &format!("{FLAG}-automatic-reload"));
    if !matches!(reload.as_deref(), Some("true" | "TRUE" | "True" | "t" | "T" | "1")) {
        return Err(SecretsError::NotReloaded(path.display().to_string()));
    }
    on_host(&pod, container, Path::new(&inside))
        .ok_or_else(|| SecretsError::NoHostPath(inside.into()))
}

/// Returns the value of the last flag of this name: `--name=value`, `--name value`, or `true` for a lone name.
fn flag(words: &[&str], name: &str) -> Option<String> {
    words.iter().enumerate().rev().find_map(|(at, word)| match word.strip_prefix(name)? {
        "" => {
            let next = words.get(at + 1).filter(|next| !next.starts_with("--"));
            Some(next.map_or("true", |next| *next).to_owned())
        }
        rest => rest.strip_prefix('=').map(str::to_owned),
    })
}

/// Translates a path in a container to the host's, by the innermost mount.
fn on_host(pod: &Value, container: &Value, inside: &Path) -> Option<PathBuf> {
    let mounts = container.items("volumeMounts").iter();
    let mount = mounts
        .filter(|mount| inside.starts_with(mount.text("mountPath")))
        .max_by_key(|mount| Path::new(mount.text("mountPath")).components().count())?;
    let volumes = pod.items("spec.volumes");
    let volume = volumes.iter().find(|volume| volume["name"] == mount["name"])?;
    let host = volume["hostPath"]["path"].as_str().filter(|path| !path.is_empty())?;
    let below = inside.strip_prefix(mount.text("mountPath")).ok()?;
    let whole = Path::new(host).join(mount.text("subPath").trim_start_matches('/'));
    Some(if below.as_os_str().is_empty() { whole } else { whole.join(below) })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn found(args: &[&str]) -> Result<PathBuf, SecretsError> {
        let pod = json!({"spec": {
            "containers": [{
                "command": ["kube-apiserver", "--etcd-servers=https://127.0.0.1:2379"], "args": args,
                "volumeMounts": [
                    {"name": "outer", "mountPath": "/etc"},
                    {"name": "enc", "mountPath": "/etc/enc"},
                    {"name": "one", "mountPath": "/one.yaml"},
                    {"name": "empty", "mountPath": "/empty"}],
            }],
            "volumes": [
                {"name": "outer", "hostPath": {"path": "/etc"}},
                {"name": "enc", "hostPath": {"path": "/srv/enc"}},
                {"name": "one", "hostPath": {"path": "/srv/one"}},
                {"name": "empty", "emptyDir": {}}],
        }});
        file_of_static_pod(Path::new("manifest"), &pod.to_string())
    }

    #[test]
    fn translates_flag_to_file_on_host() {
        let reload = "--encryption-provider-config-automatic-reload=true";
        for (flag, file) in [
            ("--encryption-provider-config=/etc/enc/a.yaml", "/srv/enc/a.yaml"),
            ("--encryption-provider-config=/etc/other.yaml", "/etc/other.yaml"),
            ("--encryption-provider-config=/one.yaml", "/srv/one"),
        ] {
            assert_eq!(found(&[flag, reload]).unwrap(), Path::new(file));
        }
        let apart = [
            "--encryption-provider-config",
            "/one.yaml",
            "--encryption-provider-config-automatic-reload",
        ];
        assert_eq!(found(&apart).unwrap(), Path::new("/srv/one"));
    }

    #[test]
    fn refuses_servers_whose_keys_cannot_be_changed() {
        let reload = "--encryption-provider-config-automatic-reload";
        for (args, words) in [
            (vec![], "no --encryption-provider-config"),
            (vec!["--encryption-provider-config=/one.yaml"], "does not reload"),
            (
                vec![
                    "--encryption-provider-config=/one.yaml",
                    "--encryption-provider-config-automatic-reload=false",
                ],
                "does not reload",
            ),
            (vec!["--encryption-provider-config=/empty/a", reload], "hostPath"),
            (vec!["--encryption-provider-config=/none/a", reload], "hostPath"),
        ] {
            let error = found(&args).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        for text in ["", "[", "spec: {containers: []}", "spec: 1"] {
            assert!(file_of_static_pod(Path::new("manifest"), text).is_err());
        }
    }
}
