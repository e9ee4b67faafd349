//! Attacks through the API server's proxies: it does not connect to an address that an attacker puts into a name, a
//! status or an EndpointSlice.

use std::net::TcpListener;

use e2e::{Session, in_network, shared_alone};

/// A listener on the loopback interface of the API server's machine. It must receive no connection.
struct Trap(TcpListener);

impl Trap {
    fn set(s: &Session<'_>) -> Self {
        let network = s.cluster.namespace.path();
        let listener = in_network(&network, || TcpListener::bind("127.0.0.1:0"));
        let listener = listener.unwrap_or_else(|e| panic!("listening: {e}"));
        listener.set_nonblocking(true).unwrap();
        Self(listener)
    }

    fn port(&self) -> u16 {
        self.0.local_addr().unwrap().port()
    }

    #[track_caller]
    fn is_untouched(&self, what: &str) {
        assert!(self.0.accept().is_err(), "{what} connected");
    }
}

/// Returns a Pod that is never scheduled, so that only the attacker writes its status.
fn pod(name: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  schedulerName: nobody\n  \
         containers: [{{name: c, image: none.example/none}}]\n"
    )
}

#[test]
fn proxies_reject_addresses_that_an_attacker_names() {
    // The Node created below is never Ready, which would disturb other tests.
    let s = shared_alone("attack-proxy");
    let trap = Trap::set(&s);
    let (namespace, port) = (&s.namespace, trap.port());
    s.apply(&pod("p"));
    let status = |pod: &str, ip: &str| {
        let patch =
            format!("{{\"status\":{{\"podIP\":\"{ip}\",\"podIPs\":[{{\"ip\":\"{ip}\"}}]}}}}");
        let patch = ["patch", "pod", pod, "--subresource=status", "--type=merge", "-p", &patch];
        s.kubectl_with(&patch, "").ok();
    };
    status("p", "10.255.255.1");
    let pods = format!("/api/v1/namespaces/{namespace}/pods");
    for name in [
        format!("http:p:80@127.0.0.1:{port}"),
        format!("http:p:80@169.254.169.254:{port}"),
        format!("p:80@127.0.0.1:{port}"),
        format!("p:{port}@127.0.0.1"),
        format!("http:p:80%40127.0.0.1%3A{port}"),
    ] {
        let refused = s.kubectl(&format!("get --raw {pods}/{name}/proxy/")).refused();
        trap.is_untouched(&name);
        assert!(refused.contains("invalid pod request"), "{name}: {refused}");
    }
    for ip in ["127.0.0.1", "169.254.169.254", "::1"] {
        status("p", ip);
        let refused = s.kubectl(&format!("get --raw {pods}/http:p:{port}/proxy/")).refused();
        trap.is_untouched(ip);
        assert!(refused.contains("address not allowed"), "{ip}: {refused}");
    }
    // A node itself reports the address and port of its kubelet.
    let node = format!("{namespace}-node");
    s.apply(&format!("apiVersion: v1\nkind: Node\nmetadata: {{name: {node}}}\n"));
    let patch = format!(
        "{{\"status\":{{\"addresses\":[{{\"type\":\"InternalIP\",\"address\":\"127.0.0.1\"}}],\
         \"daemonEndpoints\":{{\"kubeletEndpoint\":{{\"Port\":{port}}}}}}}}}"
    );
    let patch = ["patch", "node", &node, "--subresource=status", "--type=merge", "-p", &patch];
    s.kubectl_with(&patch, "").ok();
    for name in [node.clone(), format!("{node}:{port}"), format!("https:{node}:{port}")] {
        let refused = s.kubectl(&format!("get --raw /api/v1/nodes/{name}/proxy/pods")).refused();
        trap.is_untouched(&name);
        assert!(refused.contains("address not allowed"), "{name}: {refused}");
    }
    s.kubectl(&format!("delete node {node}")).ok();
    // An EndpointSlice may contain any address, but the proxy only connects to Pods of its namespace.
    s.kubectl("create service clusterip s --tcp=80:80").ok();
    let address =
        s.json("get nodes -o json")["items"][0]["status"]["addresses"][0]["address"].clone();
    let address = address.as_str().unwrap_or_default();
    s.apply(&format!(
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
         metadata: {{name: s-by-hand, labels: {{kubernetes.io/service-name: s}}}}\n\
         addressType: IPv4\nports: [{{name: 80-80, port: 6443}}]\n\
         endpoints: [{{addresses: [{address}], targetRef: {{kind: Pod, namespace: {namespace}, name: p}}}}]\n"
    ));
    let services = format!("/api/v1/namespaces/{namespace}/services");
    let refused = s.kubectl(&format!("get --raw {services}/https:s:80/proxy/")).refused();
    assert!(refused.contains("no endpoints available for service"), "{refused}");
}
