//! The phase `preflight` of `upgrade`: the cluster's health, the version skew policy, and the images.

use std::time::Duration;

use api_meta::Tree as _;
use bootstrap_core::{
    constants::{CONTROL_PLANE_LABEL, OWN_REPOSITORY},
    images as names,
    manifests::Component,
    upgrade::{PROGRAM, parse_version, violations},
};
use client::{Client, DeleteOptions, Resource};
use serde_json::{Value, json};

use super::{
    cluster_state::ClusterState,
    context::Ctx,
    corefile::{Corefile, deployment},
    machine::read_pod,
};
use crate::{
    Error, UpgradeError,
    error::io,
    host, images,
    node::Node,
    phase::{Outcome, PREFLIGHT, Phase},
    preflight,
};
use version::KUBERNETES_VERSION;

/// The time in which the Job of the health check completes.
const JOB_PATIENCE: Duration = Duration::from_secs(15);
const POLL: Duration = Duration::from_millis(250);

pub(super) const APPLY: Phase<Ctx> = Phase {
    name: PREFLIGHT,
    about: "Check the cluster's health and the versions, and get the images",
    run: |ctx| {
        Box::pin(async {
            println!("[preflight] Running pre-flight checks.");
            preflight::check(preflight::for_upgrade(&ctx.node), &ctx.ignored)?;
            preflight::check_runtime(&ctx.node, &ctx.ignored).await?;
            let client = ctx.node.client().await?;
            let state = ClusterState::read(&client).await?;
            check_cluster(ctx, &client, &state).await?;
            let target = format!("v{}", ctx.target);
            println!(
                "[upgrade/version] You have chosen to upgrade the cluster version to \"{target}\""
            );
            println!("[upgrade/versions] Cluster version: v{}", state.cluster);
            println!("[upgrade/versions] kubeadm version: {KUBERNETES_VERSION}");
            check_versions(ctx, &state)?;
            if !ctx.node.dry_run
                && let Some(confirm) = ctx.confirm
                && !confirm()?
            {
                return Err(UpgradeError::Declined.into());
            }
            get_images(ctx).await?;
            Ok(Outcome::done())
        })
    },
};

pub(super) const NODE: Phase<Ctx> = Phase {
    name: PREFLIGHT,
    about: "Check the machine and get the images",
    run: |ctx| {
        Box::pin(async {
            println!("[preflight] Running pre-flight checks.");
            preflight::check(preflight::for_upgrade(&ctx.node), &ctx.ignored)?;
            preflight::check_runtime(&ctx.node, &ctx.ignored).await?;
            get_images(ctx).await?;
            Ok(Outcome::done())
        })
    },
};

/// Checks what an upgrade needs from the cluster: a Job can run, all control planes are ready, this machine has the
/// static Pods of one, and the DNS server accepts the Corefile.
pub(super) async fn check_cluster(
    ctx: &Ctx,
    client: &Client,
    state: &ClusterState,
) -> Result<(), Error> {
    let node = &ctx.node;
    eprintln!("[upgrade] Running cluster health checks");
    let job = if node.dry_run { Ok(()) } else { run_job(client, node).await };
    let missing: Vec<String> = Component::CONTROL_PLANE
        .iter()
        .map(|component| component.file())
        .filter(|file| !node.layout.manifests().join(file).exists())
        .collect();
    let mut checks = preflight::unhealthy(job, &state.unready_control_planes, &missing);
    if deployment(ctx, client).await?.is_some() {
        let corefile = Corefile::read(ctx, client).await?;
        corefile.report();
        checks.push(corefile.check());
    }
    preflight::check(checks, &ctx.ignored)
}

/// Runs a Job of the sandbox image, as a proof that the cluster's controllers, scheduler and kubelets work.
async fn run_job(client: &Client, node: &Node) -> Result<(), Error> {
    let name = format!("upgrade-health-check-{:05x}", rt::random_in(0..0xf_ffff));
    let (jobs, namespace) = (Resource::JOBS, "kube-system");
    let failed = |operation| {
        let subject = format!("Job {namespace}/{name}");
        move |source| Error::Api { operation, subject, source }
    };
    let job = health_check(&name, &names::pause(&node.config.cluster));
    client.create::<_, Value>(&jobs, namespace, &job).await.map_err(failed("create"))?;
    let look = || async {
        let job: Value = client.get(&jobs, namespace, &name).await.map_err(failed("read"))?;
        let is_complete = |c: &Value| c["type"] == "Complete" && c["status"] == "True";
        if job.items("status.conditions").iter().any(is_complete) {
            return Ok(());
        }
        Err(Error::NotUp {
            what: format!("Job {namespace}/{name}"),
            waited: format!("{}s", JOB_PATIENCE.as_secs()),
            cause: format!("its status is {}", job["status"]),
        })
    };
    let completed = rt::retry(JOB_PATIENCE, POLL, |_| true, look).await;
    // The Job's TTL removes one that cannot be deleted now.
    let options =
        DeleteOptions { propagation_policy: Some("Background"), ..DeleteOptions::default() };
    let _ = client.delete(&jobs, namespace, &name, &options).await;
    completed
}

fn health_check(name: &str, image: &str) -> Value {
    json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": name, "namespace": "kube-system"},
        "spec": {
            "backoffLimit": 0, "activeDeadlineSeconds": JOB_PATIENCE.as_secs(), "ttlSecondsAfterFinished": 2,
            "template": {"spec": {
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 0,
                "securityContext": {"runAsUser": 999, "runAsGroup": 999, "runAsNonRoot": true},
                "tolerations": [{"key": CONTROL_PLANE_LABEL, "effect": "NoSchedule"}],
                "containers": [{"name": "upgrade-health-check", "image": image, "args": ["-v"]}],
            }},
        },
    })
}

fn check_versions(ctx: &Ctx, state: &ClusterState) -> Result<(), Error> {
    let own = parse_version(KUBERNETES_VERSION)?;
    let found = violations(&ctx.target, &own, &state.running(), ctx.options.allowed);
    if !found.fatal.is_empty() {
        return Err(UpgradeError::Fatal(found.fatal).into());
    }
    if found.bypassable.is_empty() {
        return Ok(());
    }
    if !ctx.options.force {
        return Err(UpgradeError::Bypassable(found.bypassable).into());
    }
    println!(
        "[upgrade/version] Found {} potential version compatibility errors but skipping since the --force flag is set:",
        found.bypassable.len()
    );
    found.bypassable.iter().for_each(|message| println!("\t- {message}"));
    Ok(())
}

/// Pulls images. Images of our own repository are built again if another binary built them.
async fn get_images(ctx: &mut Ctx) -> Result<(), Error> {
    let node = &ctx.node;
    if node.config.cluster.image_repository == OWN_REPOSITORY {
        let own = std::path::Path::new("/proc/self/exe");
        let mut program = host::file_digest(own).map_err(io("read", own))?;
        program.truncate(16);
        let manifest = node.layout.manifests().join(Component::ApiServer.file());
        let current = read_pod(&manifest).ok();
        let built_by = current.as_ref().and_then(|p| p.annotation(PROGRAM));
        if built_by != Some(&program) && !node.dry_run {
            println!("[upgrade/prepull] Building images from this binary");
            let mut own = images::of_node(&node.config.cluster);
            if ctx.is_control_plane() {
                own.extend(names::all(&node.config.cluster));
            }
            own.sort();
            own.dedup();
            own.retain(|image| names::is_own(image));
            node.containers.build(&own).await?;
            ctx.rebuilt = true;
        }
        ctx.program = Some(program);
    }
    println!("[upgrade/prepull] Pulling images required for setting up a Kubernetes cluster");
    if ctx.is_control_plane() {
        preflight::ensure_images(&ctx.node, &ctx.ignored).await
    } else {
        preflight::ensure_node_images(&ctx.node, &ctx.ignored).await
    }
}
