//! Butane (variants fcos and flatcar) to Ignition.

mod boot;
mod mount;
mod resource;
mod trees;

#[cfg(test)]
mod tests;

use std::{collections::HashMap, fmt};

use serde_json::{Map, Value as Json, json};

use crate::{
    config,
    schema::{self, Shape},
    validate,
    yaml::{self, Node, Value},
};

pub use trees::Found;

/// The directory that the config names files of by `local`.
pub trait Directory {
    fn read(&self, name: &str) -> Result<Vec<u8>, String>;
    /// What lies below a directory, itself first by an empty name, in the order of names.
    fn below(&self, name: &str) -> Result<Vec<(String, Found)>, String>;
}

/// Where a config's `local` files and trees are read: the directory that the user named, and nothing outside of it.
pub type Files<'f> = &'f dyn Directory;

const NO_FILES: &str = "local file paths are relative to a files directory, and none is given";

/// Something to say of one place in a config.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The path within the config, from `$`.
    pub path: String,
    /// Counted from 1, as the column is.
    pub line: u64,
    pub column: u64,
    pub message: String,
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, line, column, message } = self;
        write!(f, "{path}, line {line} col {column}: {message}")
    }
}

/// Why a config does not become Ignition's.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum Error {
    #[error("parsing YAML: {0}")]
    Yaml(String),
    #[error("error at {0}")]
    At(Notice),
}

/// An Ignition config, and what its author may not have meant.
#[derive(Debug)]
pub struct Translation {
    pub config: Json,
    /// Keys that mean nothing.
    pub warnings: Vec<Notice>,
}

/// Translates a config. `files` is asked for what the config names by `local`; without it, naming any is an
/// error.
pub fn translate(text: &str, files: Option<Files<'_>>) -> Result<Translation, Error> {
    of(&yaml::parse(text).map_err(Error::Yaml)?, files)
}

/// Translates a config that is read already.
pub(crate) fn of(root: &Node, files: Option<Files<'_>>) -> Result<Translation, Error> {
    let mut translator = Translator::new(files);
    let mut config = translator.object(root, schema::BUTANE, "$")?;
    let variant = take_text(&mut config, "variant");
    let version = take_text(&mut config, "version");
    if variant.is_empty() {
        return translator.fail("$", root, "variant is required, such as \"variant: fcos\"");
    }
    let Some(target) = schema::target(&variant, &version) else {
        return translator.fail(
            "$",
            root,
            format!("variant {variant:?} version {version:?} is not known; fcos has 1.0.0 to 1.7.0, flatcar 1.0.0 and 1.1.0"),
        );
    };
    entry(&mut config, "ignition", "version", target.into());
    mount::add(&mut config, std::mem::take(&mut translator.mounts));
    trees::add(&mut config, files).map_err(|error| translator.located(error, root))?;
    let mut own = |section: &str| {
        let name = schema::camel(section);
        let given = config.remove(&name).unwrap_or_default();
        if given.is_null() || boot::knows(&variant, &version, section) {
            return given;
        }
        translator.unused(&format!("$.{name}"), section);
        Json::Null
    };
    let (device, grub) = (own("boot_device"), own("grub"));
    let config = boot::device(config, &device).and_then(|config| boot::users(config, &grub));
    let config = config.map_err(|error| translator.located(error, root))?;
    let sound = config::check(&config)
        .and_then(|()| config::typed(&config))
        .and_then(|config| validate::validate(&config));
    sound.map_err(|error| translator.located(error, root))?;
    Ok(Translation { config, warnings: translator.warnings })
}

/// The value of this key in the section of this name, both made if there are none.
fn entry<'c>(
    config: &'c mut Map<String, Json>,
    section: &str,
    key: &str,
    fresh: Json,
) -> Option<&'c mut Json> {
    let section = config.entry(section).or_insert_with(|| json!({})).as_object_mut()?;
    Some(section.entry(key).or_insert(fresh))
}

fn take_text(config: &mut Map<String, Json>, key: &str) -> String {
    match config.remove(key) {
        Some(Json::String(text)) => text,
        _ => String::new(),
    }
}

pub(crate) struct Translator<'f> {
    files: Option<Files<'f>>,
    /// Where the values of the result come from, by path.
    places: HashMap<String, (u64, u64)>,
    pub(crate) warnings: Vec<Notice>,
    /// Filesystems that want a mount unit.
    mounts: Vec<Map<String, Json>>,
}

type Outcome<T> = Result<T, Error>;

impl<'f> Translator<'f> {
    pub(crate) fn new(files: Option<Files<'f>>) -> Self {
        Self { files, places: HashMap::new(), warnings: Vec::new(), mounts: Vec::new() }
    }
    fn fail<T>(&self, path: &str, node: &Node, message: impl Into<String>) -> Outcome<T> {
        let (line, column) = (node.line, node.column);
        Err(Error::At(Notice { path: path.into(), line, column, message: message.into() }))
    }

    /// Warns of a key that means nothing in this version.
    fn unused(&mut self, path: &str, key: &str) {
        let (line, column) = self.places.get(path).copied().unwrap_or((1, 1));
        let (path, message) = (path.to_owned(), format!("unused key {key}"));
        self.warnings.push(Notice { path, line, column, message });
    }

    pub(crate) fn located(&self, error: config::ConfigError, root: &Node) -> Error {
        let config::ConfigError::Invalid { path, reason } = &error else {
            return Error::At(Notice {
                path: "$".into(),
                line: root.line,
                column: root.column,
                message: error.to_string(),
            });
        };
        let path = format!("$.{path}");
        // A value that is absent stands nowhere: its parent does.
        let mut place = path.as_str();
        let (line, column) = loop {
            match (self.places.get(place), place.rsplit_once('.')) {
                (Some(found), _) => break *found,
                (None, Some((parent, _))) => place = parent,
                (None, None) => break (root.line, root.column),
            }
        };
        Error::At(Notice { path, line, column, message: reason.clone() })
    }

    fn value(&mut self, node: &Node, shape: &Shape, path: &str) -> Outcome<Json> {
        self.places.insert(path.to_owned(), (node.line, node.column));
        match (shape, &node.value) {
            (_, Value::Null) => Ok(Json::Null),
            (Shape::Text, Value::Text(text)) => Ok(text.as_str().into()),
            // A plain scalar is text where text is wanted, whatever it looks like.
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
                    self.places.insert(path.clone(), (key.line, key.column));
                    let text = match &value.value {
                        Value::Text(text) => format!("{text:?}"),
                        Value::Int(number) => number.to_string(),
                        Value::Float(number) => number.to_string(),
                        Value::Bool(value) => value.to_string(),
                        other => {
                            let what = format!("{} where a text is wanted", found(other));
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
                        return self.fail(
                            path,
                            node,
                            "contents and contents_local exclude each other",
                        );
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
            (Shape::Filesystem(fields), Value::Map(_)) => {
                let mut filesystem = self.object(node, fields, path)?;
                if filesystem.remove("withMountUnit") == Some(Json::Bool(true)) {
                    let swap = filesystem.get("format").is_some_and(|format| format == "swap");
                    if !filesystem.contains_key("format") {
                        return self.fail(
                            path,
                            node,
                            "format is required if with_mount_unit is true",
                        );
                    }
                    if !swap && !filesystem.contains_key("path") {
                        return self.fail(
                            path,
                            node,
                            "path is required if with_mount_unit is true and format is not swap",
                        );
                    }
                    self.mounts.push(filesystem.clone());
                }
                Ok(Json::Object(filesystem))
            }
            (shape, value) => {
                self.fail(path, node, format!("{} where {} is wanted", found(value), wanted(shape)))
            }
        }
    }

    /// The fields that are known; the others are warned of.
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
                    format!("{} where a mapping is wanted", found(other)),
                );
            }
        };
        let mut out = Map::new();
        for (key, value) in entries {
            let Some((_, shape)) = fields.iter().find(|(name, _)| *name == key.name) else {
                self.warnings.push(Notice {
                    path: format!("{path}.{}", key.name),
                    line: key.line,
                    column: key.column,
                    message: format!("unused key {}", key.name),
                });
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

    /// `inline` and `local` become a `data:` URL in `source`.
    fn resource(&self, node: &Node, mut resource: Map<String, Json>, path: &str) -> Outcome<Json> {
        let inline = resource.remove("inline");
        let local = resource.remove("local");
        let given = [inline.is_some(), local.is_some(), resource.contains_key("source")];
        if given.iter().filter(|given| **given).count() > 1 {
            return self.fail(path, node, "source, inline and local exclude each other");
        }
        let contents = match (inline, local) {
            (Some(Json::String(text)), _) => text.into_bytes(),
            (_, Some(Json::String(name))) => self.file(node, &name, path)?,
            _ => return Ok(Json::Object(resource)),
        };
        let may_compress = resource.get("compression").is_none_or(|name| name == "");
        let (source, compression) = resource::data_url(&contents, may_compress);
        resource.insert("source".into(), source.into());
        if let Some(compression) = compression {
            resource.insert("compression".into(), compression.into());
        }
        Ok(Json::Object(resource))
    }
}

fn found(value: &Value) -> &'static str {
    match value {
        Value::Null => "nothing",
        Value::Bool(_) => "a boolean",
        Value::Int(_) | Value::Float(_) => "a number",
        Value::Text(_) => "a text",
        Value::List(_) => "a list",
        Value::Map(_) => "a mapping",
    }
}

fn wanted(shape: &Shape) -> &'static str {
    match shape {
        Shape::Text => "a text",
        Shape::Int => "a whole number",
        Shape::Bool => "a boolean",
        Shape::List(_) => "a list",
        _ => "a mapping",
    }
}
