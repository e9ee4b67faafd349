//! Tests of the number of requests to the state store.

use std::{fs, time::SystemTime};

use kops_api::Object;
use kops_aws::{CloudFacts, Error, ModelInputs, build_model, store_changes};
use kops_store::{Change, ClusterObjects, Registry};
use vfs::Precondition;

use crate::bucket::{BUCKET, Bucket};

const NAME: &str = "demo.example.com";
const CLUSTER: &str = include_str!("../../../kops/tests/it/moto.yaml");
const KNOWN: &str = "account: '123456789012'
images: {ami-03cf127a: {id: ami-03cf127a, rootDevice: /dev/xvda}}
machineTypes: {m5.large: {architecture: amd64}}
dnsZones: [{id: Z1, name: example.com}]
";

/// A cluster in a bucket, and the files of its commands.
struct Cluster {
    bucket: Bucket,
    registry: Registry,
    dir: tempfile::TempDir,
}

impl Cluster {
    /// Stores a cluster with this number of groups, and all its objects.
    fn stored(groups: usize) -> Self {
        let bucket = Bucket::start();
        let url = format!("s3://{BUCKET}");
        let registry = Registry::open(&url, &|name| bucket.variable(name));
        let registry = registry.unwrap_or_else(|e| panic!("{e}"));
        let dir = tempfile::tempdir().unwrap_or_else(|e| panic!("{e}"));
        let cluster = Self { bucket, registry, dir };
        fs::create_dir(cluster.dir.path().join("addons")).unwrap_or_else(|e| panic!("{e}"));
        cluster.write(
            "addons/bootstrap-channel.yaml",
            "spec:\n  addons:\n  - {name: coredns, id: a, manifest: a.yaml}\n",
        );
        cluster.write("addons/a.yaml", "kind: List\n");
        cluster.write("known.yaml", KNOWN);
        for document in CLUSTER.split("---\n") {
            cluster.store(document);
        }
        for number in 2..groups {
            cluster.store(&worker(number, 2));
        }
        let Err(Error::Hashes { files }) = cluster.changes() else { panic!("no hash is known") };
        let sum = "a1".repeat(32);
        let files = files.iter().map(|url| format!("- {{canonical: '{url}', sha: {sum}}}\n"));
        cluster.write("known.yaml", &format!("{KNOWN}files:\n{}", files.collect::<String>()));
        cluster.apply();
        cluster
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.dir.path().join(name);
        fs::write(path, text).unwrap_or_else(|e| panic!("{e}"));
    }

    /// Writes an object to the store, if it has changed.
    fn store(&self, document: &str) {
        let object = Object::read("test", document.as_bytes()).unwrap_or_else(|e| panic!("{e}"));
        let stored = match object.kind {
            kops_api::Kind::Cluster => self.registry.cluster(NAME),
            _ => self.registry.group(NAME, object.name()),
        };
        let stored = stored.unwrap_or_else(|e| panic!("{e}"));
        let since = stored.map_or(Precondition::Absent, |(_, read)| Precondition::Read(read));
        self.registry.write(NAME, &object, &since).unwrap_or_else(|e| panic!("{e}"));
    }

    /// Returns the changes that an update plans for the store.
    fn changes(&self) -> Result<Vec<Change>, Error> {
        let Some((user, _)) = self.registry.cluster(NAME)? else { panic!("no cluster") };
        let stored = ClusterObjects::list(&self.registry, NAME)?;
        let groups = stored.groups()?;
        let facts = CloudFacts::read(self.dir.path().join("known.yaml").to_str())?;
        let addons = self.dir.path().join("addons");
        let inputs = ModelInputs {
            user: &user,
            groups: &groups.objects,
            stored: &stored,
            facts: &facts,
            addons: Some(&addons),
            ssh_public_key: None,
            kubelet: None,
        };
        let built = build_model(&self.registry, &inputs, facts.world(), SystemTime::now())?;
        store_changes(&self.registry, &stored, groups.copies, &built)
    }

    fn apply(&self) {
        for change in self.changes().unwrap_or_else(|e| panic!("{e}")) {
            change.carry_out(&self.registry).unwrap_or_else(|e| panic!("{e}"));
        }
    }

    fn plan(&self) -> Plan {
        self.bucket.requests();
        let changes = self.changes().unwrap_or_else(|e| panic!("{e}"));
        let changes = changes.into_iter().map(|change| change.name).collect();
        Plan { changes, requests: self.bucket.requests() }
    }
}

/// The names of the objects that an update would change, and the requests that it sends to find them.
#[derive(Debug, PartialEq)]
struct Plan {
    changes: Vec<String>,
    requests: Vec<String>,
}

fn worker(number: usize, size: usize) -> String {
    let document = CLUSTER.split("---\n").last().unwrap_or_default();
    let named = document.replace("name: workers", &format!("name: workers-{number}"));
    named.replace("minSize: 2", &format!("minSize: {size}"))
}

#[test]
fn unchanged_cluster_needs_no_request_per_group() {
    let (few, many) = (Cluster::stored(2).plan(), Cluster::stored(99));
    let settled = many.plan();
    assert!(few.changes.is_empty() && settled.changes.is_empty(), "{few:#?}\n{settled:#?}");
    // Two groups are read one by one, and many by one request.
    assert!(settled.requests.len() < few.requests.len(), "{few:#?}\n{settled:#?}");
    assert!(settled.requests.len() <= 20, "{settled:#?}");
    // Only the changed group is read.
    many.store(&worker(7, 1));
    let changed = many.plan();
    assert_eq!(changed.changes, [format!("{NAME}/igconfig/groups.json")]);
    assert_eq!(changed.requests.len(), settled.requests.len() + 2, "{changed:#?}");
    many.apply();
    assert_eq!(many.plan(), settled);
}

#[test]
fn uses_copies_only_if_they_equal_the_groups() {
    let cluster = Cluster::stored(9);
    let key = format!("{NAME}/igconfig/groups.json");
    let copies = cluster.bucket.get(&key);
    // A changed copy is not used, and the next update replaces it.
    let forged = copies.replace("minSize: 2", "minSize: 3");
    for hostile in [forged.as_str(), "{", "[1]", "{\"cp\": 1}"] {
        assert_ne!(hostile, copies);
        cluster.bucket.put(&key, hostile);
        assert_eq!(cluster.plan().changes, [key.as_str()], "{hostile:.40}");
        cluster.apply();
        assert_eq!(cluster.bucket.get(&key), copies);
    }
}

#[test]
fn reads_objects_whose_tags_are_no_sums() {
    let cluster = Cluster::stored(9);
    let settled = cluster.plan();
    cluster.bucket.make_tags_opaque();
    let opaque = cluster.plan();
    assert_eq!(opaque.changes, Vec::<String>::new());
    assert!(opaque.requests.len() > settled.requests.len() + 9, "{opaque:#?}");
}
