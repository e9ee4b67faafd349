//! Tests of backups of a real etcd: each stored backup starts, and serves what etcd held at its time.

use std::path::Path;

use kops_core::snapshot::InitialCluster;
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use serde_json::json;
use sha2::Digest as _;

use super::*;
use crate::testing::{RealEtcd, Site, error, is_installed};

const PAGE: usize = 4096;
/// The least distance of a restored store's revision from the backup's.
const STEP: u64 = 1_000_000_000;

fn backups(directory: &Path) -> Backups {
    let store = Store::open(&format!("file://{}/store", directory.display())).unwrap();
    Backups { store, directory: String::new() }
}

fn info() -> Info {
    Info { etcd_version: "3.4.23".to_owned(), members: 1, timestamp: 1_800_000_000 }
}

/// Restores a backup as the data of new members.
fn restore(backups: &Backups, name: &str, sites: &[Site]) -> Result<(), kops_store::Error> {
    let founders = sites.iter().map(|site| (site.name.as_str(), site.peer.as_str()));
    let founders = InitialCluster::new("restored", founders);
    sites
        .iter()
        .try_for_each(|site| backups.unpack(name, "c.local", &founders, &site.name, &site.data))
}

/// Changes etcd at random, also with large values, compaction and defragmentation.
fn change(etcd: &RealEtcd, random: &mut StdRng) {
    let key = |random: &mut StdRng| format!("/registry/configmaps/{}", random.random_range(0..40));
    match random.random_range(0..20) {
        0 => {
            etcd.put(&key(random), &"x".repeat(300_000));
        }
        1 => {
            let (revision, _) = etcd.all();
            etcd.call("/v3/kv/compaction", &json!({"revision": revision.to_string()}));
        }
        2 => {
            etcd.call("/v3/maintenance/defragment", &json!({}));
        }
        3..8 => {
            etcd.delete(&key(random));
        }
        _ => {
            etcd.put(&key(random), &random.random::<u64>().to_string());
        }
    }
}

#[tokio::test]
async fn stores_only_backups_that_start() {
    if !is_installed() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let backups = backups(dir.path());
    let etcd = RealEtcd::start(&Site::new("a", &dir.path().join("data"))).await;
    let client = etcd.client();
    // A new store, and one in which an API server has written only its compaction's key.
    for _ in 0..2 {
        let error =
            back_up(&client, &backups, "c.local", &info(), 0).await.unwrap_err().to_string();
        assert!(error.contains("none of Kubernetes' objects"), "{error}");
        assert!(!client.has_keys(OBJECTS).await.unwrap());
        assert_eq!(backups.list().unwrap(), [""; 0]);
        etcd.put("compact_rev_key", "1");
    }
    let random = &mut StdRng::seed_from_u64(7);
    let mut saved = Vec::new();
    etcd.put("/registry/namespaces/default", "n");
    assert!(client.has_keys(OBJECTS).await.unwrap());
    for sequence in 0..7 {
        let name = back_up(&client, &backups, "c.local", &info(), sequence).await.unwrap();
        saved.push((name, etcd.all()));
        for _ in 0..random.random_range(0..1 << (sequence + 2)) {
            change(&etcd, random);
        }
    }
    drop(etcd);
    assert_eq!(backups.list().unwrap().len(), saved.len());
    for (name, (revision, content)) in saved {
        backups.verify(&name, Some("c.local")).unwrap();
        let site = Site::new("b", &dir.path().join(&name));
        restore(&backups, &name, std::slice::from_ref(&site)).unwrap();
        let mut etcd = RealEtcd::start(&site).await;
        let (restored, found) = etcd.all();
        assert!(found == content, "{name}: {} keys, not {}", found.len(), content.len());
        assert!(restored >= revision + STEP, "{name}: {restored}");
        // A client that has seen the old store, also after the backup, lists again.
        for seen in [revision, revision + 1000, restored - 1] {
            let read = json!({"key": "YQ==", "revision": seen.to_string()});
            let answer = etcd.call("/v3/kv/range", &read);
            assert!(error(&answer).contains("compacted"), "{name}: {answer}");
        }
        let next = etcd.put("/registry/configmaps/new", "v");
        assert_eq!(next, restored + 1);
        etcd.call("/v3/kv/compaction", &json!({"revision": next.to_string()}));
        etcd.call("/v3/maintenance/defragment", &json!({}));
        drop(etcd);
        etcd = RealEtcd::start(&site).await;
        assert_eq!(etcd.get("/registry/configmaps/new").as_deref(), Some("v"));
    }
}

#[tokio::test]
async fn restored_members_form_one_cluster() {
    if !is_installed() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let backups = backups(dir.path());
    let etcd = RealEtcd::start(&Site::new("a", &dir.path().join("data"))).await;
    etcd.put("/registry/namespaces/default", "n");
    let name = back_up(&etcd.client(), &backups, "c.local", &info(), 0).await.unwrap();
    drop(etcd);
    let sites = ["x", "y", "z"].map(|name| Site::new(name, &dir.path().join(name)));
    restore(&backups, &name, &sites).unwrap();
    let all: Vec<_> = sites.iter().map(|site| RealEtcd::spawn(site, &sites)).collect();
    for etcd in &all {
        etcd.wait().await;
    }
    let written = all[0].put("/registry/configmaps/new", "v");
    for etcd in &all {
        assert_eq!(etcd.get("/registry/configmaps/new").as_deref(), Some("v"));
        assert_eq!(etcd.get("/registry/namespaces/default").as_deref(), Some("n"));
        assert_eq!(etcd.all().0, written);
    }
}

/// Every page of a snapshot is cleared, cut off or gets another header, and the sum is made right again. Such a
/// snapshot is rejected, or etcd starts from it, because the page was free.
#[tokio::test]
async fn rejects_snapshots_that_do_not_start() {
    if !is_installed() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let backups = backups(dir.path());
    let etcd = RealEtcd::start(&Site::new("a", &dir.path().join("data"))).await;
    let random = &mut StdRng::seed_from_u64(1);
    etcd.put("/registry/namespaces/default", "n");
    // Several leaves, and free pages.
    for number in 0..60 {
        etcd.put(&format!("/registry/configmaps/{number}"), &"x".repeat(200));
    }
    for number in 0..20 {
        etcd.delete(&format!("/registry/configmaps/{number}"));
    }
    let mut snapshot = Vec::new();
    etcd.client().snapshot(&mut snapshot).await.unwrap();
    drop(etcd);
    snapshot.truncate(snapshot.len() - 32);
    let (mut rejected, mut started) = (0, 0);
    for page in 0..snapshot.len() / PAGE {
        for kind in ["clear", "cut", "header"] {
            let mut bytes = snapshot.clone();
            let at = page * PAGE;
            match kind {
                "clear" => bytes[at..at + PAGE].fill(0),
                "cut" => bytes.truncate(at),
                _ => bytes[at + random.random_range(0..16)] ^= 1 << random.random_range(0..8),
            }
            bytes.extend_from_slice(&sha2::Sha256::digest(&bytes));
            let mut archive = Backups::create_archive(Vec::new(), "c.local");
            archive.write_all(&bytes).unwrap();
            let path = dir.path().join("archive");
            std::fs::write(&path, archive.finish().unwrap()).unwrap();
            let verified = Backups::verify_archive(&path, "c.local");
            if verified.is_err() {
                rejected += 1;
                continue;
            }
            started += 1;
            if started > 6 {
                continue;
            }
            let name = backups.store_archive(&path, &info(), started).unwrap();
            let site = Site::new("b", &dir.path().join(&name));
            restore(&backups, &name, std::slice::from_ref(&site)).unwrap();
            let etcd = RealEtcd::start(&site).await;
            assert!(!etcd.all().1.is_empty(), "page {page}, {kind}");
        }
    }
    println!("{rejected} of the snapshots were rejected, {started} start");
    assert!(rejected > 10 && started > 0, "{rejected} {started}");
}
