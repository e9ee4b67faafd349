//! The directories of a cluster whose files `up` applies and imports: manifests, and archives of images.

use std::fs;

use e2e::{Cluster, Session, binary, busybox, share_machine, until};

const POD: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: from-file}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: "archived:1", imagePullPolicy: Never}]
"#;

/// Packs an image of busybox that sleeps, and compresses the archive.
fn archive(cluster: &Cluster) -> Vec<u8> {
    let path = cluster.directory.join("archived.tar");
    let place = path.display().to_string();
    let build = format!(
        "images build archived:1 --binary {} --path /bin/busybox --output {place} -- /bin/busybox sleep 100000",
        busybox()
    );
    let words: Vec<&str> = build.split(' ').collect();
    cluster.run(&binary().display().to_string(), &words).ok();
    cluster.run("gzip", &["-f", &place]).ok();
    fs::read(path.with_extension("tar.gz")).unwrap()
}

#[test]
fn objects_follow_files_and_archives_are_imported() {
    let _turn = share_machine();
    let cluster = Cluster::new("manifests");
    cluster.up().ok();
    let s = Session::in_default_namespace(&cluster);
    let place = |name: &str| cluster.root().join(name);
    fs::write(place("images/archived.tar.gz"), archive(&cluster)).unwrap();
    fs::write(place("images/broken.tar"), "no archive").unwrap();
    fs::write(place("manifests/pod.yaml"), POD).unwrap();
    fs::write(place("manifests/broken.yaml"), "kind: [").unwrap();
    let again = cluster.up();
    assert!(again.code == Some(0) && again.stderr.contains("the archive broken.tar on"), "{again}");
    s.until("get pod from-file -o jsonpath={.status.phase}", |phase| phase == "Running");
    let status = cluster.windlass(&["status"]);
    assert_eq!(status.code, Some(1), "{status}");
    let shown = [
        "the archive broken.tar on",
        "the manifest broken.yaml: document 1",
        "1 objects of 1 manifests",
    ];
    assert!(shown.iter().all(|text| status.stdout.contains(text)), "{status}");

    fs::remove_file(place("images/broken.tar")).unwrap();
    fs::remove_file(place("manifests/broken.yaml")).unwrap();
    fs::write(place("manifests/pod.yaml"), POD.replace("from-file", "renamed")).unwrap();
    s.until("get pods -o name", |pods| pods == "pod/renamed\n");
    cluster.up().ok();
    until("a cluster without problems", || cluster.windlass(&["status"]).ok_if(|_| true));

    // A later cluster with the same objects still knows which came from files.
    cluster.down(&["--keep-data"]).ok();
    fs::remove_file(place("manifests/pod.yaml")).unwrap();
    cluster.up().ok();
    s.until("get pods -o name", str::is_empty);
}
