//! `up` with a scheduler extender that the test implements: Pods that it filters, scores and binds, and its failures.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{Shutdown, TcpListener, TcpStream},
    path::Path,
    sync::Arc,
    thread,
};

use e2e::{Cluster, Session, in_network, share_machine};
use serde_json::{Value, json};

/// An extender on the cluster's loopback interface. The name of a Pod decides how it answers.
struct Extender {
    listener: TcpListener,
    accepting: thread::JoinHandle<()>,
}

/// Binds a Pod, given the request of the scheduler.
type Bind = dyn Fn(&Value) + Send + Sync;

impl Extender {
    /// Starts the extender at a port; 0 for any one.
    fn start(network: &Path, port: u16, bind: &Arc<Bind>) -> Self {
        let listener = in_network(network, || TcpListener::bind(("127.0.0.1", port)).unwrap());
        let (own, bind) = (listener.try_clone().unwrap(), bind.clone());
        let accepting = thread::spawn(move || {
            while let Ok((stream, _)) = own.accept() {
                let bind = bind.clone();
                thread::spawn(move || answer(stream, &*bind));
            }
        });
        Self { listener, accepting }
    }

    fn port(&self) -> u16 {
        self.listener.local_addr().unwrap().port()
    }

    fn stop(self) {
        rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both).unwrap();
        self.accepting.join().unwrap();
    }
}

/// Answers one request. The scheduler may close the connection at any time.
fn answer(mut stream: TcpStream, bind: &Bind) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let (mut verb, mut length) = (String::new(), 0);
    reader.read_line(&mut verb).ok()?;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        match line.trim().split_once(':') {
            None => break,
            Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                length = value.trim().parse().ok()?;
            }
            Some(_) => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let request: Value = serde_json::from_slice(&body).ok()?;
    let reply = |mut stream: TcpStream, body: &str| {
        let length = body.len();
        let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close";
        write!(stream, "{head}\r\nContent-Length: {length}\r\n\r\n{body}").ok()
    };
    if verb.contains("/bind ") {
        bind(&request);
        return reply(stream, "{}");
    }
    if verb.contains("/prioritize ") {
        return reply(stream, r#"[{"Host": "worker", "Score": 10}]"#);
    }
    match request["Pod"]["metadata"]["name"].as_str()? {
        "nonsense" => reply(stream, "<html>"),
        "hang" => reader.read(&mut [0]).ok().map(drop),
        "huge" => {
            let chunk = vec![b' '; 1 << 20];
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 104857600\r\n\r\n").ok()?;
            (0..100).try_for_each(|_| stream.write_all(&chunk)).ok()?;
            stream.shutdown(Shutdown::Both).ok()
        }
        _ => reply(stream, &json!({"NodeNames": request["NodeNames"]}).to_string()),
    }
}

const POD: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: box:1
    command: [sh, -c, "exec sleep 100000"]
    resources: {limits: LIMITS}
---
"#;

/// Returns the manifest of a Pod of the extender, whose resource no node has.
fn extended(name: &str) -> String {
    POD.replace("NAME", name).replace("LIMITS", "{e2e.example.com/gpu: 1}")
}

/// Writes the documents of `up` and of the scheduler, and returns the path of the first one.
fn documents(cluster: &Cluster, port: u16) -> String {
    let [scheduler, document] =
        ["scheduler.yaml", "cluster.yaml"].map(|name| cluster.directory.join(name));
    let extender = format!(
        "{{urlPrefix: 'http://127.0.0.1:{port}/scheduler', filterVerb: filter, prioritizeVerb: prioritize, \
         bindVerb: bind, weight: 100, httpTimeout: 1s, nodeCacheCapable: true, \
         managedResources: [{{name: e2e.example.com/gpu, ignoredByScheduler: true}}]}}"
    );
    let head = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration";
    fs::write(&scheduler, format!("{head}\nextenders: [{extender}]\n")).unwrap();
    let head = "apiVersion: windlass.io/v1alpha1\nkind: Cluster\nnodes: [{}, {}]";
    let flag = format!("{{name: config, value: {}}}", scheduler.display());
    fs::write(&document, format!("{head}\nscheduler: {{extraArgs: [{flag}]}}\n")).unwrap();
    document.display().to_string()
}

#[test]
fn extender_decides_about_its_pods_and_its_failures_are_shown() {
    let _turn = share_machine();
    let cluster = Arc::new(Cluster::new("extenders"));
    let (network, binding) = (cluster.namespace.path(), Arc::downgrade(&cluster));
    let bind: Arc<Bind> = Arc::new(move |request: &Value| {
        let Some(cluster) = binding.upgrade() else { return };
        let (name, namespace) = (request["PodName"].as_str(), request["PodNamespace"].as_str());
        let path =
            format!("/api/v1/namespaces/{}/pods/{}/binding", namespace.unwrap(), name.unwrap());
        let target = json!({"kind": "Node", "name": request["Node"]});
        let object = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target});
        let s = Session::in_default_namespace(&cluster);
        s.kubectl_with(&["create", "--raw", &path, "-f", "-"], &object.to_string()).ok();
    });
    let extender = Extender::start(&network, 0, &bind);
    let port = extender.port();
    cluster.up_with(&["--config", &documents(&cluster, port)]).ok();
    cluster.build_images();
    let s = Session::in_default_namespace(&cluster);
    s.until("get node worker -o jsonpath={.spec.taints}", str::is_empty);
    let failing = ["nonsense", "hang", "huge"];
    let plain = POD.replace("NAME", "plain").replace("LIMITS", "{cpu: 10m}");
    s.apply(&(failing.map(extended).concat() + &extended("good") + &plain));
    for pod in ["good", "plain"] {
        s.kubectl(&format!("wait pod/{pod} --for=condition=Ready --timeout=60s")).ok();
    }
    assert_eq!(s.field("pod good", "{.spec.nodeName}"), "worker", "the extender prefers it");
    let url = format!("Post \"http://127.0.0.1:{port}/scheduler/filter\": ");
    let shows = |pod: &str, words: &str| {
        s.until(&format!("describe pod {pod}"), |text| {
            text.contains("FailedScheduling") && text.contains(words)
        });
        assert_eq!(s.field(&format!("pod {pod}"), "{.status.phase}{.spec.nodeName}"), "Pending");
    };
    shows("nonsense", "decode the answer of extender");
    shows("hang", &format!("{url}context deadline exceeded"));
    shows("huge", &url);
    extender.stop();
    s.apply(&extended("later"));
    shows("later", &format!("{url}dial tcp 127.0.0.1:{port}: connect: connection refused"));
    let extender = Extender::start(&network, port, &bind);
    s.kubectl("wait pod/later --for=condition=Ready --timeout=60s").ok();
    extender.stop();
    cluster.down(&[]).ok();
}
