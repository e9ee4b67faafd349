//! Decides the names of custom kinds: within a group, each name belongs to the first definition that was granted it.

use api_meta::Tree as _;
use serde_json::{Value, json};

/// The names granted to a definition.
pub(crate) struct GrantedNames {
    /// The accepted names. A conflicting name keeps its previous value.
    pub(crate) accepted: Value,
    /// The reason and message of the condition if not all names are accepted.
    pub(crate) conflict: Option<(&'static str, String)>,
}

/// Decides which names of `crd` are accepted. `others` are the accepted names of the group's other definitions.
pub(crate) fn accept(crd: &Value, others: &[Value]) -> GrantedNames {
    let (wanted, before) = (crd.at("spec.names"), crd.at("status.acceptedNames"));
    let resources: Vec<&str> = others
        .iter()
        .flat_map(|o| {
            [o.text("plural"), o.text("singular")].into_iter().chain(o.texts("shortNames"))
        })
        .collect();
    let kinds: Vec<&str> =
        others.iter().flat_map(|o| [o.text("kind"), o.text("listKind")]).collect();
    let mut names = GrantedNames { accepted: before.clone(), conflict: None };
    if !names.accepted.is_object() {
        names.accepted = json!({"kind": "", "plural": ""});
    }
    let short =
        |names: &Value| -> Vec<String> { names.texts("shortNames").map(str::to_owned).collect() };
    for (field, reason, taken) in [
        ("plural", "PluralConflict", &resources),
        ("singular", "SingularConflict", &resources),
        ("shortNames", "ShortNamesConflict", &resources),
        ("kind", "KindConflict", &kinds),
        ("listKind", "ListKindConflict", &kinds),
    ] {
        let (requested, had) = match field {
            "shortNames" => (short(wanted), short(before)),
            _ => (vec![wanted.text(field).to_owned()], vec![before.text(field).to_owned()]),
        };
        let new = |name: &&String| !name.is_empty() && !had.contains(name);
        let in_use: Vec<String> = requested
            .iter()
            .filter(new)
            .filter(|name| taken.contains(&name.as_str()))
            .map(|name| format!("{name:?} is already in use"))
            .collect();
        match &in_use[..] {
            [] => match wanted.get(field) {
                Some(value) => names.accepted.put(&[field], value.clone()),
                None => names.remove(field),
            },
            [one] => names.conflict = Some((reason, one.clone())),
            many => names.conflict = Some((reason, format!("[{}]", many.join(", ")))),
        }
    }
    match wanted.get("categories") {
        Some(categories) => names.accepted.put(&["categories"], categories.clone()),
        None => names.remove("categories"),
    }
    names
}

impl GrantedNames {
    fn remove(&mut self, field: &str) {
        if let Some(accepted) = self.accepted.as_object_mut() {
            accepted.remove(field);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crd(spec: Value, accepted: Value) -> Value {
        json!({"spec": {"names": spec}, "status": {"acceptedNames": accepted}})
    }

    #[test]
    fn grants_name_to_first_definition() {
        let bolts = json!({"plural": "bolts", "singular": "bolt", "shortNames": ["bo", "bl"], "kind": "Bolt", "listKind": "BoltList"});
        let free = accept(&crd(bolts.clone(), Value::Null), &[]);
        assert_eq!((free.accepted, free.conflict), (bolts.clone(), None));
        let own = accept(&crd(bolts.clone(), bolts.clone()), &[]);
        assert_eq!(own.conflict, None, "its own names are no conflict");

        let nuts = json!({"plural": "nuts", "singular": "nut", "shortNames": ["bo", "nt"], "kind": "Nut", "listKind": "NutList"});
        let found = accept(&crd(nuts.clone(), Value::Null), std::slice::from_ref(&bolts));
        assert_eq!(
            found.conflict,
            Some(("ShortNamesConflict", "\"bo\" is already in use".to_owned()))
        );
        assert_eq!(found.accepted["plural"], "nuts");
        assert!(found.accepted.get("shortNames").is_none());

        let mut same = nuts.clone();
        same["kind"] = json!("BoltList");
        let found = accept(&crd(same, Value::Null), std::slice::from_ref(&bolts));
        assert_eq!(found.conflict.unwrap().0, "KindConflict", "kinds and lists share their names");

        // Accepted names are kept, even if the definition requests others later.
        let mut greedy = nuts.clone();
        greedy["singular"] = json!("bolt");
        greedy["shortNames"] = json!(["nt"]);
        let found = accept(&crd(greedy, nuts), &[bolts]);
        assert_eq!(found.accepted["singular"], "nut");
        assert_eq!(found.accepted["shortNames"], json!(["nt"]));
        assert_eq!(found.conflict.unwrap().0, "SingularConflict");
    }
}
