//! Runs `kops toolbox template`: reads templates, snippets and values, and writes the rendered documents.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use kops_core::template::{
    TemplateInputs, format_value, join_documents, merge, render, set_values, split_documents,
};
use kops_store::{KOPS_VERSION, parse_yaml, read_channel};
use serde_json::{Map, Value};

use crate::{
    environment::CommandEnvironment, error::Error, flags::TemplateFlags, input::read_text,
};

/// The most files in directories of templates, snippets or values.
const MOST_FILES: usize = 10_000;

pub(crate) fn run(
    flags: &TemplateFlags,
    name: &str,
    context: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    let mut values = read_values(flags)?;
    if !values.get("clusterName").is_some_and(Value::is_string) {
        let name = flags.cluster.as_deref().unwrap_or(name);
        values.insert("clusterName".to_owned(), name.into());
    }
    if let Some(key) = &flags.config_value {
        let shown = values.get(key).map_or_else(|| Ok("null".to_owned()), format_value)?;
        writeln!(context.out, "{shown}")?;
        return Ok(());
    }
    let content = render_all(flags, &Value::Object(values))?;
    match &flags.out {
        None => write!(context.out, "{content}")?,
        Some(path) => std::fs::write(path, content)
            .map_err(kops_store::Error::file("writing the rendered templates to", path))?,
    }
    Ok(())
}

fn render_all(flags: &TemplateFlags, values: &Value) -> Result<String, Error> {
    let mut snippets = BTreeMap::new();
    for path in expand(&flags.snippets)? {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        snippets.insert(name, read(&path)?);
    }
    // Without a file, only the channel functions fail.
    let channel = read_channel(&flags.channel, false)?;
    let inputs = TemplateInputs {
        values,
        snippets: &snippets,
        channel: &channel,
        kops: &KOPS_VERSION.parse()?,
        fail_on_missing: flags.fail_on_missing,
    };
    let mut documents = Vec::new();
    for path in expand(&flags.template)? {
        let failed =
            |cause| Error::Template { path: path.display().to_string(), cause: Box::new(cause) };
        let rendered = render(&read(&path)?, &inputs).map_err(failed)?;
        documents.extend(split_documents(&rendered, flags.format_yaml).map_err(failed)?);
    }
    Ok(join_documents(&documents))
}

/// Reads the values: files in order, then `--set`, then `--set-string`.
fn read_values(flags: &TemplateFlags) -> Result<Map<String, Value>, Error> {
    let mut values = Map::new();
    for path in expand(&flags.values)? {
        let shown = path.display().to_string();
        match parse_yaml(&shown, read(&path)?.as_bytes())? {
            Value::Object(map) => merge(&mut values, map),
            Value::Null => {}
            _ => {
                let cause = "it is not a map of values".to_owned();
                return Err(kops_api::Error::Yaml { what: shown, cause }.into());
            }
        }
    }
    for text in &flags.set {
        set_values(&mut values, text, false)?;
    }
    for text in &flags.set_string {
        set_values(&mut values, text, true)?;
    }
    Ok(values)
}

fn read(path: &Path) -> Result<String, Error> {
    read_text(&path.display().to_string())
}

/// Replaces directories by their files, in the order of names. Symbolic links to directories are not followed, because
/// they may form a loop.
fn expand(paths: &[String]) -> Result<Vec<PathBuf>, Error> {
    let mut files = Vec::new();
    for path in paths {
        let is_directory = Path::new(path).is_dir();
        if !is_directory {
            files.push(PathBuf::from(path));
            continue;
        }
        let mut found = BTreeSet::new();
        let mut open = vec![PathBuf::from(path)];
        while let Some(next) = open.pop() {
            let shown = next.display().to_string();
            let failed = || kops_store::Error::file("reading the directory", &shown);
            for entry in std::fs::read_dir(&next).map_err(failed())? {
                let entry = entry.map_err(failed())?;
                if entry.file_type().map_err(failed())?.is_dir() {
                    open.push(entry.path());
                } else {
                    found.insert(entry.path());
                }
                if found.len() + open.len() > MOST_FILES {
                    return Err(Error::Files { path: path.clone(), limit: MOST_FILES });
                }
            }
        }
        files.extend(found);
    }
    Ok(files)
}
