//! Static Pods of upstream's programs on control planes.

use api_meta::Tree as _;
use kops_api::{Object, yaml};
use serde_json::{Value, json};

use crate::{
    cluster::{CloudName, Cluster},
    images::remap,
};

/// Returns a Pod of one container that the kubelet does not evict.
pub(crate) fn critical(name: &str, priority: &str, container: Value, volumes: Vec<Value>) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "kube-system", "labels": {"k8s-app": name}},
        "spec": {
            "containers": [container], "volumes": volumes, "hostNetwork": true, "priorityClassName": priority,
            "tolerations": [{"key": "CriticalAddonsOnly", "operator": "Exists"}],
        },
        "status": {},
    })
}

/// Returns the environment of programs: the proxy and the region, sorted by name.
pub(crate) fn environment(cluster: &Object) -> Vec<Value> {
    let spec = &cluster.spec;
    let mut all = Vec::new();
    if cluster.cloud() == CloudName::Aws {
        all.extend(cluster.region().map(|region| ("AWS_REGION", region.to_owned())));
    }
    if let Some(proxy) = spec.opt_at("networking.egressProxy") {
        let host = proxy.text("httpProxy.host");
        let url = match proxy.opt_int("httpProxy.port") {
            Some(port) if port != 0 => format!("http://{host}:{port}"),
            _ => format!("http://{host}"),
        };
        let excludes = proxy.text("excludes").to_owned();
        all.extend([("http_proxy", url.clone()), ("https_proxy", url)]);
        all.extend([("NO_PROXY", excludes.clone()), ("no_proxy", excludes)]);
    }
    all.sort();
    all.into_iter().map(|(name, value)| json!({"name": name, "value": value})).collect()
}

/// Returns the Pod that queries the API server's health with a certificate, for load balancers without one.
pub fn healthcheck_pod(cluster: &Object, kops: &str) -> String {
    let directory = "/etc/kubernetes/kube-apiserver-healthcheck/secrets";
    let image = format!("registry.k8s.io/kops/kube-apiserver-healthcheck:{kops}");
    let probe =
        json!({"host": "127.0.0.1", "port": 3990, "path": "/.kube-apiserver-healthcheck/healthz"});
    let container = json!({
        "name": "healthcheck", "image": remap(&cluster.spec, image),
        "args": ["--ca-cert=/secrets/ca.crt", "--client-cert=/secrets/client.crt", "--client-key=/secrets/client.key"],
        "livenessProbe": {"httpGet": probe, "initialDelaySeconds": 5, "timeoutSeconds": 5},
        "resources": {},
        "securityContext": {"runAsNonRoot": true, "runAsUser": 10012},
        "volumeMounts": [{"name": "healthcheck-secrets", "mountPath": "/secrets", "readOnly": true}],
    });
    yaml::to_string(&json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {}, "status": {},
        "spec": {
            "containers": [container],
            "volumes": [{"name": "healthcheck-secrets", "hostPath": {"path": directory, "type": "Directory"}}],
        },
    }))
}

/// Returns the Pod that applies the add-ons: the cluster's own channel, then the user's.
pub fn channels_pod(cluster: &Object, kops: &str) -> String {
    let kubeconfig = "/var/lib/kops/kubeconfig";
    let spec = &cluster.spec;
    let base = spec.text("configStore.base").trim_end_matches('/');
    let fixed =
        ["apply", "channel", "--v=4", "--yes", "--interval=1m0s", "--node-name=$(NODE_NAME)"];
    let mut args: Vec<_> = fixed.map(str::to_owned).into();
    args.push(format!("{base}/addons/bootstrap-channel.yaml"));
    args.extend(spec.items("addons").iter().map(|addon| addon.text("manifest").to_owned()));
    let mut env = vec![
        json!({"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}),
        json!({"name": "KUBECONFIG", "value": kubeconfig}),
        json!({"name": "HOME", "value": "/tmp"}),
    ];
    env.extend(environment(cluster));
    let probe = json!({"host": "127.0.0.1", "port": 3986, "path": "/readyz"});
    let container = json!({
        "name": "kops-channels", "image": remap(spec, format!("registry.k8s.io/kops/channels:{kops}")),
        "args": args, "env": env,
        "readinessProbe": {"httpGet": probe, "initialDelaySeconds": 30, "periodSeconds": 10, "failureThreshold": 2},
        "resources": {"requests": {"cpu": "50m", "memory": "50Mi"}},
        "securityContext": {"runAsNonRoot": true, "runAsUser": 10013},
        "volumeMounts": [{"name": "kubeconfig", "mountPath": kubeconfig, "readOnly": true}],
    });
    let volume = json!({"name": "kubeconfig", "hostPath": {"path": kubeconfig, "type": "File"}});
    let mut pod = critical("kops-channels", "system-node-critical", container, vec![volume]);
    pod.put("spec.dnsPolicy", "Default");
    yaml::to_string(&pod)
}
