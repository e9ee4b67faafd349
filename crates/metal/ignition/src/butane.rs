//! Translates Butane configs (variants fcos and flatcar) to Ignition. Read [`translate`] first.

mod boot;
mod directory;
mod mount;
mod resource;
mod rules;
mod section;
mod trees;

#[cfg(test)]
mod tests;
#[cfg(test)]
mod verdicts;

use std::{collections::HashMap, fmt};

use serde_json::{Map, Value as Json, json};

pub use self::directory::{Directory, DirectoryError, Files, TreeEntry};
use self::{directory::NO_FILES, section::entry};
pub use crate::yaml::YamlError;
use crate::{
    advice::{self, Advice},
    config,
    error::ConfigError,
    schema::{self, Shape},
    validate,
    yaml::{self, Node, Value},
};

/// A message about one position in a config.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The path within the config, from `$`.
    pub path: String,
    /// The line, counted from 1.
    pub line: u64,
    /// The column, counted from 1.
    pub column: u64,
    /// The message.
    pub message: String,
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, line, column, message } = self;
        write!(f, "{path}, line {line} col {column}: {message}")
    }
}

/// The reasons why a config cannot be translated.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum Error {
    #[error("parsing YAML: {0}")]
    Yaml(#[from] YamlError),
    #[error("error at {0}")]
    At(Notice),
}

/// An Ignition config with the warnings of its translation.
#[derive(Debug)]
pub struct Translation {
    /// The Ignition config.
    pub config: Json,
    /// Warnings: unused keys, and upstream's advice.
    pub warnings: Vec<Notice>,
}

/// Translates a config. `files` provides `local` files; without it a `local` file is an error.
pub fn translate(text: &str, files: Option<Files<'_>>) -> Result<Translation, Error> {
    translate_node(&yaml::parse(text)?, files)
}

/// Translates a parsed config.
pub(crate) fn translate_node(root: &Node, files: Option<Files<'_>>) -> Result<Translation, Error> {
    let (variant, version) = (root_text(root, "variant"), root_text(root, "version"));
    let mut translator = Translator::new(files);
    let spec = match find_spec(&variant, &version) {
        Ok(spec) => spec,
        Err(error) => return translator.fail("$", root, error.to_string()),
    };
    translator.spec = Some(spec);
    let mut config = translator.object(root, schema::BUTANE, "$")?;
    config.remove("variant");
    config.remove("version");
    let warnings = rules::check(&config, &spec);
    translator.advise(warnings.map_err(|error| translator.locate(error, root))?, root);
    let target = schema::target(&variant, &version).unwrap_or_default();
    entry(&mut config, "ignition", "version", target.into());
    mount::add(&mut config);
    trees::add(&mut config, files).map_err(|error| translator.locate(error, root))?;
    let mut take = |section: &str| config.remove(section).unwrap_or_default();
    let (device, grub) = (take("bootDevice"), take("grub"));
    let config = boot::users(boot::device(config, &device), &grub);
    translator.advise(rules::check_disks(&config, &spec), root);
    let result = rules::check_variant(&config, &spec)
        .and_then(|()| config::check(&config))
        .and_then(|()| config::typed(&config));
    let typed = result.map_err(|error| translator.locate(error, root))?;
    validate::validate(&typed).map_err(|error| translator.locate(error, root))?;
    translator.advise(advice::advise(&typed), root);
    Ok(Translation { config, warnings: translator.warnings })
}

/// Returns a scalar at the root of the config as a string.
fn root_text(root: &Node, key: &str) -> String {
    let Value::Map(entries) = &root.value else { return String::new() };
    let entry = entries.iter().find(|(name, _)| name.name == key);
    match entry.map(|(_, node)| &node.value) {
        Some(Value::Text(text)) => text.clone(),
        Some(Value::Int(number)) => number.to_string(),
        Some(Value::Float(number)) => number.to_string(),
        _ => String::new(),
    }
}

/// The errors of variant and version, in upstream's words.
#[derive(Debug, thiserror::Error)]
enum SpecError {
    #[error("error parsing variant; must be specified")]
    Variant,
    #[error("error parsing version; must be a valid semver")]
    Version,
    #[error(
        "No translator exists for variant {variant} with version {version}; fcos has 1.0.0 to 1.7.0, flatcar 1.0.0 \
         and 1.1.0"
    )]
    Unknown { variant: String, version: String },
}

/// Returns the spec of a variant and version.
fn find_spec(variant: &str, version: &str) -> Result<rules::Spec, SpecError> {
    if variant.is_empty() {
        return Err(SpecError::Variant);
    }
    let numbers = version.split(['-', '+']).next().unwrap_or_default();
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    if numbers.split('.').count() != 3 || !numbers.split('.').all(is_number) {
        return Err(SpecError::Version);
    }
    let (variant, version) = (variant.to_owned(), version.to_owned());
    rules::Spec::new(&variant, &version).ok_or(SpecError::Unknown { variant, version })
}

/// Translates values to JSON, records their positions and collects warnings.
pub(crate) struct Translator<'f> {
    files: Option<Files<'f>>,
    /// The positions of the result's values, by path.
    positions: HashMap<String, (u64, u64)>,
    pub(crate) warnings: Vec<Notice>,
    /// The variant and version of a Butane config; `None` for another kind of config.
    spec: Option<rules::Spec>,
}

type Outcome<T> = Result<T, Error>;

impl<'f> Translator<'f> {
    pub(crate) fn new(files: Option<Files<'f>>) -> Self {
        Self { files, positions: HashMap::new(), warnings: Vec::new(), spec: None }
    }

    fn fail<T>(&self, path: &str, node: &Node, message: impl Into<String>) -> Outcome<T> {
        let (line, column) = (node.line, node.column);
        let (path, message) = (schema::snake(path), message.into());
        Err(Error::At(Notice { path, line, column, message }))
    }

    /// Warns about a key that this version does not know.
    fn unused(&mut self, path: String, key: &yaml::Key) {
        let (line, column) = (key.line, key.column);
        let message = format!("unused key {}", key.name);
        self.warnings.push(Notice { path, line, column, message });
    }

    /// Adds warnings about the config's values, without duplicates, as upstream does.
    pub(crate) fn advise(&mut self, warnings: Vec<Advice>, root: &Node) {
        for Advice { path, message } in warnings {
            let notice = self.notice(&path, message, root);
            if !self.warnings.contains(&notice) {
                self.warnings.push(notice);
            }
        }
    }

    pub(crate) fn locate(&self, error: ConfigError, root: &Node) -> Error {
        let ConfigError::Invalid { path, reason } = &error else {
            return Error::At(Notice {
                path: "$".into(),
                line: root.line,
                column: root.column,
                message: error.to_string(),
            });
        };
        Error::At(self.notice(path, reason.clone(), root))
    }

    /// Returns a notice at the position of a value, which is named by its path in the result.
    fn notice(&self, path: &str, message: String, root: &Node) -> Notice {
        let path = format!("$.{path}");
        // A missing value has the position of its parent.
        let mut place = path.as_str();
        let (line, column) = loop {
            match (self.positions.get(place), place.rsplit_once('.')) {
                (Some(position), _) => break *position,
                (None, Some((parent, _))) => place = parent,
                (None, None) => break (root.line, root.column),
            }
        };
        Notice { path: schema::snake(&path), line, column, message }
    }

    fn value(&mut self, node: &Node, shape: &Shape, path: &str) -> Outcome<Json> {
        self.positions.insert(path.to_owned(), (node.line, node.column));
        match (shape, &node.value) {
            (_, Value::Null) => Ok(Json::Null),
            (Shape::Text, Value::Text(text)) => Ok(text.as_str().into()),
            // A plain scalar of any type is valid text.
            (Shape::Text, Value::Int(number)) => Ok(number.to_string().into()),
            (Shape::Text, Value::Float(number)) => Ok(number.to_string().into()),
            (Shape::Text, Value::Bool(value)) => Ok(value.to_string().into()),
            (Shape::Int, Value::Int(number)) => Ok((*number).into()),
            (Shape::Bool, Value::Bool(value)) => Ok((*value).into()),
            (Shape::List(shape), Value::List(items)) => {
                let items = items.iter().enumerate();
                let items = items.map(|(i, item)| self.value(item, shape, &format!("{path}.{i}")));
                Ok(Json::Array(items.collect::<Outcome<_>>()?))
            }
            (Shape::Options, Value::Map(entries)) => {
                let options = entries.iter().map(|(key, value)| {
                    let path = format!("{path}.{}", key.name);
                    self.positions.insert(path.clone(), (key.line, key.column));
                    let text = match &value.value {
                        Value::Text(text) => format!("{text:?}"),
                        Value::Int(number) => number.to_string(),
                        Value::Float(number) => number.to_string(),
                        Value::Bool(value) => value.to_string(),
                        other => {
                            let what = format!("expected a string, found {}", type_of(other));
                            return self.fail(&path, value, what);
                        }
                    };
                    Ok(json!([key.name, text]))
                });
                Ok(Json::Array(options.collect::<Outcome<_>>()?))
            }
            (Shape::Object(fields), Value::Map(_)) => {
                Ok(Json::Object(self.object(node, fields, path)?))
            }
            (Shape::Resource, Value::Map(_)) => {
                let resource = self.object(node, schema::RESOURCE, path)?;
                self.resource(node, resource, path)
            }
            (Shape::Unit(fields), Value::Map(_)) => {
                let mut unit = self.object(node, fields, path)?;
                if let Some(Json::String(name)) = unit.remove("contentsLocal") {
                    if unit.contains_key("contents") {
                        let reason =
                            "only one of the following can be set: contents, contents_local";
                        return self.fail_at(&format!("{path}.contentsLocal"), node, reason);
                    }
                    unit.insert("contents".into(), self.text_file(node, &name, path)?.into());
                }
                Ok(Json::Object(unit))
            }
            (Shape::User(fields), Value::Map(_)) => {
                let mut user = self.object(node, fields, path)?;
                if let Some(Json::Array(names)) = user.remove("sshAuthorizedKeysLocal") {
                    let mut keys = match user.remove("sshAuthorizedKeys") {
                        Some(Json::Array(keys)) => keys,
                        _ => Vec::new(),
                    };
                    for name in names.iter().filter_map(Json::as_str) {
                        let text = self.text_file(node, name, path)?;
                        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
                        keys.extend(lines.map(Json::from));
                    }
                    user.insert("sshAuthorizedKeys".into(), keys.into());
                }
                Ok(Json::Object(user))
            }
            (shape, value) => self.fail(
                path,
                node,
                format!("expected {}, found {}", expected_type(shape), type_of(value)),
            ),
        }
    }

    /// Translates the known fields and warns about the others.
    pub(crate) fn object(
        &mut self,
        node: &Node,
        fields: &[(&str, Shape)],
        path: &str,
    ) -> Outcome<Map<String, Json>> {
        let entries = match &node.value {
            Value::Map(entries) => entries.as_slice(),
            Value::Null => &[],
            other => {
                return self.fail(
                    path,
                    node,
                    format!("expected a mapping, found {}", type_of(other)),
                );
            }
        };
        let mut out = Map::new();
        for (key, value) in entries {
            let place = format!("{}.{}", schema::snake(path), key.name);
            let is_known = |name: &str| {
                let place = place.strip_prefix("$.").unwrap_or(&place);
                name == key.name && self.spec.is_none_or(|spec| spec.knows(place))
            };
            let Some((_, shape)) = fields.iter().find(|(name, _)| is_known(name)) else {
                self.unused(place, key);
                continue;
            };
            let name = schema::camel(&key.name);
            match self.value(value, shape, &format!("{path}.{name}"))? {
                Json::Null => {}
                value => {
                    out.insert(name, value);
                }
            }
        }
        Ok(out)
    }

    /// Fails at the position of a value that was read, or at `node` if it has none.
    fn fail_at<T>(&self, path: &str, node: &Node, message: &str) -> Outcome<T> {
        let path = path.strip_prefix("$.").unwrap_or(path);
        Err(Error::At(self.notice(path, message.to_owned(), node)))
    }

    fn file(&self, node: &Node, name: &str, path: &str) -> Outcome<Vec<u8>> {
        let Some(files) = self.files else {
            return self.fail(path, node, NO_FILES);
        };
        files.read(name).or_else(|reason| self.fail(path, node, format!("{name}: {reason}")))
    }

    fn text_file(&self, node: &Node, name: &str, path: &str) -> Outcome<String> {
        let bytes = self.file(node, name, path)?;
        String::from_utf8(bytes).or_else(|_| self.fail(path, node, format!("{name}: not UTF-8")))
    }

    /// Converts `inline` and `local` to a `data:` URL in `source`.
    fn resource(
        &mut self,
        node: &Node,
        mut resource: Map<String, Json>,
        path: &str,
    ) -> Outcome<Json> {
        let sources =
            ["local", "inline", "source"].into_iter().filter(|f| resource.contains_key(*f));
        if let [_, .., last] = sources.collect::<Vec<_>>()[..] {
            // The first version reports `inline`.
            let first = self.spec.is_some_and(|spec| !spec.knows("storage.trees"));
            let field = if first { "inline" } else { last };
            let reason = "only one of the following can be set: inline, local, source";
            return self.fail_at(&format!("{path}.{field}"), node, reason);
        }
        let inline = resource.remove("inline");
        let local = resource.remove("local");
        let (field, contents) = match (inline, local) {
            (Some(Json::String(text)), _) => ("inline", text.into_bytes()),
            (_, Some(Json::String(name))) => ("local", self.file(node, &name, path)?),
            _ => return Ok(Json::Object(resource)),
        };
        if path.starts_with("$.ignition.config.") {
            self.check_child(&format!("{path}.{field}"), &contents, node)?;
        }
        let may_compress = resource.get("compression").is_none_or(|name| name == "");
        let (source, compression) = resource::data_url(&contents, may_compress);
        resource.insert("source".into(), source.into());
        if let Some(compression) = compression {
            resource.insert("compression".into(), compression.into());
        }
        Ok(Json::Object(resource))
    }

    /// Validates an embedded Ignition config.
    fn check_child(&mut self, path: &str, contents: &[u8], node: &Node) -> Outcome<()> {
        match config::parse(&String::from_utf8_lossy(contents)) {
            Ok(_) => Ok(()),
            Err(ConfigError::Version(_)) => {
                let path = path.strip_prefix("$.").unwrap_or(path);
                let reason = "skipping validation for the merge/replace ignition config due to an unkown version";
                self.advise(vec![Advice::new(path, reason)], node);
                Ok(())
            }
            Err(error) => self.fail_at(path, node, &format!("config is not valid: {error}")),
        }
    }
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Int(_) | Value::Float(_) => "a number",
        Value::Text(_) => "a string",
        Value::List(_) => "a list",
        Value::Map(_) => "a mapping",
    }
}

fn expected_type(shape: &Shape) -> &'static str {
    match shape {
        Shape::Text => "a string",
        Shape::Int => "an integer",
        Shape::Bool => "a boolean",
        Shape::List(_) => "a list",
        _ => "a mapping",
    }
}
