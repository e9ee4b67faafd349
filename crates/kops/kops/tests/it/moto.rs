//! Tests of a cluster on AWS, simulated by moto at `KOPS_MOTO=http://127.0.0.1:PORT`, with any key in AWS' variables.
//! moto is reset first.

use std::{
    cell::Cell,
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::SystemTime,
};

use clap::{Args as _, FromArgMatches as _};
use parking_lot::{Mutex, MutexGuard};
use serde_json::Value;

const CLUSTER: &str = include_str!("moto.yaml");
const NAME: &str = "demo.example.com";
/// The prefixes of operations that change nothing.
const READS: [&str; 3] = ["Describe", "List", "Get"];

/// The lock of moto, which serves one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

struct Moto {
    _alone: MutexGuard<'static, ()>,
    /// The address of the proxy for the state store.
    store: String,
    /// The requests to the state store since the last call of [`Self::settled`].
    store_requests: Arc<Mutex<Vec<String>>>,
    dir: tempfile::TempDir,
    /// The address of the proxy for AWS.
    endpoint: String,
    /// The operations requested since the last call of [`Self::operations`].
    operations: Arc<Mutex<Vec<String>>>,
    /// The number of changes that pass before the command is cut off as if killed.
    left: Arc<AtomicI64>,
    cuts: Cell<usize>,
}

impl Moto {
    /// Returns an empty moto with a bucket and a zone; `None` if the variable is not set.
    fn new() -> Option<Self> {
        let alone = ALONE.lock();
        let Ok(url) = std::env::var("KOPS_MOTO") else {
            eprintln!("skipped: KOPS_MOTO names no server of moto");
            return None;
        };
        let address = url.trim_start_matches("http://").trim_end_matches('/').to_owned();
        let zone = "<CreateHostedZoneRequest xmlns=\"https://route53.amazonaws.com/doc/2013-04-01/\"><Name>example.com</Name><CallerReference>a</CallerReference></CreateHostedZoneRequest>";
        for (line, service, body) in [
            ("POST /moto-api/reset", "moto", ""),
            ("PUT /store", "s3", ""),
            ("POST /2013-04-01/hostedzone", "route53", zone),
        ] {
            // moto reads the account from the signature's credential.
            let scope = format!("Credential=a/20260101/us-east-1/{service}/aws4_request");
            let signed = format!("AWS4-HMAC-SHA256 {scope}, SignedHeaders=host, Signature=a");
            let length = body.len();
            let text = format!(
                "{line} HTTP/1.1\r\nHost: {address}\r\nAuthorization: {signed}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
            );
            let answer = exchange(&address, text.as_bytes());
            let ok = answer.starts_with(b"HTTP/1.1 20");
            assert!(ok, "{line}: {}", String::from_utf8_lossy(&answer));
        }
        let (operations, left) = (Arc::default(), Arc::new(AtomicI64::new(i64::MAX)));
        let endpoint = between(&address, Arc::clone(&operations), Arc::clone(&left));
        let store_requests: Arc<Mutex<Vec<String>>> = Arc::default();
        let unlimited = Arc::new(AtomicI64::new(i64::MAX));
        let moto = Self {
            _alone: alone,
            store: between(&address, Arc::clone(&store_requests), unlimited),
            store_requests,
            dir: tempfile::tempdir().unwrap_or_else(|e| panic!("{e}")),
            endpoint,
            operations,
            left,
            cuts: Cell::default(),
        };
        moto.write(
            "addons/bootstrap-channel.yaml",
            "spec:\n  addons:\n  - {name: coredns, id: a, manifest: coredns/a.yaml}\n",
        );
        moto.write("addons/coredns/a.yaml", "kind: List\n");
        moto.write("known.yaml", "{}\n");
        moto.write("cluster.yaml", CLUSTER);
        Some(moto)
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.dir.path().join(name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).unwrap_or_else(|e| panic!("{e}"));
        }
        fs::write(path, text).unwrap_or_else(|e| panic!("{e}"));
    }

    fn kops(&self, arguments: &[&str]) -> Result<String, String> {
        let command = kops::Args::augment_args(clap::Command::new("kops"));
        let all = std::iter::once(&"kops").chain(arguments);
        let matches = command.try_get_matches_from(all).map_err(|e| e.to_string())?;
        let args = kops::Args::from_arg_matches(&matches).map_err(|e| e.to_string())?;
        let environment = |name: &str| {
            Some(match name {
                "KOPS_STATE_STORE" => "s3://store".to_owned(),
                "S3_ENDPOINT" => self.store.clone(),
                "S3_REGION" => "eu-west-1".to_owned(),
                "S3_ACCESS_KEY_ID" | "S3_SECRET_ACCESS_KEY" => "testing".to_owned(),
                "AWS_ENDPOINT_URL" => self.endpoint.clone(),
                _ => return None,
            })
        };
        let mut out = Vec::new();
        let mut around = kops::CommandEnvironment {
            now: SystemTime::now(),
            out: &mut out,
            environment: &environment,
        };
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
        let runtime = runtime.unwrap_or_else(|e| panic!("{e}"));
        runtime.block_on(kops::run(&args, &mut around)).map_err(|e| e.to_string())?;
        Ok(String::from_utf8_lossy(&out).into_owned())
    }

    fn update(&self, more: &[&str]) -> Result<String, String> {
        let (known, addons) = (self.path("known.yaml"), self.path("addons"));
        let first = ["update", "cluster", NAME, "--known", &known, "--addons", &addons];
        self.kops(&[&first, more].concat())
    }

    /// Creates the cluster in the store, and collects the hashes that it needs.
    fn created(self) -> Self {
        let file = self.path("cluster.yaml");
        self.kops(&["create", "-f", &file]).unwrap_or_else(|e| panic!("{e}"));
        let refused = self.update(&[]).expect_err("no hash is known");
        let urls = refused.lines().filter_map(|line| line.strip_prefix("  "));
        let files: String = urls
            .map(|url| format!("- {{canonical: '{url}', sha: {}}}\n", "a1".repeat(32)))
            .collect();
        assert!(!files.is_empty(), "{refused}");
        self.write("known.yaml", &format!("files:\n{files}"));
        self
    }

    /// Replaces a text in the cluster's objects.
    fn replace(&self, from: &str, to: &str) {
        let text = fs::read_to_string(self.path("cluster.yaml")).unwrap_or_default();
        assert!(text.contains(from), "{from}");
        self.write("cluster.yaml", &text.replace(from, to));
        let file = self.path("cluster.yaml");
        self.kops(&["replace", "-f", &file]).unwrap_or_else(|e| panic!("{e}"));
    }

    /// Returns the operations requested since the last call.
    fn operations(&self) -> Vec<String> {
        std::mem::take(&mut self.operations.lock())
    }

    /// Asserts that an update finds no change, and sends few requests whatever the size of the cluster.
    fn settled(&self) {
        let take = |requests: &Mutex<Vec<String>>| std::mem::take(&mut *requests.lock());
        take(&self.store_requests);
        self.operations();
        let output = self.update(&[]).unwrap_or_else(|e| panic!("{e}"));
        assert!(output.starts_with("No changes need to be applied\n"), "{output}");
        let operations = self.operations();
        let requests = take(&self.store_requests).len();
        eprintln!("{} calls of AWS, {requests} requests to the store", operations.len());
        assert!(operations.len() <= 40, "{} calls: {operations:?}", operations.len());
        assert!(requests <= 20, "{requests} requests to the store");
        assert!(
            operations.iter().all(|one| READS.iter().any(|verb| one.starts_with(verb))),
            "{operations:?}"
        );
    }

    /// Repeats a command until it succeeds, cutting it off after `changes` changes each time.
    fn killed(&self, changes: i64, run: impl Fn() -> Result<String, String>) -> String {
        for _ in 0..200 {
            self.left.store(changes, Ordering::SeqCst);
            let done = run();
            let was_cut = self.left.swap(i64::MAX, Ordering::SeqCst) < 0;
            match done {
                Ok(output) => return output,
                Err(error) => assert!(was_cut, "{error}"),
            }
            self.cuts.set(self.cuts.get() + 1);
        }
        panic!("it does not end")
    }
}

/// Sends a request, and reads until the server closes the connection.
fn exchange(address: &str, request: &[u8]) -> Vec<u8> {
    let mut answer = Vec::new();
    let sent = TcpStream::connect(address).and_then(|mut stream| {
        stream.write_all(request)?;
        stream.read_to_end(&mut answer)
    });
    sent.unwrap_or_else(|e| panic!("{address}: {e}"));
    answer
}

/// Starts a proxy between a command and moto.
fn between(address: &str, operations: Arc<Mutex<Vec<String>>>, left: Arc<AtomicI64>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap_or_else(|e| panic!("{e}"));
    let own = listener.local_addr().unwrap_or_else(|e| panic!("{e}"));
    let address = address.to_owned();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let Some(request) = read_request(&mut stream) else { continue };
            let operation = operation(&String::from_utf8_lossy(&request));
            let reads = READS.iter().any(|verb| operation.starts_with(verb));
            operations.lock().push(operation.clone());
            if !reads {
                let still = left.fetch_sub(1, Ordering::SeqCst);
                if still <= 0 {
                    // Every other time the change is made, but its answer is lost. moto forgets the tags of DHCP
                    // options.
                    if still == 0 && request.len() % 2 == 0 && operation != "CreateDhcpOptions" {
                        exchange(&address, &request);
                    }
                    continue;
                }
            }
            let _ = stream.write_all(&exchange(&address, &request));
        }
    });
    format!("http://{own}")
}

/// Reads a request, changed to be the last of its connection.
fn read_request(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut reader = BufReader::new(stream);
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().ok()?;
        }
        if line == "\r\n" {
            head.push_str("Connection: close\r\n\r\n");
            break;
        }
        head.push_str(&line);
    }
    let mut whole = head.into_bytes();
    let start = whole.len();
    whole.resize(start + length, 0);
    reader.read_exact(whole.get_mut(start..)?).ok()?;
    Some(whole)
}

/// Returns the operation of a request, in any of the protocols.
fn operation(request: &str) -> String {
    let after = |mark: &str, end: char| {
        let (_, rest) = request.split_once(mark)?;
        rest.split(end).next().map(|name| name.trim().to_owned())
    };
    let target =
        after("x-amz-target: ", '\r').and_then(|one| Some(one.split_once('.')?.1.to_owned()));
    let action = after("Action=", '&');
    let path = if request.starts_with("GET ") { "GetByPath" } else { "ChangeByPath" };
    action.or(target).unwrap_or_else(|| path.to_owned())
}

#[test]
fn manages_a_cluster_from_creation_to_deletion() {
    let Some(moto) = Moto::new().map(Moto::created) else { return };
    let planned = moto.update(&[]).unwrap();
    assert!(planned.contains("Will create resources:\n  VPC/demo.example.com\n"), "{planned}");
    assert!(planned.ends_with("Must specify --yes to apply changes\n"));
    let operations = moto.operations();
    assert!(
        operations.iter().all(|one| READS.iter().any(|verb| one.starts_with(verb))),
        "{operations:?}"
    );
    let done = moto.killed(5, || moto.update(&["--yes"]));
    assert!(done.contains("resources were changed."), "{done}");
    assert!(moto.cuts.get() > 10, "it was killed {} times", moto.cuts.get());
    moto.settled();
    let shown = moto.kops(&["get", "instances", "--name", NAME]).unwrap();
    assert_eq!(shown.matches("UpToDate").count(), 3, "{shown}");
    let dump = moto.kops(&["toolbox", "dump", NAME, "-ojson"]).unwrap();
    let dump: Value = serde_json::from_str(&dump).unwrap();
    let roles: Vec<_> =
        dump["instances"].as_array().unwrap().iter().map(|one| &one["roles"][0]).collect();
    assert_eq!(roles.iter().filter(|role| ***role == "node").count(), 2, "{roles:?}");
    assert_eq!(roles.len(), 3, "{roles:?}");
    machines_are_replaced(&moto);
    sizes_and_scripts(&moto);
    groups_come_and_go(&moto);
    let listed = moto.kops(&["delete", "cluster", NAME]).unwrap();
    assert!(
        listed.contains("VPC") && listed.ends_with("Must specify --yes to delete cluster\n"),
        "{listed}"
    );
    moto.killed(7, || moto.kops(&["delete", "cluster", NAME, "--yes"]));
    let left = inventory(&moto);
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn settles_many_groups_with_few_requests() {
    let Some(moto) = Moto::new() else { return };
    let handler =
        "spec:\n  nodeTerminationHandler: {enabled: true, enableSQSTerminationDraining: true}\n";
    let mut text = CLUSTER.replacen("spec:\n", handler, 1).replace("minSize: 2,", "minSize: 0,");
    let workers = text.split("---\n").last().unwrap_or_default().to_owned();
    for number in 2..99 {
        let named = workers.replace("name: workers", &format!("name: workers-{number}"));
        text.push_str(&format!("---\n{named}"));
    }
    moto.write("cluster.yaml", &text);
    let moto = moto.created();
    moto.update(&["--yes"]).unwrap_or_else(|e| panic!("{e}"));
    moto.settled();
}

fn sizes_and_scripts(moto: &Moto) {
    moto.replace("minSize: 2, maxSize: 4", "minSize: 3, maxSize: 5");
    let planned = moto.update(&[]).unwrap_or_else(|e| panic!("{e}"));
    let wanted = "Will modify resources:\n  AutoscalingGroup/workers.demo.example.com\n  \tMaxSize             \t\"4\" -> \"5\"\n  \tMinSize             \t\"2\" -> \"3\"\n";
    assert!(planned.starts_with(wanted), "{planned}");
    moto.operations();
    moto.update(&["--yes"]).unwrap_or_else(|e| panic!("{e}"));
    let changed: Vec<_> = moto.operations();
    let changed = changed.iter().filter(|one| !READS.iter().any(|verb| one.starts_with(verb)));
    assert_eq!(changed.collect::<Vec<_>>(), ["UpdateAutoScalingGroup"]);
    moto.settled();
    // Another script creates a new version of the template, and the machines are outdated.
    moto.replace(
        "minSize: 3,",
        "additionalUserData: [{name: a, type: text/x-shellscript, content: echo}], minSize: 3,",
    );
    let plan = moto.path("plan.json");
    let planned = moto.update(&["--plan-out", &plan]).unwrap_or_else(|e| panic!("{e}"));
    assert!(
        planned.contains("LaunchTemplate/workers.demo.example.com\n  \tUserData "),
        "{planned}"
    );
    let plan: Value = serde_json::from_slice(&fs::read(plan).unwrap_or_else(|e| panic!("{e}")))
        .unwrap_or_else(|e| panic!("{e}"));
    let outdated = plan.get("needsRollingUpdate").and_then(Value::as_array).map_or(0, Vec::len);
    assert_eq!(outdated, 3, "{plan}");
    moto.update(&["--yes"]).unwrap_or_else(|e| panic!("{e}"));
    let output = moto.update(&[]).unwrap_or_else(|e| panic!("{e}"));
    assert!(output.starts_with("No changes need to be applied\nMachines that"), "{output}");
    assert!(
        output.contains("created from version 1 of its launch template; the latest is 2"),
        "{output}"
    );
    let shown = moto.kops(&["get", "instances", "--name", NAME]).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(shown.matches("NeedsUpdate\tworkers").count(), 3, "{shown}");
    // moto cannot launch machines from a second version.
    moto.operations();
    let roll = ["rolling-update", "cluster", NAME, "--cloudonly"];
    let preview = moto.kops(&roll).unwrap_or_else(|e| panic!("{e}"));
    let row = preview.lines().find(|line| line.starts_with("workers")).unwrap_or_default();
    let row: Vec<_> = row.split('\t').filter(|cell| !cell.is_empty()).collect();
    assert_eq!(row, ["workers", "NeedsUpdate", "3", "0", "3", "3", "5"], "{preview}");
    assert!(preview.contains("cp\t") && preview.contains("Must specify --yes"), "{preview}");
    let operations = moto.operations();
    assert!(
        operations.iter().all(|one| READS.iter().any(|verb| one.starts_with(verb))),
        "{operations:?}"
    );
}

fn machines_are_replaced(moto: &Moto) {
    let roll = ["rolling-update", "cluster", NAME, "--cloudonly", "--node-interval", "0s"];
    let none = moto.kops(&roll).unwrap_or_else(|e| panic!("{e}"));
    assert!(none.contains("No rolling-update required"), "{none}");
    let before = moto.kops(&["get", "instances", "--name", NAME]).unwrap_or_else(|e| panic!("{e}"));
    let force = ["--force", "--instance-group", "workers", "--yes"];
    let rolled = moto.kops(&[&roll[..], &force].concat()).unwrap_or_else(|e| panic!("{e}"));
    assert!(rolled.contains("Rolling update completed for cluster"), "{rolled}");
    let after = moto.kops(&["get", "instances", "--name", NAME]).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(after.matches("UpToDate").count(), 3, "{after}");
    let ids = |shown: &str, group: &str| -> Vec<String> {
        let lines = shown.lines().filter(|line| line.contains(group));
        lines.filter_map(|line| line.split('\t').next()).map(str::to_owned).collect()
    };
    assert_eq!(ids(&before, "\tcp\t"), ids(&after, "\tcp\t"));
    let (old, new) = (ids(&before, "\tworkers\t"), ids(&after, "\tworkers\t"));
    assert!(new.len() == 2 && new.iter().all(|id| !old.contains(id)), "{before} {after}");
    // The group makes another machine before this one ends.
    moto.operations();
    let end = ["delete", "instance", &new[0], "--name", NAME, "--cloudonly", "--yes"];
    moto.kops(&end).unwrap_or_else(|e| panic!("{e}"));
    let changed: Vec<_> = moto.operations();
    let changed = changed.iter().filter(|one| !READS.iter().any(|verb| one.starts_with(verb)));
    let expected = ["CreateTags", "DetachInstances", "TerminateInstances"];
    assert_eq!(changed.collect::<Vec<_>>(), expected);
    let left = moto.kops(&["get", "instances", "--name", NAME]).unwrap_or_else(|e| panic!("{e}"));
    assert!(left.matches("UpToDate").count() == 3 && !left.contains(&new[0]), "{left}");
    // Validation needs the API.
    let validate = ["validate", "cluster", NAME];
    let error = moto.kops(&validate).expect_err("no address of the API is known");
    assert!(error.contains("--api-server"), "{error}");
    let error = moto.kops(&[&validate[..], &["--api-server", "https://127.0.0.1:1"]].concat());
    let error = error.expect_err("the API does not answer");
    assert!(error.contains("has 1 failures"), "{error}");
    let error =
        moto.kops(&["rolling-update", "cluster", NAME, "--api-server", "https://127.0.0.1:1"]);
    let error = error.expect_err("the API does not answer");
    assert!(error.contains("--cloudonly"), "{error}");
}

fn groups_come_and_go(moto: &Moto) {
    // A range that is no longer allowed is removed; foreign rules stay.
    moto.replace("sshAccess: [198.51.100.0/24]", "sshAccess: [203.0.113.0/24]");
    let planned = moto.update(&[]).unwrap_or_else(|e| panic!("{e}"));
    assert!(planned.contains("Will delete resources:\n  SecurityGroupRule/sg-"), "{planned}");
    moto.update(&["--yes"]).unwrap_or_else(|e| panic!("{e}"));
    moto.kops(&["delete", "ig", "workers", "--name", NAME, "--yes"])
        .unwrap_or_else(|e| panic!("{e}"));
    let planned = moto.update(&[]).unwrap_or_else(|e| panic!("{e}"));
    let gone = planned.split("Will delete resources:\n").nth(1).unwrap_or_default().to_owned();
    for one in
        ["AutoscalingGroup/workers.demo", "LaunchTemplate/workers.demo", "igconfig/node/workers"]
    {
        assert!(gone.contains(one), "{one}: {planned}");
    }
    moto.update(&["--yes"]).unwrap_or_else(|e| panic!("{e}"));
    moto.settled();
}

/// Returns the cluster's resources that moto still has.
fn inventory(moto: &Moto) -> Vec<String> {
    let environment = |name: &str| (name == "AWS_ENDPOINT_URL").then(|| moto.endpoint.clone());
    let client = aws::Client::open("eu-west-1", &environment).unwrap_or_else(|e| panic!("{e}"));
    let given = aws::StaticKey { key: "a".to_owned(), secret: "b".to_owned(), from: "test" };
    let client = client.with_key(given);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap_or_else(|e| panic!("{e}"));
    let mut left = Vec::new();
    for (service, operation) in [
        ("ec2", "DescribeVpcs"),
        ("ec2", "DescribeSubnets"),
        ("ec2", "DescribeVolumes"),
        ("ec2", "DescribeSecurityGroups"),
        ("ec2", "DescribeAddresses"),
        ("ec2", "DescribeDhcpOptions"),
        ("ec2", "DescribeKeyPairs"),
        ("ec2", "DescribeLaunchTemplates"),
        ("autoscaling", "DescribeAutoScalingGroups"),
        ("elbv2", "DescribeLoadBalancers"),
        ("elbv2", "DescribeTargetGroups"),
        ("iam", "ListInstanceProfiles"),
        ("events", "ListRules"),
    ] {
        let answer = runtime
            .block_on(client.call(service, operation, &Value::Null))
            .unwrap_or_else(|e| panic!("{e}"));
        if answer.to_string().contains("demo.example.com")
            || answer.to_string().contains("demo-example-com")
        {
            left.push(format!("{operation}: {answer}"));
        }
    }
    left
}

#[test]
fn asks_aws_for_facts_of_a_new_cluster() {
    let Some(moto) = Moto::new() else { return };
    moto.write(
        "channel",
        "spec:\n  images:\n  - {name: ami-1, providerID: aws, architectureID: amd64}\n",
    );
    let channel = moto.path("channel");
    let create = |flags: &[&str]| {
        let usual = ["create", "cluster", NAME, "--zones", "us-east-1a", "--channel", &channel];
        moto.kops(
            &[&usual[..], &["--kubernetes-version", "1.36.1", "--dry-run", "-ojson"], flags]
                .concat(),
        )
    };
    let shown = create(&["--dns", "public"]).unwrap_or_else(|e| panic!("{e}"));
    let objects: Vec<Value> = serde_json::from_str(&shown).unwrap_or_else(|e| panic!("{e}"));
    let types: Vec<_> = objects[1..].iter().map(|group| &group["spec"]["machineType"]).collect();
    assert_eq!(types, ["t3.medium", "t3.medium"], "{shown}");
    let error = create(&["--subnets", "subnet-9"]).expect_err("no such subnet");
    assert!(error.contains("subnet-9"), "{error}");
    let error = create(&["--network-id", "vpc-9"]).expect_err("no such network");
    assert!(error.contains("vpc-9"), "{error}");
    let list = moto.operations();
    assert!(list.iter().all(|name| READS.iter().any(|read| name.starts_with(read))), "{list:?}");
}
