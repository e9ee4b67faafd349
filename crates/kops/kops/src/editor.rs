//! Opens texts in the user's editor.

use crate::{error::Error, input::read_text};

/// The result of an editor.
pub(crate) struct EditedText {
    /// The path of the temporary file, for messages.
    pub(crate) path: String,
    pub(crate) text: String,
}

/// Opens a YAML text in the editor that the environment names, and waits for its end.
pub(crate) fn edit(
    text: &str,
    environment: &dyn Fn(&str) -> Option<String>,
) -> Result<EditedText, Error> {
    let directory = std::env::temp_dir().display().to_string();
    let file = tempfile::Builder::new().suffix(".yaml").tempfile();
    let file = file.map_err(kops_store::Error::file("creating a file in", &directory))?;
    let path = file.path().display().to_string();
    std::fs::write(file.path(), text).map_err(kops_store::Error::file("writing", &path))?;
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
    Ok(EditedText { text: read_text(&path)?, path })
}
