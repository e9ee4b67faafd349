//! Tekton runs a pipeline whose tasks share a volume and pass results, and its webhook refuses an empty task.

use std::time::Duration;

use e2e::{Cluster, Programs, Session, share_machine, until_within};

use super::metrics::rolled_out;

const PIPELINE: &str = r#"
apiVersion: tekton.dev/v1
kind: Task
metadata: {name: greet}
spec:
  params: [{name: who}]
  results: [{name: said}]
  workspaces: [{name: data}]
  steps:
  - name: write
    image: box:1
    command: [sh, -c]
    args: ['echo hello $(params.who) > $(workspaces.data.path)/$(params.who); echo -n $(params.who)2 > $(results.said.path)']
  - name: read
    image: box:1
    script: |
      #!/bin/sh
      cat $(workspaces.data.path)/*
---
apiVersion: tekton.dev/v1
kind: Pipeline
metadata: {name: twice}
spec:
  workspaces: [{name: data}]
  tasks:
  - name: first
    taskRef: {name: greet}
    params: [{name: who, value: world}]
    workspaces: [{name: data, workspace: data}]
  - name: second
    taskRef: {name: greet}
    params: [{name: who, value: $(tasks.first.results.said)}]
    workspaces: [{name: data, workspace: data}]
---
apiVersion: tekton.dev/v1
kind: PipelineRun
metadata: {name: run}
spec:
  pipelineRef: {name: twice}
  workspaces:
  - name: data
    volumeClaimTemplate: {spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 100Mi}}}}
"#;

/// The installation with images in place of Go packages, and of the digests of images in registries.
fn installation(programs: &Programs, cluster: &Cluster) -> String {
    let text = programs.manifest(cluster, "manifests/tekton/pipeline.yaml");
    let shell = text.lines().find(|line| line.contains("\"-shell-image\", ")).unwrap_or_default();
    let image = shell.split('"').nth(3).unwrap_or_default();
    text.replace(image, "box:1")
}

#[test]
fn tekton_runs_a_pipeline_and_refuses_an_empty_task() {
    let Some(programs) = Programs::of("tekton") else { return };
    let _turn = share_machine();
    let cluster = Cluster::new("tekton");
    cluster.up().ok();
    cluster.build_images();
    let s = Session::in_default_namespace(&cluster);
    cluster.apply(&installation(&programs, &cluster), &[]);
    for deployment in ["tekton-pipelines-webhook", "tekton-pipelines-controller"] {
        rolled_out(&s, "tekton-pipelines", deployment);
    }
    e2e::until("the pipeline", || s.kubectl_with(&["apply", "-f", "-"], PIPELINE).ok_if(|_| true));
    until_within(Duration::from_secs(180), "the end of the pipeline", || {
        let state = s.field("pipelinerun run", "{.status.conditions[0].status}");
        let pods = || s.kubectl("describe pods").stdout;
        if state == "True" { Ok(()) } else { Err(format!("{state}\n{}", pods())) }
    });
    let log = s.kubectl("logs -l tekton.dev/pipelineTask=second -c step-read").ok();
    assert!(log.contains("hello world\n") && log.contains("hello world2\n"), "{log}");
    let empty =
        "{apiVersion: tekton.dev/v1, kind: Task, metadata: {name: empty}, spec: {steps: []}}";
    let refused = s.kubectl_with(&["apply", "-f", "-"], empty).refused();
    assert!(
        refused.contains("denied the request: validation failed: missing field(s)"),
        "{refused}"
    );
    cluster.down(&[]).ok();
}
