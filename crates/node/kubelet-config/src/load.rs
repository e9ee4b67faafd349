//! Assembles the configuration: the file, then the drop-in files in order, then the flags.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::{args::Args, configuration::KubeletConfiguration, error::ConfigError, ignored};

const KIND: &str = "KubeletConfiguration";
const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";

/// Loads the configuration from the file, the drop-in files and the flags of a command line.
pub fn load(args: &Args) -> Result<KubeletConfiguration, ConfigError> {
    let mut whole = match &args.config {
        Some(path) => read(path)?,
        None => Map::new(),
    };
    for path in
        args.config_dir.iter().map(|dir| drop_ins(dir)).collect::<Result<Vec<_>, _>>()?.concat()
    {
        let drop_in = read(&path)?;
        let of = |field: &str| drop_in.get(field).and_then(Value::as_str).unwrap_or_default();
        if (of("apiVersion"), of("kind")) != (API_VERSION, KIND) {
            let message = format!("{} is no {KIND} of {API_VERSION}", path.display());
            return Err(ConfigError::Invalid { field: "kind", message });
        }
        merge(&mut whole, drop_in);
    }
    args.overlay.apply(&mut whole)?;
    let path = args.config.clone().unwrap_or_default();
    decode(whole).map_err(|source| ConfigError::Decode { path, source })
}

/// Parses a configuration from YAML or JSON text.
pub fn parse(text: &str) -> Result<KubeletConfiguration, api_config::Error> {
    decode(object(text)?)
}

fn object(text: &str) -> Result<Map<String, Value>, api_config::Error> {
    match api_config::without_nulls(api_config::yaml::parse(text)?) {
        Value::Object(object) => Ok(object),
        Value::Null => Ok(Map::new()),
        other => {
            let reason = format!("{other} is no object");
            Err(api_config::Error::Decode { kind: KIND, reason })
        }
    }
}

fn read(path: &Path) -> Result<Map<String, Value>, ConfigError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
    object(&text).map_err(|source| ConfigError::Decode { path: path.to_owned(), source })
}

/// Returns the drop-in files of a directory and its subdirectories, in the order of the merge.
fn drop_ins(directory: &Path) -> Result<Vec<PathBuf>, ConfigError> {
    let failed = |source| ConfigError::Read { path: directory.to_owned(), source };
    let mut entries = std::fs::read_dir(directory)
        .and_then(|entries| entries.map(|e| Ok(e?.path())).collect::<Result<Vec<_>, _>>())
        .map_err(failed)?;
    entries.sort();
    let mut files = Vec::new();
    for path in entries {
        if path.is_dir() {
            files.extend(drop_ins(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "conf") {
            files.push(path);
        } else {
            tracing::warn!(path = %path.display(), "a drop-in file whose name does not end in .conf is not read");
        }
    }
    Ok(files)
}

/// Merges one object into another. Values other than objects, and also lists, are replaced.
fn merge(whole: &mut Map<String, Value>, over: Map<String, Value>) {
    for (field, value) in over {
        match (whole.get_mut(&field), value) {
            (Some(Value::Object(below)), Value::Object(over)) => merge(below, over),
            (_, value) => {
                whole.insert(field, value);
            }
        }
    }
}

/// Decodes the merged configuration. Unknown fields are logged as a warning, as in upstream's kubelet.
fn decode(mut whole: Map<String, Value>) -> Result<KubeletConfiguration, api_config::Error> {
    whole.remove("apiVersion");
    whole.remove("kind");
    for warning in api_config::known::take_ignored(&mut whole, ignored::WITHOUT_EFFECT) {
        tracing::warn!(warning, "the kubelet's configuration has a field without effect");
    }
    if let Some(warning) = unknown_fields(&whole) {
        tracing::warn!(warning, "the kubelet's configuration has unknown fields");
    }
    Ok(api_config::decode::<KubeletConfiguration>(KIND, Value::Object(whole))?.value)
}

/// Returns a warning about fields that upstream's kind does not have. [`KubeletConfiguration`] cannot detect these,
/// because its flattened fields accept every name.
fn unknown_fields(whole: &Map<String, Value>) -> Option<String> {
    let whole = Value::Object(whole.clone());
    api_config::decode::<api_config::KubeletConfiguration>(KIND, whole).ok()?.warning()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

    #[test]
    fn warns_only_of_fields_unknown_upstream() {
        let of = |text: &str| unknown_fields(&object(text).unwrap());
        assert_eq!(of("providerID: x\nevictionHard: {memory.available: 1%}\nmaxPods: 3\n"), None);
        assert!(of("maxPods: 3\nmaxPodz: 4\n").unwrap().contains("maxPodz"));
    }

    #[test]
    fn drop_in_overrides_file_and_flag_overrides_drop_in() {
        let dir = std::env::temp_dir().join(format!("windlass-drop-ins-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("conf.d")).unwrap();
        let write = |name: &str, text: &str| {
            std::fs::write(dir.join(name), format!("{HEAD}{text}")).unwrap();
        };
        write(
            "config.yaml",
            "maxPods: 1\nport: 1\nclusterDomain: a\nclusterDNS: [a, b]\nsystemReserved: {cpu: 1m, memory: 1Mi}\n",
        );
        write("conf.d/20.conf", "port: 3\nclusterDNS: [d]\nsystemReserved: {cpu: 2m}\n");
        write("conf.d/10.conf", "port: 2\nmaxPods: 2\n");
        write("conf.d/30.yaml", "port: 4\n");
        let flag = |name: &str, path: &str| format!("--{name}={}", dir.join(path).display());
        let args = Args::parse_from([
            "kubelet".to_owned(),
            flag("config", "config.yaml"),
            flag("config-dir", "conf.d"),
            "--max-pods=5".to_owned(),
        ]);
        let config = load(&args).unwrap();
        assert_eq!(
            (config.max_pods, config.port, config.cluster_domain.as_str()),
            (5, Some(3), "a")
        );
        assert_eq!(config.cluster_dns, ["d"]);
        let reserved: Vec<_> = config.reservation.system_reserved.into_iter().collect();
        assert_eq!(reserved, [("cpu".into(), "2m".into()), ("memory".into(), "1Mi".into())]);
        std::fs::write(dir.join("conf.d/40.conf"), "port: 9\n").unwrap();
        let error = load(&args).unwrap_err().to_string();
        assert!(error.contains("40.conf"), "{error}");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
