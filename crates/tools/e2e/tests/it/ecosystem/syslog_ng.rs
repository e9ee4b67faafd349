//! Debian's syslog-ng as the nodes' log collector: each line of a Pod arrives once, although logs are rotated and the
//! container restarts.

use std::{collections::BTreeMap, path::Path};

use e2e::{Cluster, HostImage, Session, share_machine, until};

const HOME: &str = "/usr/lib/syslog-ng/3.38";

/// The collector reads the logs by the links that kubelets make, and keeps the file's name beside each line.
const CONFIGURATION: &str = r#"@version: 3.38
source logs {
  wildcard-file(base-dir("/var/log/containers") filename-pattern("*.log") flags(no-parse) follow-freq(0.1));
};
destination lines { file("/data/lines" template("$FILE_NAME ${MSG}\n")); };
log { source(logs); destination(lines); };
"#;

const COLLECTOR: &str = "
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: collector}
spec:
  selector: {matchLabels: {app: collector}}
  template:
    metadata: {labels: {app: collector}}
    spec:
      terminationGracePeriodSeconds: 1
      tolerations: [{operator: Exists}]
      volumes:
      - {name: logs, hostPath: {path: /var/log}}
      - {name: data, emptyDir: {}}
      containers:
      - name: collector
        image: syslog-ng:3
        volumeMounts:
        - {name: logs, mountPath: /var/log, readOnly: true}
        - {name: data, mountPath: /data}
";

/// The number of lines of each run of the writer, which are much more than a log may have.
const LINES: usize = 1000;

/// The writer runs twice and counts its runs in a volume, which outlives the container.
const WRITER: &str = r"
apiVersion: v1
kind: Pod
metadata: {name: writer}
spec:
  terminationGracePeriodSeconds: 0
  volumes: [{name: runs, emptyDir: {}}]
  containers:
  - name: writer
    image: box:1
    volumeMounts: [{name: runs, mountPath: /runs}]
    command:
    - sh
    - -c
    - |
      touch /runs/$(ls /runs | wc -l)
      run=$(ls /runs | wc -l)
      [ $run -le 2 ] || exec sleep 100000
      n=0
      while [ $n -lt LINES ]; do
        n=$((n + 1)); echo run $run line $n of a Pod whose log is rotated and whose container restarts
        [ $((n % 50)) != 0 ] || sleep 0.3
      done
";

fn image() -> HostImage {
    let arguments = [
        "syslog-ng",
        "--foreground",
        "--no-caps",
        "--cfgfile=/etc/syslog-ng.conf",
        "--persist-file=/data/persist",
        "--control=/data/control",
        "--pidfile=/data/pid",
    ];
    let mut image = HostImage::new("syslog-ng:3", &arguments)
        .shell()
        .program(Path::new("/usr/sbin/syslog-ng"), "/usr/sbin/syslog-ng")
        .text("/etc/syslog-ng.conf", CONFIGURATION);
    for library in ["libaffile.so", "libsyslogformat.so"] {
        let path = format!("{HOME}/{library}");
        image = image.program(Path::new(&path), &path);
    }
    image
}

/// Returns how often each line of the writer has arrived.
fn collected(s: &Session<'_>) -> Result<BTreeMap<(usize, usize), usize>, String> {
    let lines = s.kubectl("exec daemonset/collector -- cat /data/lines").ok_if(|_| true)?;
    let mut counts = BTreeMap::new();
    for line in lines.lines().filter(|line| line.contains("/writer_default_writer-")) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let at = words.iter().position(|word| *word == "run").ok_or(line)?;
        let number = |at: usize| words.get(at).and_then(|word| word.parse().ok()).ok_or(line);
        *counts.entry((number(at + 1)?, number(at + 3)?)).or_insert(0) += 1;
    }
    Ok(counts)
}

#[test]
fn collector_receives_each_line_of_rotated_logs_once() {
    let _turn = share_machine();
    let cluster = Cluster::new("logs");
    let config = cluster.directory.join("cluster.yaml");
    let document = "apiVersion: windlass.io/v1alpha1\nkind: Cluster\n\
        kubelet: {containerLogMaxSize: 20Ki, containerLogMaxFiles: 5, containerLogMonitorInterval: 3s}\n";
    std::fs::write(&config, document).unwrap();
    cluster.up_with(&["--config", &config.display().to_string()]).ok();
    cluster.build_images();
    cluster.import(&image());
    let s = Session::in_default_namespace(&cluster);
    s.apply(COLLECTOR);
    s.kubectl("rollout status daemonset collector --timeout=90s").ok();
    s.apply(&WRITER.replace("LINES", &LINES.to_string()));
    let wanted = 2 * LINES;
    until("all lines", || match collected(&s)? {
        lines if lines.len() >= wanted => Ok(()),
        lines => Err(format!("{} of {wanted} lines", lines.len())),
    });
    let lines = collected(&s).unwrap();
    let twice: Vec<_> = lines.iter().filter(|(_, count)| **count != 1).collect();
    assert!(twice.is_empty() && lines.len() == wanted, "{} lines; twice: {twice:?}", lines.len());
    let uid = s.field("pod writer", "{.metadata.uid}");
    let logs = cluster.root().join(format!("var/log/pods/default_writer_{uid}/writer"));
    let names = cluster.run("ls", &[&logs.display().to_string()]).ok();
    assert!(names.lines().any(|name| name.starts_with("0.log.")), "no log was rotated: {names}");
    assert!(names.lines().any(|name| name.starts_with("1.log.")), "no log was rotated: {names}");
    cluster.down(&[]).ok();
}
