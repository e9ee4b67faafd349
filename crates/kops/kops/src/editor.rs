//! Opens objects in the user's editor.

use std::path::PathBuf;

use kops_api::{Object, VersionName};
use tempfile::NamedTempFile;

use crate::{environment::CommandEnvironment, error::Error, input::read_text};

/// Opens an object in the editor that the environment names, waits for its end, and passes the edited object to
/// `store`. Returns `None` without a call if the text was not changed. If the edited text cannot be read or stored,
/// the error names the file that keeps the text.
pub(crate) fn edit<T>(
    object: &Object,
    context: &CommandEnvironment<'_>,
    store: impl FnOnce(Object) -> Result<T, Error>,
) -> Result<Option<T>, Error> {
    let text = object.to_yaml(VersionName::V1alpha2);
    let environment = context.environment;
    let directory = environment("TMPDIR").filter(|path| !path.is_empty());
    let directory = directory.map_or_else(std::env::temp_dir, PathBuf::from);
    let file = tempfile::Builder::new().suffix(".yaml").tempfile_in(&directory);
    let file = file
        .map_err(kops_store::Error::file("creating a file in", &directory.display().to_string()))?;
    let path = file.path().display().to_string();
    std::fs::write(file.path(), &text).map_err(kops_store::Error::file("writing", &path))?;
    let editor = ["KUBE_EDITOR", "VISUAL", "EDITOR"].into_iter().find_map(environment);
    let editor = editor.unwrap_or_else(|| "vi".to_owned());
    // The editor's variable may contain flags.
    let status = std::process::Command::new("sh")
        .args(["-c", &format!("{editor} \"$0\"")])
        .arg(file.path())
        .status()
        .map_err(kops_store::Error::file("starting the editor", &editor))?;
    if !status.success() {
        return Err(Error::Editor { editor, status });
    }
    let edited = read_text(&path);
    if edited.as_ref().is_ok_and(|edited| *edited == text) {
        return Ok(None);
    }
    let edited = edited.and_then(|edited| parse(&path, &edited));
    edited.and_then(store).map(Some).map_err(|cause| keep(file, cause))
}

/// Parses the only object of a text.
fn parse(path: &str, text: &str) -> Result<Object, Error> {
    let mut trees = kops_api::yaml::parse_all(path, text)?;
    let tree = trees.pop().unwrap_or_default();
    if trees.is_empty() {
        Ok(Object::from_tree(path, tree)?)
    } else {
        Err(Error::EditedDocuments { count: trees.len() + 1 })
    }
}

/// Keeps an edited file, and returns the error that names it.
fn keep(file: NamedTempFile, cause: Error) -> Error {
    match file.keep() {
        Ok((_, path)) if path.exists() => Error::EditedCopy { path, cause: Box::new(cause) },
        _ => cause,
    }
}
