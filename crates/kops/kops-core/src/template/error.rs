//! The errors of templates and their values.

/// An error of rendering a template.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// A snippet whose name the template has.
    #[error("snippet cannot have the same name as the template: {name}")]
    SnippetName { name: &'static str },
    /// A template that cannot be parsed or executed.
    #[error("rendering the template: {0}")]
    Render(#[from] gotmpl::Error),
    /// A value that cannot be formatted.
    #[error("formatting a value: {0}")]
    Format(#[from] gotmpl::Message),
    /// A rendered document that is not a YAML map.
    #[error("parsing the rendered document: {cause}")]
    Yaml { cause: String },
    /// A value of `--set` or `--set-string` that cannot be parsed.
    #[error("failed parsing --set data {text:?}: {problem}")]
    Set { text: String, problem: &'static str },
    /// A path of `--set` through a value that has no members.
    #[error("failed parsing --set data: {path:?} is {actual}, but {wanted} is needed")]
    SetType { path: String, actual: &'static str, wanted: &'static str },
}
