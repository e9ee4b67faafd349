//! Runs `kops validate cluster`: compares machines, Nodes and critical Pods with the specification, in any cloud.

mod checks;
#[cfg(test)]
mod fixtures;
mod report;

use client::{Client, Resource};
use kops_api::Object;
use kops_local::{COMMAND_PERIOD, check_cloud, list_objects};
use kops_store::Registry;
use tokio::time::{Instant, sleep};

pub(crate) use self::checks::Failure;
use self::{
    checks::{add_problems, find_failures, unreachable},
    report::Report,
};
use crate::{
    cloud::{CloudState, Observe, aws::AwsCloud, local::LocalCloud, metal::MetalCloud},
    environment::CommandEnvironment,
    error::Error,
    flags::{Connection, ValidateCluster},
    get,
};

/// The pause between two validations after an update.
const UPDATE_INTERVAL_SECONDS: i64 = 2;

impl ValidateCluster {
    /// Returns the flags with which an update waits for the cluster.
    pub(crate) fn for_update() -> Self {
        Self {
            cluster: None,
            wait: Some(api_config::GoDuration::from_secs(600)),
            count: 1,
            interval: api_config::GoDuration::from_secs(UPDATE_INTERVAL_SECONDS),
            kubeconfig: None,
            api: Connection::default(),
            output: "table".to_owned(),
        }
    }
}

pub(crate) async fn run(
    registry: &Registry,
    command: &ValidateCluster,
    name: &str,
    context: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    let cluster = get::find_cluster(registry, name)?;
    if let Some(cloud) = AwsCloud::open(registry, &cluster, context)? {
        return validate(registry, command, &cluster, &cloud, context).await;
    }
    if let Some(cloud) = MetalCloud::open(registry, &cluster)? {
        return validate(registry, command, &cluster, &cloud, context).await;
    }
    check_cloud(&cluster)?;
    let cloud = LocalCloud::new(registry, name, true);
    cloud.check_exists(name)?;
    validate(registry, command, &cluster, &cloud, context).await
}

async fn validate<C: Observe>(
    registry: &Registry,
    command: &ValidateCluster,
    cluster: &Object,
    cloud: &C,
    context: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    let (name, file) = (cluster.name(), command.kubeconfig.as_deref());
    let client = command.api.open(registry, cluster, file, COMMAND_PERIOD, context)?;
    let until =
        Instant::now() + command.wait.map(api_config::GoDuration::to_std).unwrap_or_default();
    let mut times = 0;
    if command.output == "table" {
        writeln!(context.out, "Validating cluster {name}\n")?;
    }
    loop {
        let Validation { state, failures } = validate_once(&client, cloud).await?;
        times = if failures.is_empty() { times + 1 } else { 0 };
        if times >= command.count.max(1) || (Instant::now() >= until && !failures.is_empty()) {
            let report = Report { cluster: name, state: &state, failures: &failures };
            return report.print(&command.output, context);
        }
        sleep(command.interval.to_std()).await;
    }
}

/// The observed state of a cluster, with the failed checks.
pub(crate) struct Validation {
    pub(crate) state: CloudState,
    pub(crate) failures: Vec<Failure>,
}

/// Observes a cluster and checks it. A silent API is a failure; a cloud that does not answer is an error.
pub(crate) async fn validate_once<C: Observe>(
    client: &Client,
    cloud: &C,
) -> Result<Validation, Error> {
    let observed = match cloud.observe(Some(client)).await {
        Ok(state) => match list_objects(client, &Resource::PODS, "kube-system").await {
            Ok(pods) => Ok((state, pods)),
            Err(error) => Err(error),
        },
        Err(Error::Unreachable(error)) => Err(error),
        Err(error) => return Err(error),
    };
    let (state, mut failures) = match observed {
        Ok((state, pods)) => {
            let failures = find_failures(&state, &pods, C::HAS_DNS);
            (state, failures)
        }
        Err(error) => {
            let state = cloud.observe(None).await?;
            let failures = unreachable(&state, &error.to_string());
            (state, failures)
        }
    };
    add_problems(&mut failures, cloud.problems()?, &state);
    Ok(Validation { state, failures })
}
