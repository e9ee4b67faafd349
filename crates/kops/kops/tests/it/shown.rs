//! Tests of what `get`, `version` and `completion` print.

use crate::stored::{CLUSTER, GROUP, TestStore};

#[test]
fn prints_lists_and_single_objects() {
    let place = TestStore::with_cluster("metal");
    let kops = |args: &[&str]| place.kops(args);
    let first = |args: &[&str]| kops(args).unwrap().chars().next();
    // A cluster that is selected by its name is no list.
    assert_eq!(first(&["get", "clusters", "-o", "json"]), Some('['));
    assert_eq!(first(&["get", "clusters", "demo.local", "-o", "json"]), Some('{'));
    assert_eq!(first(&["get", "-o", "json", "cluster", "--name", "demo.local"]), Some('{'));
    assert_eq!(first(&["get", "ig", "--name", "demo.local", "-o", "json"]), Some('{'));
    assert_eq!(first(&["get", "all", "demo.local", "-o", "json"]), Some('['));
    let all = kops(&["get", "all", "demo.local"]).unwrap();
    assert_eq!(
        all,
        "Cluster\nNAME\t\tCLOUD\tZONES\ndemo.local\tmetal\tz\n\nInstance \
         Groups\nNAME\tROLE\t\tMACHINETYPE\tMIN\tMAX\tZONES\ncp\tControlPlane\t\t\t1\t1\tz\n"
    );
    assert_eq!(kops(&["get", "demo.local"]).unwrap(), all);
    assert_eq!(kops(&["get", "--name", "demo.local"]).unwrap(), all);
    let addon = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: mine\n";
    place.put("demo.local/clusteraddons/default", &format!("{addon}---\n{addon}"));
    let more = kops(&["get", "all", "demo.local"]).unwrap();
    let addons = more.strip_prefix(&all).unwrap();
    assert_eq!(
        addons,
        "\nAddon Objects\nNAME\tKIND\t\tVERSION\nmine\tConfigMap\t\nmine\tConfigMap\t\n"
    );
    let yaml = kops(&["get", "all", "demo.local", "-o", "yaml"]).unwrap();
    assert!(yaml.ends_with(&format!("\n---\n\n{addon}")), "{yaml}");
    for (args, reason) in [
        (vec!["get", "clusters", "none"], "cluster not found \"none\""),
        (vec!["get", "ig", "none", "--name", "demo.local"], "instancegroup not found \"none\""),
        (vec!["get", "all"], "--name is required"),
        (vec!["get", "all", "../x"], "leads out of the store"),
        (vec!["get", "all", "demo.local", "--name", "a"], "via --name and positional argument"),
        (vec!["get", "clusters", "a", "--name", "b"], "via --name and positional argument"),
        (vec!["get", "instances", "demo.local"], "has no keys yet"),
        (vec!["get", "clusters", "-o", "xml"], "invalid value 'xml'"),
    ] {
        let error = kops(&args).unwrap_err();
        assert!(error.contains(reason), "{args:?}: {error}");
    }
}

#[test]
fn prints_complete_specifications() {
    let place = TestStore::with_cluster("metal");
    let error = place.kops(&["get", "clusters", "--full"]).unwrap_err();
    assert!(error.contains("was never updated"), "{error}");
    let complete = CLUSTER.replace("spec:\n", "spec:\n  clusterDNSDomain: complete.local\n");
    place.put("demo.local/cluster-completed.spec", &complete);
    let shown = place.kops(&["get", "clusters", "--full", "-o", "yaml"]).unwrap();
    assert!(shown.starts_with("\n//\n//   WARNING: Do not use a '--full'"), "{shown}");
    assert!(shown.contains("clusterDNSDomain: complete.local"), "{shown}");
    // The specification of another cluster is not shown as this one's.
    place.put("demo.local/cluster-completed.spec", &complete.replace("demo.local", "other.local"));
    assert!(place.kops(&["get", "clusters", "--full"]).unwrap_err().contains("other.local"));
    place.put("demo.local/cluster-completed.spec", GROUP);
    assert!(place.kops(&["get", "clusters", "--full"]).unwrap_err().contains("InstanceGroup"));
}

#[test]
fn prints_assets_of_the_last_update() {
    let place = TestStore::with_cluster("metal");
    let error = place.kops(&["get", "assets", "demo.local"]).unwrap_err();
    assert!(error.contains("was never updated"), "{error}");
    let complete = CLUSTER
        .replace("spec:\n", "spec:\n  kubeProxy: {image: registry.k8s.io/kube-proxy:v1.36.1}\n");
    place.put("demo.local/cluster-completed.spec", &complete);
    place.put(
        "demo.local/igconfig/node/nodes/nodeupconfig.yaml",
        "Assets:\n  amd64:\n  - 00ff@https://dl.example/kubelet,https://mirror.example/kubelet\n",
    );
    place.put(
        "demo.local/addons/a/b.yaml",
        "kind: Pod\nspec: {containers: [{image: \"a.example/b:1\"}]}\n---\nimage: {type: x}\n",
    );
    let shown = place.kops(&["get", "assets", "demo.local", "-o", "json"]).unwrap();
    assert_eq!(
        shown,
        "{\"files\":[{\"canonical\":\"https://dl.example/kubelet\",\"download\":\"https://dl.example/kubelet\",\
         \"sha\":\"00ff\"}],\"images\":[{\"canonical\":\"a.example/b:1\",\"download\":\"a.example/b:1\"},\
         {\"canonical\":\"registry.k8s.io/kube-proxy:v1.36.1\",\"download\":\"registry.k8s.io/kube-proxy:v1.36.1\"}]}\n"
    );
    let table = place.kops(&["get", "assets", "--name", "demo.local"]).unwrap();
    let headers: Vec<_> = table.lines().filter(|line| line.starts_with("CANONICAL")).collect();
    assert_eq!(headers.len(), 2, "{table}");
    assert!(headers[1].ends_with("SHA"), "{table}");
    let copy = place.kops(&["get", "assets", "demo.local", "--copy"]).unwrap_err();
    assert!(copy.starts_with("--copy: copying assets is not supported"), "{copy}");
    place.put("demo.local/addons/a/b.yaml", "a: [");
    let error = place.kops(&["get", "assets", "demo.local"]).unwrap_err();
    assert!(error.contains("demo.local/addons/a/b.yaml"), "{error}");
    let moved = complete.replace("spec:\n", "spec:\n  assets: {containerRegistry: r.example}\n");
    place.put("demo.local/cluster-completed.spec", &moved);
    let error = place.kops(&["get", "assets", "demo.local"]).unwrap_err();
    assert!(error.contains("has spec.assets"), "{error}");
}

#[test]
fn prints_versions() {
    let place = TestStore::with_cluster("metal");
    let client = "Client version: 1.36.2\n";
    let server = |text: &str| format!("{client}Last applied server version: {text}\n");
    let version = |args: &[&str]| place.kops(&[&["version"], args].concat()).unwrap();
    assert_eq!(version(&[]), client);
    assert_eq!(version(&["--short"]), "1.36.2\n");
    assert_eq!(version(&["--server"]), server("could not fetch cluster"));
    assert_eq!(version(&["--server", "../x"]), server("could not fetch cluster"));
    assert_eq!(version(&["--server", "demo.local"]), server("could get cluster version"));
    place.put("demo.local/kops-version.txt", "1.35.0");
    assert_eq!(version(&["--server", "--name", "demo.local"]), server("1.35.0"));
    assert_eq!(version(&["demo.local", "--server", "--short"]), "1.36.2\n1.35.0\n");
}

#[test]
fn prints_completion_scripts() {
    let place = TestStore::new();
    for (shell, start) in [
        ("bash", "_kops() {"),
        ("zsh", "#compdef kops"),
        ("fish", "# Print an optspec"),
        ("powershell", "\nusing namespace System.Management.Automation"),
    ] {
        let script = place.kops(&["completion", shell]).unwrap();
        assert!(script.starts_with(start), "{shell}: {}", &script[..60]);
        for word in ["rolling-update", "sshpublickey", "cloudonly"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
        let brief = place.kops(&["completion", shell, "--no-descriptions"]).unwrap();
        assert!(brief.contains("sshpublickey"));
        assert!(!brief.contains("Confirm the deletion"), "{shell}");
    }
    assert!(place.kops(&["completion", "tcsh"]).unwrap_err().contains("unrecognized subcommand"));
}
