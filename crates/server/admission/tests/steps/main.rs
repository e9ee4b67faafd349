//! Checks that the work for an object grows at most with n log n of its size, for every list and map.
//!
//! The table of lists and maps is read from the schema, so new fields are covered automatically. Each list is filled in
//! several ways and passes every verb. The test counts steps, not time (`fuzz::steps`). `cargo xtask test` builds it
//! with counters and tries a sample of the kinds that share a type's code; with `--full` it tries all kinds.

mod generate;
mod verbs;

use std::{
    cell::RefCell,
    collections::{BTreeMap, HashMap, HashSet},
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use generate::{Generator, Items, Step, Target, places};
use serde_json::{Value, json};
use verbs::Kind;

/// Doubling the items twice makes the second growth twice the first where work is linear, and four times where it is
/// quadratic; n log n comes to 2.3.
const MOST: f64 = 2.8;
/// A growth from which more items are tried, which quadratic work shows with.
const SUSPECT: f64 = 2.4;
const FIRST: usize = 32;
/// The number of doublings before a growth counts as found. Tables that are enlarged make small counts jump.
const ATTEMPTS: usize = 3;
/// The sampling rate of lists whose type an earlier kind has: one kind in so many tries them.
const SAMPLE: usize = 48;

/// A list or map of a kind, filled in one way.
struct Case<'k> {
    kind: &'k Kind,
    place: &'k Target,
    /// Lists and maps that are filled, too: those in the same struct, or none.
    beside: &'k [Target],
    items: Items,
    /// The stored objects that were made so far, by their items.
    objects: RefCell<HashMap<(usize, usize), Value>>,
}

/// A way in, and the steps that it takes with so many items.
type Verb = (&'static str, fn(&Case<'_>, usize) -> u64);

const VERBS: [Verb; 9] = [
    ("create", |case, n| steps(|| case.kind.create(&case.body(0, n)))),
    ("update", |case, n| {
        let (old, new) = (case.object(0, n), case.kind.decode(&case.body(n / 2, n + n / 2)));
        steps(|| case.kind.update(&old, new, true))
    }),
    ("status and subresources", |case, n| {
        let (old, new) = (case.object(0, n), case.kind.decode(&case.body(n / 2, n + n / 2)));
        steps(|| case.kind.update_parts(&old, &new))
    }),
    ("conversion", |case, n| {
        let object = case.object(0, n);
        steps(|| case.kind.convert(&object))
    }),
    ("JSON patch", |case, n| {
        let (old, patch) = (case.object(0, 1), case.operations(n));
        steps(|| case.kind.json_patch(&old, &patch))
    }),
    ("merge patch", |case, n| {
        let (old, patch) = (case.object(0, n), case.body(n / 2, n + n / 2));
        steps(|| case.kind.merge_patch(&old, &patch))
    }),
    ("strategic merge patch", |case, n| {
        let (old, patch) = (case.object(0, n), case.body(n / 2, n + n / 2));
        steps(|| case.kind.strategic_patch(&old, &patch))
    }),
    ("directives", |case, n| {
        let (old, patch) = (case.object(0, n), case.directives(n));
        steps(|| case.kind.strategic_patch(&old, &patch))
    }),
    ("apply", |case, n| {
        let (old, first) = (case.object(0, 1), case.body(0, n));
        let (second, last) = (case.body(n / 2, n + n / 2), case.body(0, n / 2));
        steps(|| {
            let applied = case.kind.apply(&old, &first, "one", true);
            case.kind.apply(&applied, &second, "two", false);
            let taken = case.kind.apply(&applied, &second, "two", true);
            case.kind.apply(&taken, &last, "one", true)
        })
    }),
];

fn steps<T>(work: impl FnOnce() -> T) -> u64 {
    fuzz::steps::count(work).1
}

impl Case<'_> {
    fn generator(&self) -> Generator<'_> {
        Generator { schema: self.kind.schema, items: self.items }
    }

    /// A body with the items `from..to`.
    fn body(&self, from: usize, to: usize) -> Value {
        let (generator, node) = (self.generator(), self.kind.node);
        let mut object = generator.base(node);
        for place in self.beside.iter().chain([self.place]) {
            generator.fill(&mut object, node, place, from, to);
        }
        object
    }

    /// A stored object with the items `from..to`.
    fn object(&self, from: usize, to: usize) -> Value {
        let make = || self.kind.create(&self.body(from, to));
        self.objects.borrow_mut().entry((from, to)).or_insert_with(make).clone()
    }

    /// A JSON patch that adds items one by one.
    fn operations(&self, n: usize) -> Value {
        let mut here = &self.body(0, 1);
        let mut pointer = String::new();
        for step in &self.place.steps {
            let name = match step {
                Step::Field(name) => name.clone(),
                Step::Item => "0".to_owned(),
                Step::Entry => {
                    here.as_object().and_then(|map| map.keys().next()).cloned().unwrap_or_default()
                }
            };
            here = here.get(&name).or_else(|| here.get(0)).unwrap_or(&Value::Null);
            pointer.extend(["/", &name.replace('~', "~0").replace('/', "~1")]);
        }
        let filled = self.generator().container(self.place.node, self.place.name(), 1, n);
        let added = |place: String, value: &Value| json!({"op": "add", "path": format!("{pointer}/{place}"), "value": value});
        match &filled {
            Value::Array(items) => items.iter().map(|item| added("-".to_owned(), item)).collect(),
            Value::Object(entries) => {
                let escape = |key: &String| key.replace('~', "~0").replace('/', "~1");
                entries.iter().map(|(key, value)| added(escape(key), value)).collect()
            }
            _ => json!([]),
        }
    }

    /// A strategic merge patch that deletes half of a list's items and orders the others.
    fn directives(&self, n: usize) -> Value {
        let mut patch = self.body(0, n);
        let mut holder = &mut patch;
        let Some((Step::Field(name), above)) = self.place.steps.split_last() else {
            return json!({});
        };
        for step in above {
            let next = match step {
                Step::Field(name) => holder.get_mut(name),
                Step::Item => holder.get_mut(0),
                Step::Entry => holder.as_object_mut().and_then(|map| map.values_mut().next()),
            };
            let Some(next) = next else { return json!({}) };
            holder = next;
        }
        let Some(items) = holder.get(name).and_then(Value::as_array).cloned() else {
            return json!({});
        };
        let (kept, deleted) = items.split_at(n / 2);
        let Some(members) = holder.as_object_mut() else { return json!({}) };
        members.insert(format!("$setElementOrder/{name}"), items[..n / 2].to_vec().into());
        if items.first().is_some_and(Value::is_object) {
            let deleted = deleted.iter().map(|item| {
                let mut item = item.clone();
                item["$patch"] = json!("delete");
                item
            });
            members.insert(name.clone(), kept.iter().cloned().chain(deleted).collect());
        } else {
            members.insert(format!("$deleteFromPrimitiveList/{name}"), deleted.to_vec().into());
            members.insert(name.clone(), kept.to_vec().into());
        }
        patch
    }
}

impl Target {
    fn name(&self) -> &str {
        let fields = self.steps.iter().rev().find_map(|step| match step {
            Step::Field(name) => Some(name.as_str()),
            _ => None,
        });
        fields.unwrap_or_default()
    }
}

/// The growth of work from 2n to 4n items, divided by its growth from n to 2n.
fn growth(work: impl Fn(usize) -> u64, n: usize) -> f64 {
    let [few, more, most] = [n, 2 * n, 4 * n].map(|n| work(n) as f64);
    // If items are not read, there is nothing to compare.
    if most - more < 20.0 * n as f64 { 2.0 } else { (most - more) / (more - few).max(1.0) }
}

/// The growth of the largest number of items that it takes to be sure.
fn settled_growth(work: impl Fn(usize) -> u64) -> f64 {
    let mut last = 0.0;
    for attempt in 0..ATTEMPTS {
        last = growth(&work, FIRST << attempt);
        if last <= SUSPECT {
            break;
        }
    }
    last
}

/// The growth of the checked cases.
#[derive(Default)]
struct Findings {
    cases: usize,
    worst: BTreeMap<&'static str, (f64, String)>,
    failures: Vec<String>,
}

impl Findings {
    fn note(&mut self, verb: &'static str, growth: f64, what: String) {
        self.cases += 1;
        if growth > MOST {
            eprintln!("{verb}: {what} grows by {growth:.2}");
            self.failures.push(format!("{verb}: {what} grows by {growth:.2}"));
        }
        let worst = self.worst.entry(verb).or_insert((0.0, String::new()));
        if growth > worst.0 {
            *worst = (growth, what);
        }
    }

    fn join(mut self, other: Self) -> Self {
        self.cases += other.cases;
        self.failures.extend(other.failures);
        for (verb, (growth, what)) in other.worst {
            let worst = self.worst.entry(verb).or_insert((0.0, String::new()));
            if growth > worst.0 {
                *worst = (growth, what);
            }
        }
        self
    }

    fn report(&self, kinds: usize, lists: usize) {
        println!("{kinds} kinds, {lists} lists and maps, {} cases", self.cases);
        for (verb, (growth, what)) in &self.worst {
            println!("{verb}: n^{:.2} at worst, {what}", growth.log2());
        }
        let failures = self.failures.join("\n");
        assert!(failures.is_empty(), "{} cases grow too fast:\n{failures}", self.failures.len());
    }
}

/// Lists and maps of a kind that are tried: one by one, or all of a struct at once.
struct Choice<'k> {
    kind: &'k Kind,
    place: Target,
    beside: Vec<Target>,
}

#[test]
fn grows_at_most_n_log_n_with_every_list() {
    if is_counted() {
        let kinds = Kind::all();
        try_all(&kinds, &chosen(&kinds));
    }
}

#[test]
fn grows_at_most_n_log_n_with_all_lists_of_struct() {
    if is_counted() {
        let kinds = Kind::all();
        try_all(&kinds, &structs(&kinds));
    }
}

fn is_counted() -> bool {
    if !fuzz::steps::COUNTED {
        eprintln!("skipped: this build counts no steps; `cargo xtask test` makes one that does");
    }
    fuzz::steps::COUNTED
}

fn try_all(kinds: &[Kind], chosen: &[Choice<'_>]) {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(0);
    let found: Vec<Findings> = thread::scope(|scope| {
        let work = || {
            let mut found = Findings::default();
            while let Some(choice) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
                try_list(choice, &mut found);
            }
            found
        };
        // Debug builds put more on a stack than a thread of the server has.
        let start = |_| thread::Builder::new().stack_size(64 << 20).spawn_scoped(scope, work);
        let threads: Vec<_> = (0..cores).map(start).collect();
        let join = |thread: std::io::Result<thread::ScopedJoinHandle<'_, Findings>>| {
            let thread = thread.unwrap_or_else(|error| panic!("starting a thread: {error}"));
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).collect()
    });
    let found = found.into_iter().reduce(Findings::join).unwrap_or_default();
    found.report(kinds.len(), chosen.len());
}

/// Reports whether the environment selects all cases, and returns the part of names that it selects.
fn asked() -> (bool, String) {
    let full = std::env::var_os("WINDLASS_STEPS_FULL").is_some();
    (full, std::env::var("WINDLASS_STEPS_ONLY").unwrap_or_default())
}

/// The lists and maps to try: of all kinds, or one of each type and a sample of the others.
fn chosen(kinds: &[Kind]) -> Vec<Choice<'_>> {
    let (full, only) = asked();
    let (mut known, mut turn) = (HashSet::new(), 0);
    let mut chosen = Vec::new();
    for kind in kinds {
        for place in places(kind.schema, kind.node) {
            // The table is of fields; a list inside of a list is one of its items.
            let is_new = known.insert(place.owner.clone());
            turn += 1;
            let wanted = full || is_new || turn % SAMPLE == 0;
            let name = format!("{} {}", kind.resource.name, place.shown());
            if wanted && name.contains(&only) {
                chosen.push(Choice { kind, place, beside: Vec::new() });
            }
        }
    }
    chosen
}

/// The structs to try, each with its lists and maps.
fn structs(kinds: &[Kind]) -> Vec<Choice<'_>> {
    let (full, only) = asked();
    let mut known = HashSet::new();
    let mut chosen = Vec::new();
    for kind in kinds {
        let mut by_struct: BTreeMap<String, Vec<Target>> = BTreeMap::new();
        for place in places(kind.schema, kind.node) {
            if let Some((Step::Field(_), above)) = place.steps.split_last() {
                by_struct.entry(format!("{above:?}")).or_default().push(place);
            }
        }
        for mut beside in by_struct.into_values().filter(|places| places.len() > 1) {
            let Some(place) = beside.pop() else { continue };
            let wanted = known.insert(place.owner.clone()) || full;
            let name = format!("{} {}", kind.resource.name, place.shown());
            if wanted && name.contains(&only) {
                chosen.push(Choice { kind, place, beside });
            }
        }
    }
    chosen
}

fn try_list(choice: &Choice<'_>, found: &mut Findings) {
    let Choice { kind, place, beside } = choice;
    let more = if beside.is_empty() { "" } else { " and all beside it" };
    let name = format!("{} {}{more}", kind.resource.name, place.shown());
    for items in [Items::Same, Items::Distinct, Items::Full] {
        let case = Case { kind, place, beside, items, objects: RefCell::default() };
        let verbs = match items {
            Items::Distinct if beside.is_empty() => &VERBS,
            Items::Full if !beside.is_empty() => continue,
            // Those that judge objects.
            _ => &VERBS[..2],
        };
        for (verb, work) in verbs {
            let growth = settled_growth(|n| work(&case, n));
            found.note(verb, growth, format!("{name} ({items:?})"));
        }
    }
}

#[test]
fn grows_at_most_n_log_n_with_unknown_and_repeated_fields() {
    if !is_counted() {
        return;
    }
    let kinds = Kind::all();
    let Some(pods) = kinds.iter().find(|kind| kind.resource.name == "pods") else {
        panic!("no Pods")
    };
    let body = |member: &dyn Fn(usize) -> String, n: usize| {
        let members = (0..n).map(member).collect::<Vec<_>>().join(",");
        format!("{{\"metadata\":{{{members}}},\"spec\":{{{members}}}}}")
    };
    let members: [(&str, &dyn Fn(usize) -> String); 3] = [
        ("unknown", &|i| format!("\"a{i}\":1")),
        ("repeated and unknown", &|_| "\"a\":1".to_owned()),
        ("repeated", &|_| "\"name\":\"a\"".to_owned()),
    ];
    for (what, member) in members {
        let growth = settled_growth(|n| {
            let body = body(member, n);
            steps(|| pods.decode_text(&body))
        });
        assert!(growth <= MOST, "{what} fields grow by {growth:.2}");
    }
}

#[test]
fn grows_at_most_n_log_n_with_owners_and_changes() {
    if !is_counted() {
        return;
    }
    let kinds = Kind::all();
    let maps = kinds.iter().find(|kind| kind.resource.name == "configmaps");
    let Some(maps) = maps else { panic!("no ConfigMaps") };
    let object = |n: usize, value: &str| {
        let data: serde_json::Map<String, Value> =
            (0..n).map(|i| (format!("a{i}"), json!(value))).collect();
        let owner = |i| {
            json!({"manager": format!("m{i}"), "operation": "Apply", "apiVersion": "v1",
            "fieldsType": "FieldsV1", "fieldsV1": {"f:data": {format!("f:a{i}"): {}}}})
        };
        let owners: Vec<Value> = (0..n).map(owner).collect();
        json!({"kind": "ConfigMap", "apiVersion": "v1", "data": data,
            "metadata": {"name": "a", "namespace": "ns", "uid": "u", "managedFields": owners}})
    };
    let update = settled_growth(|n| {
        let (old, new) = (object(n, "x"), object(n, "y"));
        steps(|| maps.update(&old, new, true))
    });
    assert!(update <= MOST, "an update grows by {update:.2}");
    let apply = settled_growth(|n| {
        let (old, mut new) = (object(n, "x"), object(n, "y"));
        new["metadata"] = json!({"name": "a", "namespace": "ns"});
        steps(|| maps.apply(&old, &new, "other", true))
    });
    assert!(apply <= MOST, "an apply grows by {apply:.2}");
}
