//! A test's own namespace of a cluster, and kubectl in it.

use std::process::Command;

use serde_json::Value;

use crate::{
    Background, Cluster, Ran,
    cluster::Turn,
    diagnostics,
    process::{asking, run, until},
};

/// A namespace of a cluster and kubectl in it, which most tests work with.
pub struct Session<'a> {
    pub cluster: &'a Cluster,
    pub namespace: String,
    /// Held as long as the test runs.
    _turn: Option<Turn>,
}

impl<'a> Session<'a> {
    pub(crate) fn create(cluster: &'a Cluster, test: &str, turn: Turn) -> Self {
        let session = Self { cluster, namespace: test.to_owned(), _turn: Some(turn) };
        run(cluster.command("kubectl", &["create", "namespace", test]), b"").ok();
        session
    }

    /// The default namespace of a cluster that the test has for itself.
    pub fn own(cluster: &'a Cluster) -> Self {
        Self { cluster, namespace: "default".to_owned(), _turn: None }
    }

    fn command(&self, program: &str, args: &[&str]) -> Command {
        let mut command = self.cluster.command(program, args.get(..1).unwrap_or_default());
        command.args(["--namespace", &self.namespace]).args(args.get(1..).unwrap_or_default());
        command
    }

    /// Runs kubectl with words that hold no blanks.
    #[track_caller]
    pub fn kubectl(&self, line: &str) -> Ran {
        self.kubectl_with(&line.split_whitespace().collect::<Vec<_>>(), "")
    }

    /// Runs kubectl with words that hold anything, and input.
    #[track_caller]
    pub fn kubectl_with(&self, args: &[&str], input: &str) -> Ran {
        run(self.command("kubectl", args), input.as_bytes())
    }

    /// Runs helm, with words that hold no blanks.
    #[track_caller]
    pub fn helm(&self, line: &str) -> Ran {
        run(self.command("helm", &line.split_whitespace().collect::<Vec<_>>()), b"")
    }

    /// Starts kubectl beside the test.
    #[track_caller]
    pub fn start(&self, line: &str) -> Background {
        Background::start(self.command("kubectl", &line.split_whitespace().collect::<Vec<_>>()))
    }

    /// Applies manifests, which must succeed, and gives what kubectl said.
    #[track_caller]
    pub fn apply(&self, manifest: &str) -> String {
        self.kubectl_with(&["apply", "-f", "-"], manifest).ok()
    }

    /// Runs a program on the node's network, outside of any Pod.
    #[track_caller]
    pub fn on_node(&self, program: &str, args: &[&str]) -> Ran {
        run(self.cluster.command(program, args), b"")
    }

    /// Runs kubectl with a terminal for its input and output.
    #[track_caller]
    pub fn in_terminal(&self, line: &str) -> Ran {
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

    /// Runs kubectl as whoever a token stands for, and not as the administrator.
    #[track_caller]
    pub fn with_token(&self, token: &str, line: &str) -> Ran {
        self.with_credentials(&["--token", token], line)
    }

    /// Asks who one is by other credentials than the administrator's, given as kubectl's flags.
    #[track_caller]
    pub fn with_identity(&self, credentials: &[&str]) -> Ran {
        self.with_credentials(credentials, "auth whoami")
    }

    fn with_credentials(&self, credentials: &[&str], line: &str) -> Ran {
        let server =
            self.json("config view --minify -o json")["clusters"][0]["cluster"]["server"].clone();
        let authority = self.cluster.root().join("etc/kubernetes/pki/ca.crt").display().to_string();
        let given = [
            "--server",
            server.as_str().unwrap_or_default(),
            "--certificate-authority",
            &authority,
        ];
        // Behind the command's first word, because what follows `--` is for somebody else.
        let mut words: Vec<&str> = line.split_whitespace().collect();
        let flags = given.into_iter().chain(credentials.iter().copied());
        words.splice(1..1, flags);
        let mut command = self.command("kubectl", &words);
        run(command.env("KUBECONFIG", "/dev/null"), b"")
    }

    /// Starts a program on the node's network beside the test.
    #[track_caller]
    pub fn beside(&self, program: &str, args: &[&str]) -> Background {
        Background::start(self.cluster.command(program, args))
    }

    /// Parses the output of a kubectl command as JSON.
    #[track_caller]
    pub fn json(&self, line: &str) -> Value {
        let text = self.kubectl(line).ok();
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{line} gave no JSON ({e}): {text}"))
    }

    /// An object, as `kubectl get -o json` shows it.
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
        until(line, || self.kubectl(line).when(&wanted))
    }

    /// A deployment of the test application, all of it available.
    #[track_caller]
    pub fn deploy(&self, name: &str, image: &str, replicas: u32) {
        self.kubectl(&format!(
            "create deployment {name} --image={image} --replicas={replicas} --port=8080"
        ))
        .ok();
        self.available(name);
    }

    /// Waits until a Deployment is rolled out; a test fails with the namespace's state if it is not.
    #[track_caller]
    pub fn available(&self, deployment: &str) {
        let ran = self.kubectl(&format!("rollout status deployment/{deployment} --timeout=90s"));
        assert!(ran.code == Some(0), "{ran}\n{}", self.state());
    }

    /// A Pod that does nothing until something is executed in it.
    #[track_caller]
    pub fn toolbox(&self) {
        self.kubectl("run box --image=box:1 --restart=Never").ok();
        let ran = self.kubectl("wait pod/box --for=condition=Ready --timeout=90s");
        assert!(ran.code == Some(0), "{ran}\n{}", self.state());
    }

    /// Fetches the test application's page from within the cluster, until it is there.
    #[track_caller]
    pub fn fetch(&self, host: &str, port: &str) -> String {
        self.fetch_until(host, port, "version")
    }

    /// Fetches the page until it begins as wanted: a Service's rules follow a rollout a little later.
    #[track_caller]
    pub fn fetch_until(&self, host: &str, port: &str, begin: &str) -> String {
        let script = asking(host, port);
        until(&format!("a page of {host}:{port}"), || {
            let ran = self.kubectl_with(&["exec", "box", "--", "sh", "-c", &script], "");
            ran.when(|page| page.starts_with(begin))
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
        if self._turn.is_none() {
            return;
        }
        if std::thread::panicking() {
            diagnostics::print_cluster(self.cluster);
        } else {
            let _ = self.kubectl(&format!("delete namespace {} --wait=false", self.namespace));
        }
    }
}
