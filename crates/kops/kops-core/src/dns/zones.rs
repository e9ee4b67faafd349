//! The zones that may be changed, and the zone of a name.

use std::collections::BTreeMap;

use super::name::{ancestors, parse_name};

/// A zone of a provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zone {
    /// The provider's identifier.
    pub id: String,
    /// The name in normal form: lower case, without the final dot.
    pub name: String,
}

impl Zone {
    /// Returns a zone; `None` if its name is not a DNS name.
    pub fn new(id: &str, name: &str) -> Option<Self> {
        Some(Self { id: id.to_owned(), name: zone_name(name)? })
    }
}

/// Parses a zone's name. Top-level zones have one label.
fn zone_name(text: &str) -> Option<String> {
    let text = text.strip_suffix('.').unwrap_or(text);
    if text.starts_with('*') {
        return None;
    }
    if text.contains('.') {
        return parse_name(text);
    }
    // A single label is valid if it is below another one.
    parse_name(&format!("{text}.x"))?.strip_suffix(".x").map(str::to_owned)
}

/// A rule that permits zones.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Rule {
    All,
    Name(String),
    Id(String),
    NameAndId(String, String),
}

/// The rules of `--zone`. Without rules, all zones are permitted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ZoneRules(Vec<Rule>);

/// The error of a rule that cannot be parsed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("--zone {rule:?} is not a rule; use NAME, NAME/ID, */ID or *")]
pub struct ZoneRuleError {
    rule: String,
}

impl ZoneRules {
    /// Parses rules: `NAME`, `NAME/ID`, `*/ID`, and `*` or `*/*` for all zones.
    ///
    /// # Errors
    ///
    /// Returns an error for the first rule that has another form.
    pub fn parse(rules: &[String]) -> Result<Self, ZoneRuleError> {
        let parse = |text: &String| {
            let error = || ZoneRuleError { rule: text.clone() };
            let name = |text: &str| zone_name(text).ok_or_else(error);
            let id = |id: &str| {
                let is_id = !id.is_empty() && !id.contains(['/', '*']);
                is_id.then(|| id.to_owned()).ok_or_else(error)
            };
            Ok(match text.trim().split_once('/') {
                None if text.trim() == "*" => Rule::All,
                None => Rule::Name(name(text.trim())?),
                Some(("*" | "", "*")) => Rule::All,
                Some(("*" | "", text)) => Rule::Id(id(text)?),
                Some((zone, "*")) => Rule::Name(name(zone)?),
                Some((zone, text)) => Rule::NameAndId(name(zone)?, id(text)?),
            })
        };
        Ok(Self(rules.iter().map(parse).collect::<Result<_, _>>()?))
    }

    /// Returns the zones that the rules name.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|rule| match rule {
            Rule::Name(name) | Rule::NameAndId(name, _) => Some(name.as_str()),
            Rule::All | Rule::Id(_) => None,
        })
    }

    /// Selects the permitted zones. Of several zones with one name, none is selected, unless a rule has the ID of
    /// exactly one of them.
    pub fn select(&self, zones: impl IntoIterator<Item = Zone>) -> Zones {
        let mut named: BTreeMap<String, Candidates> = BTreeMap::new();
        for zone in zones {
            let by_id = self.0.iter().any(|rule| match rule {
                Rule::Id(id) => *id == zone.id,
                Rule::NameAndId(name, id) => *name == zone.name && *id == zone.id,
                Rule::All | Rule::Name(_) => false,
            });
            let by_name = self.0.is_empty()
                || self.0.iter().any(|rule| match rule {
                    Rule::All => true,
                    Rule::Name(name) => *name == zone.name,
                    Rule::Id(_) | Rule::NameAndId(..) => false,
                });
            let candidates = named.entry(zone.name.clone()).or_default();
            if by_id {
                candidates.by_id.push(zone);
            } else if by_name {
                candidates.by_name.push(zone);
            }
        }
        let choose = |(name, candidates): (String, Candidates)| Some((name, candidates.choose()?));
        Zones(named.into_iter().filter_map(choose).collect())
    }
}

/// The permitted zones of one name.
#[derive(Default)]
struct Candidates {
    by_id: Vec<Zone>,
    by_name: Vec<Zone>,
}

impl Candidates {
    /// Returns the only zone; `Some(None)` if there are several, and `None` if there is none.
    fn choose(self) -> Option<Option<Zone>> {
        let mut zones = if self.by_id.is_empty() { self.by_name } else { self.by_id };
        let last = zones.pop()?;
        Some(zones.is_empty().then_some(last))
    }
}

/// The permitted zones by name; `None` for a name that several zones have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Zones(BTreeMap<String, Option<Zone>>);

/// The reason why a name has no zone.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoZone {
    /// No permitted zone contains the name.
    #[error("no permitted zone contains it; see --zone")]
    Missing,
    /// Several zones have the same name.
    #[error("several zones are called {0}; name one with --zone {0}/ID")]
    Ambiguous(String),
}

impl Zones {
    /// Returns the longest permitted zone that contains a name.
    pub fn find(&self, name: &str) -> Result<&Zone, NoZone> {
        let found = ancestors(name).find_map(|name| self.0.get_key_value(name));
        match found {
            Some((_, Some(zone))) => Ok(zone),
            Some((name, None)) => Err(NoZone::Ambiguous(name.clone())),
            None => Err(NoZone::Missing),
        }
    }

    /// Returns `true` if no zone is permitted.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
