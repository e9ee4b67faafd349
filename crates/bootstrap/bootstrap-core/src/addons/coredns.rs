//! The add-on CoreDNS.

use api_config::kubeadm::ClusterConfiguration;
use serde_json::{Value, json};

use crate::{Error, constants::CONTROL_PLANE_LABEL, images, net};

/// Returns the Corefile.
pub fn corefile(domain: &str) -> String {
    format!(
        "\
.:53 {{
    errors
    health {{
       lameduck 5s
    }}
    ready
    kubernetes {domain} in-addr.arpa ip6.arpa {{
       pods insecure
       fallthrough in-addr.arpa ip6.arpa
       ttl 30
    }}
    prometheus :9153
    forward . /etc/resolv.conf {{
       max_concurrent 1000
    }}
    cache 30 {{
       disable success {domain}
       disable denial {domain}
    }}
    loop
    reload
    loadbalance
}}
"
    )
}

/// Returns the objects of the DNS add-on. For an existing Deployment, pass its number of replicas.
pub fn objects(cluster: &ClusterConfiguration, replicas: u32) -> Result<Vec<Value>, Error> {
    let subnet = &cluster.networking.service_subnet;
    let ip = net::nth_address(subnet, 10)
        .ok_or_else(|| Error::ServiceSubnet { subnet: subnet.clone(), purpose: "cluster DNS" })?;
    let config = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "coredns", "namespace": "kube-system"},
        "data": {"Corefile": corefile(&cluster.networking.dns_domain)},
    });
    let mut objects = vec![config];
    objects.extend(access());
    objects.push(deployment(&images::coredns(cluster), replicas));
    objects.push(service(&ip.to_string()));
    Ok(objects)
}

fn access() -> [Value; 3] {
    let watch = json!(["list", "watch"]);
    [
        json!({
            "apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "coredns", "namespace": "kube-system"},
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "system:coredns"},
            "rules": [
                {"apiGroups": [""], "resources": ["endpoints", "services", "pods", "namespaces"], "verbs": watch},
                {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": watch},
            ],
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": {"name": "system:coredns"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:coredns"},
            "subjects": [{"kind": "ServiceAccount", "name": "coredns", "namespace": "kube-system"}],
        }),
    ]
}

fn deployment(image: &str, replicas: u32) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "coredns", "namespace": "kube-system", "labels": {"k8s-app": "kube-dns"}},
        "spec": {
            "replicas": replicas,
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}},
            "selector": {"matchLabels": {"k8s-app": "kube-dns"}},
            "template": {
                "metadata": {"labels": {"k8s-app": "kube-dns"}},
                "spec": {
                    "priorityClassName": "system-cluster-critical",
                    "serviceAccountName": "coredns",
                    "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{
                        "weight": 100,
                        "podAffinityTerm": {
                            "labelSelector": {"matchExpressions": [
                                {"key": "k8s-app", "operator": "In", "values": ["kube-dns"]},
                            ]},
                            "topologyKey": "kubernetes.io/hostname",
                        },
                    }]}},
                    "tolerations": [
                        {"key": "CriticalAddonsOnly", "operator": "Exists"},
                        {"key": CONTROL_PLANE_LABEL, "effect": "NoSchedule"},
                    ],
                    "nodeSelector": {"kubernetes.io/os": "linux"},
                    "containers": [container(image)],
                    "dnsPolicy": "Default",
                    "volumes": [{
                        "name": "config-volume",
                        "configMap": {"name": "coredns", "items": [{"key": "Corefile", "path": "Corefile"}]},
                    }],
                },
            },
        },
    })
}

fn container(image: &str) -> Value {
    let port = |number: u16, name: &str, protocol: &str| json!({"containerPort": number, "name": name, "protocol": protocol});
    json!({
        "name": "coredns",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "resources": {"limits": {"memory": "170Mi"}, "requests": {"cpu": "100m", "memory": "70Mi"}},
        "args": ["-conf", "/etc/coredns/Corefile"],
        "volumeMounts": [{"name": "config-volume", "mountPath": "/etc/coredns", "readOnly": true}],
        "ports": [
            port(53, "dns", "UDP"), port(53, "dns-tcp", "TCP"), port(9153, "metrics", "TCP"),
            port(8080, "liveness-probe", "TCP"), port(8181, "readiness-probe", "TCP"),
        ],
        "livenessProbe": {
            "httpGet": {"path": "/health", "port": "liveness-probe", "scheme": "HTTP"},
            "initialDelaySeconds": 60, "timeoutSeconds": 5, "successThreshold": 1, "failureThreshold": 5,
        },
        "readinessProbe": {"httpGet": {"path": "/ready", "port": "readiness-probe", "scheme": "HTTP"}},
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "capabilities": {"add": ["NET_BIND_SERVICE"], "drop": ["ALL"]},
            "readOnlyRootFilesystem": true,
        },
    })
}

fn service(ip: &str) -> Value {
    let port = |name: &str, number: u16, protocol: &str| json!({"name": name, "port": number, "protocol": protocol, "targetPort": number});
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {
            "name": "kube-dns", "namespace": "kube-system",
            "labels": {
                "k8s-app": "kube-dns", "kubernetes.io/cluster-service": "true", "kubernetes.io/name": "CoreDNS",
            },
            "annotations": {"prometheus.io/port": "9153", "prometheus.io/scrape": "true"},
        },
        "spec": {
            "clusterIP": ip,
            "ports": [port("dns", 53, "UDP"), port("dns-tcp", 53, "TCP"), port("metrics", 9153, "TCP")],
            "selector": {"k8s-app": "kube-dns"},
        },
    })
}
