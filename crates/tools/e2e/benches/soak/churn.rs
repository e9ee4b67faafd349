//! The objects that come and go.

use std::{fs, time::Duration};

use e2e::{Cluster, until_within};

/// The time for a step, which a kill may delay.
const LIMIT: Duration = Duration::from_secs(180);

/// Creates the objects of a round, kills a process while they start, and deletes them.
pub(crate) fn round(cluster: &Cluster, round: usize, killed: Option<&str>) {
    let objects = write(cluster, "objects.yaml", &manifest(round));
    let custom = write(cluster, "custom.yaml", &custom_objects(round));
    let namespace = format!("--namespace=soak-{round}");
    kubectl(cluster, &["apply", "-f", &objects]);
    if let Some(role) = killed {
        cluster.kill(role);
    }
    // A custom kind is served a moment after its definition was created.
    kubectl(cluster, &["apply", "-f", &custom]);
    kubectl(cluster, &[&namespace, "rollout", "status", "deployment/web", "--timeout=20s"]);
    for n in 0..10 {
        let data = format!("--patch={{\"data\":{{\"n\":\"{n}\"}}}}");
        kubectl(cluster, &[&namespace, "patch", "configmap", "map-0", "--type=merge", &data]);
    }
    kubectl(cluster, &["delete", "--ignore-not-found", "--timeout=60s", "-f", &objects]);
}

/// Writes a file for kubectl and returns its path.
fn write(cluster: &Cluster, name: &str, text: &str) -> String {
    let path = cluster.directory.join(name).display().to_string();
    fs::write(&path, text).unwrap_or_else(|error| panic!("writing {path}: {error}"));
    path
}

/// Runs kubectl until it succeeds.
fn kubectl(cluster: &Cluster, args: &[&str]) {
    until_within(LIMIT, &args.join(" "), || cluster.kubectl(args).ok_if(|_| true));
}

fn manifest(round: usize) -> String {
    let namespace = format!("soak-{round}");
    let maps = (0..20).map(|n| {
        format!(
            "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: map-{n}, namespace: {namespace}}}\n\
             data: {{text: {:?}}}\n",
            "x".repeat(2000)
        )
    });
    let services = (0..5).map(|n| {
        format!(
            "---\napiVersion: v1\nkind: Service\nmetadata: {{name: web-{n}, namespace: {namespace}}}\n\
             spec: {{type: NodePort, selector: {{app: web}}, ports: [{{port: 80, targetPort: 8080}}]}}\n"
        )
    });
    let objects: String = maps.chain(services).collect();
    format!(
        "apiVersion: v1\nkind: Namespace\nmetadata: {{name: {namespace}}}\n{objects}{}{}",
        deployment(&namespace),
        definition(round)
    )
}

fn deployment(namespace: &str) -> String {
    format!(
        "---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: web, namespace: {namespace}}}\n\
         spec:\n  replicas: 3\n  selector: {{matchLabels: {{app: web}}}}\n  template:\n    \
         metadata: {{labels: {{app: web}}}}\n    spec:\n      terminationGracePeriodSeconds: 1\n      \
         containers: [{{name: app, image: 'app:1', volumeMounts: [{{name: v, mountPath: /v}}]}}]\n      \
         volumes: [{{name: v, configMap: {{name: map-0}}}}]\n"
    )
}

fn definition(round: usize) -> String {
    let schema = "{type: object, x-kubernetes-preserve-unknown-fields: true}";
    format!(
        "---\napiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\n\
         metadata: {{name: things.soak-{round}.example.com}}\nspec:\n  group: soak-{round}.example.com\n  \
         scope: Namespaced\n  names: {{plural: things, singular: thing, kind: Thing}}\n  versions:\n  \
         - {{name: v1, served: true, storage: true, schema: {{openAPIV3Schema: {schema}}}}}\n"
    )
}

fn custom_objects(round: usize) -> String {
    let object = |n| {
        format!(
            "---\napiVersion: soak-{round}.example.com/v1\nkind: Thing\n\
             metadata: {{name: thing-{n}, namespace: soak-{round}}}\nspec: {{n: {n}}}\n"
        )
    };
    (0..10).map(object).collect()
}
