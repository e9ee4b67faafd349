//! Deployments from creation to rollback, and single Pods.

use e2e::shared;

#[test]
fn creates_scales_updates_and_undoes_a_deployment() {
    let s = shared("workloads-deployment");
    s.deploy("web", "app:1", 3);
    let pods = s.kubectl("get pods -o wide").ok();
    assert_eq!(pods.matches("Running").count(), 3, "{pods}");
    s.kubectl("expose deployment web --port=80 --target-port=8080").ok();
    s.toolbox();
    assert!(s.fetch("web", "80").starts_with("version 1 on web-"));

    s.kubectl("scale deployment web --replicas=5").ok();
    s.available("web");
    assert_eq!(s.field("deployment web", "{.status.readyReplicas}"), "5");
    s.kubectl("scale deployment web --replicas=2 --current-replicas=5").ok();
    s.until("get pods -l app=web -o name", |names| names.lines().count() == 2);

    s.kubectl("set image deployment/web app=app:2").ok();
    s.available("web");
    s.fetch_until("web", "80", "version 2");
    let history = s.kubectl("rollout history deployment/web").ok();
    assert_eq!(history.lines().filter(|l| l.starts_with(char::is_numeric)).count(), 2, "{history}");

    s.kubectl("rollout undo deployment/web").ok();
    s.available("web");
    s.fetch_until("web", "80", "version 1");
    s.kubectl("rollout restart deployment/web").ok();
    s.available("web");
}

#[test]
fn paused_deployment_does_not_roll_out() {
    let s = shared("workloads-paused");
    s.deploy("web", "app:1", 1);
    s.kubectl("rollout pause deployment/web").ok();
    s.kubectl("set image deployment/web app=app:2").ok();
    s.until(
        "get deployment web -o jsonpath={.status.observedGeneration}/{.metadata.generation}",
        |seen| seen.split_once('/').is_some_and(|(a, b)| a == b),
    );
    assert_eq!(s.field("replicasets", "{.items[*].metadata.name}").split_whitespace().count(), 1);
    s.kubectl("rollout resume deployment/web").ok();
    s.available("web");
    assert_eq!(
        s.field(
            "pods -l app=web --field-selector=status.phase=Running",
            "{.items[0].spec.containers[0].image}"
        ),
        "app:2"
    );
}

#[test]
fn deployment_replaces_a_deleted_pod() {
    let s = shared("workloads-killed");
    s.deploy("web", "app:1", 1);
    let first = s.field("pods -l app=web", "{.items[0].metadata.name}");
    s.kubectl(&format!("delete pod {first} --wait=true")).ok();
    s.available("web");
    let second = s.field("pods -l app=web", "{.items[0].metadata.name}");
    assert_ne!(first, second);
}

#[test]
fn restarts_a_container_that_exits() {
    let s = shared("workloads-restart");
    s.kubectl_with(
        &[
            "run",
            "brief",
            "--image=box:1",
            "--restart=Always",
            "--command",
            "--",
            "sh",
            "-c",
            "exit 3",
        ],
        "",
    )
    .ok();
    s.until("get pod brief -o jsonpath={.status.containerStatuses[0].restartCount}", |count| {
        count.parse::<u32>().is_ok_and(|n| n > 0)
    });
    let code = s.until(
        "get pod brief -o jsonpath={.status.containerStatuses[0].lastState.terminated.exitCode}",
        |code| !code.is_empty(),
    );
    assert_eq!(code, "3");
}

#[test]
fn pod_phase_follows_its_containers_exit_code() {
    let s = shared("workloads-ends");
    for (name, code, phase) in [("good", "0", "Succeeded"), ("bad", "7", "Failed")] {
        let script = format!("exit {code}");
        s.kubectl_with(
            &[
                "run",
                name,
                "--image=box:1",
                "--restart=Never",
                "--command",
                "--",
                "sh",
                "-c",
                &script,
            ],
            "",
        )
        .ok();
        s.until(&format!("get pod {name} -o jsonpath={{.status.phase}}"), |seen| seen == phase);
    }
}

#[test]
fn reports_why_a_pod_fits_no_node() {
    let s = shared("workloads-unfit");
    s.apply(
        r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"big"},"spec":{"containers":[
            {"name":"c","image":"app:1","resources":{"requests":{"cpu":"1000"}}}]}}"#,
    );
    s.until("describe pod big", |text| {
        text.contains("0/1 nodes are available: 1 Insufficient cpu")
    });
}

#[test]
fn reports_an_image_that_does_not_exist() {
    let s = shared("workloads-image");
    s.kubectl("run lost --image=lost:1 --image-pull-policy=Never").ok();
    s.until("get pod lost", |row| row.contains("ErrImageNeverPull"));
}

#[test]
fn config_maps_and_secrets_reach_environment_and_files() {
    let s = shared("workloads-config");
    s.kubectl("create configmap settings --from-literal=colour=blue").ok();
    s.kubectl("create secret generic keys --from-literal=word=sesame").ok();
    s.apply(
        r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"reader","labels":{"tier":"front"}},"spec":{
            "volumes":[{"name":"settings","configMap":{"name":"settings"}},{"name":"keys","secret":{"secretName":"keys"}},
                {"name":"about","downwardAPI":{"items":[{"path":"labels","fieldRef":{"fieldPath":"metadata.labels"}}]}},
                {"name":"scratch","emptyDir":{}}],
            "containers":[{"name":"c","image":"box:1",
                "env":[{"name":"COLOUR","valueFrom":{"configMapKeyRef":{"name":"settings","key":"colour"}}},
                    {"name":"WORD","valueFrom":{"secretKeyRef":{"name":"keys","key":"word"}}},
                    {"name":"NODE","valueFrom":{"fieldRef":{"fieldPath":"spec.nodeName"}}}],
                "volumeMounts":[{"name":"settings","mountPath":"/settings"},{"name":"keys","mountPath":"/keys"},
                    {"name":"about","mountPath":"/about"},{"name":"scratch","mountPath":"/scratch"}]}]}}"#,
    );
    s.kubectl("wait pod/reader --for=condition=Ready --timeout=90s").ok();
    let node = s.field("nodes", "{.items[0].metadata.name}");
    let environment = s.kubectl("exec reader -- env").ok();
    for line in
        ["COLOUR=blue", "WORD=sesame", &format!("NODE={node}"), "KUBERNETES_SERVICE_HOST=10.96.0.1"]
    {
        assert!(environment.lines().any(|l| l == line), "{line} is not in {environment}");
    }
    assert_eq!(s.kubectl("exec reader -- cat /settings/colour").ok(), "blue");
    assert_eq!(s.kubectl("exec reader -- cat /keys/word").ok(), "sesame");
    assert_eq!(s.kubectl("exec reader -- cat /about/labels").ok().trim(), "tier=\"front\"");
    s.kubectl("exec reader -- touch /scratch/file").ok();
    s.kubectl("exec reader -- cat /var/run/secrets/kubernetes.io/serviceaccount/token").ok();

    s.kubectl_with(&["patch", "configmap", "settings", "-p", r#"{"data":{"colour":"green"}}"#], "")
        .ok();
    // The kubelet refreshes volumes about every minute. A change of a label in a downward API volume triggers a
    // refresh.
    s.kubectl("label pod reader tier=back --overwrite").ok();
    s.until("exec reader -- cat /settings/colour", |colour| colour == "green");
    assert_eq!(s.kubectl("exec reader -- cat /about/labels").ok().trim(), "tier=\"back\"");
}

#[test]
fn init_containers_run_first_and_sidecars_stay() {
    let s = shared("workloads-init");
    s.apply(
        r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"staged"},"spec":{
            "volumes":[{"name":"work","emptyDir":{}}],
            "initContainers":[
                {"name":"first","image":"box:1","command":["sh","-c","echo first >/staged/order"],"volumeMounts":[{"name":"work","mountPath":"/staged"}]},
                {"name":"beside","image":"box:1","restartPolicy":"Always"},
                {"name":"second","image":"box:1","command":["sh","-c","echo second >>/staged/order"],"volumeMounts":[{"name":"work","mountPath":"/staged"}]}],
            "containers":[{"name":"main","image":"box:1","volumeMounts":[{"name":"work","mountPath":"/staged"}]}]}}"#,
    );
    s.kubectl("wait pod/staged --for=condition=Ready --timeout=90s").ok();
    assert_eq!(s.kubectl("exec staged -c main -- cat /staged/order").ok(), "first\nsecond\n");
    let row = s.kubectl("get pod staged").ok();
    assert!(row.contains("2/2"), "{row}");
}

#[test]
fn probes_control_readiness_and_restarts() {
    let s = shared("workloads-probes");
    s.apply(
        r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"probed"},"spec":{"containers":[{"name":"c","image":"app:1",
            "readinessProbe":{"exec":{"command":["test","-e","/tmp/ready"]},"periodSeconds":1},
            "livenessProbe":{"httpGet":{"port":8080,"path":"/index.html"},"periodSeconds":1,"failureThreshold":5}}]}}"#,
    );
    s.until("get pod probed", |row| row.contains("Running") && row.contains("0/1"));
    s.kubectl("exec probed -- touch /tmp/ready").ok();
    s.kubectl("wait pod/probed --for=condition=Ready --timeout=90s").ok();
    s.kubectl("exec probed -- rm /www/index.html").ok();
    s.until("get pod probed -o jsonpath={.status.containerStatuses[0].restartCount}", |count| {
        count != "0"
    });
}
