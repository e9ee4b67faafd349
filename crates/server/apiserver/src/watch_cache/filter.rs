//! Label and field selectors of lists and watches.

use std::collections::HashMap;

use api_meta::{FieldSelector, FieldSelectorError, Selector, SelectorError, Status};

use super::event::{Event, EventKind};
use crate::{
    registry::{Definition, Object, Selectable},
    request::Query,
};

/// The selectors of a request.
pub(crate) struct Filter {
    labels: Option<Selector>,
    /// The index of the selectable field, `true` for equality, and the value.
    fields: Vec<(usize, bool, String)>,
    namespaced: bool,
}

impl Filter {
    pub(crate) fn parse(query: &Query, definition: &Definition) -> Result<Self, Box<Status>> {
        let labels = match query.get("labelSelector").filter(|s| !s.is_empty()) {
            Some(text) => {
                let selector: Result<Selector, _> = text.parse();
                Some(
                    selector
                        .map_err(|e: SelectorError| Box::new(Status::bad_request(e.to_string())))?,
                )
            }
            None => None,
        };
        let fields = match query.get("fieldSelector").filter(|s| !s.is_empty()) {
            Some(text) => field_terms(text, definition)?,
            None => Vec::new(),
        };
        Ok(Self { labels, fields, namespaced: definition.namespaced })
    }

    /// Selects the object of this name. The name is the first selectable field of every kind.
    pub(crate) fn only(&mut self, name: &str) {
        self.fields.push((0, true, name.to_owned()));
    }

    /// Returns the number of conditions that an object is compared with.
    pub(crate) fn requirements(&self) -> usize {
        self.fields.len() + self.labels.as_ref().map_or(0, |labels| labels.requirements().len())
    }

    pub(crate) fn matches(&self, object: &Object) -> bool {
        self.fields.iter().all(|(i, equal, value)| (self.field(object, *i) == *value) == *equal)
            && self.labels.as_ref().is_none_or(|selector| selects(selector, object))
    }

    fn field<'a>(&self, object: &'a Object, index: usize) -> &'a str {
        match index {
            0 => object.name(),
            1 if self.namespaced => object.namespace(),
            1 => "",
            own => object.fields.iter().nth(own - Selectable::COMMON).unwrap_or_default(),
        }
    }

    /// Returns the name, if the field selector requires one.
    pub(crate) fn name(&self) -> Option<&str> {
        let term = self.fields.iter().find(|(index, equal, _)| *index == 0 && *equal);
        term.map(|(_, _, name)| name.as_str())
    }

    /// Returns the type of an event for a client that sees only matching objects, which enter and leave the selection.
    pub(crate) fn kind_of(&self, event: &Event) -> Option<EventKind> {
        if self.is_everything() {
            return Some(event.kind);
        }
        let now = event.kind != EventKind::Deleted && self.matches(&event.object);
        let before = event.previous.as_ref().is_some_and(|previous| self.matches(previous));
        match (before, now) {
            (false, true) => Some(EventKind::Added),
            (true, true) => Some(EventKind::Modified),
            (true, false) => Some(EventKind::Deleted),
            (false, false) => None,
        }
    }

    pub(crate) fn is_everything(&self) -> bool {
        self.labels.is_none() && self.fields.is_empty()
    }
}

fn field_terms(
    text: &str,
    definition: &Definition,
) -> Result<Vec<(usize, bool, String)>, Box<Status>> {
    let selectable = &definition.selectable;
    // Upstream names the common fields only for kinds without fields of their own.
    let common = definition.custom.is_none() && selectable.len() == Selectable::COMMON;
    let selector: FieldSelector = text
        .parse()
        .map_err(|e: FieldSelectorError| Box::new(Status::bad_request(e.to_string())))?;
    let terms = selector.terms.iter().map(|term| {
        let index = selectable.iter().position(|s| *s.name == *term.field).ok_or_else(|| {
            let message = if common {
                format!(
                    "{:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\"",
                    term.field
                )
            } else {
                format!("field label not supported: {}", term.field)
            };
            Box::new(Status::bad_request(message))
        })?;
        Ok((index, term.equal, term.value.clone()))
    });
    terms.collect()
}

/// The number of requirements from which labels are looked up in a map. The client decides the numbers of both.
const MANY: usize = 8;

fn selects(selector: &Selector, object: &Object) -> bool {
    let pairs = || {
        let mut labels = object.labels.iter();
        std::iter::from_fn(move || Some((labels.next()?, labels.next()?)))
    };
    if selector.requirements().len() < MANY {
        return selector
            .matches_with(|name| pairs().find(|pair| pair.0 == name).map(|pair| pair.1));
    }
    let labels: HashMap<&str, &str> = pairs().collect();
    selector.matches_with(|name| labels.get(name).copied())
}
