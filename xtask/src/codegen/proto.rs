//! Parses the protobuf field numbers: `message TAB number TAB field TAB label TAB type`.

use std::collections::BTreeMap;

use crate::error::{During, Result, fail};

#[derive(Clone, Debug)]
pub(super) struct ProtoField {
    pub(super) number: u32,
    pub(super) name: String,
    pub(super) kind: String,
}

pub(super) struct Messages(BTreeMap<String, Vec<ProtoField>>);

/// The location of a JSON member in protobuf.
pub(super) struct ProtoLocation {
    pub(super) path: Vec<u32>,
    pub(super) kind: String,
}

impl Messages {
    pub(super) fn parse(text: &str) -> Result<Messages> {
        let mut messages: BTreeMap<String, Vec<ProtoField>> = BTreeMap::new();
        for line in text.lines().filter(|l| !l.starts_with('#') && !l.is_empty()) {
            let cells: Vec<&str> = line.split('\t').collect();
            let [message, number, name, _label, kind] = cells[..] else {
                return fail(format!("proto-fields.tsv: five columns expected in {line:?}"));
            };
            let number = number.parse().during("parsing in proto-fields.tsv the line", line)?;
            messages.entry(message.to_owned()).or_default().push(ProtoField {
                number,
                name: name.to_owned(),
                kind: kind.to_owned(),
            });
        }
        Ok(Messages(messages))
    }

    fn fields(&self, message: &str) -> &[ProtoField] {
        self.0.get(message).map_or(&[], Vec::as_slice)
    }

    /// Finds a JSON member: a field of the message, or a field of an embedded message that JSON inlines.
    pub(super) fn locate(&self, message: &str, json: &str) -> Option<ProtoLocation> {
        if let Some(field) = find(self.fields(message), json) {
            return Some(ProtoLocation { path: vec![field.number], kind: field.kind.clone() });
        }
        self.fields(message).iter().filter(|f| embedded(&f.name)).find_map(|outer| {
            let inner = self.locate(&self.resolve(message, &outer.kind)?, json)?;
            let path = std::iter::once(outer.number).chain(inner.path).collect();
            Some(ProtoLocation { path, kind: inner.kind })
        })
    }

    /// Resolves a type name in a message: absolute with a leading dot, or in the same package.
    fn resolve(&self, message: &str, kind: &str) -> Option<String> {
        let name = match kind.strip_prefix('.') {
            Some(absolute) => absolute.to_owned(),
            None => format!("{}.{kind}", message.rsplit_once('.')?.0),
        };
        self.0.contains_key(&name).then_some(name)
    }
}

/// Returns `true` for protobuf's names of structs that Go embeds.
fn embedded(field: &str) -> bool {
    matches!(
        field,
        "localObjectReference"
            | "volumeSource"
            | "persistentVolumeSource"
            | "handler"
            | "ephemeralContainerCommon"
            | "rule"
            | "ruleWithOperations"
            | "ingressRuleValue"
            | "deviceConfiguration"
    )
}

fn find<'a>(fields: &'a [ProtoField], json: &str) -> Option<&'a ProtoField> {
    let plain = |s: &str| {
        s.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_ascii_lowercase()
    };
    fields.iter().find(|f| f.name == json).or_else(|| {
        let json = plain(json);
        fields.iter().find(|f| plain(&f.name) == json)
    })
}
