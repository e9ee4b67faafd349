//! Tests of `upgrade cluster`: plans, writes, and refusals that store nothing.

use crate::stored::{CLUSTER, GROUP, TestStore};

const CHANNEL: &str = "spec:\n  kubernetesVersions:\n  - {range: '>=1.36.0', recommendedVersion: 1.36.2}\n  - {range: '>=1.35.0', recommendedVersion: 1.35.7}\n";

fn demo() -> (TestStore, String) {
    let place = TestStore::new();
    let file = place.file(&format!("{CLUSTER}---\n{GROUP}"));
    place.kops(&["create", "-f", &file]).unwrap_or_else(|e| panic!("{e}"));
    let channel = place.file(CHANNEL);
    (place, channel)
}

#[test]
fn shows_and_stores_recommended_versions() {
    let (place, channel) = demo();
    let before = place.read("demo.local/config");
    let upgrade = ["upgrade", "cluster", "demo.local", "--channel", &channel];
    let plan = place.kops(&upgrade).unwrap();
    let rows: Vec<Vec<&str>> = plan
        .lines()
        .map(|line| line.split('\t').filter(|cell| !cell.is_empty()).collect())
        .collect();
    assert_eq!(rows[0], ["ITEM", "PROPERTY", "OLD", "NEW"], "{plan}");
    assert!(rows.contains(&vec!["Cluster", "KubernetesVersion", "1.36.1", "1.36.2"]), "{plan}");
    assert!(plan.ends_with("\nMust specify --yes to perform upgrade\n"), "{plan}");
    assert_eq!(place.read("demo.local/config"), before, "a plan has changed the cluster");
    let done = place.kops(&[&upgrade[..], &["--yes"]].concat()).unwrap();
    let end = "\nUpdates applied to configuration.\nYou can now apply these changes, using `kops update cluster demo.local`\n";
    assert!(done.ends_with(end), "{done}");
    let after = place.read("demo.local/config");
    assert!(
        after.contains("kubernetesVersion: 1.36.2")
            && after.contains(&format!("channel: {channel}")),
        "{after}"
    );
    // The channel is now the cluster's own.
    let again = place.kops(&["upgrade", "cluster", "demo.local"]).unwrap();
    assert_eq!(again, "\nNo upgrade required\n");
}

#[test]
fn stores_nothing_when_refused() {
    let (place, channel) = demo();
    let before = place.read("demo.local/config");
    let odd = |name: &str, text: &[u8]| {
        let path = place.store_path(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let pod = odd("../pod", b"kind: Pod\n");
    let binary = odd("../binary", &[0xff; 64]);
    let skips = odd(
        "../skips",
        b"spec: {kubernetesVersions: [{range: '>=1.30.0', recommendedVersion: 1.39.0}]}\n",
    );
    let hostile = odd(
        "../hostile",
        b"spec: {kubernetesVersions: [{range: '>=1.30.0', recommendedVersion: '$(reboot)'}]}\n",
    );
    for (flags, reason) in [
        (&["--channel", &channel, "--kubernetes-version", "1.35.0"][..], "cannot be downgraded"),
        (&["--channel", &channel, "--kubernetes-version", "1.38.0"], "skips a minor version"),
        (&["--channel", &channel, "--kubernetes-version", "1.37.0"], "is newer than kOps"),
        (&["--channel", &channel, "--kubernetes-version", "a\nb"], "is not a version"),
        (&["--channel", "https://evil.example.com/stable"], "cannot be downloaded"),
        (&["--channel", "s3://other/stable"], "cannot be downloaded"),
        (&["--channel", "stable"], "cannot be downloaded"),
        (&["--channel", "/dev/zero"], "is larger than"),
        (&["--channel", "/nonexistent"], "reading the channel"),
        (&["--channel", &pod], "it is not a channel"),
        (&["--channel", &binary], "binary"),
        (&["--channel", &skips], "skips a minor version"),
        (&["--channel", &hostile], "is not a version"),
    ] {
        let mut all = vec!["upgrade", "cluster", "demo.local", "--yes"];
        all.extend(flags);
        let error = place.kops(&all).expect_err(reason);
        assert!(error.contains(reason), "{flags:?}: {error}");
        assert_eq!(place.read("demo.local/config"), before, "{flags:?}");
    }
    let error = place.kops(&["upgrade", "cluster", "other.local"]).expect_err("no cluster");
    assert!(error.contains("was not found"), "{error}");
    assert!(
        place.kops(&["upgrade", "cluster"]).expect_err("no name").contains("--name is required")
    );
}

#[test]
fn reconciles_only_clusters_of_cloud_local() {
    let place = TestStore::new();
    let other = CLUSTER.replace("cloud: local", "cloud: metal");
    place.kops(&["create", "-f", &place.file(&other)]).unwrap();
    for flags in [&["--yes"][..], &["--yes", "--allow-kops-downgrade"], &[]] {
        let mut all = vec!["reconcile", "cluster", "demo.local"];
        all.extend(flags);
        let error = place.kops(&all).expect_err("cloud metal");
        assert!(error.contains("metal"), "{error}");
    }
    assert!(!place.has("demo.local/cluster-completed.spec"));
}
