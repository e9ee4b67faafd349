use proptest::prelude::*;
use serde_json::json;

use super::*;

/// Generates overlapping sets over a small alphabet.
fn sets() -> impl Strategy<Value = FieldSet> {
    let element = prop_oneof![
        Just("f:a".to_owned()),
        Just("f:b".to_owned()),
        Just("k:{\"name\":\"x\"}".to_owned()),
        Just("v:1".to_owned()),
    ];
    let path = prop::collection::vec(element, 1..4);
    prop::collection::vec(path, 0..8).prop_map(|paths| {
        let mut set = FieldSet::default();
        paths.into_iter().for_each(|path| set.insert(path));
        set
    })
}

fn united(a: &FieldSet, b: &FieldSet) -> FieldSet {
    let mut set = a.clone();
    set.union(b);
    set
}

fn without(a: &FieldSet, b: &FieldSet) -> FieldSet {
    let mut set = a.clone();
    set.difference(b);
    set
}

proptest! {
    #[test]
    fn sets_round_trip(a in sets()) {
        prop_assert_eq!(FieldSet::from_value(a.clone().into_value()).unwrap(), a.clone());
        let mut again = FieldSet::default();
        for path in a.paths() {
            again.insert(path.iter().map(|e| (*e).to_owned()));
        }
        prop_assert_eq!(again, a);
    }

    #[test]
    fn operations_equal_those_of_path_sets(a in sets(), b in sets()) {
        let has = |set: &FieldSet, path: &[&str]| set.contains(path);
        let both = united(&a, &b);
        for path in both.paths() {
            prop_assert!(has(&a, &path) || has(&b, &path));
            prop_assert_eq!(has(&a.intersection(&b), &path), has(&a, &path) && has(&b, &path));
            prop_assert_eq!(has(&without(&a, &b), &path), has(&a, &path) && !has(&b, &path));
        }
        prop_assert_eq!(both.paths().len() + a.intersection(&b).paths().len(), a.paths().len() + b.paths().len());
    }

    #[test]
    fn operations_obey_set_laws(a in sets(), b in sets()) {
        prop_assert_eq!(united(&a, &b), united(&b, &a));
        prop_assert_eq!(united(&a, &a), a.clone());
        prop_assert_eq!(a.intersection(&b), b.intersection(&a));
        prop_assert!(without(&a, &a).is_empty());
        prop_assert_eq!(united(&without(&a, &b), &a.intersection(&b)), a.clone());
        prop_assert!(without(&a.leaves(), &a).is_empty());
    }
}

#[test]
fn recursive_difference_removes_descendants() {
    let mut set =
        FieldSet::from_value(json!({"f:status": {"f:a": {}, "f:b": {}}, "f:spec": {"f:c": {}}}))
            .unwrap();
    set.difference(&FieldSet::of(&["status"]));
    assert!(set.contains(&["f:status", "f:a"]));
    set.difference_recursive(&FieldSet::of(&["status", "spec.d"]));
    assert_eq!(set.into_value(), json!({"f:spec": {"f:c": {}}}));
}

#[test]
fn makes_elements_canonical() {
    let set = FieldSet::from_value(json!({"f:l": {"k:{ \"b\":1, \"a\":\"\\u003c\"}": {".": {}}}}))
        .unwrap();
    assert_eq!(set.paths(), [["f:l", "k:{\"a\":\"<\",\"b\":1}"]]);
    assert_eq!(display(&set.paths()[0]), ".l[a=\"<\",b=1]");
    assert!(FieldSet::from_value(json!({"x": {}})).is_err());
    assert!(FieldSet::from_value(json!({"f:x": 1})).is_err());
}
