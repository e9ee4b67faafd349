//! A Kubernetes namespace for one test, and kubectl in it.

use std::process::Command;

use serde_json::Value;

use crate::{
    cluster::Cluster,
    locks::TestGuards,
    process::{Background, Output, fetch_script, run, until},
};

/// A namespace in a cluster, with kubectl and helm as administrator. Most tests start with one.
pub struct Session<'a> {
    /// The cluster of the namespace.
    pub cluster: &'a Cluster,
    /// The namespace's name.
    pub namespace: String,
    /// The guards of a shared cluster; `None` for a cluster that only this test uses.
    _guards: Option<TestGuards>,
}

impl<'a> Session<'a> {
    pub(crate) fn create(cluster: &'a Cluster, test: &str, guards: TestGuards) -> Self {
        let session = Self { cluster, namespace: test.to_owned(), _guards: Some(guards) };
        run(cluster.command("kubectl", &["create", "namespace", test]), b"").ok();
        session
    }

    /// Returns a session in the default namespace of the test's own cluster.
    pub fn in_default_namespace(cluster: &'a Cluster) -> Self {
        Self { cluster, namespace: "default".to_owned(), _guards: None }
    }

    fn command(&self, program: &str, args: &[&str]) -> Command {
        let mut command = self.cluster.command(program, args.get(..1).unwrap_or_default());
        command.args(["--namespace", &self.namespace]).args(args.get(1..).unwrap_or_default());
        command
    }

    /// Runs kubectl. `line` is split at white space.
    #[track_caller]
    pub fn kubectl(&self, line: &str) -> Output {
        self.kubectl_with(&line.split_whitespace().collect::<Vec<_>>(), "")
    }

    /// Runs kubectl with separate arguments and with `input` on its standard input.
    #[track_caller]
    pub fn kubectl_with(&self, args: &[&str], input: &str) -> Output {
        run(self.command("kubectl", args), input.as_bytes())
    }

    /// Runs helm. `line` is split at white space.
    #[track_caller]
    pub fn helm(&self, line: &str) -> Output {
        run(self.command("helm", &line.split_whitespace().collect::<Vec<_>>()), b"")
    }

    /// Starts kubectl in the background.
    #[track_caller]
    pub fn start(&self, line: &str) -> Background {
        Background::start(self.command("kubectl", &line.split_whitespace().collect::<Vec<_>>()))
    }

    /// Applies manifests and returns kubectl's output. Panics on a failure.
    #[track_caller]
    pub fn apply(&self, manifest: &str) -> String {
        self.kubectl_with(&["apply", "-f", "-"], manifest).ok()
    }

    /// Runs a program on the node's network, outside of any Pod.
    #[track_caller]
    pub fn on_node(&self, program: &str, args: &[&str]) -> Output {
        run(self.cluster.command(program, args), b"")
    }

    /// Runs the command behind `--` in a terminal.
    #[track_caller]
    pub fn in_terminal(&self, line: &str) -> Output {
        let kubectl = self.command("kubectl", &line.split_whitespace().collect::<Vec<_>>());
        let words = kubectl
            .get_args()
            .skip_while(|word| *word != "--")
            .skip(1)
            .map(|word| word.to_string_lossy());
        let whole = words.collect::<Vec<_>>().join(" ");
        run(
            self.cluster
                .command("script", &["--quiet", "--return", "--command", &whole, "/dev/null"]),
            b"",
        )
    }

    /// Runs kubectl as the user of a bearer token.
    #[track_caller]
    pub fn with_token(&self, token: &str, line: &str) -> Output {
        self.with_credentials(&["--token", token], line)
    }

    /// Runs `auth whoami` with other credentials, given as flags of kubectl.
    #[track_caller]
    pub fn with_identity(&self, credentials: &[&str]) -> Output {
        self.with_credentials(credentials, "auth whoami")
    }

    fn with_credentials(&self, credentials: &[&str], line: &str) -> Output {
        let server =
            self.json("config view --minify -o json")["clusters"][0]["cluster"]["server"].clone();
        let authority = self.cluster.root().join("etc/kubernetes/pki/ca.crt").display().to_string();
        let server_flags = [
            "--server",
            server.as_str().unwrap_or_default(),
            "--certificate-authority",
            &authority,
        ];
        // Insert the flags after the first word: behind a `--` they would belong to another command.
        let mut words: Vec<&str> = line.split_whitespace().collect();
        let flags = server_flags.into_iter().chain(credentials.iter().copied());
        words.splice(1..1, flags);
        let mut command = self.command("kubectl", &words);
        run(command.env("KUBECONFIG", "/dev/null"), b"")
    }

    /// Parses the output of a kubectl command as JSON.
    #[track_caller]
    pub fn json(&self, line: &str) -> Value {
        let text = self.kubectl(line).ok();
        serde_json::from_str(&text)
            .unwrap_or_else(|e| panic!("{line} printed invalid JSON ({e}): {text}"))
    }

    /// Returns an object as `kubectl get -o json` prints it.
    #[track_caller]
    pub fn get(&self, what: &str) -> Value {
        self.json(&format!("get {what} -o json"))
    }

    /// Returns one field by JSONPath.
    #[track_caller]
    pub fn field(&self, what: &str, path: &str) -> String {
        self.kubectl(&format!("get {what} -o jsonpath={path}")).ok()
    }

    /// Waits until a kubectl command succeeds and prints what `wanted` accepts.
    #[track_caller]
    pub fn until(&self, line: &str, wanted: impl Fn(&str) -> bool) -> String {
        until(line, || self.kubectl(line).ok_if(&wanted))
    }

    /// Creates a Deployment of the test application and waits until it is available.
    #[track_caller]
    pub fn deploy(&self, name: &str, image: &str, replicas: u32) {
        self.kubectl(&format!(
            "create deployment {name} --image={image} --replicas={replicas} --port=8080"
        ))
        .ok();
        self.available(name);
    }

    /// Waits until a Deployment is rolled out. Panics with the namespace's state after 90 seconds.
    #[track_caller]
    pub fn available(&self, deployment: &str) {
        let ran = self.kubectl(&format!("rollout status deployment/{deployment} --timeout=90s"));
        assert!(ran.code == Some(0), "{ran}\n{}", self.state());
    }

    /// Creates the Pod `box`, which sleeps, and waits until it is Ready. Tests execute commands in it.
    #[track_caller]
    pub fn toolbox(&self) {
        self.kubectl("run box --image=box:1 --restart=Never").ok();
        let ran = self.kubectl("wait pod/box --for=condition=Ready --timeout=90s");
        assert!(ran.code == Some(0), "{ran}\n{}", self.state());
    }

    /// Fetches the test application's page from the Pod `box`. Repeats until an answer comes.
    #[track_caller]
    pub fn fetch(&self, host: &str, port: &str) -> String {
        self.fetch_until(host, port, "version")
    }

    /// Fetches the page until it starts with `begin`. The rules of a Service are updated shortly after a rollout.
    #[track_caller]
    pub fn fetch_until(&self, host: &str, port: &str, begin: &str) -> String {
        let script = fetch_script(host, port);
        until(&format!("a page of {host}:{port}"), || {
            let ran = self.kubectl_with(&["exec", "box", "--", "sh", "-c", &script], "");
            ran.ok_if(|page| page.starts_with(begin))
        })
    }

    /// Returns the state of the namespace for the message of a failed test.
    fn state(&self) -> String {
        ["get all -o wide", "describe pods", "get events --sort-by=.lastTimestamp"]
            .map(|line| self.kubectl(line).to_string())
            .join("\n")
    }
}

/// Deletes the namespace, so that its objects do not disturb later tests. After a failure the namespace is kept and the
/// cluster's diagnostics are printed.
impl Drop for Session<'_> {
    fn drop(&mut self) {
        if self._guards.is_none() {
            return;
        }
        if std::thread::panicking() {
            self.cluster.print_diagnostics();
        } else {
            let _ = self.kubectl(&format!("delete namespace {} --wait=false", self.namespace));
        }
    }
}
