//! The stages fetch-offline and fetch: read the config from its source and merge all parts.

use std::{
    collections::BTreeMap,
    env, fs, io,
    path::{Path, PathBuf},
    pin::Pin,
};

use api_meta::Tree as _;
use ignition::spec::Resource;
use serde_json::{Value, json};

use super::{
    config_text::{ConfigText, decode},
    device,
};
use crate::{
    cmdline,
    context::Context,
    error::{Error, FetchError},
    fetch::{Fetcher, url::displayed},
    private_file::write_private,
};

/// The maximum depth of references, which detects cycles.
const DEPTH: usize = 32;
const VERSION: &str = "3.6.0";
const EMPTY: &str = r#"{"ignition": {"version": "3.6.0"}}"#;

/// The directories of system configs, in order of precedence, each with the variable that overrides it.
const SYSTEM: [(&str, &str); 3] = [
    ("IGNITION_SYSTEM_RUNTIME_CONFIG_DIR", "/run/ignition"),
    ("IGNITION_SYSTEM_LOCAL_CONFIG_DIR", "/etc/ignition"),
    ("IGNITION_SYSTEM_CONFIG_DIR", "/usr/lib/ignition"),
];

/// Fetches the config without a network, and requests one if it is needed.
pub(super) async fn offline(context: &Context) -> Result<(), Error> {
    match acquire(context, Fetcher::new(false)).await {
        Ok(config) => {
            if ignition::needs_network(&config) {
                tracing::info!("the stages after this one need the network");
                write_private(&context.neednet, b"")?;
            }
            store(context, &config)
        }
        Err(Error::Fetch(FetchError::NeedsNetwork { url })) => {
            tracing::info!(url, "the network is needed");
            write_private(&context.neednet, b"")
        }
        Err(error) => Err(error),
    }
}

pub(super) async fn online(context: &Context) -> Result<(), Error> {
    if context.config_cache.exists() {
        tracing::info!(path = %context.config_cache.display(), "the config has been fetched already");
        return Ok(());
    }
    let config = acquire(context, Fetcher::new(true)).await?;
    store(context, &config)
}

fn store(context: &Context, config: &Value) -> Result<(), Error> {
    write_private(&context.config_cache, config.to_string().as_bytes())
}

async fn acquire(context: &Context, mut fetcher: Fetcher) -> Result<Value, Error> {
    let directories = SYSTEM
        .map(|(name, usual)| env::var_os(name).map_or_else(|| PathBuf::from(usual), PathBuf::from));
    let mut base = json!({ "ignition": { "version": VERSION } });
    for place in ["base.d".to_owned(), format!("base.platform.d/{}", context.platform)] {
        for path in fragments(&directories, &place)?.into_values() {
            let text = fs::read_to_string(&path).map_err(Error::file("reading", &path))?;
            let part = resolve(&mut fetcher, &path.display().to_string(), &text, 0).await?;
            base = ignition::merge(&base, &part);
        }
    }
    let user = user_config(context, &mut fetcher, &directories).await?;
    let config = resolve(&mut fetcher, &user.origin, &user.text, 0).await?;
    let merged = ignition::merge(&base, &config);
    // Valid parts may contradict each other.
    ignition::parse(&merged.to_string())
        .map_err(|source| Error::Config { origin: "all parts merged".into(), source })
}

/// Returns the config files of one kind by name. Of files with one name, the directory with precedence wins.
fn fragments(directories: &[PathBuf], place: &str) -> Result<BTreeMap<String, PathBuf>, Error> {
    let mut out = BTreeMap::new();
    for directory in directories.iter().rev() {
        let directory = directory.join(place);
        let entries = match fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(Error::file("listing", &directory)(error)),
        };
        for entry in entries {
            let entry = entry.map_err(Error::file("listing", &directory))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.ends_with(".ign") {
                out.insert(name, entry.path());
            }
        }
    }
    Ok(out)
}

/// Returns the user's config, from kernel command line, system directories or platform.
async fn user_config(
    context: &Context,
    fetcher: &mut Fetcher,
    directories: &[PathBuf],
) -> Result<ConfigText, Error> {
    let line = cmdline::read()?;
    if let Some(url) = cmdline::config_url(&line) {
        let resource = Resource { source: Some(url.to_owned()), ..Resource::default() };
        let fetch = fetcher.fetch(&resource);
        let bytes = match tokio::time::timeout(context.fetch_timeout, fetch).await {
            Ok(bytes) => bytes?,
            Err(_) => {
                let reason = format!(
                    "no config within {:?}; --fetch-timeout allows more",
                    context.fetch_timeout
                );
                return Err(FetchError::Transfer { url: url.to_owned(), reason }.into());
            }
        };
        return Ok(ConfigText::new(url, &bytes));
    }
    if let Some(config) = device::config(context, &line)? {
        return Ok(config);
    }
    for directory in directories {
        let path = directory.join("user.ign");
        if path.exists() {
            return read(&path);
        }
    }
    match context.platform.as_str() {
        "file" => {
            let path = env::var_os("IGNITION_CONFIG_FILE").map(PathBuf::from);
            read(&path.unwrap_or_else(|| PathBuf::from("config.ign")))
        }
        "qemu" => {
            let path = Path::new("/sys/firmware/qemu_fw_cfg/by_name/opt/com.coreos/config/raw");
            if path.exists() {
                read(path)
            } else {
                Ok(ConfigText::new("nowhere", EMPTY.as_bytes()))
            }
        }
        "metal" => Ok(ConfigText::new("nowhere", EMPTY.as_bytes())),
        other => Err(Error::Platform(other.to_owned())),
    }
}

fn read(path: &Path) -> Result<ConfigText, Error> {
    let bytes = fs::read(path).map_err(Error::file("reading", path))?;
    Ok(ConfigText::new(&path.display().to_string(), &bytes))
}

/// Resolves a config with all its references, depth first.
fn resolve<'a>(
    fetcher: &'a mut Fetcher,
    origin: &'a str,
    text: &'a str,
    depth: usize,
) -> Pin<Box<dyn Future<Output = Result<Value, Error>> + 'a>> {
    Box::pin(async move {
        if depth == DEPTH {
            return Err(Error::Deep(DEPTH));
        }
        let invalid = |source| Error::Config { origin: origin.to_owned(), source };
        // An empty config changes nothing.
        let text = if text.trim().is_empty() { EMPTY } else { text };
        let mut config = ignition::parse(text).map_err(invalid)?;
        // The merged config has the newest version.
        config.put("ignition.version", VERSION);
        let typed = ignition::typed(&config).map_err(invalid)?;
        fetcher.configure(&typed.ignition).await?;
        let references = typed.ignition.config;
        if let Some(url) = references.replace.url() {
            let child = fetcher.fetch(&references.replace).await?;
            return resolve(fetcher, &displayed(url), &decode(&child), depth + 1).await;
        }
        if let Some(own) = config.pointer_mut("/ignition").and_then(Value::as_object_mut) {
            own.remove("config");
        }
        for reference in &references.merge {
            let child = fetcher.fetch(reference).await?;
            let origin = displayed(reference.url().unwrap_or_default());
            let child = resolve(fetcher, &origin, &decode(&child), depth + 1).await?;
            config = ignition::merge(&config, &child);
        }
        Ok(config)
    })
}
