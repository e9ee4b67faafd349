//! PostgreSQL as a StatefulSet with a claim: no acknowledged row is lost, whatever is killed.

use std::{collections::BTreeSet, fs, path::Path};

use e2e::{Cluster, HostImage, Session, share_machine, until};

const HOME: &str = "/usr/lib/postgresql/15";
/// Creates the database if the volume is empty, and becomes the server.
const START: &str = "
    export PGDATA=/data/pg
    [ -s $PGDATA/global/pg_control ] || {
        rm -rf $PGDATA
        initdb --username postgres --auth trust --locale C --encoding UTF8 || exit 1
        echo 'host all all all trust' >>$PGDATA/pg_hba.conf
    }
    exec postgres -c listen_addresses='*' -c unix_socket_directories=/tmp -c jit=off";

/// The database on the second node, which the test can stop.
const DATABASE: &str = "
apiVersion: v1
kind: Service
metadata: {name: db}
spec: {selector: {app: db}, ports: [{port: 5432}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      nodeSelector: {kubernetes.io/hostname: worker}
      securityContext: {runAsUser: 999, runAsGroup: 999, fsGroup: 999, fsGroupChangePolicy: OnRootMismatch}
      containers:
      - name: postgres
        image: postgres:15
        ports: [{containerPort: 5432}]
        readinessProbe: {exec: {command: [pg_isready, -h, 127.0.0.1]}, periodSeconds: 1}
        volumeMounts: [{name: data, mountPath: /data}]
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
";

/// A client on the first node. It prints each number whose insertion was acknowledged.
const WRITER: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: writer}
spec:
  affinity:
    nodeAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        nodeSelectorTerms:
        - matchExpressions: [{key: kubernetes.io/hostname, operator: NotIn, values: [worker]}]
  terminationGracePeriodSeconds: 0
  containers:
  - name: writer
    image: postgres:15
    command:
    - sh
    - -c
    - |
      sql() { psql 'host=db user=postgres connect_timeout=3 tcp_user_timeout=3000 keepalives_idle=1' -qc "$1"; }
      until sql 'create table if not exists rows (n bigint primary key)'; do sleep 0.2; done
      n=0
      while :; do sql "insert into rows values ($n)" && echo $n; n=$((n + 1)); sleep 0.05; done
"#;

fn image() -> HostImage {
    let mut image = HostImage::new("postgres:15", &["sh", "-c", START])
        .shell()
        .text("/etc/passwd", "postgres:x:999:999:postgres:/tmp:/bin/sh\n")
        .files("/usr/share/postgresql/15")
        .files("/usr/share/zoneinfo/UTC");
    for program in ["initdb", "pg_isready", "psql", "postgres"] {
        let path = format!("{HOME}/bin/{program}");
        image = image.program(Path::new(&path), &path);
        image = image.link(&format!("/usr/bin/{program}"), &path);
    }
    for library in ["dict_snowball.so", "plpgsql.so"] {
        image = image.files(&format!("{HOME}/lib/{library}"));
    }
    image
}

/// Returns the numbers of the acknowledged rows. A request fails while what answers it restarts.
fn acknowledged(s: &Session<'_>) -> BTreeSet<u64> {
    let log = until("the writer's log", || s.kubectl("logs writer").ok_if(|_| true));
    log.lines().filter_map(|line| line.parse().ok()).collect()
}

/// Waits until ten more rows are acknowledged.
fn continues(s: &Session<'_>, after: &str) {
    let before = acknowledged(s).len();
    until(&format!("rows after {after}"), || match acknowledged(s).len() {
        now if now >= before + 10 => Ok(()),
        now => Err(format!("{before} rows before, {now} now\n{}", s.kubectl("get pods -o wide"))),
    });
}

/// Kills a process of the second node.
fn kill_on_worker(cluster: &Cluster, role: &str) {
    let path = cluster.root().join(format!("nodes/worker/run/{role}.pid"));
    let text = fs::read_to_string(&path).unwrap();
    cluster.signal("KILL", text.split_whitespace().next().unwrap().parse().unwrap());
}

/// Kills all processes of the database as the kernel does when memory runs out.
fn kill_database(s: &Session<'_>) {
    let id = s.field("pod db-0", "{.status.containerStatuses[0].containerID}");
    let pids = s.cluster.pids_of(&id);
    assert!(pids.len() > 1, "the processes of {id}: {pids:?}");
    pids.iter().for_each(|pid| drop(s.on_node("kill", &["-s", "KILL", &pid.to_string()])));
    s.until("get pod db-0 -o jsonpath={.status.containerStatuses[0].restartCount}", |n| n == "1");
}

#[test]
fn database_keeps_acknowledged_rows_when_anything_is_killed() {
    let _turn = share_machine();
    let cluster = Cluster::new("postgres");
    cluster.up_with(&["--nodes", "2"]).ok();
    cluster.import(&image());
    let s = Session::in_default_namespace(&cluster);
    s.apply(DATABASE);
    s.kubectl("rollout status statefulset db --timeout=90s").ok();
    s.apply(WRITER);
    continues(&s, "the start");

    kill_database(&s);
    continues(&s, "the death of the database");
    for role in ["control-plane", "agent", "supervisor", "containerd"] {
        cluster.kill(role);
        continues(&s, &format!("the death of the first node's {role}"));
    }
    for role in ["agent", "containerd"] {
        kill_on_worker(&cluster, role);
        continues(&s, &format!("the death of the second node's {role}"));
    }
    s.kubectl("delete pod db-0").ok();
    continues(&s, "the deletion of the Pod");
    cluster.windlass(&["node", "stop", "worker"]).ok();
    s.until(
        "get pod db-0 -o jsonpath={.status.conditions[?(@.type==\"Ready\")].status}",
        |ready| ready == "False",
    );
    cluster.windlass(&["node", "start", "worker"]).ok();
    continues(&s, "the loss of the node");

    let wanted = acknowledged(&s);
    let query = [
        "exec",
        "db-0",
        "--",
        "psql",
        "-h",
        "/tmp",
        "-U",
        "postgres",
        "-Atc",
        "select n from rows",
    ];
    let stored = s.kubectl_with(&query, "").ok();
    let stored: BTreeSet<u64> = stored.lines().filter_map(|line| line.parse().ok()).collect();
    let lost: Vec<_> = wanted.difference(&stored).collect();
    assert!(lost.is_empty(), "acknowledged and lost: {lost:?}");
    cluster.down(&[]).ok();
}
