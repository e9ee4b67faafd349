//! The user's patches, from files named `target[suffix][+strategic|merge|json].{yaml,json}`.

use std::{fs, path::Path};

use api_config::yaml;
use api_schema::Schema;
use serde_json::Value;

use crate::{Error, error::io};

const TARGETS: [&str; 6] = [
    "corednsdeployment",
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubeletconfiguration",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Strategic,
    Merge,
    Json,
}

#[derive(Clone, Debug)]
struct Patch {
    target: &'static str,
    kind: Kind,
    file: String,
    content: String,
}

/// The patches of one directory, in the order of their file names.
#[derive(Clone, Debug, Default)]
pub struct Patches(Vec<Patch>);

impl Patches {
    /// Returns no patches.
    pub fn none() -> Self {
        Self::default()
    }

    /// Reads a directory. Files with other names are skipped with a warning, as in kubeadm.
    pub fn load(dir: &Path) -> Result<Self, Error> {
        let mut patches = Vec::new();
        for entry in fs::read_dir(dir).map_err(io("read the patches in", dir))? {
            let path = entry.map_err(io("read the patches in", dir))?.path();
            let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            match parse_name(&file) {
                Some((target, kind)) => {
                    let content = fs::read_to_string(&path).map_err(io("read", &path))?;
                    patches.push(Patch { target, kind, file, content });
                }
                None => tracing::warn!(
                    file,
                    "not a patch: its name is not target[suffix][+strategic|merge|json].{{yaml,json}}"
                ),
            }
        }
        patches.sort_by(|a, b| a.file.cmp(&b.file));
        Ok(Self(patches))
    }

    /// Applies the patches of a target, such as `kube-apiserver` or `kubeletconfiguration`, in the order of their file
    /// names.
    pub fn apply(&self, target: &str, mut object: Value) -> Result<Value, Error> {
        for patch in self.0.iter().filter(|p| p.target == target) {
            object = patch.apply(object)?;
            tracing::info!(target, file = %patch.file, "applied a patch");
        }
        Ok(object)
    }
}

impl Patch {
    fn apply(&self, mut object: Value) -> Result<Value, Error> {
        let failed = |reason: String| Error::Patch { file: self.file.clone(), reason };
        let patch = yaml::parse(&self.content)?;
        let result = match self.kind {
            Kind::Json => api_patch::json_patch(&object, patch.to_string().as_bytes()),
            Kind::Merge => api_patch::merge_patch(&mut object, &patch).map(|()| object),
            Kind::Strategic => {
                let schema = Schema::builtin();
                let (version, kind) = api_config::gvk(&object);
                let (group, version) = version.split_once('/').unwrap_or(("", version));
                let node = schema.kind(group, version, kind);
                api_patch::strategic(schema, node, &mut object, &patch).map(|()| object)
            }
        };
        result.map_err(|e| failed(e.to_string()))
    }
}

fn parse_name(file: &str) -> Option<(&'static str, Kind)> {
    let (stem, extension) = file.rsplit_once('.')?;
    if !["yaml", "json"].contains(&extension) {
        return None;
    }
    let (stem, kind) = match stem.split_once('+') {
        None => (stem, Kind::Strategic),
        Some((stem, "strategic")) => (stem, Kind::Strategic),
        Some((stem, "merge")) => (stem, Kind::Merge),
        Some((stem, "json")) => (stem, Kind::Json),
        Some(_) => return None,
    };
    TARGETS.into_iter().find(|target| stem.starts_with(target)).map(|target| (target, kind))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn parses_target_and_kind_from_patch_name() {
        let cases = [
            ("kube-apiserver.yaml", Some(("kube-apiserver", Kind::Strategic))),
            ("etcd0+merge.json", Some(("etcd", Kind::Merge))),
            ("kubeletconfiguration-a+json.yaml", Some(("kubeletconfiguration", Kind::Json))),
            ("kube-proxy.yaml", None),
            ("etcd+replace.yaml", None),
            ("etcd.txt", None),
        ];
        for (file, wanted) in cases {
            assert_eq!(parse_name(file), wanted, "{file}");
        }
    }

    #[test]
    fn applies_patches_in_order_and_names_failing_file() {
        let dir = tempfile::tempdir().unwrap();
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "etcd", "image": "a"}], "hostNetwork": true}});
        fs::write(
            dir.path().join("etcd0.yaml"),
            "spec: {containers: [{name: etcd, env: [{name: A, value: b}]}]}",
        )
        .unwrap();
        fs::write(dir.path().join("etcd1+merge.yaml"), "spec: {hostNetwork: null}").unwrap();
        fs::write(
            dir.path().join("etcd2+json.json"),
            r#"[{"op": "replace", "path": "/spec/containers/0/image", "value": "b"}]"#,
        )
        .unwrap();
        let patched = Patches::load(dir.path()).unwrap().apply("etcd", pod.clone()).unwrap();
        assert_eq!(
            patched["spec"],
            json!({"containers": [{"name": "etcd", "image": "b", "env": [{"name": "A", "value": "b"}]}]})
        );
        fs::write(dir.path().join("etcd3+json.json"), r#"[{"op": "remove", "path": "/nothing"}]"#)
            .unwrap();
        let error = Patches::load(dir.path()).unwrap().apply("etcd", pod).unwrap_err().to_string();
        assert!(error.contains("etcd3+json.json"), "{error}");
    }
}
